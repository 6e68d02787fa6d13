"""One row of text at a time: slow, forgiving in spelling, exact about what is wrong. For rows that are not plain."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from isochrone.estimation.rejects import CODE, Reason
from isochrone.estimation.samples import OUTCOMES, RawColumns

if TYPE_CHECKING:
    from collections.abc import Sequence

LINE_MAX = 1 << 16  # bytes; no row of samples is that long
REQUIRED = ("timestamp", "origin", "asn", "country", "rtt_ms")
OPTIONAL = ("colo", "continent", "latitude", "longitude", "outcome")
CODES = {"country": (2, Reason.COUNTRY), "colo": (3, Reason.COLO), "continent": (2, Reason.CONTINENT)}
#: known outcomes in the order of `OUTCOMES`; the empty field, last, means ok
OUTCOME_NAMES = (*(outcome.encode() for outcome in OUTCOMES), b"")
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?\Z")
_NAN = re.compile(rb"[+-]?nan\Z", re.IGNORECASE)
_INFINITE = re.compile(rb"[+-]?inf(inity)?\Z", re.IGNORECASE)


class RowError(ValueError):
    """This row can't be used."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason
        super().__init__(str(reason))


@dataclass(frozen=True, slots=True)
class Layout:
    """Which column is where. `columns` holds all of REQUIRED, and those of OPTIONAL that the file has."""

    columns: dict[str, int]
    width: int  # fields in a row

    @classmethod
    def of(cls, header: bytes) -> Layout | None:
        """The layout that a header line gives; None when it is no header, lacks a column or has one twice."""
        try:
            names = [cell.strip().lower().decode() for cell in cells(header.removeprefix(b"\xef\xbb\xbf"))]
        except RowError:
            return None
        known = [name for name in names if name in REQUIRED + OPTIONAL]
        if len(set(known)) < len(known) or not set(REQUIRED) <= set(known):
            return None
        return cls({name: names.index(name) for name in known}, len(names))


def cells(line: bytes) -> list[bytes]:
    """The fields of a line, quotes taken off.

    Raises:
        RowError: it is not text, or its quotes don't fit together.
    """
    line = line.rstrip(b"\r\n")
    if len(line) > LINE_MAX:
        raise RowError(Reason.LONG_LINE)
    if b"\0" in line:
        raise RowError(Reason.NUL)
    try:
        text = line.decode()
    except UnicodeDecodeError:
        raise RowError(Reason.NOT_UTF8) from None
    if '"' not in text:
        return line.split(b",")
    if text.count('"') % 2:
        raise RowError(Reason.QUOTES)
    try:
        return [cell.encode() for cell in next(csv.reader([text], strict=True))]
    except (csv.Error, StopIteration):
        raise RowError(Reason.QUOTES) from None


def fill(raw: RawColumns, row: int, line: bytes, layout: Layout, origins: Sequence[bytes]) -> None:
    """Put one line into row `row` of `raw`, or the reason why that can't be done."""
    try:
        _fill(raw, row, line, layout, origins)
    except RowError as error:
        raw.reason[row] = CODE[error.reason]


def _fill(raw: RawColumns, row: int, line: bytes, layout: Layout, origins: Sequence[bytes]) -> None:
    found = cells(line)
    if len(found) != layout.width:
        raise RowError(Reason.FIELDS)
    get = {name: found[at].strip() for name, at in layout.columns.items()}
    raw.timestamp[row] = _number(get["timestamp"], Reason.TIMESTAMP)
    raw.origin[row] = origins.index(get["origin"]) if get["origin"] in origins else -1
    asn = get["asn"]
    if not asn.isdigit() or len(asn) > 10 or int(asn) > 0xFFFFFFFF:
        raise RowError(Reason.ASN)
    raw.asn[row] = int(asn)
    for name, (width, reason) in CODES.items():
        code = get.get(name, b"")
        if code and (len(code) != width or not code.isalnum()):
            raise RowError(reason)
        getattr(raw, name)[row] = int(code, 36) if code else 0
    for name in ("latitude", "longitude"):
        text = get.get(name, b"")
        getattr(raw, name)[row] = np.nan if not text or _NAN.match(text) else _number(text, Reason.PLACE)
    outcome = get.get("outcome", b"")
    if outcome not in OUTCOME_NAMES:
        raise RowError(Reason.OUTCOME)
    raw.outcome[row] = OUTCOME_NAMES.index(outcome) % len(OUTCOMES)
    rtt = get["rtt_ms"]
    if _NAN.match(rtt) and not raw.outcome[row]:
        raise RowError(Reason.RTT_NAN)
    raw.rtt_ms[row] = np.nan if not rtt or _NAN.match(rtt) else _number(rtt, Reason.RTT)


def _number(text: bytes, reason: Reason) -> float:
    if _INFINITE.match(text):
        return float(text)
    if not _NUMBER.match(text):
        raise RowError(reason)
    return float(text)
