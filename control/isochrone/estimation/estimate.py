"""Aggregates -> estimates for every cell and origin: the model fitted, its beliefs laid out as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from isochrone.estimation.cells import Sums, level_number, rows
from isochrone.estimation.colos import known_colos
from isochrone.estimation.fit import LEAST_MS, Model, Networks, fit, refit
from isochrone.estimation.table import LEVELS, EstimateTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from isochrone.estimation.aggregate import Aggregates
    from isochrone.estimation.physics import Floats
    from isochrone.model import Origin
    from isochrone.settings import Estimation

DAY = 86_400.0
REFIT_SHARE = 0.1  # of the networks; when more of them changed, the model is fitted anew


def estimate(
    aggregates: Aggregates, origins: Sequence[Origin], settings: Estimation, *, horizon_seconds: float = 0.0
) -> EstimateTable:
    """Estimates for every cell.

    Args:
        aggregates: of these origins.
        origins: with their coordinates.
        settings: a network with fewer than `min_samples` samples gets no cell of its own.
        horizon_seconds: how long after the samples the estimates will be used; routes drift meanwhile.

    A table of nothing but NaN in its default row when there are no samples at all.
    """
    return estimate_again(None, aggregates, origins, settings, horizon_seconds=horizon_seconds)[0]


class Standing(NamedTuple):
    """What `estimate_again` knows from the last time."""

    key: NDArray[np.uint64]  # (n,) of the networks' places, ascending
    networks: Networks
    model: Model


def estimate_again(
    before: Standing | None,
    aggregates: Aggregates,
    origins: Sequence[Origin],
    settings: Estimation,
    *,
    horizon_seconds: float = 0.0,
) -> tuple[EstimateTable, Standing | None]:
    """As `estimate`, and what the next call wants as `before`.

    Where few networks have other figures than the last time, only their beliefs are made anew, by the model that was fitted then:
    how places and origins hang together does not change within hours. Of the same origins, or it is fitted anew.
    """
    a, m = aggregates, len(origins)
    if a.origins != tuple(origin.id for origin in origins):
        raise ValueError("the aggregates count other origins")
    if not len(a.pair_asn):
        return _empty(a), None
    shape = (len(a.pair_asn), m)
    rtt, spread = np.full(shape, np.nan), np.full(shape, np.nan)
    samples = np.zeros(shape, np.int64)
    rtt[a.pair, a.origin], spread[a.pair, a.origin], samples[a.pair, a.origin] = (
        a.rtt_ms,
        a.spread_ms,
        a.samples,
    )
    origin_lat = np.array([origin.latitude for origin in origins])
    origin_lon = np.array([origin.longitude for origin in origins])
    latitude, longitude = _placed(a, rtt, origin_lat, origin_lon)
    networks = Networks(
        rtt,
        samples.astype(np.float64),
        spread,
        latitude,
        longitude,
        ~np.isnan(a.pair_latitude),
        a.pair_country.astype(np.int64),
    )
    key, age_days = _keys(a), horizon_seconds / DAY
    model = None if before is None else _updated(before, key, networks, origin_lat, origin_lon, age_days)
    if model is None:
        model = fit(networks, origin_lat, origin_lon, age_days=age_days)
    sums = Sums(
        samples,
        a.pair_latitude.astype(np.float64),
        a.pair_longitude.astype(np.float64),
    )
    parts, grid_step = rows(a, model, sums, settings.min_samples)
    table = EstimateTable(
        origins=a.origins,
        level=np.concatenate([np.full(len(part.key), level_number(part.level), np.uint8) for part in parts]),
        key=np.concatenate([part.key for part in parts]),
        rtt_ms=_presentable(np.concatenate([part.rtt_ms for part in parts])).astype(np.float32),
        samples=np.minimum(np.concatenate([part.samples for part in parts]), np.iinfo(np.int32).max).astype(
            np.int32
        ),
        spread_ms=np.concatenate([part.spread_ms for part in parts]).astype(np.float32),
        home=np.concatenate([part.home for part in parts]),
        grid_step=grid_step,
        counts={**a.counts, "places_moved": model.moved, "values_dropped": model.dropped},
    )
    return table, Standing(key, networks, model)


def _keys(a: Aggregates) -> NDArray[np.uint64]:
    """A number for each network's place, ascending: ASN, country, square (see `places`)."""
    with np.errstate(invalid="ignore"):
        row = np.rint((a.pair_latitude.astype(np.float64) + 90) * 100) // 200
        column = np.rint((a.pair_longitude.astype(np.float64) + 180) * 100) // 200 % 180
    square = np.nan_to_num(row * 180 + column + 1).astype(np.uint64)
    network = a.pair_asn.astype(np.uint64) << np.uint64(32) | a.pair_country.astype(np.uint64) << np.uint64(
        16
    )
    return np.asarray(network | square, np.uint64)


