"""Which networks the samples name, and where their clients are: median coordinates, most frequent colo and continent.

A network is told apart by the squares in which it was measured. AS7018 in Dallas and AS7018 in New York are two places with
round-trip times of their own; taken together they would look like one that is near everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from isochrone.estimation.physics import distance_km

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MEMO_BITS = 19
_NO_PAIR = np.uint64(2**64 - 1)
_STRAY = 0.02  # a spot with a smaller share of a network's samples says nothing of where the network is
_SQUARE = np.uint32(200)  # hundredths of a degree
_COLUMNS = np.uint32(180)
_FOLD = 1 << 22  # distinct entries that may gather before they are counted together


class PlaceTable(NamedTuple):
    """p rows, one for each (ASN, country, square), ascending. `rank` leads from the numbers that `Places.add` gave to these rows."""

    rank: NDArray[np.int32]
    asn: NDArray[np.uint32]
    country: NDArray[np.uint16]
    latitude: NDArray[np.float32]
    longitude: NDArray[np.float32]
    reach_km: NDArray[np.float32]
    colo: NDArray[np.uint16]
    continent: NDArray[np.uint16]

    def take(self, rows: NDArray[np.integer]) -> PlaceTable:
        """Some of the rows; `rank` stays as it is."""
        columns: list[Any] = [column[rows] for column in self[1:]]
        return PlaceTable(self.rank, *columns)


class Places:
    """Numbers (ASN, country, square) triples as they come and gathers what their samples say about their place."""

    def __init__(self) -> None:
        self._known = np.zeros(0, np.uint64)  # ASN << 32 | country << 16 | square, ascending
        self._numbers = np.zeros(0, np.uint32)  # of each of them
        self._memo_key = np.full(1 << _MEMO_BITS, _NO_PAIR)
        self._memo_number = np.zeros(1 << _MEMO_BITS, np.uint32)
        self._spots = _Tally()
        self._colos = _Tally()

    def add(
        self,
        asn: NDArray[np.uint32],
        country: NDArray[np.uint16],
        colo: NDArray[np.uint16],
        continent: NDArray[np.uint16],
        latitude: NDArray[np.float32],
        longitude: NDArray[np.float32],
    ) -> NDArray[np.uint32]:
        """The number of each row's triple; equal ones have equal numbers, from 0 without gaps."""
        # To 0.01 degrees; the row is from 1, so that a known place is never 0. NaN becomes whatever and is replaced.
        with np.errstate(invalid="ignore"):
            row = ((latitude + np.float32(90)) * np.float32(100) + np.float32(1.5)).astype(np.uint32)
            column = ((longitude + np.float32(180)) * np.float32(100) + np.float32(0.5)).astype(np.uint32)
        spot = row << np.uint32(16) | column
        unknown = np.isnan(latitude) | np.isnan(longitude)
        spot[unknown] = 0
        square = (row - np.uint32(1)) // _SQUARE * _COLUMNS + column // _SQUARE % _COLUMNS + np.uint32(1)
        square[unknown] = 0
        number = self._number(
            asn.astype(np.uint64) << np.uint64(32) | country.astype(np.uint64) << np.uint64(16) | square
        )
        self._spots.add(number, spot, len(self._known))
        self._colos.add(number, colo.astype(np.uint32) << np.uint32(16) | continent, len(self._known))
        return number

    def _number(self, key: NDArray[np.uint64]) -> NDArray[np.uint32]:
        # A memo with one entry a slot finds nearly all rows; what it does not know is looked up in the sorted list.
        slot = (key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - _MEMO_BITS)
        number: NDArray[np.uint32] = self._memo_number[slot]
        missed = np.flatnonzero(self._memo_key[slot] != key)
        if len(missed):
            distinct, back = np.unique(key[missed], return_inverse=True)
            at = np.searchsorted(self._known, distinct)
            new = distinct != np.r_[self._known, _NO_PAIR][at]
            if new.any():
                numbers = np.arange(
                    len(self._known), len(self._known) + np.count_nonzero(new), dtype=np.uint32
                )
                self._known = np.insert(self._known, at[new], distinct[new])
                self._numbers = np.insert(self._numbers, at[new], numbers)
                at = np.searchsorted(self._known, distinct)
            found = self._numbers[at]
            number[missed] = found[back]
            slots = (distinct * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - _MEMO_BITS)
            self._memo_key[slots], self._memo_number[slots] = distinct, found
        return number

    def finish(self) -> PlaceTable:
        """What was gathered."""
        pairs = len(self._known)
        rank = np.zeros(pairs, np.int32)
        rank[self._numbers] = np.arange(pairs, dtype=np.int32)
        owner, spot, spots = self._spots.finish()
        home, names, times = self._colos.finish()
        owner, home = rank[owner].astype(np.int64), rank[home].astype(np.int64)
        rows, columns = (spot >> np.uint32(16)) - np.uint32(1), spot & np.uint32(0xFFFF)
        row, column = _median(pairs, owner, rows, spots), _median(pairs, owner, columns, spots)
        apart = distance_km(
            rows / 100 - 90, columns / 100 - 180, row[owner] / 100 - 90, column[owner] / 100 - 180
        )
        share = spots / np.maximum(np.bincount(owner, spots, pairs)[owner], 1)
        reach = np.zeros(pairs)
        np.maximum.at(reach, owner[share >= _STRAY], apart[share >= _STRAY])
        return PlaceTable(
            rank=rank,
            asn=(self._known >> np.uint64(32)).astype(np.uint32),
            country=(self._known >> np.uint64(16) & np.uint64(0xFFFF)).astype(np.uint16),
            latitude=(row / 100 - 90).astype(np.float32),
            longitude=(column / 100 - 180).astype(np.float32),
            reach_km=reach.astype(np.float32),
            colo=_most_frequent(pairs, home, names >> np.uint32(16), times),
            continent=_most_frequent(pairs, home, names & np.uint32(0xFFFF), times),
        )


