"""Squares of the globe: which of them get a cell, the point that stands for each, and what countries meet there. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from isochrone.estimation.physics import EARTH_KM, Floats, Ints, unit_vectors

MAX_SQUARES = 12_000
#: (degrees, how many squares around a place's own): the first that gives few enough squares is taken
CHOICES = ((0.5, 2), (0.5, 1), (1.0, 1), (1.0, 0), (2.0, 0))
COUNTRY_REACH_KM = 300.0
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


def square_of(latitude: Floats, longitude: Floats, step: float) -> Ints:
    """(n,) keys, as the edge counts them."""
    rows, columns = int(180 / step), int(360 / step)
    row = np.clip(((latitude + 90) / step).astype(np.int64), 0, rows - 1)
    return row * columns + ((longitude + 180) / step).astype(np.int64) % columns


def squares_near(places: Places) -> Squares:
    """The squares at and around the places; finer where there are few."""
    for step, reach in CHOICES:
        keys = _around(places, step, reach)
        if len(keys) <= MAX_SQUARES:
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
    country = np.empty(len(keys), np.int64)
    points, known = unit_vectors(latitude, longitude), unit_vectors(places.latitude, places.longitude).T
    for start in range(0, len(keys), CHUNK):
        part = slice(start, start + CHUNK)
        country[part] = places.country[(points[part] @ known).argmax(axis=1)]
    return Squares(step, keys, latitude, longitude, country)


def other_countries(places: Places, squares: Squares) -> tuple[Ints, Ints]:
    """(index of the square, country) where a place of another country than the square's own is within reach."""
    codes, code = np.unique(places.country, return_inverse=True)
    limit = np.cos(COUNTRY_REACH_KM / EARTH_KM)
    points, known = (
        unit_vectors(squares.latitude, squares.longitude),
        unit_vectors(places.latitude, places.longitude).T,
    )
    found = []
    for start in range(0, len(points), CHUNK):
        square, place = np.nonzero(points[start : start + CHUNK] @ known > limit)
        found.append(np.unique((square + start) * len(codes) + code[place]))
    pairs = np.concatenate(found) if found else np.zeros(0, np.int64)
    square, country = pairs // max(1, len(codes)), codes[pairs % max(1, len(codes))]
    other = (country != squares.country[square]) & (country > 0)
    return square[other], country[other]


def _around(places: Places, step: float, reach: int) -> Ints:
    rows, columns = int(180 / step), int(360 / step)
    row, column = np.divmod(square_of(places.latitude, places.longitude, step), columns)
    offsets = np.arange(-reach, reach + 1)
    near_rows = np.clip(row[:, None, None] + offsets[None, :, None], 0, rows - 1)
    near_columns = (column[:, None, None] + offsets[None, None, :]) % columns
    return np.unique(near_rows * columns + near_columns)
