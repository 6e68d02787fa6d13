"""The latency map: cells -> colours -> ranked candidates, one immutable value. docs/MAP_FORMAT.md has every byte.

Little-endian. A fixed prefix (magic, CRC-32 of all that follows it, length, major, minor, section count), a table of
sections (tag, offset, length), then the sections, each on a multiple of 8. Loading looks at the table and takes
views: no work that grows with the number of cells. A reader skips sections and JSON keys that it does not know, so
a newer minor version works; a newer major version is refused.
"""

from __future__ import annotations

import math
import struct
import zlib
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from . import shallow
from .latency_map_tables import (
    COUNTRY_SHIFT,
    EVERYWHERE,
    HOME_COLUMNS,
    HOME_ROWS,
    HOME_STEP,
    NOWHERE,
    Facts,
    MapError,
    SplitTable,
    Table,
    finder_by_asn,
    finder_by_asn_country,
    finder_by_square,
    grid_key,
    grid_keys,
    home_of,
    letters,
    near,
    numbers,
    unletters,
)  # fmt: skip
from .record import Record

if TYPE_CHECKING:
    from collections.abc import Callable

#: all that readers and writers of maps need, some of it from latency_map_tables.py
__all__ = [
    "CANDIDATE", "COUNTRY_SHIFT", "DEFAULT", "EVERYWHERE", "HELD", "HOMES", "HOME_COLUMNS", "HOME_ROWS", "HOME_STEP",
    "INFERRED", "KINDS", "MAGIC", "MAJOR", "MINOR", "NOWHERE", "OVERRIDE", "PREFIX", "RTT_MAX_MS", "RTT_UNIT_MS", "SECTION",
    "SPLIT_BITS", "Candidate", "Facts", "LatencyMap", "MapError", "evidence_code", "evidence_count", "grid_key", "grid_keys",
    "home_of", "letters", "near", "unletters",
]  # fmt: skip

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

#: kinds whose cells may know where their network is, and the tags of these sections: one byte a cell, in the table's order
HOMES = {"asn_country": b"HASC", "asn": b"HASN"}
DEFAULT = "default"


class Candidate(Record):
    """An origin that may serve a request. `samples` is a lower bound over the colour's cells; 0 means inferred."""

    origin: str
    rtt_ms: float
    samples: int


def evidence_code(samples: int) -> int:
    """A sample count in one byte: exact up to 128, then eight steps an octave, rounded down."""
    if samples <= 128:
        return max(0, samples)
    return min(255, 128 + int(8 * math.log2(samples / 128) + 1e-9))


def evidence_count(code: int) -> int:
    """The smallest count that has this code."""
    return code if code <= 128 else math.ceil(128 * 2 ** ((code - 128) / 8) - 1e-9)


def _origins(document: Any) -> list[dict[str, Any]]:
    if not isinstance(document, list) or not 1 <= len(document) <= 256:
        raise MapError("its origins are no list of 1 to 256")
    for origin in document:
        # An empty host is that of a map which is only looked at: `map build` takes origins without one.
        if not isinstance(origin, dict) or not isinstance(origin.get("host"), str):
            raise MapError("an origin of it has no id or no host")
        if not isinstance(origin.get("id"), str) or not origin["id"]:
            raise MapError("an origin of it has no id or no host")
    if len({origin["id"] for origin in document}) < len(document):
        raise MapError("two origins of it have one id")
    return document


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
        self.meta: dict[str, Any] = shallow.loads(bytes(sections[b"META"]))
        self.version: str = self.meta["version"]
        self.built_at = float(self.meta["built_at"])
        if not isinstance(self.version, str) or not math.isfinite(self.built_at):
            raise MapError("its version or its time of building is none")
        self.content: str = self.meta["content"]
        #: the origins as the map offers them: id, host, weight, state, alt_svc ({authority, ma} only when proved, "clear" when withdrawn), ...
        self.origins: list[dict[str, Any]] = _origins(shallow.loads(bytes(sections[b"ORIG"])))
        self._ids: list[str] = [origin["id"] for origin in self.origins]
        self._starts = numbers(sections[b"PALO"], 4)
        self._palette = sections[b"PALC"]
        self._flags = sections[b"FLAG"]
        self.colours = len(self._starts) - 1
        if (
            self.colours < 1
            or self._starts[0]
            or len(self._flags) < self.colours
            or self._starts[-1] * CANDIDATE.size > len(self._palette)
        ):
            raise MapError("its palette is incomplete")
        # The palette only, not the cells: they are many, and whoever publishes has looked at them.
        named = bytes(self._palette[: self._starts[-1] * CANDIDATE.size : CANDIDATE.size])
        strange = named.translate(None, bytes(range(len(self._ids))))
        if strange:
            raise MapError(f"its palette names origin {max(strange)} of {len(self._ids)}, counted from 0")
        self._default: int = self.meta["default"]
        if type(self._default) is not int or not 0 <= self._default < self.colours:
            raise MapError("its default names a colour that it does not have")
        self.grid_step = float(self.meta.get("grid_step") or 0)
        if (b"GRID" in sections or b"CGRD" in sections) and not 0.5 <= self.grid_step <= 180:
            raise MapError(f"its grid has squares of {self.grid_step} degrees")
        tables: dict[str, Table | SplitTable] = {}
        for kind, tag in KINDS.items():
            if tag in sections:
                bits = SPLIT_BITS.get(kind)
                tables[kind] = SplitTable(sections[tag], bits) if bits else Table(sections[tag])
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
        if isinstance(table, SplitTable):
            span_of, lowers = table.spans.get, table.lowers
            homes = self.sections.get(HOMES.get(kind, b""))
            if homes is not None and len(homes) < len(table):
                raise MapError("a table of homes is incomplete")
            if kind == "asn":
                return finder_by_asn(span_of, lowers, values, homes)  # type: ignore[arg-type]
            if kind == "asn_country":
                return finder_by_asn_country(span_of, lowers, values, homes)
            return finder_by_square(table.find, self.grid_step, of_country=kind == "country_grid")
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