def _updated(
    before: Standing,
    key: NDArray[np.uint64],
    networks: Networks,
    origin_lat: Floats,
    origin_lon: Floats,
    age_days: float,
) -> Model | None:
    """The model with the beliefs of changed networks made anew; None: so much is new that it has to be fitted."""
    model = before.model
    if not (
        np.array_equal(model.origin_lat, origin_lat)
        and np.array_equal(model.origin_lon, origin_lon)
        and model.learnt.age_days == age_days
    ):
        return None
    at = np.minimum(np.searchsorted(before.key, key), len(before.key) - 1)
    known = before.key[at] == key
    same = known & np.logical_and.reduce(
        [
            ((old[at] == new) | (np.isnan(old[at]) & np.isnan(new))).reshape(len(key), -1).all(axis=1)
            for old, new in zip(before.networks, networks, strict=True)
        ]
    )
    changed = np.flatnonzero(~same)
    if len(changed) > REFIT_SHARE * len(key):
        return None
    prior = np.where(known[:, None], model.learnt.prior[at], np.nan)
    rtt, spread = model.rtt_ms[at], model.spread_ms[at]
    if len(changed):
        found = refit(model, networks.take(changed), prior[changed])
        rtt[changed], spread[changed], prior[changed] = found
    return model._replace(rtt_ms=rtt, spread_ms=spread, learnt=model.learnt._replace(prior=prior))


def _presentable(rtt_ms: Floats) -> Floats:
    """Beliefs below the least time a path can take are lifted, the order among them kept."""
    low = rtt_ms < LEAST_MS
    squeezed = LEAST_MS * np.exp(np.minimum(rtt_ms - LEAST_MS, 0.0))
    lifted: Floats = np.where(low, squeezed, rtt_ms)
    return lifted


def _placed(a: Aggregates, rtt: Floats, origin_lat: Floats, origin_lon: Floats) -> tuple[Floats, Floats]:
    """Coordinates of every network: its samples' own, else its colo's, its country's middle, its nearest origin's."""
    latitude, longitude = a.pair_latitude.astype(np.float64), a.pair_longitude.astype(np.float64)
    colos = known_colos()
    at = np.minimum(np.searchsorted(colos.code, a.pair_colo), len(colos.code) - 1)
    by_colo = colos.code[at] == a.pair_colo
    country, located = a.pair_country.astype(np.int64), ~np.isnan(latitude)
    nearest = np.where(np.isnan(rtt), np.inf, rtt).argmin(axis=1)
    for code in np.unique(country[~located & ~by_colo]).tolist():
        rows = ~located & ~by_colo & (country == code)
        fellows, homes = located & (country == code), colos.country == code
        if code and fellows.any():
            latitude[rows], longitude[rows] = np.median(latitude[fellows]), np.median(longitude[fellows])
        elif code and homes.any():
            latitude[rows], longitude[rows] = (
                np.median(colos.latitude[homes]),
                np.median(colos.longitude[homes]),
            )
        else:
            latitude[rows], longitude[rows] = origin_lat[nearest[rows]], origin_lon[nearest[rows]]
    rows = ~located & by_colo
    latitude[rows], longitude[rows] = colos.latitude[at[rows]], colos.longitude[at[rows]]
    return latitude, longitude


def _empty(a: Aggregates) -> EstimateTable:
    m = len(a.origins)
    return EstimateTable(
        origins=a.origins,
        level=np.full(1, LEVELS.index("default"), np.uint8),
        key=np.zeros(1, np.uint64),
        rtt_ms=np.full((1, m), np.nan, np.float32),
        samples=np.zeros((1, m), np.int32),
        spread_ms=np.full((1, m), np.nan, np.float32),
        counts=dict(a.counts),
    )
