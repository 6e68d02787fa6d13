"""Which map is live: manifest, checksum, last good. One per isolate; plain data shared between requests."""

import hashlib
import json
from collections.abc import Awaitable
from random import random
from typing import Protocol

from .latency_map import LatencyMap, MapError

MANIFEST_KEY = "map/current"
GIVE_UP_SECONDS = (
    30.0  # a refresh that has not ended by then is taken for dead: its request may have been killed
)


class KV(Protocol):
    """What the snapshot asks of Workers KV; both give None for a key that is not there."""

    def text(self, key: str) -> Awaitable[str | None]: ...  # noqa: D102
    def data(self, key: str) -> Awaitable[bytes | None]: ...  # noqa: D102


class Snapshot:
    """Holds the last good map. Times are seconds of any one clock, passed in."""

    def __init__(self, refresh_seconds: float = 60.0) -> None:
        self.refresh_seconds = refresh_seconds
        self.map: LatencyMap | None = None
        self.loaded_at = 0.0
        self.problem = ""  # why the last look at KV brought nothing, "" when it was good
        self.counters = {"looks": 0, "loads": 0, "missing": 0, "damaged": 0, "unreachable": 0}
        self._next_look = 0.0
        self._looked = False

    def claim(self, now: float) -> bool:
        """True for the one request that shall refresh now. Taken at once, so that no other request does too."""
        if self._looked and now < self._next_look:
            return False
        self._looked = True
        self._next_look = now + min(GIVE_UP_SECONDS, self.refresh_seconds)
        return True

    async def refresh(self, kv: KV, now: float) -> None:
        """Look at the manifest; load the map it names when that is another. Never raises: the last good map stays."""
        self.counters["looks"] += 1
        # Spread over 0.9 to 1.1 intervals, so that isolates do not look in step.
        self._next_look = now + self.refresh_seconds * (0.9 + 0.2 * random())  # noqa: S311
        try:
            self.problem = await self._load(kv, now)
        except (OSError, RuntimeError) as error:
            self._note("unreachable", f"KV not reachable: {error}")
        except MapError as error:
            self._note("damaged", f"map refused: {error}")
        except (ValueError, KeyError, TypeError) as error:
            self._note("damaged", f"manifest refused: {error!r}")

    async def _load(self, kv: KV, now: float) -> str:
        text = await kv.text(MANIFEST_KEY)
        if text is None:
            self.counters["missing"] += 1
            return f"no {MANIFEST_KEY} in KV"
        manifest = json.loads(text)
        version, key, digest = manifest["version"], manifest["key"], manifest["sha256"]
        if self.map is not None and self.map.version == version:
            return ""
        data = await kv.data(key)
        if data is None:
            self.counters["missing"] += 1
            return f"no {key} in KV, though the manifest names it"
        if hashlib.sha256(data).hexdigest() != digest:
            raise MapError(f"{key} does not have the manifest's SHA-256")
        fresh = LatencyMap(data)
        if fresh.version != version:
            raise MapError(f"{key} holds version {fresh.version}, the manifest says {version}")
        self.map, self.loaded_at = fresh, now
        self.counters["loads"] += 1
        return ""

    def _note(self, counter: str, problem: str) -> None:
        self.counters[counter] += 1
        self.problem = problem
