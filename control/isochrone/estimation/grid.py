"""Squares of the globe: which of them get a cell, the point that stands for each, and what countries meet there. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from isochrone.estimation.physics import EARTH_KM, Bools, Floats, Ints, unit_vectors

LEAST_SQUARES, MOST_SQUARES = 6_000, 40_000
#: (degrees, kilometres from a place): the first that gives few enough squares is taken
CHOICES = ((1.0, 1000.0), (1.0, 500.0), (2.0, 1000.0), (2.0, 500.0), (2.0, 0.0), (4.0, 0.0), (10.0, 0.0))
COUNTRY_REACH_KM = 2000.0
CHUNK = 2048


class Places(NamedTuple):
    """Where people are known to be: places of samples, and colos."""

    latitude: Floats
    longitude: Floats
    country: Ints  # 0: unknown


class Squares(NamedTuple):
    """k squares, ascending by key (`isochrone_edge.latency_map.grid_key`)."""

    step: float  # degrees
    key: Ints
    latitude: Floats  # the mean of the places inside, else the middle
    longitude: Floats
    country: Ints  # of the nearest place
    countries: Ints  # (c,) the codes that places have, ascending
    reached: Bools  # (k, c) whether a place of that country is so near that its clients may be here


def square_of(latitude: Floats, longitude: Floats, step: float) -> Ints:
    """(n,) keys, as the edge counts them."""
    rows, columns = int(180 / step), int(360 / step)
    row = np.clip(((latitude + 90) / step).astype(np.int64), 0, rows - 1)
    return row * columns + ((longitude + 180) / step).astype(np.int64) % columns


def squares_near(places: Places, most: int) -> Squares:
    """The squares at and around the places, at most `most` of them; finer and farther where places are few."""
    for step, reach_km in CHOICES:
        keys = _around(places, step, reach_km)
        if len(keys) <= most:
            break
    rows, columns = np.divmod(keys, int(360 / step))
    own = np.searchsorted(keys, square_of(places.latitude, places.longitude, step))
    count = np.bincount(own, minlength=len(keys))
    inside = np.maximum(count, 1)
    latitude = np.where(
        count > 0, np.bincount(own, places.latitude, len(keys)) / inside, (rows + 0.5) * step - 90
    )
    longitude = np.where(
        count > 0, np.bincount(own, places.longitude, len(keys)) / inside, (columns + 0.5) * step - 180
    )
    codes, near = _nearness(latitude, longitude, places)
    reached = near > np.cos(COUNTRY_REACH_KM / EARTH_KM)
    return Squares(step, keys, latitude, longitude, codes[near.argmax(axis=1)], codes, reached)


def _nearness(latitude: Floats, longitude: Floats, places: Places) -> tuple[Ints, Floats]:
    """The c countries of the places, and (k, c) the cosine of the angle to the nearest place of each."""
    order = np.argsort(places.country, kind="stable")
    codes, starts = np.unique(places.country[order], return_index=True)
    known = unit_vectors(places.latitude[order], places.longitude[order]).T
    points = unit_vectors(latitude, longitude)
    near = np.empty((len(points), len(codes)))
    for start in range(0, len(points), CHUNK):
        part = slice(start, start + CHUNK)
        near[part] = np.maximum.reduceat(points[part] @ known, starts, axis=1)
    return codes, near


def _around(places: Places, step: float, reach_km: float) -> Ints:
    rows, columns = int(180 / step), int(360 / step)
    own = np.unique(square_of(places.latitude, places.longitude, step))
    if not reach_km:
        return own
    row, column = np.divmod(np.arange(rows * columns), columns)
    # Single precision tells 3 km from nothing: enough for a reach of hundreds.
    points = unit_vectors((row + 0.5) * step - 90, (column + 0.5) * step - 180).astype(np.float32)
    row, column = np.divmod(own, columns)
    known = unit_vectors((row + 0.5) * step - 90, (column + 0.5) * step - 180).T.astype(np.float32)
    near = np.zeros(len(points), bool)
    near[own] = True
    for start in range(0, len(points), CHUNK):
        part = slice(start, start + CHUNK)
        near[part] |= (points[part] @ known).max(axis=1) > np.cos(reach_km / EARTH_KM)
    return np.flatnonzero(near)
