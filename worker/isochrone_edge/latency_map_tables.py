"""How a latency map's cells are known, kept and found: keys, squares, homes; tables over the map's own bytes.

Nothing is copied or counted when a map is loaded, but the few keys that many cells share.
"""

from __future__ import annotations

import struct
import sys
from bisect import bisect_left
from functools import lru_cache
from typing import TYPE_CHECKING

from .record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COUNTRY_SHIFT = 20  # of a (country, square) key: the country above, the square below
HOME_STEP = 2.0  # degrees
HOME_ROWS, HOME_COLUMNS = (
    16,
    15,
)  # a home is told up to whole multiples of 32 degrees north and 30 degrees east
EVERYWHERE = 0xFF  # the cell speaks for every client of its network
NOWHERE = 0xFE  # its samples come from places far apart: it speaks only for clients whose place is unknown
_DICT_UP_TO = 1024


class MapError(ValueError):
    """The bytes are not a latency map that this reader can use; the message says why."""


class Facts(Record):
    """What is known of a client. Absent means unknown, never 0."""

    asn: int | None = None
    country: str | None = None  # ISO 3166 alpha-2
    colo: str | None = None  # IATA
    continent: str | None = None  # two letters
    latitude: float | None = None
    longitude: float | None = None


def home_of(latitude: float, longitude: float) -> int:
    """The home of a network that is there."""
    row, column = int((latitude + 90) / HOME_STEP), int((longitude + 180) / HOME_STEP)
    return row % HOME_ROWS * HOME_COLUMNS + column % HOME_COLUMNS


def near(home: int, latitude: float | None, longitude: float | None) -> bool:
    """Whether a network's cell speaks for a client: one in the home's square or beside it, or whose place is unknown.

    A network measured in one city says little about its clients a thousand kilometres away; the squares there say more.
    """
    if home == EVERYWHERE or latitude is None or longitude is None:
        return True
    row, column = divmod(home, HOME_COLUMNS)
    north = (int((latitude + 90) / HOME_STEP) - row) % HOME_ROWS
    return (
        home != NOWHERE
        and north in _NORTH
        and (int((longitude + 180) / HOME_STEP) - column) % HOME_COLUMNS in _EAST
    )


_NORTH, _EAST = (0, 1, HOME_ROWS - 1), (0, 1, HOME_COLUMNS - 1)


@lru_cache(maxsize=4096)
def letters(text: str | None) -> int | None:
    """Letters and digits as a number in base 36; None for what is no such code of two or three characters."""
    if not text or not 2 <= len(text) <= 3 or not (text.isascii() and text.isalnum()):
        return None
    return int(text, 36)


