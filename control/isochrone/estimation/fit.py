"""The model: what was measured of each network -> what is believed of it, and of any place. Pure.

    base       the cheapest path by distance (`paths`)
    inflation  T = (rtt + OFFSET) / (base + OFFSET), over the network's own level (its last mile, alike to all origins)
    prior      kriging of T over places (`kriging`), for each network without itself
    posterior  measured T leaned on the prior (`shrinkage`): the measured shrinks a little, the unmeasured is inferred

docs/ESTIMATION.md tells what it was compared with, and on what data.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from isochrone.estimation.kriging import Kriging, gather, krige
from isochrone.estimation.paths import Baseline, origin_mesh
from isochrone.estimation.physics import Bools, Floats, Ints, distances_km, in_several_places, judge_places
from isochrone.estimation.shrinkage import (
    covariance_of_errors,
    covariance_with_gaps,
    noise_variance,
    posterior,
)

OFFSET_MS = 20.0  # below it milliseconds count, above it percents
SLACK_MS = 0.5
LEAST_INFLATION = 0.05
LEAST_MS = 0.1


class Networks(NamedTuple):
    """n networks x m origins."""

    rtt_ms: Floats  # (n, m) NaN: not measured
    samples: Floats  # (n, m)
    spread_ms: Floats  # (n, m) one standard error
    latitude: Floats  # (n,) degrees, all known
    longitude: Floats
    located: Bools  # (n,) whether the place is the samples' own word
    country: Ints  # (n,) 0: unknown

    def take(self, rows: Ints) -> Networks:
        """Some of them."""
        columns: list[Any] = [column[rows] for column in self]
        return Networks(*columns)


class Learnt(NamedTuple):
    """What `refit` needs beside."""

    usual: Floats  # (m,) inflation of a network of which nothing is known
    first_covariance: Floats  # (m, m) around it
    covariance: Floats  # (m, m) of the prior's errors
    prior: Floats  # (n, m) expected of each network without itself
    age_days: float


class Model(NamedTuple):
    """Fitted."""

    origin_lat: Floats
    origin_lon: Floats
    baseline: Baseline
    kriging: Kriging
    error: Floats  # (m,) standard deviation of the inflation where nothing was measured
    rtt_ms: Floats  # (n, m) believed of each network, complete
    spread_ms: Floats  # (n, m) one standard deviation of it
    moved: int
    dropped: int
    learnt: Learnt

    def at(self, latitude: Floats, longitude: Floats, country: Ints) -> tuple[Floats, Floats]:
        """(k, m) believed of any k places, and its standard deviation, ms."""
        base = self.base_at(latitude, longitude)
        return self.believed(base, self.kriging.predict(latitude, longitude, country))

    def base_at(self, latitude: Floats, longitude: Floats) -> Floats:
        """(k, m) what distance alone says, with the offset, ms."""
        return self.baseline(distances_km(latitude, longitude, self.origin_lat, self.origin_lon)) + OFFSET_MS

    def believed(self, base: Floats, inflation: Floats) -> tuple[Floats, Floats]:
        """Round-trip times, and their standard deviation, from `base_at` and (k, m + 1) of the kriging."""
        t = np.maximum(inflation, LEAST_INFLATION)
        scaled = base * t[:, -1:]
        # Below zero is possible and keeps the order; it is made presentable where it is written.
        return scaled * t[:, :-1] - OFFSET_MS, scaled * self.error


def fit(networks: Networks, origin_lat: Floats, origin_lon: Floats, *, age_days: float = 0.0) -> Model:
    """Fit to networks of which each has at least one figure. `age_days`: how old the figures are when they are used."""
    origin_km = distances_km(origin_lat, origin_lon, origin_lat, origin_lon)
    judged = judge_places(
        networks.rtt_ms,
        networks.latitude,
        networks.longitude,
        networks.located,
        origin_lat,
        origin_lon,
        SLACK_MS,
    )
    rtt, lat, lon = judged.rtt_ms, judged.latitude, judged.longitude
    several = in_several_places(rtt, origin_km, SLACK_MS)
    if several.all():
        several[:] = False  # then it is the origins' own places that are wrong
    baseline = Baseline(origin_mesh(rtt[~several], origin_km))
    base = baseline(distances_km(lat, lon, origin_lat, origin_lon)) + OFFSET_MS
    t = (rtt + OFFSET_MS) / base
    noise = noise_variance(rtt, networks.samples, networks.spread_ms, age_days) / base**2

    usable = ~several & ~np.isnan(rtt).all(axis=1)
    usual, covariance = covariance_with_gaps(t[usable])
    t, full, noise, level = _levelled(t, noise, usual, covariance)
    base *= level
    first = covariance

    values = np.hstack([full, level])[usable]
    kriging = krige(gather(lat[usable], lon[usable], networks.country[usable], values))
    prior = np.empty_like(t)
    prior[usable] = kriging.without_itself(values)[:, :-1]
    if not usable.all():
        rest = ~usable
        prior[rest] = kriging.predict(lat[rest], lon[rest], networks.country[rest])[:, :-1]
    errors = (t - prior)[usable]
    complete = ~np.isnan(errors).any(axis=1)
    if np.count_nonzero(complete) >= 3 * len(usual):
        covariance = covariance_of_errors(errors[complete])
    believed, variance = posterior(t, noise, prior, covariance)
    return Model(
        origin_lat, origin_lon, baseline, kriging, np.sqrt(np.diag(covariance)),
        *_presented(base, believed, variance), judged.moved, judged.dropped,
        Learnt(usual, first, covariance, prior, age_days),
    )  # fmt: skip


def refit(model: Model, networks: Networks, prior: Floats) -> tuple[Floats, Floats, Floats]:
    """Beliefs of k networks that were measured anew, their deviation and their prior, by a model that stays as it is.

    `prior` (k, m) is what `fit` expected of each without itself; NaN for networks that it did not know.
    """
    judged = judge_places(
        networks.rtt_ms, networks.latitude, networks.longitude, networks.located,
        model.origin_lat, model.origin_lon, SLACK_MS,
    )  # fmt: skip
    base = model.base_at(judged.latitude, judged.longitude)
    t = (judged.rtt_ms + OFFSET_MS) / base
    noise = (
        noise_variance(judged.rtt_ms, networks.samples, networks.spread_ms, model.learnt.age_days) / base**2
    )
    t, _, noise, level = _levelled(t, noise, model.learnt.usual, model.learnt.first_covariance)
    base *= level
    new = np.isnan(prior).any(axis=1)
    prior = prior.copy()
    prior[new] = model.kriging.predict(judged.latitude[new], judged.longitude[new], networks.country[new])[
        :, :-1
    ]
    believed, variance = posterior(t, noise, prior, model.learnt.covariance)
    return (*_presented(base, believed, variance), prior)


def _levelled(
    t: Floats, noise: Floats, usual: Floats, covariance: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """Inflation over the network's own level, the same without gaps, its noise, and the level (n, 1)."""
    full = t.copy()
    gaps = np.isnan(t).any(axis=1)
    if gaps.any():
        expected = np.broadcast_to(usual, (int(gaps.sum()), len(usual)))
        guess, _ = posterior(t[gaps], noise[gaps], expected, covariance)
        full[gaps] = np.where(np.isnan(t[gaps]), guess, t[gaps])
    level = np.maximum(np.median(full, axis=1, keepdims=True), LEAST_INFLATION)
    return t / level, full / level, noise / level**2, level


def _presented(base: Floats, believed: Floats, variance: Floats) -> tuple[Floats, Floats]:
    """Round-trip times and their standard deviation, ms."""
    rtt = np.maximum(base * np.maximum(believed, LEAST_INFLATION) - OFFSET_MS, LEAST_MS)
    return rtt, base * np.sqrt(variance)
