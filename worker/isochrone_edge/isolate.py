"""What the requests of one isolate share: plain data only, never a task, lock or future of asyncio. Clock passed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from .bands import hashed, unit
from .breaker import Breaker
from .hosts import host_allowed
from .lane import Lane
from .latency_map import LatencyMap
from .snapshot import Snapshot
from .steer import Steering
from .variables import read

if TYPE_CHECKING:
    from .cache import Held
    from .hedge import Hedging
    from .snapshot import KV

_HOSTS_KEPT = 256
_LANES_KEPT = 2048
_CANARY = hashed(
    "canary"
)  # the same for each canary: a new one, or a larger share, moves no session that it needn't


def protocol_of(facts: str) -> str:
    """`request.cf.httpProtocol`, the last of a client's facts."""
    return facts[facts.rfind(",") + 2 : -2]


class Isolate:
    """Variables, maps, breaker, counters."""

    def __init__(self, get: Callable[[str], object], is_url: Callable[[str], bool] = bool) -> None:
        """State of an isolate.

        Args:
            get: the value of a variable by its name.
            is_url: whether the runtime takes a text for a URL.
        """
        self._is_url = is_url
        self.variables = variables = read(get)
        self.snapshot = Snapshot(variables.refresh)
        self.steering = self._steer(None)
        self.canary: Steering | None = None
        self.breaker = Breaker()
        self.breaker.among(origin.id for origin in variables.origins)
        self.hedging: Hedging | None = None
        self.held: Held | None = None  # with the cache alone
        if variables.hedge:
            from .hedge import Hedging, TokenBucket, Usual

            self.hedging = Hedging(TokenBucket(), Usual())
        self.counters = dict.fromkeys(
            ("requests", "failed", "refused", "retried", "hedged", "cut", "cache_hits", "cache_stored"), 0
        )
        #: scheme and host, seen and found good -> the Host field that says the same
        self.fronts: dict[str, str] = {}
        self.first_ms = 1000 * min(variables.limits.budget, variables.limits.each_try)
        self.lanes: dict[str, Lane | None] = {}
        #: whether there can be a quick way
        self.ordinary = not (
            variables.hedge
            or variables.cache_ttl
            or variables.log_share
            or any(status < 500 for status in variables.limits.retry_statuses)
        )
        self._judged: LatencyMap | None = None  # the maps that were made into a Steering, or refused
        self._judged_canary: LatencyMap | None = None
        self._refused: dict[str, str] = {}  # version -> why

    def cold(self) -> bool:
        """Whether there is no map yet, and nobody has looked for one."""
        return self.steering.map is None and not self.snapshot.counters["looks"]

    async def look(self, kv: KV, now: float) -> None:
        """Refresh the snapshot; steer by the new maps when there are any. Never raises."""
        snapshot = self.snapshot
        await snapshot.refresh(kv, now)
        if snapshot.map is not None and snapshot.map is not self._judged:
            self._judged = snapshot.map
            before = {origin.id for origin in self.steering.origins if origin.state == "down"}
            self.steering = self._try(snapshot.map) or self.steering
            for origin in self.steering.origins:
                if origin.id in before and origin.state == "up":
                    self.breaker.proved(origin.id)
        if snapshot.canary is None:
            self.canary = None
        elif snapshot.canary is not self._judged_canary:
            self.canary = self._try(snapshot.canary)
        self._judged_canary = snapshot.canary
        of_canary = self.canary.origins if self.canary is not None else ()
        self.breaker.among(origin.id for origin in (*self.steering.origins, *of_canary) if origin.host)
        self.lanes = {}

    def lane(self, facts: str) -> Lane | None:
        """The quick way for a client with these facts (as `Steering.plan_for` takes them); None when there is none."""
        try:
            return self.lanes[facts]
        except KeyError:
            pass
        lane = None
        if self.ordinary and self.canary is None:
            plan = self.steering.plan_for(facts)
            if plan.origins and plan.band < 2:
                lane = Lane(
                    self.steering,
                    plan,
                    protocol_of(facts),
                    within_ms=self.first_ms,
                    slow_ms=1000 * self.variables.slow,
                )
        if len(self.lanes) >= _LANES_KEPT:
            self.lanes.clear()
        self.lanes[facts] = lane
        return lane

    def problem(self) -> str:
        """Why the live map, or the canary, is not in use; "" when all is well."""
        for live in (self.snapshot.map, self.snapshot.canary):
            if live is not None and live.version in self._refused:
                return self._refused[live.version]
        return self.snapshot.problem

    def steering_for(self, headers: Mapping[str, str]) -> Steering:
        """The live map's, or the canary's for its share of the sessions and for whoever asks (`x-canary: 1`)."""
        canary = self.canary
        if canary is None:
            return self.steering
        asked = headers.get("x-canary")
        if asked is not None:
            return canary if asked == "1" else self.steering
        drawn = unit(hashed(self.session(headers)), _CANARY)
        return canary if drawn < self.snapshot.canary_share else self.steering

    def session(self, headers: Mapping[str, str]) -> str:
        """What a session is known by: the configured cookie or header, else the client's address."""
        kind, name = self.variables.session
        value = None
        if kind == "cookie":
            from .headers import cookie  # not before a session needs it

            value = cookie(headers, name)
        elif kind == "header":
            value = headers.get(name)
        return value or headers.get("cf-connecting-ip") or headers.get("x-forwarded-for") or ""

    def front(self, base: str, named: str) -> str | None:
        """What an origin is told of a request for this scheme and host; None when the host is not ours.

        Args:
            base: the URL up to its path.
            named: the Host field.
        """
        scheme, _, host = base.partition("://")
        site = self.variables.site
        if not (host_allowed(host, site) and (named == host or host_allowed(named, site))):
            return None
        if base not in self.fronts and not self._is_url(base):  # 1.2.3.999
            return None
        if len(self.fronts) < _HOSTS_KEPT and scheme in ("http", "https"):
            self.fronts[base] = host
        return f'"x-forwarded-proto":"{scheme}","x-forwarded-host":"{host}"'

    def _try(self, live: LatencyMap) -> Steering | None:
        try:
            steering = self._steer(live)
            for origin in steering.origins:
                if origin.host and not self._is_url(f"https://{origin.host}/"):
                    raise ValueError(f"origin {origin.id} has the host {origin.host!r}, which is none")
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
            self._refused[live.version] = f"map {live.version} refused: {error}"
            self.snapshot.counters["damaged"] += 1
            return None
        return steering

    def _steer(self, live: LatencyMap | None) -> Steering:
        variables = self.variables
        return Steering(
            live,
            variables.origins,
            promise=variables.alt_svc == "on",
            clear=variables.alt_svc == "clear",
            band_ms=variables.band_ms,
        )
