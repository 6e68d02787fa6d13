"""The model's beliefs as rows of an EstimateTable, level by level. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from isochrone.estimation.colos import known_colos
from isochrone.estimation.grid import Places, Squares, other_countries, square_of, squares_near
from isochrone.estimation.physics import Floats, Ints, distance_km
from isochrone.estimation.table import LEVELS
from isochrone_edge.latency_map import COUNTRY_SHIFT, EVERYWHERE, HOME_STEP, NOWHERE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from isochrone.estimation.aggregate import Aggregates
    from isochrone.estimation.fit import Model

HOME_KM = 300.0  # a network whose samples lie farther apart speaks only for clients whose place is unknown


class Rows(NamedTuple):
    """k rows of one level."""

    level: str
    key: NDArray[np.uint64]
    rtt_ms: Floats
    samples: NDArray[np.int64]
    spread_ms: Floats
    home: NDArray[np.uint16]


class Sums(NamedTuple):
    """(p, m) samples of each network, and where the samples say that it is."""

    samples: NDArray[np.int64]
    latitude: Floats  # (p,) NaN: no sample tells
    longitude: Floats
    reach_km: Floats  # (p,) how far the samples' places lie from the middle of them


def rows(a: Aggregates, model: Model, sums: Sums, min_samples: int) -> tuple[list[Rows], float]:
    """All rows, the default last, and the size of the grid's squares in degrees."""
    colos = known_colos()
    sites = model.kriging.sites
    places = Places(
        np.r_[sites.latitude, colos.latitude],
        np.r_[sites.longitude, colos.longitude],
        np.r_[sites.country, colos.country],
    )
    at_places, place_spread = model.at(places.latitude, places.longitude, places.country)
    by_country = _groups("country", places.country, at_places, place_spread)
    heard = a.pair_country.astype(np.int64)
    squares = squares_near(places)
    out = [
        *_networks(a, model, sums, min_samples),
        *_squares(model, places, squares, sums),
        _colos(a, model, sums),
        _counted(by_country, heard, sums.samples),
    ]
    continents = _continents(a, by_country)
    if continents is not None:
        out.append(_counted(continents, a.pair_continent.astype(np.int64), sums.samples))
    everything = np.zeros(len(at_places), np.int64)
    default = _groups("default", everything + 1, at_places, place_spread)
    out.append(default._replace(key=np.zeros(1, np.uint64), samples=sums.samples.sum(axis=0, keepdims=True)))
    return out, squares.step


def _networks(a: Aggregates, model: Model, sums: Sums, min_samples: int) -> list[Rows]:
    """ASN rows, and (ASN, country) rows for those that span several countries."""
    enough = sums.samples.sum(axis=1) >= min_samples
    home = square_of(np.nan_to_num(sums.latitude), np.nan_to_num(sums.longitude), HOME_STEP)
    home[sums.reach_km > HOME_KM] = NOWHERE
    home[np.isnan(sums.latitude)] = EVERYWHERE
    asns, network, countries = np.unique(a.pair_asn, return_inverse=True, return_counts=True)
    pairs = np.flatnonzero(enough & (countries[network] > 1) & (a.pair_country > 0))
    finer = Rows(
        "asn_country",
        a.pair_asn[pairs].astype(np.uint64) << np.uint64(16) | a.pair_country[pairs],
        model.rtt_ms[pairs], sums.samples[pairs], model.spread_ms[pairs], home[pairs].astype(np.uint16),
    )  # fmt: skip
    # An ASN's own cell: its countries by their share of the samples.
    weight = np.maximum(sums.samples.sum(axis=1).astype(np.float64), 1e-9)
    total = np.bincount(network, weight)
    share = (weight / total[network])[:, None]
    shape = (len(asns), model.rtt_ms.shape[1])
    rtt, variance, samples = np.zeros(shape), np.zeros(shape), np.zeros(shape, np.int64)
    np.add.at(rtt, network, model.rtt_ms * share)
    np.add.at(variance, network, (model.spread_ms * share) ** 2)
    np.add.at(samples, network, sums.samples)
    first = np.zeros(len(asns), np.int64)
    first[network[::-1]] = np.arange(len(network))[::-1]
    homes = home[first]
    apart = np.zeros(len(asns))
    np.maximum.at(
        apart, network,
        np.nan_to_num(distance_km(sums.latitude, sums.longitude, sums.latitude[first[network]], sums.longitude[first[network]])),
    )  # fmt: skip
    homes[(apart > HOME_KM) & (homes != EVERYWHERE)] = NOWHERE
    kept = samples.sum(axis=1) >= min_samples
    own = Rows("asn", asns.astype(np.uint64), rtt, samples, np.sqrt(variance), homes.astype(np.uint16))
    return [finer, Rows(own.level, *(column[kept] for column in own[1:]))]


