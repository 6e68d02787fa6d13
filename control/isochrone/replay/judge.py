"""A map's choices against the best there was, and against what simpler rules would have chosen. Pure.

Regret is the round-trip time of a choice minus the least of the origins that the client was measured to. Nobody can be
judged on what was not measured: a choice is the first that was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from isochrone.estimation.colos import known_colos
from isochrone.estimation.physics import Floats, Ints, distances_km
from isochrone_edge.latency_map import Facts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from isochrone.model import Origin
    from isochrone.replay.clients import Clients
    from isochrone.replay.learn import Rules
    from isochrone_edge.latency_map import LatencyMap

FAR_MS = 10.0  # a difference that people notice
BASELINES = ("nearest", "one_best", "country")
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """n clients, each with what the map cost it and what every other rule would have."""

    regret_ms: Floats  # (n,)
    baseline_ms: dict[str, Floats]  # regret of each of BASELINES; NaN where it can't say
    level: NDArray[np.str_]  # (n,) which kind of cell decided
    choice: Ints  # (n,) index of the origin
    unmeasured: int  # clients whose first choice was none of the origins that they were measured to
    asn: Ints


def judge(clients: Clients, live: LatencyMap, rules: Rules, origins: Sequence[Origin]) -> Judged:
    """Judge clients that were measured to two origins or more each."""
    position = {origin.id: number for number, origin in enumerate(origins)}
    columns = [position[entry["id"]] for entry in live.origins]
    orders: dict[int, list[int]] = {}
    default = live.order(live.find(_NOBODY)[1])
    levels, choices, unmeasured = [], np.empty(len(clients.place), np.int64), 0
    for row, facts in enumerate(clients.facts()):
        level, colour = live.find(facts)
        order = orders.get(colour)
        if order is None:
            # As the edge does: the colour's candidates, then the default's, then whoever is left.
            rest = [*live.order(colour), *default, *range(len(columns))]
            order = orders[colour] = [columns[origin] for origin in dict.fromkeys(rest)]
        known = ~np.isnan(clients.rtt_ms[row])
        choices[row] = next(origin for origin in order if known[origin])
        unmeasured += not known[order[0]]
        levels.append(level)
    best = np.nanmin(clients.rtt_ms, axis=1)
    scores = _scores(clients, rules, origins)
    return Judged(
        _taken(clients.rtt_ms, choices) - best,
        {name: _regret(clients.rtt_ms, score) for name, score in scores.items()},
        np.array(levels, np.str_), choices, unmeasured, clients.place["asn"].astype(np.int64),
    )  # fmt: skip


def report(judged: Judged, users: Mapping[int, float] | None = None) -> dict[str, Any]:
    """What to decide on: overall, by level of cell, and weighted by users per ASN when they are given."""
    weight = np.ones(len(judged.regret_ms))
    document: dict[str, Any] = {
        "overall": summary(judged, weight),
        "by_level": {
            str(level): summary(judged, weight * (judged.level == level)) for level in np.unique(judged.level)
        },
        "first_choice_not_measured": judged.unmeasured,
    }
    if users is not None:
        _, network, clients = np.unique(judged.asn, return_inverse=True, return_counts=True)
        weight = np.array([users.get(asn, 0.0) for asn in judged.asn.tolist()]) / clients[network]
        asns = np.unique(judged.asn).tolist()
        document["weighted_by_users"] = {
            "asns": sum(users.get(asn, 0.0) > 0 for asn in asns),
            "file_share": _rounded(sum(users.get(asn, 0.0) for asn in asns) / (sum(users.values()) or 1.0)),
            "overall": summary(judged, weight),
            "by_level": {
                str(level): summary(judged, weight * (judged.level == level))
                for level in np.unique(judged.level)
            },
        }
    return document


def summary(judged: Judged, weight: Floats) -> dict[str, Any]:
    """Shares and regrets over the clients that weigh something."""
    told = weight > 0
    if not told.any():
        return {"clients": 0}
    regret, weight, total = judged.regret_ms[told], weight[told], float(weight.sum())
    against = {}
    for name in BASELINES:
        theirs = judged.baseline_ms[name][told]
        can = ~np.isnan(theirs)
        if can.any():
            w = weight[can] / weight[can].sum()
            gain = theirs[can] - regret[can]
            against[name] = {
                "clients": int(can.sum()),
                "wrong_share": _rounded(w @ (theirs[can] > 0)),
                "mean_regret_ms": _rounded(w @ theirs[can]),
                "better_by_10ms_share": _rounded(w @ (gain >= FAR_MS)),
                "worse_by_10ms_share": _rounded(w @ (gain <= -FAR_MS)),
                "better_by_10ms": int(np.count_nonzero(gain >= FAR_MS)),
                "worse_by_10ms": int(np.count_nonzero(gain <= -FAR_MS)),
            }
    return {
        "clients": int(told.sum()),
        "weight": _rounded(total),
        "wrong_share": _rounded(weight @ (regret > 0) / total),
        "regret_ms": {
            "mean": _rounded(weight @ regret / total),
            **{name: _rounded(_quantile(regret, weight, q)) for name, q in QUANTILES.items()},
        },
        "against": against,
    }


class _Place(NamedTuple):
    latitude: Floats
    longitude: Floats


def _scores(clients: Clients, rules: Rules, origins: Sequence[Origin]) -> dict[str, Floats]:
    """(n, m) of each rule, the least is its choice."""
    place = _placed(clients)
    nearest = distances_km(
        place.latitude, place.longitude,
        np.array([o.latitude for o in origins]), np.array([o.longitude for o in origins]),
    )  # fmt: skip
    one_best = np.broadcast_to(rules.one_best, clients.rtt_ms.shape)
    country = clients.place["country"].tolist()
    # A country that was never measured: whoever chooses by country takes the nearest there.
    fallback = np.where(np.isnan(nearest), one_best, nearest) + 1e6
    best = np.stack(
        [
            np.where(np.isfinite(score := rules.of_country.get(code, _UNKNOWN)), score, fallback[row])
            for row, code in enumerate(country)
        ]
    )
    return {"nearest": nearest, "one_best": one_best, "country": best}


def _placed(clients: Clients) -> _Place:
    """Where clients are: coordinates, else their colo's, else the middle of their country's colos; NaN: nobody knows."""
    latitude, longitude = (clients.place[name].astype(np.float64) for name in ("latitude", "longitude"))
    colos = known_colos()
    colo, country = (clients.place[name].astype(np.int64) for name in ("colo", "country"))
    at = np.minimum(np.searchsorted(colos.code, colo), len(colos.code) - 1)
    by_colo = np.isnan(latitude) & (colos.code[at] == colo)
    latitude[by_colo], longitude[by_colo] = colos.latitude[at[by_colo]], colos.longitude[at[by_colo]]
    for code in np.unique(country[np.isnan(latitude)]).tolist():
        homes, rows = colos.country == code, np.isnan(latitude) & (country == code)
        if homes.any():
            latitude[rows] = np.median(colos.latitude[homes])
            longitude[rows] = np.median(colos.longitude[homes])
    return _Place(latitude, longitude)


def _regret(rtt_ms: Floats, score: Floats) -> Floats:
    """Of the least score among the origins that were measured; NaN where there is no score."""
    known = ~np.isnan(rtt_ms)
    usable = np.where(known & ~np.isnan(score), score, np.inf)
    regret = _taken(rtt_ms, usable.argmin(axis=1)) - np.nanmin(rtt_ms, axis=1)
    told: Floats = np.where(np.isfinite(usable).any(axis=1), regret, np.nan)
    return told


def _taken(rtt_ms: Floats, choice: Ints) -> Floats:
    taken: Floats = rtt_ms[np.arange(len(rtt_ms)), choice]
    return taken


def _quantile(values: Floats, weight: Floats, q: float) -> float:
    """The least value at which the weights reach q of the total."""
    order = np.argsort(values, kind="stable")
    upto = np.cumsum(weight[order])
    at = int(np.searchsorted(upto, q * upto[-1] * (1 - 1e-12)))
    return float(values[order][min(at, len(values) - 1)])


def _rounded(value: Any) -> float:
    return round(float(value), 4)


_UNKNOWN = np.full(1, np.inf)
_NOBODY = Facts()
