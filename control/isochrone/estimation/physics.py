"""Distances on the globe, and what light in fibre allows. Degrees, kilometres, milliseconds of round-trip time. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

EARTH_KM = 6371.0088
KM_PER_MS = 99.93  # of round-trip time: 2/3 of light's speed, there and back


def unit_vectors(latitude: Floats, longitude: Floats) -> Floats:
    """(n, 3) points on the unit sphere."""
    phi, lam = np.radians(latitude), np.radians(longitude)
    return np.stack([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)], axis=1)


def distances_km(lat_a: Floats, lon_a: Floats, lat_b: Floats, lon_b: Floats) -> Floats:
    """(n, k) great-circle distances between n places and k others."""
    dot = unit_vectors(lat_a, lon_a) @ unit_vectors(lat_b, lon_b).T
    chord2: Floats = np.clip(2.0 - 2.0 * dot, 0.0, 4.0)
    return 2 * EARTH_KM * np.arcsin(np.sqrt(chord2) / 2)


def distance_km(lat_a: Floats, lon_a: Floats, lat_b: Floats, lon_b: Floats) -> Floats:
    """(n,) distances between places pair by pair."""
    gap = unit_vectors(lat_a, lon_a) - unit_vectors(lat_b, lon_b)
    chord: Floats = np.sqrt(np.minimum(np.sum(gap * gap, axis=1), 4.0))
    return 2 * EARTH_KM * np.arcsin(chord / 2)


class Judged(NamedTuple):
    """Networks after a look at whether their place can be true."""

    rtt_ms: Floats  # (n, m) impossible single values set to NaN
    latitude: Floats
    longitude: Floats
    moved: int  # networks whose place contradicts two origins or more: put where they answer first
    dropped: int  # values that contradict the place alone


def judge_places(
    rtt_ms: Floats,
    latitude: Floats,
    longitude: Floats,
    located: Bools,
    origin_lat: Floats,
    origin_lon: Floats,
    slack_ms: float,
) -> Judged:
    """One impossible origin: that value is wrong. Two or more, or a guessed place: the place is, and the values are kept.

    Geolocation errs more often than a clock does; a network in the wrong city would lose just its nearest origins.
    """
    km = distances_km(latitude, longitude, origin_lat, origin_lon)
    with np.errstate(invalid="ignore"):
        bad = rtt_ms < km / KM_PER_MS - slack_ms
    count = np.count_nonzero(bad, axis=1)
    moved = (count >= 2) | ((count > 0) & ~located)
    dropped = bad & ~moved[:, None]
    first = np.where(np.isnan(rtt_ms), np.inf, rtt_ms).argmin(axis=1)
    return Judged(
        np.where(dropped, np.nan, rtt_ms),
        np.where(moved, origin_lat[first], latitude),
        np.where(moved, origin_lon[first], longitude),
        int(np.count_nonzero(moved)),
        int(np.count_nonzero(dropped)),
    )


def in_several_places(rtt_ms: Floats, origin_km: Floats, slack_ms: float) -> Bools:
    """(n,) networks that answer from several places (anycast): rtt(n, h) + rtt(n, o) is less than light needs from h to o."""
    known = np.where(np.isnan(rtt_ms), np.inf, rtt_ms)
    nearest = known.argmin(axis=1)
    best = known[np.arange(len(known)), nearest]
    short = (best[:, None] + known) < origin_km[nearest] / KM_PER_MS - slack_ms
    several: Bools = np.count_nonzero(short, axis=1) >= 2
    return several
