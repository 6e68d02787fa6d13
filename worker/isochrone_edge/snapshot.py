"""Which maps are live: manifest, checksum, last good. One per isolate; plain data shared between requests."""

from __future__ import annotations

import hashlib
from random import random
from typing import TYPE_CHECKING, Any

from . import shallow
from .latency_map import LatencyMap, MapError

if TYPE_CHECKING:  # a class of type Protocol takes longer to make than all the others together
    from collections.abc import Awaitable
    from typing import Protocol

    class KV(Protocol):
        """What the snapshot asks of Workers KV; both give None for a key that is not there."""

        def text(self, key: str) -> Awaitable[str | None]: ...  # noqa: D102
        def data(self, key: str) -> Awaitable[bytes | None]: ...  # noqa: D102


MANIFEST_KEY = "map/current"
KV_FRESH_SECONDS = 30.0  # a value that is read more often comes from KV's own cache
GIVE_UP_SECONDS = (
    30.0  # a refresh that has not ended by then is taken for dead: its request may have been killed
)


class Snapshot:
    """Holds the last good map, and the canary beside it when the manifest names one. Times are seconds of one clock."""

    def __init__(self, refresh_seconds: float = 60.0) -> None:
        self.refresh_seconds = refresh_seconds
        self.map: LatencyMap | None = None
        self.canary: LatencyMap | None = None
        self.canary_share = 0.0  # of the sessions
        self.loaded_at = 0.0
        self.looked_at = 0.0  # the last good look
        self.problem = ""  # why the last look at KV brought nothing, "" when it was good
        self.counters = {"looks": 0, "loads": 0, "missing": 0, "damaged": 0, "unreachable": 0}
        self.next_look = 0.0  # no request needs to claim before
        self._looked = False
        self._brought = 0  # number of the look that the maps are from

    def claim(self, now: float) -> bool:
        """True for the one request that shall refresh now. Taken at once, so that no other request does too."""
        if self._looked and now < self.next_look:
            return False
        self._looked = True
        self.next_look = now + min(GIVE_UP_SECONDS, self.refresh_seconds)
        return True

    async def refresh(self, kv: KV, now: float) -> None:
        """Look at the manifest; load the maps it names when they are others. Never raises: the last good map stays."""
        self.counters["looks"] += 1
        number = self.counters["looks"]
        # Spread over 0.9 to 1.1 intervals, so that isolates do not look in step, but never more often than KV is fresh.
        spread = self.refresh_seconds * (0.9 + 0.2 * random())  # noqa: S311
        self.next_look = now + max(spread, min(self.refresh_seconds, KV_FRESH_SECONDS))
        self.problem = ""
        manifest: Any = None
        try:
            text = await kv.text(MANIFEST_KEY)
            if text is None:
                self._note("missing", f"no {MANIFEST_KEY} in KV")
                return
            manifest = shallow.loads(text)
            fresh = await self._map(kv, manifest, self.map)
        except Exception as error:  # noqa: BLE001 - whatever KV or a manifest brings, the last good map stays
            self._blame(error, "manifest refused" if manifest is None else "map refused")
            return
        if fresh is None or number < self._brought:  # a later look may have been quicker than this one
            return
        self._brought, self.looked_at = number, now
        if fresh is not self.map:
            self.map, self.loaded_at = fresh, now
            self.counters["loads"] += 1
        await self._look_at_canary(kv, manifest.get("canary"), number)

    async def _look_at_canary(self, kv: KV, entry: Any, number: int) -> None:
        if not isinstance(entry, dict):
            self.canary, self.canary_share = None, 0.0
            return
        try:
            share = float(entry.get("share", 0))
            fresh = await self._map(kv, entry, self.canary)
        except Exception as error:  # noqa: BLE001 - a bad canary costs nobody anything
            self._blame(error, "canary refused")
            return
        if fresh is not None and number == self._brought:
            self.canary, self.canary_share = fresh, min(1.0, max(0.0, share))

    async def _map(self, kv: KV, entry: Any, held: LatencyMap | None) -> LatencyMap | None:
        """The map that an entry of the manifest names: the one held, or a new one, or None when it is not there."""
        version, key, digest = entry["version"], entry["key"], entry["sha256"]
        if held is not None and held.version == version:
            return held
        data = await kv.data(key)
        if data is None:
            self._note("missing", f"no {key} in KV, though the manifest names it")
            return None
        if hashlib.sha256(data).hexdigest() != digest:
            raise MapError(f"{key} does not have the manifest's SHA-256")
        fresh = LatencyMap(data)
        if fresh.version != version:
            raise MapError(f"{key} holds version {fresh.version}, the manifest says {version}")
        return fresh

    def _blame(self, error: Exception, what: str) -> None:
        if isinstance(error, MapError):
            self._note("damaged", f"{what}: {error}")
        elif isinstance(error, (ValueError, KeyError, TypeError, AttributeError)):
            self._note("damaged", f"{what.replace('map', 'manifest')}: {error!r}")
        else:
            self._note("unreachable", f"KV not reachable: {error}")

    def _note(self, counter: str, problem: str) -> None:
        self.counters[counter] += 1
        self.problem = problem
