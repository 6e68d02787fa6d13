"""The latency map: cells -> colours -> ranked candidates, one immutable value. docs/MAP_FORMAT.md has every byte.

Little-endian. A fixed prefix (magic, CRC-32 of all that follows it, length, major, minor, section count), a table of
sections (tag, offset, length), then the sections, each on a multiple of 8. Loading looks at the table and takes
views: no work that grows with the number of cells. A reader skips sections and JSON keys that it does not know, so
a newer minor version works; a newer major version is refused.
"""

from __future__ import annotations

import json
import math
import struct
import sys
import zlib
from bisect import bisect_left
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAGIC = b"ISOMAP\r\n"  # CR LF: a transfer that rewrites line ends is seen at once
MAJOR, MINOR = 1, 0
PREFIX = struct.Struct("<8sIIHHI")  # magic, crc32 of [12:], length, major, minor, sections
SECTION = struct.Struct("<4sII")  # tag, offset, length
CANDIDATE = struct.Struct("<BBH")  # origin index, evidence code, rtt in units of RTT_UNIT_MS
RTT_UNIT_MS = 0.02
RTT_MAX_MS = 65535 * RTT_UNIT_MS

#: colour flags, one byte a colour
OVERRIDE, HELD, INFERRED = 1, 2, 4

#: kinds of cell in the usual order of precedence, and the tags of their sections
KINDS = {
    "asn_country": b"ASNC",
    "asn": b"ASN ",
    "country_grid": b"CGRD",
    "grid": b"GRID",
    "colo": b"COLO",
    "country": b"CTRY",
    "continent": b"CONT",
}
#: kinds whose keys are wider than two bytes: how many bits of them are kept cell by cell, below those that many cells share
SPLIT_BITS = {"asn_country": 16, "asn": 8, "country_grid": 16, "grid": 16}
COUNTRY_SHIFT = 20  # of a (country, square) key: the country above, the square below

#: kinds whose cells may know where their network is, and the tags of these sections: one byte a cell, in the table's order
HOMES = {"asn_country": b"HASC", "asn": b"HASN"}
HOME_STEP = 2.0  # degrees
HOME_ROWS, HOME_COLUMNS = (
    16,
    15,
)  # a home is told up to whole multiples of 32 degrees north and 30 degrees east
EVERYWHERE = 0xFF  # the cell speaks for every client of its network
NOWHERE = 0xFE  # its samples come from places far apart: it speaks only for clients whose place is unknown
DEFAULT = "default"
_DICT_UP_TO = 1024


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


class MapError(ValueError):
    """The bytes are not a latency map that this reader can use; the message says why."""


class Facts(NamedTuple):
    """What is known of a client. Absent means unknown, never 0."""

    asn: int | None = None
    country: str | None = None  # ISO 3166 alpha-2
    colo: str | None = None  # IATA
    continent: str | None = None  # two letters
    latitude: float | None = None
    longitude: float | None = None


class Candidate(NamedTuple):
    """An origin that may serve a request. `samples` is a lower bound over the colour's cells; 0 means inferred."""

    origin: str
    rtt_ms: float
    samples: int


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


def evidence_code(samples: int) -> int:
    """A sample count in one byte: exact up to 128, then eight steps an octave, rounded down."""
    if samples <= 128:
        return max(0, samples)
    return min(255, 128 + int(8 * math.log2(samples / 128) + 1e-9))


def evidence_count(code: int) -> int:
    """The smallest count that has this code."""
    return code if code <= 128 else math.ceil(128 * 2 ** ((code - 128) / 8) - 1e-9)


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


