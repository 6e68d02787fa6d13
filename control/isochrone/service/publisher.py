"""The daemon's one writer to KV: publishes the newest map when it must, and looks after what is live.

Measuring never waits for it. Trouble with KV is told in one sentence and tried again after growing pauses, for ever.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from isochrone.backoff import Backoff
from isochrone.publishing.kv import Kv
from isochrone.publishing.kv_errors import KvError, KvRateError
from isochrone.publishing.plan import Action, Guards, Live, Plan, plan_publish
from isochrone.publishing.publish import PublishError, apply, look
from isochrone.service.kv_state import KvState
from isochrone.service.ownership import Ownership
from isochrone.store.errors import StoreError
from isochrone.store.sqlite import Publication
from isochrone_edge.latency_map import LatencyMap, MapError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from isochrone.service.jobs import Jobs
    from isochrone.settings import Settings
    from isochrone.store.sqlite import Store

log = logging.getLogger(__name__)

OWNERSHIP = "publishing.ownership"
REQUESTS_OF_A_PUBLISH = 12  # each with kv.timeout_seconds
WRITE_SPACING_SECONDS = 1.1  # KV takes one write a second to a key
STALE_PAUSE_SECONDS = 5.0
SETTLED_SAMPLES = 20.0  # from where on medians and low quantiles predict well (Calder, IMC'15)
EXPECTED = (KvError, PublishError, StoreError, MapError)


@dataclass(slots=True)
class Publisher:
    """Owns the namespace for as long as `run` runs."""

    settings: Settings
    store: Store
    jobs: Jobs
    want_build: Callable[[], None]
    take_over: bool = False
    clock: Callable[[], float] = time.time
    backoff: Backoff = field(default_factory=Backoff)
    state: KvState = field(default_factory=KvState)
    live: LatencyMap | None = None  # the last map published or seen live
    _ownership: Ownership = field(default_factory=Ownership)
    _offered: bytes | None = None
    _evidence: float = 0.0
    _settled: tuple[bytes, bytes | None] | None = (
        None  # what was offered over which manifest, with nothing left to do
    )
    _damage: str = ""
    _written_at: float = 0.0
    _kv: Kv | None = None
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def recall(self) -> None:
        """Take up what the store and the state directory remember. Raises StoreError."""
        self._ownership = Ownership.load(self.store.state(OWNERSHIP))
        with suppress(OSError, MapError):  # only a memory: KV tells what is live as soon as it answers
            self.live = LatencyMap(self._file("published.map").read_bytes())

    def offer(self, data: bytes, evidence: float | None = None) -> None:
        """The newest map, built from so many good samples for each target and origin. One that still waits is forgotten.

        None: it rests on what the live map rests on.
        """
        self._offered = data
        self._evidence = (self._ownership.evidence or 0.0) if evidence is None else evidence
        self._wake.set()

    async def run(self) -> None:
        """Publish what is offered and look after what is live, until cancelled."""
        kv = self.settings.kv
        deadline = REQUESTS_OF_A_PUBLISH * kv.timeout_seconds if kv else 60.0
        try:
            while True:
                self._wake.clear()
                error = await self.jobs.run("publish", deadline, self._step, expected=EXPECTED)
                if error is None:
                    self.backoff.reset()
                    await self._rest()
                else:
                    await self._recover(error)
        finally:
            await self._close()

    async def _rest(self) -> None:
        """Until there is a new map, or it is time to look again."""
        pause = (
            STALE_PAUSE_SECONDS
            if self.state.state == "confirming"
            else self.settings.publishing.check_seconds
        )
        self.state.next_look_at = self.clock() + pause
        await asyncio.sleep(min(pause, max(0.0, self._written_at + WRITE_SPACING_SECONDS - self.clock())))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), pause)

    async def _recover(self, error: Exception) -> None:
        """After a failure: a pause that a new map does not shorten."""
        self.state.failures += 1
        self.state.state = getattr(error, "code", "error")
        self.state.problem = self.jobs.records["publish"].problem
        pause = self.backoff.next(error.retry_after or 0.0 if isinstance(error, KvRateError) else 0.0)
        self.state.next_look_at = self.clock() + pause
        await asyncio.sleep(pause)

    async def _step(self) -> None:
        if self._kv is None:
            # In a thread: loading the certificates of the system would hold up probes.
            self._kv = await asyncio.to_thread(self._client)
        live = await look(self._kv)
        await self._note(live)
        if live.raw and self._ownership.is_stale(live.version, self.clock()):
            self.state.state, self.state.problem = "confirming", f"KV still serves {live.version}"
            return
        data = self._offered
        if data is None or (not live.damage and self._settled == (data, live.raw)):
            return
        plan = await asyncio.to_thread(
            plan_publish, data, live, now=self.clock(), guards=self._guards(), own=self._ownership.own, last_good=self.live
        )  # fmt: skip
        if plan.action is Action.REPAIR and plan.manifest.version == live.version:
            # Never other bytes under a key that caches may hold: a new version, in a moment.
            self.want_build()
        elif plan.writes:
            await self._write(self._kv, plan)
        else:
            await self._leave(plan)
        self.take_over = False

    async def _note(self, live: Live) -> None:
        """Keep what was seen; damage is counted once for each time it appears."""
        state = self.state
        state.live, state.checked_at = live.version, self.clock()
        gone = live.raw is None and self._ownership.live is not None
        damage = live.damage or ("the manifest is gone from KV" if gone else "")
        if damage and damage != self._damage:
            state.damaged += 1
            state.last_damage, state.last_damage_at = damage, self.clock()
            log.error("what is live in KV is damaged: %s; it is published anew", damage)
        self._damage = damage
        if damage:
            state.state, state.problem = "damaged", damage
        elif state.state not in {"held", "refused"}:
            state.state, state.problem = "ok", ""
        if live.map is not None:
            self.live = live.map
        ownership = (
            self._ownership.adopts(live.version)
            if self.take_over and live.version
            else self._ownership.saw(live.version)
        )
        await self._keep(ownership)

    async def _write(self, kv: Kv, plan: Plan) -> None:
        version, evidence = plan.manifest.version, self._evidence
        await self._keep(self._ownership.intends(version))
        published = await apply(kv, plan, keep=self.settings.publishing.keep_maps)
        now = self._written_at = self.clock()
        await self._keep(self._ownership.published(version, plan.live.version, now, evidence))
        publication = Publication(
            published_at=now,
            version=version,
            sha256=plan.manifest.sha256,
            published_by="daemon",
            detail=plan.reason,
        )
        await asyncio.to_thread(self.store.add_publication, publication)
        await asyncio.to_thread(_save, self._file("published.map"), plan.data)
        self.live, self._damage = LatencyMap(plan.data), ""
        self.state.live = version
        self.state.publishes += 1
        self.state.state, self.state.problem = (
            ("ok", "") if published.confirmed else ("confirming", "KV serves the older map")
        )
        self._settled = (plan.data, None)  # the manifest is read at the next look
        log.info("published %s (%s: %s; %d bytes)", version, plan.action.value, plan.reason, len(plan.data))
        for warning in published.warnings:
            log.warning("%s", warning)

    async def _leave(self, plan: Plan) -> None:
        """Nothing is written, because nothing changed or because it may not be."""
        self._settled = (plan.data, plan.live.raw)
        if plan.action is Action.NOTHING:
            self.state.unchanged += 1
            await self._keep(self._ownership.confirmed(self._evidence))
            self.state.state, self.state.problem = "ok", ""
            log.debug("not published: %s", plan.reason)
            return
        kind = "held" if plan.moved is None else "refused"
        if kind == "held":
            self.state.held += 1
        else:
            self.state.refused += 1
            path = self._file("refused.map")
            await asyncio.to_thread(_save, path, plan.data)
            await self._keep(self._ownership.refuses(plan.manifest.version))
        if (self.state.state, self.state.problem) != (kind, plan.reason):
            log.error("publishing %s: %s", kind, plan.reason)
        self.state.state, self.state.problem = kind, plan.reason

    @property
    def settled_evidence(self) -> float:
        """Good samples for each target and origin from which a map counts as settled; half of what a short window can hold."""
        window = self.settings.estimation.window_seconds / self.settings.probing.interval_seconds
        return min(SETTLED_SAMPLES, window / 2)

    def _guards(self) -> Guards:
        publishing = self.settings.publishing
        return Guards(
            max_moved_share=publishing.max_moved_share,
            refresh_seconds=publishing.refresh_seconds,
            take_over=self.take_over,
            provisional=self._ownership.evidence is not None
            and self._ownership.evidence < self.settled_evidence,
            patient=True,
        )

    async def _keep(self, ownership: Ownership) -> None:
        if ownership != self._ownership:
            await asyncio.to_thread(self.store.set_state, OWNERSHIP, ownership.dump())
            self._ownership = ownership

    def _client(self) -> Kv:
        if self.settings.kv is None:
            raise PublishError("there is no [kv] in the configuration")
        return Kv.of(self.settings.kv)

    async def _close(self) -> None:
        if self._kv is not None:
            kv, self._kv = self._kv, None
            await kv.close()

    def _file(self, name: str) -> Path:
        return self.settings.service.state_dir / name


def _save(path: Path, data: bytes) -> None:
    """The whole file or the old one, also after a crash."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