class _Tally:
    """How often each number has each entry. Nearly every number has one entry only: that one is counted apart, quickly."""

    def __init__(self) -> None:
        self._usual = np.zeros(0, np.uint32)  # of each number, the first that came; 0: none came
        self._often = np.zeros(0, np.int64)  # how often it came
        self._entries: list[NDArray[np.uint64]] = []  # number << 32 | entry of the others
        self._counts: list[NDArray[np.int64]] = []
        self._waiting = 0

    def add(self, number: NDArray[np.uint32], entry: NDArray[np.uint32], numbers: int) -> None:
        """Count these rows. Entry 0 is none; `numbers` is above all numbers."""
        if numbers > len(self._usual):
            grown = max(numbers, 2 * len(self._usual), 1024)
            self._usual = _grown(self._usual, grown)
            self._often = _grown(self._often, grown)
        usual = self._usual[number]
        first = np.flatnonzero((usual == 0) & (entry != 0))
        if len(first):
            self._usual[number[first]] = entry[first]
            usual = self._usual[number]
        same = (usual == entry) & (entry != 0)
        if same.all():
            self._often += np.bincount(number, minlength=len(self._often))
            return
        self._often += np.bincount(number[same], minlength=len(self._often))
        other = (usual != entry) & (entry != 0)
        distinct, counts = np.unique(_joined(number[other], entry[other]), return_counts=True)
        self._entries.append(distinct)
        self._counts.append(counts)
        self._waiting += len(distinct)
        if self._waiting > max(_FOLD, len(self._entries[0])):  # so folding is never more work than gathering
            entries, counts = _count(np.concatenate(self._entries), np.concatenate(self._counts))
            self._entries, self._counts, self._waiting = [entries], [counts], 0

    def finish(self) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.int64]]:
        """Number, entry and count of all that came, in no particular order; no (number, entry) is there twice."""
        had = np.flatnonzero((self._usual != 0) & (self._often > 0))
        entries, counts = _count(
            np.concatenate([_joined(had, self._usual[had]), *self._entries]),
            np.concatenate([self._often[had], *self._counts]),
        )
        return (entries >> np.uint64(32)).astype(np.int64), entries.astype(np.uint32), counts


def _joined(number: NDArray[np.integer], entry: NDArray[np.uint32]) -> NDArray[np.uint64]:
    return number.astype(np.uint64) << np.uint64(32) | entry


def _grown(array: NDArray[Any], length: int) -> NDArray[Any]:
    return np.concatenate([array, np.zeros(length - len(array), array.dtype)])


def _count(
    entries: NDArray[np.uint64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Equal entries put together, ascending."""
    if not len(entries):
        return entries, counts
    order = np.argsort(entries)
    entries, counts = entries[order], counts[order]
    starts = np.flatnonzero(np.r_[True, entries[1:] != entries[:-1]])
    return entries[starts], np.add.reduceat(counts, starts)


def _median(
    pairs: int, owner: NDArray[np.int64], value: NDArray[np.uint32], count: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The lower median of each owner's values; NaN for owners without one."""
    result = np.full(pairs, np.nan)
    if len(owner):
        order = np.lexsort((value, owner))
        owner, value, count = owner[order], value[order], count[order]
        upto = np.cumsum(count)
        starts = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
        before = upto[starts] - count[starts]
        total = upto[np.r_[starts[1:], len(owner)] - 1] - before
        result[owner[starts]] = value[np.searchsorted(upto, before + (total + 1) // 2)]
    return result


def _most_frequent(
    pairs: int, owner: NDArray[np.int64], code: NDArray[np.uint32], count: NDArray[np.int64]
) -> NDArray[np.uint16]:
    """The code that each owner has most often, the smaller one when two are equally frequent; 0 is no code."""
    result = np.zeros(pairs, np.uint16)
    real = code != 0
    entries, counts = _count(_joined(owner[real], code[real]), count[real])
    codes = entries.astype(np.uint32)
    order = np.lexsort((~codes, counts))  # the last one written stays
    result[(entries[order] >> np.uint64(32)).astype(np.int64)] = codes[order]
    return result
