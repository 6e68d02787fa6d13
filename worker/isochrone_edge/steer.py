"""Colour + what the map says of the origins -> ordered candidates and a reason. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from json import loads
from math import isfinite

from .alt_svc import CLEAR, field_value
from .bands import hashed, score
from .colour import facts_of
from .hosts import host_allowed, is_address
from .latency_map import Facts, LatencyMap
from .record import Record

_RANK = {"up": 0, "draining": 1, "down": 2}
_PLANS_KEPT = 2048
#: of an origin's id and a map's version: they stand in header fields, quoted strings and tracestate
_BARRED = frozenset('",;=\\')


class Origin(Record):
    """Where a request may go. `alt_svc` is the field value to answer with, "" when nothing is proved."""

    id: str
    host: str
    state: str = "up"
    alt_svc: str = ""
    weight: float = 1.0
    salt: int = 0  # of its name, for rendezvous hashing
    max_age: int = 0  # seconds for which `alt_svc` is promised
    authority: str = ""


class Plan(Record):
    """What to do with a request: candidates best first, and why. `colour` is -1 without a map.

    The first `band` of the candidates are so near each other that sessions are shared out between them.
    """

    origins: tuple[Origin, ...]
    reason: str
    colour: int = -1
    version: str = "none"
    band: int = 1

    def for_session(self, session: str) -> Plan:
        """The plan with the band in this session's own order; the same for the same session, always."""
        if self.band < 2:
            return self
        number = hashed(session)
        band = sorted(self.origins[: self.band], key=lambda o: -score(number, o.salt, o.weight))
        return self._replace(origins=(*band, *self.origins[self.band :]))


class Steering:
    """Plans for one map, or for the built-in order when there is none. Plans are made once a (level, colour).

    Raises ValueError, KeyError or TypeError when the map names an origin that could not be used safely.
    """

    def __init__(
        self,
        live: LatencyMap | None,
        built_in: Sequence[Origin] = (),
        *,
        promise: bool = True,
        clear: bool = False,
        band_ms: float = 0.0,
    ) -> None:
        self.map = live
        self._plans: dict[tuple[str, int], Plan] = {}
        self._seen: dict[str, Plan] = {}
        #: Unix time after which the map promises nothing, if it says so
        self.valid_until: float | None = None
        if live is None:
            self.origins = tuple(o._replace(alt_svc=CLEAR) if clear else o for o in built_in)
            self._built_in = Plan(self.origins, "no_map:built_in")
            return
        self.version = _safe(live.version, "the map's version")
        self.band_ms = float(live.meta.get("band_ms", band_ms))
        until = live.meta.get("valid_until")
        self.valid_until = float(until) if until is not None else None
        if self.valid_until is not None and not isfinite(self.valid_until):
            raise ValueError(f"its valid_until is {until}, which is no time")
        origins = tuple(_origin(o, promise=promise) for o in live.origins)
        # A client may still be pinned to an endpoint that is withdrawn now: whoever answers it without a promise of
        # its own tells it so.
        withdrawn = promise and any(origin.alt_svc == CLEAR for origin in origins)
        if clear or withdrawn:
            origins = tuple(o if o.alt_svc and not clear else o._replace(alt_svc=CLEAR) for o in origins)
        self.origins = origins
        # What every client may be left with: a map for which it can't be made is refused.
        self._make(live, "default", live.items("default")[0][1])

    def plan(self, facts: Facts) -> Plan:
        """The plan for a client."""
        if self.map is None:
            return self._built_in
        place = self.map.find(facts)
        plan = self._plans.get(place)
        if plan is None:
            if len(self._plans) >= _PLANS_KEPT:
                self._plans.clear()
            try:
                plan = self._make(self.map, *place)
            except (IndexError, ValueError):  # its cells are too many to be looked at before
                _, colour = self.map.items("default")[0]
                plan = self._make(self.map, "default", colour)
                plan = plan._replace(reason=plan.reason + ":damaged")
            self._plans[place] = plan
        return plan

    def plan_for(self, facts: str) -> Plan:
        """The plan for a client whose facts stand in a JSON list, in the order of `Facts`, as `request.cf` has them.

        Remembered by that very text: the next request of the same network from the same place costs one look.
        """
        plan = self._seen.get(facts)
        if plan is None:
            if len(self._seen) >= _PLANS_KEPT:
                self._seen.clear()
            plan = self._seen[facts] = self.plan(facts_of(*loads(facts)[:6]))
        return plan

    def promise(self, origin: Origin, now: float) -> str:
        """The Alt-Svc value for an answer from this origin, "" for none; never beyond what the map stands for."""
        until = self.valid_until
        if until is None or not origin.max_age or origin.alt_svc == CLEAR:
            return origin.alt_svc
        left = int(min(origin.max_age, until - now))
        return field_value(origin.authority, left) if left > 0 else ""

    def _make(self, live: LatencyMap, level: str, colour: int) -> Plan:
        order = live.order(colour)
        # A colour keeps only its best few; whoever is left follows in the order of the default, then of the map.
        rest = [*live.order(live.items("default")[0][1]), *range(len(self.origins))]
        named = [self.origins[index] for index in dict.fromkeys([*order, *rest])]
        ranked = sorted((o for o in named if o.host), key=lambda o: _RANK.get(o.state, 0))
        reason = live.reason(level, colour)
        if ranked and self.origins[order[0]] is not ranked[0]:
            reason += f":{self.origins[order[0]].state}"  # the nearest is not up
        band = self._band(live, colour, ranked)
        if band > 1:
            reason += ":band"
        return Plan(tuple(ranked), reason, colour, self.version, band)

    def _band(self, live: LatencyMap, colour: int, ranked: Sequence[Origin]) -> int:
        """How many of the first candidates are within `band_ms` of the best, all of them up."""
        if not self.band_ms or not ranked or ranked[0].state != "up":
            return 1
        rtt_ms = {candidate.origin: candidate.rtt_ms for candidate in live.candidates(colour)}
        best = rtt_ms.get(ranked[0].id)
        if best is None:
            return 1
        band = 0
        for origin in ranked:
            if origin.state != "up" or rtt_ms.get(origin.id, float("inf")) > best + self.band_ms:
                break
            band += 1
        return band


