"""Colour + what the map says of the origins -> ordered candidates and a reason. Pure."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .alt_svc import field_value
from .latency_map import Facts, LatencyMap

_RANK = {"up": 0, "draining": 1, "down": 2}
_PLANS_KEPT = 2048


class Origin(NamedTuple):
    """Where a request may go. `alt_svc` is the field value to answer with, "" when nothing is proved."""

    id: str
    host: str
    state: str = "up"
    alt_svc: str = ""


class Plan(NamedTuple):
    """What to do with a request: candidates best first, and why. `colour` is -1 without a map."""

    origins: tuple[Origin, ...]
    reason: str
    colour: int = -1
    version: str = "none"


class Steering:
    """Plans for one map, or for the built-in order when there is none. Plans are made once a (level, colour)."""

    def __init__(
        self, live: LatencyMap | None, built_in: Sequence[Origin] = (), *, promise: bool = True
    ) -> None:
        self.map = live
        self.origins = (
            tuple(built_in) if live is None else tuple(_origin(o, promise=promise) for o in live.origins)
        )
        self._plans: dict[tuple[str, int], Plan] = {}

    def plan(self, facts: Facts) -> Plan:
        """The plan for a client."""
        if self.map is None:
            return Plan(self.origins, "no_map:built_in")
        place = self.map.find(facts)
        plan = self._plans.get(place)
        if plan is None:
            if len(self._plans) >= _PLANS_KEPT:
                self._plans.clear()
            plan = self._plans[place] = self._make(self.map, *place)
        return plan

    def _make(self, live: LatencyMap, level: str, colour: int) -> Plan:
        order = live.order(colour)
        # A colour keeps only its best few; whoever is left follows in the order of the default, then of the map.
        rest = [*live.order(live.items("default")[0][1]), *range(len(self.origins))]
        named = [self.origins[index] for index in dict.fromkeys([*order, *rest])]
        ranked = sorted((o for o in named if o.host), key=lambda o: _RANK.get(o.state, 0))
        reason = live.reason(level, colour)
        if ranked and self.origins[order[0]] is not ranked[0]:
            reason += f":{self.origins[order[0]].state}"  # the nearest is not up
        return Plan(tuple(ranked), reason, colour, live.version)


def built_in_origins(entries: Sequence[Mapping[str, object]]) -> tuple[Origin, ...]:
    """Origins from configuration, in its order. Nothing is promised for them: only a map knows what is proved."""
    return tuple(Origin(str(entry["id"]), str(entry["host"])) for entry in entries)


def _origin(entry: Mapping[str, object], *, promise: bool) -> Origin:
    endpoint = entry.get("alt_svc")
    value = ""
    if promise and isinstance(endpoint, dict):
        value = field_value(endpoint["authority"], endpoint["ma"])
    return Origin(str(entry["id"]), str(entry.get("host") or ""), str(entry.get("state", "up")), value)
