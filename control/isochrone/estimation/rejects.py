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
    HEADER = "header"  # missing, or without the columns that are needed: nothing of the file is used
    GZIP_CUT = "gzip_cut"  # the compressed data ends too early; the whole lines before the end are used
    GZIP_DAMAGED = "gzip_damaged"
    LONG_LINE = "long_line"
    NUL = "nul"
    NOT_UTF8 = "not_utf8"
    QUOTES = "quotes"  # unbalanced; a row is one line, so the damage ends with it
    FIELDS = "fields"  # more or fewer than the header has
    TIMESTAMP = "timestamp"
    ASN = "asn"
    RTT = "rtt"  # not a number in decimal notation
    COUNTRY = "country"
    COLO = "colo"
    CONTINENT = "continent"
    PLACE = "place"  # latitude or longitude malformed or out of range
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
        """For people: one line a kind."""
        return [
            f"{reason}: {entry['count']} ({', '.join(entry['first'])}{', ...' if entry['count'] > len(entry['first']) else ''})"
            for reason, entry in self.as_dict()["rejected"].items()
        ]


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