def built_in_origins(entries: Sequence[Mapping[str, object]]) -> tuple[Origin, ...]:
    """Origins from configuration, in its order. Nothing is promised for them: only a map knows what is proved.

    Raises ValueError, KeyError or TypeError for what is no list of origins.
    """
    if not isinstance(entries, list):
        raise TypeError("it is no list of objects with an id and a host")
    origins: dict[str, Origin] = {}
    for entry in entries:
        if not (isinstance(entry, dict) and isinstance(entry.get("host"), str) and "id" in entry):
            raise TypeError("it is no list of objects with an id and a host")
        host, name = entry["host"], _safe(str(entry["id"]), "an origin's id")
        if not host_allowed(host, frozenset()) or is_address(host) or not _labels(host):
            raise ValueError(f"{host!r} is not a host name")
        if name in origins:
            raise ValueError(f"two origins have the id {name!r}")
        origins[name] = Origin(name, host)
    return tuple(origins.values())


def _origin(entry: Mapping[str, object], *, promise: bool) -> Origin:
    name, host = _safe(str(entry["id"]), "an origin's id"), str(entry.get("host") or "")
    if host and not (host_allowed(host, frozenset()) and (is_address(host) or _labels(host))):
        raise ValueError(f"origin {name} has the host {host!r}, which is none")
    state, endpoint = _safe(str(entry.get("state", "up")), "an origin's state"), entry.get("alt_svc")
    weight = float(str(entry.get("weight", 1)))
    origin = Origin(name, host, state, "", weight if weight > 0 else 0.0, hashed(name))
    if not promise:
        return origin
    if state == "draining" or endpoint == CLEAR:
        return origin._replace(alt_svc=CLEAR)
    if isinstance(endpoint, dict):
        authority, max_age = endpoint["authority"], int(endpoint["ma"])
        return origin._replace(alt_svc=field_value(authority, max_age), max_age=max_age, authority=authority)
    return origin


def _labels(host: str) -> bool:
    """Whether every label of a host's name has 1 to 63 characters; its root may be written out."""
    labels = host.partition(":")[0].removesuffix(".").split(".")
    return all(0 < len(label) <= 63 for label in labels)


def _safe(text: str, what: str) -> str:
    if not 0 < len(text) <= 128 or any(not " " < c < "\x7f" or c in _BARRED for c in text):
        raise ValueError(f"{what} is {text!r}, which can't stand in a header field")
    return text
