"""Samples -> a map, by the very steps of `isochrone map build`, and the simple rules to compare it with. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from isochrone.estimation.aggregate import aggregate
from isochrone.estimation.estimate import estimate
from isochrone.mapping.build import Report, build_map
from isochrone_edge.latency_map import LatencyMap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isochrone.estimation.aggregate import Aggregates
    from isochrone.estimation.physics import Floats
    from isochrone.estimation.samples import SampleColumns
    from isochrone.mapping.override import Override
    from isochrone.model import Origin
    from isochrone.settings import Estimation, Steering

DAY = 86_400.0


class Rules(NamedTuple):
    """What one would do without a map. Each is a score of origins, the least first; inf: never measured."""

    one_best: Floats  # (m,) how much longer than a network's mean this origin takes, on average
    of_country: dict[int, Floats]  # the same over the networks of one country, by `letters` of its code


class Learned(NamedTuple):
    """A map as the edge would hold it, with what it is compared with."""

    map: LatencyMap
    report: Report
    rules: Rules
    counts: dict[str, int]  # of the estimates: what was used and what was set aside


def learn(
    samples: SampleColumns,
    origins: Sequence[Origin],
    estimation: Estimation,
    steering: Steering,
    *,
    now: float,
    horizon_seconds: float = 0.0,
    previous: LatencyMap | None = None,
    overrides: Sequence[Override] = (),
) -> Learned:
    """Learn.

    Args:
        samples: to learn from; at least one of them must be inside the window that ends at `now`.
        origins: in the order that the samples count.
        estimation: `[estimation]`.
        steering: `[steering]`.
        now: Unix seconds.
        horizon_seconds: how long after `now` the map will be used.
        previous: the map before, for calm.
        overrides: first choices from configuration.

    Raises:
        NothingToBuildError: no sample can be used.
    """
    counted = aggregate(samples, origins, estimation, now)
    table = estimate(counted, origins, estimation, horizon_seconds=horizon_seconds)
    built = build_map(table, origins, settings=steering, previous=previous, now=now, overrides=overrides)
    return Learned(LatencyMap(built.data), built.report, rules_of(counted), table.counts)


def whole_window(samples: SampleColumns, estimation: Estimation) -> tuple[Estimation, float]:
    """Settings whose window holds all samples (a day at least), and the time of the last one."""
    now = float(samples.timestamp.max())
    span = max(DAY, now - float(samples.timestamp.min()) + 1.0)
    return estimation.model_copy(update={"window_seconds": span}), now


def rules_of(a: Aggregates) -> Rules:
    """Every network counts the same, whatever its samples; a network is compared over what it was measured to."""
    rtt = np.full((len(a.pair_asn), len(a.origins)), np.nan)
    rtt[a.pair, a.origin] = a.rtt_ms
    known = ~np.isnan(rtt)
    # Filled additively, so that an origin measured from far networks only does not look far itself.
    own = np.nansum(rtt, axis=1) / np.maximum(known.sum(axis=1), 1)
    column = np.nansum(rtt - own[:, None], axis=0) / np.maximum(known.sum(axis=0), 1)
    level = np.nansum(rtt - column, axis=1) / np.maximum(known.sum(axis=1), 1)
    excess = rtt - level[:, None]
    countries = a.pair_country.astype(np.int64)
    return Rules(
        _mean(excess),
        {code: _mean(excess[countries == code]) for code in np.unique(countries[countries > 0]).tolist()},
    )


def _mean(excess: Floats) -> Floats:
    known = np.count_nonzero(~np.isnan(excess), axis=0)
    mean: Floats = np.where(known > 0, np.nansum(excess, axis=0) / np.maximum(known, 1), np.inf)
    return mean
