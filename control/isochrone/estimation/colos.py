"""Where Cloudflare's colos are: places that stand for people where no sample tells of any."""

from __future__ import annotations

import csv
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from isochrone_edge.latency_map import letters

if TYPE_CHECKING:
    from isochrone.estimation.physics import Floats, Ints


class Colos(NamedTuple):
    """k colos, ascending by code."""

    code: Ints  # (k,) `letters` of the IATA code
    country: Ints  # (k,) `letters` of ISO 3166 alpha-2
    latitude: Floats  # (k,) degrees
    longitude: Floats


@lru_cache(maxsize=1)
def known_colos() -> Colos:
    """Those of 2023; see data/ATTRIBUTION.md."""
    text = (files("isochrone.estimation") / "data" / "colos_2023.csv").read_text(encoding="ascii")
    rows = sorted(csv.DictReader(text.splitlines()), key=lambda row: letters(row["colo"]) or 0)
    return Colos(
        np.array([letters(row["colo"]) for row in rows], np.int64),
        np.array([letters(row["country"]) for row in rows], np.int64),
        np.array([float(row["latitude"]) for row in rows]),
        np.array([float(row["longitude"]) for row in rows]),
    )