def _squares(model: Model, places: Places, squares: Squares, sums: Sums) -> list[Rows]:
    """Grid rows, and (country, square) rows where countries meet and a client's country changes the choice."""
    rtt, spread = model.at(squares.latitude, squares.longitude, squares.country)
    located = np.flatnonzero(~np.isnan(sums.latitude))
    own = square_of(sums.latitude[located], sums.longitude[located], squares.step)
    grid = _counted(_rows("grid", squares.key, rtt, spread), own, sums.samples[located])
    square, country = other_countries(places, squares)
    other_rtt, other_spread = model.at(squares.latitude[square], squares.longitude[square], country)
    differs = other_rtt.argmin(axis=1) != rtt[square].argmin(axis=1)
    key = (country << COUNTRY_SHIFT | squares.key[square])[differs]
    return [grid, _rows("country_grid", key, other_rtt[differs], other_spread[differs])]


def _colos(a: Aggregates, model: Model, sums: Sums) -> Rows:
    """Known colos where they are; others where the networks are that reach them."""
    colos = known_colos()
    rtt, spread = model.at(colos.latitude, colos.longitude, colos.country)
    used = a.pair_colo.astype(np.int64)
    strange = (used > 0) & ~np.isin(used, colos.code)
    known = _rows("colo", colos.code, rtt, spread)
    if strange.any():
        other = _groups("colo", used[strange], model.rtt_ms[strange], model.spread_ms[strange])
        known = Rows(
            "colo", np.r_[known.key, other.key], np.vstack([known.rtt_ms, other.rtt_ms]),
            np.vstack([known.samples, other.samples]), np.vstack([known.spread_ms, other.spread_ms]),
            np.r_[known.home, other.home],
        )  # fmt: skip
    return _counted(known, used, sums.samples)


def _continents(a: Aggregates, by_country: Rows) -> Rows | None:
    """The mean of a continent's countries, as far as samples say which continent a country is on."""
    said = (a.pair_country > 0) & (a.pair_continent > 0)
    country, first = np.unique(a.pair_country[said].astype(np.int64), return_index=True)
    if not len(country):
        return None
    continent = a.pair_continent[said].astype(np.int64)[first]
    at = np.searchsorted(by_country.key.astype(np.int64), country)
    return _groups("continent", continent, by_country.rtt_ms[at], by_country.spread_ms[at])


def _groups(level: str, group: Ints, rtt_ms: Floats, spread_ms: Floats) -> Rows:
    """The mean of each group; group 0 is none."""
    keys, at = np.unique(group[group > 0], return_inverse=True)
    count = np.bincount(at, minlength=len(keys))[:, None]
    sums, spreads = np.zeros((len(keys), rtt_ms.shape[1])), np.zeros((len(keys), rtt_ms.shape[1]))
    np.add.at(sums, at, rtt_ms[group > 0])
    np.add.at(spreads, at, spread_ms[group > 0])
    return _rows(level, keys, sums / count, spreads / count)


def _rows(level: str, key: Ints, rtt_ms: Floats, spread_ms: Floats) -> Rows:
    return Rows(
        level, key.astype(np.uint64), rtt_ms, np.zeros(rtt_ms.shape, np.int64), spread_ms,
        np.full(len(key), EVERYWHERE, np.uint16),
    )  # fmt: skip


def _counted(found: Rows, cell: Ints, samples: NDArray[np.int64]) -> Rows:
    """The rows with the samples of the networks that are in their cell."""
    keys = found.key.astype(np.int64)
    order = np.argsort(keys)
    at = np.minimum(np.searchsorted(keys[order], cell), max(0, len(keys) - 1))
    there = keys[order][at] == cell if len(keys) else np.zeros(len(cell), bool)
    total = np.zeros(found.rtt_ms.shape, np.int64)
    np.add.at(total, order[at[there]], samples[there])
    return found._replace(samples=total)


def level_number(level: str) -> int:
    """The index into LEVELS."""
    return LEVELS.index(level)
