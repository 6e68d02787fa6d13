"""The model's beliefs as rows of an EstimateTable, level by level. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from isochrone.estimation.colos import known_colos
from isochrone.estimation.grid import LEAST_SQUARES, MOST_SQUARES, Places, Squares, square_of, squares_near
from isochrone.estimation.physics import Floats, Ints, distance_km
from isochrone.estimation.table import LEVELS
from isochrone_edge.latency_map import COUNTRY_SHIFT, EVERYWHERE, HOME_COLUMNS, HOME_ROWS, HOME_STEP, NOWHERE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from isochrone.estimation.aggregate import Aggregates
    from isochrone.estimation.fit import Model

MAP_BYTES = 500_000  # what cells may take of a map; the palette needs the rest
BYTES_A_NETWORK, BYTES_A_SQUARE = 5, 6  # the cells of countries in it among them
HOME_KM = 300.0  # how far from its main place a network is still at home
HOME_SHARE = 0.5  # of its samples; with less there, a network has no home


class Rows(NamedTuple):
    """k rows of one level."""

    level: str
    key: NDArray[np.uint64]
    rtt_ms: Floats
    samples: NDArray[np.int64]
    spread_ms: Floats
    home: NDArray[np.uint8]


class Sums(NamedTuple):
    """(p, m) samples of each network in each place, and where the samples say that it is."""

    samples: NDArray[np.int64]
    latitude: Floats  # (p,) NaN: no sample tells
    longitude: Floats


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
    networks = np.count_nonzero(sums.samples.sum(axis=1) >= min_samples)
    left = (MAP_BYTES - BYTES_A_NETWORK * networks) // BYTES_A_SQUARE
    squares = squares_near(places, int(np.clip(left, LEAST_SQUARES, MOST_SQUARES)))
    out = [
        *_networks(a, model, sums, min_samples),
        *_squares(model, squares, sums),
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
    pair = a.pair_asn.astype(np.int64) << 16 | a.pair_country
    finer = _merged("asn_country", pair, model, sums)
    asn, country = finer.key >> np.uint64(16), finer.key & np.uint64(0xFFFF)
    _, network, countries = np.unique(asn, return_inverse=True, return_counts=True)
    spanning = (countries[network] > 1) & (country > 0)
    own = _merged("asn", a.pair_asn.astype(np.int64), model, sums)
    return [
        Rows(part.level, *(column[kept & (part.samples.sum(axis=1) >= min_samples)] for column in part[1:]))
        for part, kept in ((finer, spanning), (own, np.ones(len(own.key), bool)))
    ]


def _merged(level: str, group: Ints, model: Model, sums: Sums) -> Rows:
    """A row for each group of places, ascending: its places by their share of the samples.

    Most networks are at home around one place: then the cell says what is true there, and is for clients there. One without
    such a home says what is true on average, for clients whose place nobody knows.
    """
    keys, at = np.unique(group, return_inverse=True)
    weight = np.maximum(sums.samples.sum(axis=1).astype(np.float64), 1e-9)
    located = ~np.isnan(sums.latitude)
    order = np.lexsort((weight, located, at))
    main = order[
        np.append(np.flatnonzero(np.diff(at[order])), len(order) - 1)
    ]  # the located place with the most samples
    apart = distance_km(sums.latitude, sums.longitude, sums.latitude[main][at], sums.longitude[main][at])
    there = apart <= HOME_KM  # never where the place is unknown
    total = np.bincount(at, weight * located)
    has_home = located[main] & (np.bincount(at, weight * there) >= HOME_SHARE * total)
    counts = np.where(has_home[at], there, 1.0) * weight
    share = (counts / np.bincount(at, counts)[at])[:, None]
    shape = (len(keys), model.rtt_ms.shape[1])
    rtt, variance, samples = np.zeros(shape), np.zeros(shape), np.zeros(shape, np.int64)
    np.add.at(rtt, at, model.rtt_ms * share)
    np.add.at(variance, at, (model.spread_ms * share) ** 2)
    np.add.at(samples, at, sums.samples)
    square = square_of(np.nan_to_num(sums.latitude[main]), np.nan_to_num(sums.longitude[main]), HOME_STEP)
    row, column = np.divmod(square, int(360 / HOME_STEP))
    home = row % HOME_ROWS * HOME_COLUMNS + column % HOME_COLUMNS
    home = np.where(has_home, home, np.where(located[main], NOWHERE, EVERYWHERE))
    return Rows(level, keys.astype(np.uint64), rtt, samples, np.sqrt(variance), home.astype(np.uint8))


def _squares(model: Model, squares: Squares, sums: Sums) -> list[Rows]:
    """Grid rows, and (country, square) rows where countries meet and a client's country changes the choice."""
    base = model.base_at(squares.latitude, squares.longitude)
    place = model.kriging.of_place(squares.latitude, squares.longitude)
    added = model.kriging.of_country(squares.countries)
    rtt, spread = model.believed(base, place + model.kriging.of_country(squares.country))
    located = np.flatnonzero(~np.isnan(sums.latitude))
    own = square_of(sums.latitude[located], sums.longitude[located], squares.step)
    out = [_counted(_rows("grid", squares.key, rtt, spread), own, sums.samples[located])]
    first = rtt.argmin(axis=1)
    for number, country in enumerate(squares.countries.tolist()):
        at = np.flatnonzero(squares.reached[:, number] & (squares.country != country))
        if not country or not len(at):
            continue
        here, here_spread = model.believed(base[at], place[at] + added[number])
        told = here.argmin(axis=1) != first[at]
        key = country << COUNTRY_SHIFT | squares.key[at[told]]
        out.append(_rows("country_grid", key, here[told], here_spread[told]))
    return out


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
        np.full(len(key), EVERYWHERE, np.uint8),
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