def unletters(number: int, width: int) -> str:
    """The inverse of `letters`."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    text = ""
    for _ in range(width):
        number, rest = divmod(number, 36)
        text = digits[rest] + text
    return text


def grid_keys(step: float) -> Callable[[float, float], int]:
    """What gives the grid cell of a place, for squares of `step` degrees (a divisor of 180, at least 0.5).

    The cells are numbered row by row from the south pole, each row from 180 degrees west. Latitude and longitude have to be
    within -90 to 90 and -180 to 180.
    """
    rows, columns = int(180 / step), int(360 / step)

    def key(latitude: float, longitude: float) -> int:
        row = int((latitude + 90) / step)
        return (row if row < rows else rows - 1) * columns + int((longitude + 180) / step) % columns

    return key


def grid_key(latitude: float, longitude: float, step: float) -> int:
    """The grid cell of one place; see `grid_keys`."""
    return grid_keys(step)(latitude, longitude)


class Table:
    """Sorted keys of two bytes, then as many colours of two bytes."""

    def __init__(self, view: memoryview[int]) -> None:
        self.count = len(view) // 4
        self.keys = numbers(view[: self.count * 2], 2)
        self.values = numbers(view[self.count * 2 : self.count * 4], 2)
        #: key (None: unknown) -> colour. A few hundred colos are faster as a dict; of a fine grid one would take long to make
        self.get: Callable[[int | None], int | None] = self._search
        if self.count <= _DICT_UP_TO:
            known: dict[int | None, int] = dict(iter(self))
            self.get = known.get

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.keys, self.values, strict=True)

    def _search(self, key: int | None) -> int | None:
        if key is None:
            return None
        keys = self.keys
        index = bisect_left(keys, key)
        return self.values[index] if index < self.count and keys[index] == key else None


class SplitTable:
    """Wide keys, split: (upper part, end) pairs, then the lower parts of all keys, one or two bytes each, then colours.

    Few upper parts are in use: some 1,600 of ASNs without their last eight bits, some 1,500 of countries with ASNs without
    their last sixteen, four of squares of half a degree.
    """

    def __init__(self, view: memoryview[int], bits: int) -> None:
        (uppers,) = struct.unpack_from("<I", view)
        body, width = 4 + uppers * 8, bits // 8
        if body > len(view):
            raise MapError("a table is incomplete")
        heads = numbers(view[4:body], 4)
        self.count = heads[-1] if uppers else 0
        end = body + self.count * width
        self.bits = bits
        self.lowers = bytes(view[body:end]) if width == 1 else numbers(view[body:end], 2)
        self.values = numbers(view[end : end + self.count * 2], 2)
        if len(self.values) != self.count:
            raise MapError("a table is incomplete")
        ends = heads[1::2].tolist()
        self.spans = dict(zip(heads[::2].tolist(), zip([0, *ends], ends, strict=False), strict=True))

    def __len__(self) -> int:
        return self.count

    def find(self, key: int) -> int | None:
        """The colour of a key."""
        span = self.spans.get(key >> self.bits)
        if span is None:
            return None
        lower = key & (1 << self.bits) - 1
        index = bisect_left(self.lowers, lower, span[0], span[1])
        return self.values[index] if index < span[1] and self.lowers[index] == lower else None

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for upper, (start, end) in self.spans.items():
            for index in range(start, end):
                yield upper << self.bits | self.lowers[index], self.values[index]


def finder_by_asn(
    span_of: Callable[[int], tuple[int, int] | None],
    lowers: bytes,
    values: memoryview[int],
    homes: memoryview[int] | None,
) -> Callable[[Facts], int | None]:
    """What finds the colour of an ASN, from the parts of its table; `homes` is None when the map has none of them."""
    find = lowers.find  # a byte at the speed of memchr

    def by_asn(facts: Facts) -> int | None:
        asn = facts.asn
        if asn is None:
            return None
        span = span_of(asn >> 8)
        if span is None:
            return None
        index = find(asn & 0xFF, span[0], span[1])
        if index < 0 or (homes is not None and not near(homes[index], facts.latitude, facts.longitude)):
            return None
        return values[index]

    return by_asn


def finder_by_asn_country(
    span_of: Callable[[int], tuple[int, int] | None],
    lowers: bytes | memoryview[int],
    values: memoryview[int],
    homes: memoryview[int] | None,
) -> Callable[[Facts], int | None]:
    """The same of an ASN in a country."""

    def by_asn_country(facts: Facts) -> int | None:
        asn, country = facts.asn, facts.country
        if asn is None or country is None:
            return None
        number = letters(country)
        if number is None:
            return None
        span = span_of(number << 16 | asn >> 16)
        if span is None:
            return None
        start, end = span
        lower = asn & 0xFFFF
        index = bisect_left(lowers, lower, start, end)
        if index >= end or lowers[index] != lower:
            return None
        if homes is not None and not near(homes[index], facts.latitude, facts.longitude):
            return None
        return values[index]

    return by_asn_country


def finder_by_square(
    find: Callable[[int], int | None], step: float, *, of_country: bool
) -> Callable[[Facts], int | None]:
    """What finds the colour of the square of `step` degrees that a client is in, by the look-up of its table."""
    square = grid_keys(step)

    def by_square(facts: Facts) -> int | None:
        latitude, longitude = facts.latitude, facts.longitude
        if latitude is None or longitude is None or not (-90 <= latitude <= 90 and -180 <= longitude <= 180):
            return None  # NaN among them: no comparison with it holds
        key = square(latitude, longitude)
        if of_country:
            country = letters(facts.country)
            if country is None:
                return None
            key |= country << COUNTRY_SHIFT
        return find(key)

    return by_square


def numbers(view: memoryview[int], width: int) -> memoryview[int]:
    """Little-endian unsigned numbers of two or four bytes as a view; copied only on a big-endian machine."""
    if sys.byteorder == "big":  # pragma: no cover
        from array import array

        swapped = array("H" if width == 2 else "I", bytes(view))
        swapped.byteswap()
        return memoryview(swapped)
    return view.cast("H") if width == 2 else view.cast("I")
