"""The model: what was measured of each network -> what is believed of it, and of any place. Pure.

    base       the cheapest path by distance (`paths`)
    inflation  T = (rtt + OFFSET) / (base + OFFSET), over the network's own level (its last mile, alike to all origins)
    prior      kriging of T over places (`kriging`), for each network without itself
    posterior  measured T leaned on the prior (`shrinkage`): the measured shrinks a little, the unmeasured is inferred

docs/ESTIMATION.md tells what it was compared with, and on what data.
"""

from __future__ import annotations

from typing import NamedTuple

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

    def at(self, latitude: Floats, longitude: Floats, country: Ints) -> tuple[Floats, Floats]:
        """(k, m) believed of any k places, and its standard deviation, ms."""
        base = self.baseline(distances_km(latitude, longitude, self.origin_lat, self.origin_lon)) + OFFSET_MS
        t = np.maximum(self.kriging.predict(latitude, longitude, country), LEAST_INFLATION)
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
    mean, covariance = covariance_with_gaps(t[usable])
    full = t.copy()
    gaps = np.isnan(t).any(axis=1)
    if gaps.any():
        guess, _ = posterior(
            t[gaps], noise[gaps], np.broadcast_to(mean, (int(gaps.sum()), len(mean))), covariance
        )
        full[gaps] = np.where(np.isnan(t[gaps]), guess, t[gaps])
    level = np.maximum(np.median(full, axis=1, keepdims=True), LEAST_INFLATION)
    t, full, noise, base = t / level, full / level, noise / level**2, base * level

    values = np.hstack([full, level])[usable]
    kriging = krige(gather(lat[usable], lon[usable], networks.country[usable], values))
    prior = np.empty_like(t)
    prior[usable] = kriging.without_itself(values)[:, :-1]
    if not usable.all():
        rest = ~usable
        prior[rest] = kriging.predict(lat[rest], lon[rest], networks.country[rest])[:, :-1]
    errors = (t - prior)[usable]
    complete = ~np.isnan(errors).any(axis=1)
    if np.count_nonzero(complete) >= 3 * len(mean):
        covariance = covariance_of_errors(errors[complete])
    believed, variance = posterior(t, noise, prior, covariance)
    return Model(
        origin_lat, origin_lon, baseline, kriging, np.sqrt(np.diag(covariance)),
        np.maximum(base * np.maximum(believed, LEAST_INFLATION) - OFFSET_MS, LEAST_MS), base * np.sqrt(variance),
        judged.moved, judged.dropped,
    )  # fmt: skip
