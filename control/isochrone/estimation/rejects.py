"""An account of what had to be set aside: bad files and bad rows, counted by kind, with the first places of each kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

FIRST_LINES = 3  # how many places are kept for each kind of bad data


class Reason(StrEnum):
    """Why a file or a row was not used. One row has one reason, the first that applies."""

    EMPTY_FILE = "empty_file"
    HEADER = "header"
    GZIP_CUT = "gzip_cut"
    GZIP_DAMAGED = "gzip_damaged"
    LONG_LINE = "long_line"
    NUL = "nul"
    NOT_UTF8 = "not_utf8"
    QUOTES = "quotes"
    FIELDS = "fields"
    TIMESTAMP = "timestamp"
    ASN = "asn"
    RTT = "rtt"
    COUNTRY = "country"
    COLO = "colo"
    CONTINENT = "continent"
    PLACE = "place"
    OUTCOME = "outcome"
    TIMESTAMP_MILLISECONDS = "timestamp_milliseconds"
    TIMESTAMP_FUTURE = "timestamp_future"
    ORIGIN_UNKNOWN = "origin_unknown"
    ASN_RESERVED = "asn_reserved"
    RTT_MISSING = "rtt_missing"
    RTT_NAN = "rtt_nan"
    RTT_NEGATIVE = "rtt_negative"
    RTT_ZERO = "rtt_zero"
    RTT_HUGE = "rtt_huge"


#: what each means, for people
WORDS = {
    Reason.EMPTY_FILE: "the file is empty",
    Reason.HEADER: "the first line must name timestamp, origin, asn, country and rtt_ms, each once",
    Reason.GZIP_CUT: "the compressed data ends too early; the whole lines before are used",
    Reason.GZIP_DAMAGED: "the compressed data is damaged; the whole lines before are used",
    Reason.LONG_LINE: "a line is longer than 65,536 bytes",
    Reason.NUL: "a NUL byte",
    Reason.NOT_UTF8: "not UTF-8 text",
    Reason.QUOTES: "quotes that don't fit together within the line",
    Reason.FIELDS: "not as many fields as the header has",
    Reason.TIMESTAMP: "not a time in Unix seconds",
    Reason.ASN: "not an ASN from 0 to 4294967295",
    Reason.RTT: "not a number in decimal notation",
    Reason.COUNTRY: "not a code of two letters",
    Reason.COLO: "not a code of three letters",
    Reason.CONTINENT: "not a code of two letters",
    Reason.PLACE: "not a latitude within 90 or a longitude within 180 degrees",
    Reason.OUTCOME: "not ok, target_failed or prober_failed",
    Reason.TIMESTAMP_MILLISECONDS: "the time is not in seconds but in milliseconds or finer",
    Reason.TIMESTAMP_FUTURE: "the time is in the future",
    Reason.ORIGIN_UNKNOWN: "the origin is none of those given",
    Reason.ASN_RESERVED: "a reserved or private ASN",
    Reason.RTT_MISSING: "the outcome is ok and there is no round-trip time",
    Reason.RTT_NAN: "the round-trip time is not a number",
    Reason.RTT_NEGATIVE: "the round-trip time is negative",
    Reason.RTT_ZERO: "the round-trip time is 0",
    Reason.RTT_HUGE: "the round-trip time is above a minute",
}

REASONS = tuple(Reason)
#: reasons as numbers for arrays; 0 means that nothing is wrong
CODE = {reason: number for number, reason in enumerate(REASONS, 1)}


@dataclass(slots=True)
class Rejected:
    """One kind of bad data: how often, and the first places as (file, physical line, counted from 1)."""

    count: int = 0
    first: list[tuple[str, int]] = field(default_factory=list)


@dataclass(slots=True)
class Rejects:
    """What became of all rows: `rows == used + target_failed + prober_failed + the row kinds' counts`."""

    rows: int = 0  # data rows seen: neither headers nor blank lines
    used: int = 0
    target_failed: int = 0
    prober_failed: int = 0
    kinds: dict[Reason, Rejected] = field(default_factory=dict)

    def add(self, reason: Reason, path: str, lines: Iterable[int], count: int) -> None:
        """Count `count` cases of one kind; `lines` are their first places."""
        entry = self.kinds.setdefault(reason, Rejected())
        entry.count += count
        for line in lines:
            if len(entry.first) >= FIRST_LINES:
                break
            entry.first.append((path, int(line)))

    def merge(self, later: Rejects) -> None:
        """Add the account of what comes after."""
        self.rows += later.rows
        self.used += later.used
        self.target_failed += later.target_failed
        self.prober_failed += later.prober_failed
        for reason, entry in later.kinds.items():
            mine = self.kinds.setdefault(reason, Rejected())
            mine.count += entry.count
            mine.first = (mine.first + entry.first)[:FIRST_LINES]

    @property
    def total(self) -> int:
        """All that was refused, files and rows."""
        return sum(entry.count for entry in self.kinds.values())

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "rows": self.rows,
            "used": self.used,
            "target_failed": self.target_failed,
            "prober_failed": self.prober_failed,
            "rejected": {
                str(reason): {"count": entry.count, "first": [f"{path}:{line}" for path, line in entry.first]}
                for reason, entry in sorted(self.kinds.items(), key=lambda item: CODE[item[0]])
            },
        }

    def sentences(self) -> list[str]:
        """For people: one line a kind, with the first places."""
        lines = []
        for reason, entry in sorted(self.kinds.items(), key=lambda item: CODE[item[0]]):
            places = [f"{path}:{line}" for path, line in entry.first]
            more = ["..."] if entry.count > len(places) else []
            lines.append(f"{reason}: {entry.count} ({', '.join(places + more)}): {WORDS[reason]}")
        return lines


class SamplesError(Exception):
    """Samples can't be had."""


class UnreadableSamplesError(SamplesError):
    """A file of samples can't be opened or read."""

    def __init__(self, path: str, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(f"{path}: {why}; name samples files that can be read")


class NoSamplesError(SamplesError):
    """There was input, and nothing in it can be used."""

    def __init__(self, rejects: Rejects) -> None:
        self.rejects = rejects
        seen = (
            "; ".join(rejects.sentences())
            or f"target_failed: {rejects.target_failed}, prober_failed: {rejects.prober_failed}"
        )
        super().__init__(f"none of {rejects.rows} rows is a usable sample: {seen}")