class LatencyMap:
    """A map in memory. Raises MapError when `data` is damaged, cut short, or of a newer major version."""

    def __init__(self, data: bytes) -> None:
        view = memoryview(data)
        if len(view) < PREFIX.size:
            raise MapError(f"{len(view)} bytes are too few for a latency map")
        magic, crc, length, major, minor, count = PREFIX.unpack_from(view)
        if magic != MAGIC:
            raise MapError("not a latency map: it does not begin with ISOMAP")
        if length != len(view):
            raise MapError(f"it says {length} bytes long and is {len(view)}: cut short or added to")
        if zlib.crc32(view[12:]) != crc:
            raise MapError("checksum wrong: the bytes were altered")
        if major != MAJOR:
            raise MapError(f"format version {major}.{minor}; this reader knows {MAJOR}.x: upgrade it")
        try:
            self._read(view, count)
        except MapError:
            raise
        except (struct.error, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise MapError(f"its parts do not fit together: {error}") from error

    def _read(self, view: memoryview[int], count: int) -> None:
        sections: dict[bytes, memoryview[int]] = {}
        for index in range(count):
            tag, offset, length = SECTION.unpack_from(view, PREFIX.size + index * SECTION.size)
            if offset + length > len(view):
                raise MapError(f"section {tag!r} reaches past the end")
            sections[tag] = view[offset : offset + length]
        self.size = len(view)
        #: every section by its tag, those among them that this reader does not know
        self.sections = sections
        self.meta: dict[str, Any] = json.loads(bytes(sections[b"META"]))
        self.version: str = self.meta["version"]
        self.built_at = float(self.meta["built_at"])
        self.content: str = self.meta["content"]
        #: the origins as the map offers them: id, host, weight, state, alt_svc ({authority, ma} only when proved, "clear" when withdrawn), ...
        self.origins: list[dict[str, Any]] = json.loads(bytes(sections[b"ORIG"]))
        self._ids: list[str] = [origin["id"] for origin in self.origins]
        self._starts = _numbers(sections[b"PALO"], 4)
        self._palette = sections[b"PALC"]
        self._flags = sections[b"FLAG"]
        self.colours = len(self._starts) - 1
        if (
            self.colours < 1
            or len(self._flags) < self.colours
            or self._starts[-1] * CANDIDATE.size > len(self._palette)
        ):
            raise MapError("its palette is incomplete")
        self._default: int = self.meta["default"]
        if not 0 <= self._default < self.colours:
            raise MapError("its default names a colour that it does not have")
        self.grid_step = float(self.meta.get("grid_step") or 0)
        if (b"GRID" in sections or b"CGRD" in sections) and not 0.5 <= self.grid_step <= 180:
            raise MapError(f"its grid has squares of {self.grid_step} degrees")
        tables: dict[str, _Table | _SplitTable] = {}
        for kind, tag in KINDS.items():
            if tag in sections:
                bits = SPLIT_BITS.get(kind)
                tables[kind] = _SplitTable(sections[tag], bits) if bits else _Table(sections[tag])
        self._tables = tables
        #: kinds in the order in which this map wants them tried; unknown ones are a newer map's
        self._chain = [
            (kind, self._finder(kind)) for kind in self.meta.get("precedence", KINDS) if kind in tables
        ]

    def _finder(self, kind: str) -> Callable[[Facts], int | None]:
        """What finds the colour of a client's cell of one kind.

        The edge's hot path: one call a kind, all that it needs at hand, since a call or an attribute costs as much as a look-up.
        """
        table = self._tables[kind]
        values = table.values
        if isinstance(table, _SplitTable):
            span_of, lowers = table.spans.get, table.lowers
            homes = self.sections.get(HOMES.get(kind, b""))
            if homes is not None and len(homes) < len(table):
                raise MapError("a table of homes is incomplete")
            if kind == "asn":
                return _by_asn(span_of, lowers, values, homes)  # type: ignore[arg-type]
            if kind == "asn_country":
                return _by_asn_country(span_of, lowers, values, homes)
            return _by_square(table.find, self.grid_step, of_country=kind == "country_grid")
        get = table.get
        code_of = attrgetter(kind)
        return lambda facts: get(letters(code_of(facts)))

    @property
    def cells(self) -> int:
        """How many cells the map has, the default among them."""
        return 1 + sum(len(table) for table in self._tables.values())

    def find(self, facts: Facts) -> tuple[str, int]:
        """The level that decides for this client, and its colour."""
        for level, look in self._chain:
            colour = look(facts)
            if colour is not None:
                return level, colour
        return DEFAULT, self._default

    def candidates(self, colour: int) -> list[Candidate]:
        """The colour's candidates, best first."""
        start, end = self._starts[colour], self._starts[colour + 1]
        return [
            Candidate(self._ids[origin], round(rtt * RTT_UNIT_MS, 2), evidence_count(code))
            for origin, code, rtt in CANDIDATE.iter_unpack(self._palette[start * 4 : end * 4])
        ]

    def order(self, colour: int) -> list[int]:
        """Only the indexes into `origins`, best first: what the request path needs."""
        return list(self._palette[self._starts[colour] * 4 : self._starts[colour + 1] * 4 : 4])

    def reason(self, level: str, colour: int) -> str:
        """Why this colour has this order, as a code: `asn:measured`, `grid:inferred`, `asn:held`, `country:override`."""
        flags = self._flags[colour]
        return f"{level}:" + (
            "override"
            if flags & OVERRIDE
            else "held"
            if flags & HELD
            else "inferred"
            if flags & INFERRED
            else "measured"
        )

    def items(self, kind: str) -> list[tuple[int, int]]:
        """(key, colour) of every cell of one kind, in order of key; `default` has the key 0. For export, not for requests."""
        if kind == DEFAULT:
            return [(0, self._default)]
        cells: list[tuple[int, int]] = list(self._tables[kind]) if kind in self._tables else []
        if kind == "asn_country":  # stored country by country, which packs better
            cells = sorted(((key & 0xFFFFFFFF) << 16 | key >> 32, colour) for key, colour in cells)
        return cells

    def homes(self, kind: str) -> dict[int, int]:
        """Where the networks of a kind are, by the keys that `items` gives; empty when the map does not say."""
        if HOMES.get(kind) not in self.sections:
            return {}
        homes = self.sections[HOMES[kind]]
        stored = {key: home for (key, _), home in zip(self._tables[kind], homes, strict=False)}
        if kind == "asn_country":
            return {(key & 0xFFFFFFFF) << 16 | key >> 32: home for key, home in stored.items()}
        return stored


class _Table:
    """Sorted keys of two bytes, then as many colours of two bytes."""

    def __init__(self, view: memoryview[int]) -> None:
        self.count = len(view) // 4
        self.keys = _numbers(view[: self.count * 2], 2)
        self.values = _numbers(view[self.count * 2 : self.count * 4], 2)
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


class _SplitTable:
    """Wide keys, split: (upper part, end) pairs, then the lower parts of all keys, one or two bytes each, then colours.

    Few upper parts are in use: some 1,600 of ASNs without their last eight bits, some 1,500 of countries with ASNs without
    their last sixteen, four of squares of half a degree.
    """

    def __init__(self, view: memoryview[int], bits: int) -> None:
        (uppers,) = struct.unpack_from("<I", view)
        body, width = 4 + uppers * 8, bits // 8
        if body > len(view):
            raise MapError("a table is incomplete")
        heads = _numbers(view[4:body], 4)
        self.count = heads[-1] if uppers else 0
        end = body + self.count * width
        self.bits = bits
        self.lowers = bytes(view[body:end]) if width == 1 else _numbers(view[body:end], 2)
        self.values = _numbers(view[end : end + self.count * 2], 2)
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


def _by_asn(
    span_of: Callable[[int], tuple[int, int] | None],
    lowers: bytes,
    values: memoryview[int],
    homes: memoryview[int] | None,
) -> Callable[[Facts], int | None]:
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


def _by_asn_country(
    span_of: Callable[[int], tuple[int, int] | None],
    lowers: bytes | memoryview[int],
    values: memoryview[int],
    homes: memoryview[int] | None,
) -> Callable[[Facts], int | None]:
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


def _by_square(
    find: Callable[[int], int | None], step: float, *, of_country: bool
) -> Callable[[Facts], int | None]:
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


def _numbers(view: memoryview[int], width: int) -> memoryview[int]:
    """Little-endian unsigned numbers of two or four bytes as a view; copied only on a big-endian machine."""
    if sys.byteorder == "big":  # pragma: no cover
        from array import array

        swapped = array("H" if width == 2 else "I", bytes(view))
        swapped.byteswap()
        return memoryview(swapped)
    return view.cast("H") if width == 2 else view.cast("I")
