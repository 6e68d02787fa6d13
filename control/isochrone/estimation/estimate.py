"""Aggregates -> estimates for every cell: networks speak for themselves, coarser cells through the median of their networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isochrone.estimation.quantiles import STEPS, WEIGHT_ONE, pack, summarise
from isochrone.estimation.table import LEVELS, EstimateTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from isochrone.estimation.aggregate import Aggregates
    from isochrone.model import Origin
    from isochrone.settings import Estimation


def estimate(
    aggregates: Aggregates, origins: Sequence[Origin], settings: Estimation, now: float
) -> EstimateTable:
    """Estimates for (ASN, country) where an ASN spans several countries, ASN, colo, country, continent and default.

    A (cell, origin) with fewer than `settings.min_samples` samples has no estimate. A row without any is left out,
    the default row always stands.
    """
    del now  # the samples were weighted by age when they were aggregated
    if aggregates.origins != tuple(origin.id for origin in origins):
        raise ValueError("the aggregates count other origins")
    a, pairs = aggregates, len(aggregates.pair_asn)
    asns, network = np.unique(a.pair_asn, return_inverse=True)
    spans = np.bincount(network, minlength=len(asns)) > 1
    own = (a.pair_asn.astype(np.uint64) << np.uint64(16)) | a.pair_country
    own[~(spans[network] & (a.pair_country != 0))] = 0
    parts = [
        _cells("asn_country", own, a, settings),
        _cells("asn", a.pair_asn.astype(np.uint64), a, settings),
        _cells("colo", a.pair_colo.astype(np.uint64), a, settings),
        _cells("country", a.pair_country.astype(np.uint64), a, settings),
        _cells("continent", a.pair_continent.astype(np.uint64), a, settings),
        _cells("default", np.ones(pairs, np.uint64), a, settings),
    ]
    level, key, rtt, samples, spread = (np.concatenate(column) for column in zip(*parts, strict=True))
    key[level == LEVELS.index("default")] = 0
    if not len(parts[-1][0]):  # nothing at all is known: the one row that must be there says so
        m = len(a.origins)
        level, key = np.r_[level, np.uint8(LEVELS.index("default"))], np.r_[key, np.uint64(0)]
        rtt, spread = (np.vstack([x, np.full((1, m), np.nan, np.float32)]) for x in (rtt, spread))
        samples = np.vstack([samples, np.zeros((1, m), np.int32)])
    return EstimateTable(
        origins=a.origins,
        level=level,
        key=key,
        rtt_ms=rtt,
        samples=samples,
        spread_ms=spread,
        counts=dict(a.counts),
    )


_Rows = tuple[
    "NDArray[np.uint8]",
    "NDArray[np.uint64]",
    "NDArray[np.float32]",
    "NDArray[np.int32]",
    "NDArray[np.float32]",
]


def _cells(level: str, key: NDArray[np.uint64], a: Aggregates, settings: Estimation) -> _Rows:
    """Rows of one level: the median of the votes of its networks. `key` names the cell of each pair; 0: none.

    In an ASN's own cell its countries vote, each by its share of the samples. In all others each ASN has one vote,
    divided evenly among its countries when several of them lie in the cell: one big network must not speak for all.
    """
    m = len(a.origins)
    keys, cell = np.unique(key, return_inverse=True)
    votes = np.flatnonzero(key[a.pair] != 0)
    group = cell[a.pair[votes]].astype(np.int64) * m + a.origin[votes]
    samples = np.bincount(group, a.samples[votes], minlength=len(keys) * m)
    if level == "asn":
        step = np.ceil(a.samples[votes] / samples[group] * (STEPS - 1)).astype(np.int64)
        weights = np.maximum(1, np.arange(STEPS))
    else:
        voter = group << 32 | a.asn[votes]
        _, back, shares = np.unique(voter, return_inverse=True, return_counts=True)
        step = np.minimum(shares[back], STEPS - 1)
        weights = WEIGHT_ONE // np.maximum(1, np.arange(STEPS))
    summary = summarise(pack(group, a.rtt_ms[votes], step), 0.5, weights.astype(np.int32))
    alone = np.full(len(keys) * m, np.nan, np.float32)
    alone[group] = a.spread_ms[votes]  # whole only where there is one vote, and used only there
    rtt, spread = (np.full(len(keys) * m, np.nan, np.float32) for _ in range(2))
    rtt[summary.group] = summary.value_ms
    spread[summary.group] = np.where(summary.samples == 1, alone[summary.group], summary.spread_ms)
    few = samples < settings.min_samples
    rtt[few] = spread[few] = np.nan
    samples[few] = 0
    known = ~np.isnan(rtt.reshape(-1, m)).all(axis=1)
    return (
        np.full(np.count_nonzero(known), LEVELS.index(level), np.uint8),
        keys[known].astype(np.uint64),
        rtt.reshape(-1, m)[known],
        np.minimum(samples, np.iinfo(np.int32).max).astype(np.int32).reshape(-1, m)[known],
        spread.reshape(-1, m)[known],
    )
