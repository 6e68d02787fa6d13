"""Which targets the next round probes: the list and its databases as they are now, and what earlier rounds have shown."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from isochrone.probing.selection import Selection
from isochrone.store.errors import StoreError
from isochrone.store.targets import save_target_states, target_states

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isochrone.model import Outcome, Target, TargetKey
    from isochrone.probing.target_source import TargetSource
    from isochrone.settings import Probing
    from isochrone.store.sqlite import Store

log = logging.getLogger(__name__)


class Choosing:
    """Raises from its constructor: StoreError."""

    def __init__(self, probing: Probing, source: TargetSource, store: Store) -> None:
        self._source = source
        self._store = store
        self._selection = Selection(
            source.allowed,
            target_states(store),
            per_asn=probing.targets_per_asn,
            interval_seconds=probing.interval_seconds,
        )
        #: the targets of the round under way; before the first one, those that are probed in every round
        self.targets: tuple[Target, ...] = tuple(self._selection.active())

    async def next_round(self, now: float) -> tuple[Target, ...]:
        """The targets of the round that begins now, in Unix seconds. What was told since the last call is judged and stored.

        Files that have changed are read here, while no probe of ours is under way that this could make late.
        """
        if await asyncio.to_thread(self._source.refresh, now):
            self._selection.replace(self._source.allowed)
        self.targets = tuple(self._selection.next_round(now))
        changed = self._selection.unsaved()
        try:
            await asyncio.to_thread(save_target_states, self._store, changed)
        except StoreError as error:  # they stay unsaved and are saved with the next ones
            log.warning("states of targets were not stored: %s", error)
        else:
            self._selection.saved(changed)
        return self.targets

    def told(self, outcomes: Mapping[TargetKey, Outcome]) -> None:
        """What probes came to, by target; of several the best counts. Strangers are ignored."""
        for key, outcome in outcomes.items():
            self._selection.note(key, outcome)

    @property
    def most(self) -> int:
        """No round has more targets than this."""
        return self._selection.most

    @property
    def active(self) -> int:
        """Targets that are probed in every round now."""
        return self.counts()["active"]

    def counts(self) -> dict[str, int]:
        """How many targets are listed, of how many ASNs, and how many are active, spare, given up and refused by manners."""
        refused = len(self._source.targets) - len(self._source.allowed)
        return self._selection.counts() | {"listed": len(self._source.targets), "refused": refused}

    def document(self, now: float) -> dict[str, Any]:
        """For `/status`."""
        return {
            **self.counts(),
            "doubted_rounds": self._selection.doubted,
            "problem": self._source.problem,
            "databases": [
                asdict(state) | {"age_seconds": round(now - state.built_at, 3)}
                for state in self._source.databases
            ],
        }
