"""Samples as columns: what was measured, as numpy arrays, and an account of what had to be set aside.

The rules that tell a usable sample from bad data stand here once, for files and for the daemon's own samples.
`samples_csv` turns text into columns.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Self

import numpy as np

from isochrone.estimation.rejects import (
    CODE,
    FIRST_LINES,
    REASONS,
    NoSamplesError,
    Reason,
    Rejects,
    SamplesError,
    UnreadableSamplesError,
)
from isochrone.model import Outcome, Sample
from isochrone_edge.latency_map import letters

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

__all__ = [
    "NoSamplesError", "RawColumns", "Rejects", "SampleColumns", "SamplesError", "UnreadableSamplesError",
    "screen",
]  # fmt: skip

RTT_MAX_MS = 60_000.0  # no round trip of a prober takes a minute: a unit was mixed up
CLOCK_SKEW_SECONDS = 300.0  # an agent's clock may be this far ahead of ours
MILLISECONDS_FROM = 1e11  # as seconds this is the year 5138; as milliseconds, 1973

OUTCOMES = (Outcome.OK, Outcome.TARGET_FAILED, Outcome.PROBER_FAILED)

#: ASNs that no network on the Internet may use: [first, last], RFC 7607, 6793, 5398, 6996, 7300 and IANA's registry
RESERVED_ASNS = ((0, 0), (23456, 23456), (64496, 131071), (4_200_000_000, 4_294_967_295))
#: those among them that a user may mean: private use, RFC 6996
PRIVATE_ASNS = ((64512, 65534), (4_200_000_000, 4_294_967_294))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleColumns:
    """n usable samples, one array a column; all arrays have the length n."""

    origins: tuple[str, ...]  # the ids that `origin` counts
    timestamp: NDArray[np.float64]  # Unix seconds
    origin: NDArray[np.uint16]  # index into `origins`
    asn: NDArray[np.uint32]
    country: NDArray[np.uint16]  # `letters` of the code; 0: unknown
    colo: NDArray[np.uint16]
    continent: NDArray[np.uint16]
    rtt_ms: NDArray[np.float32]
    latitude: NDArray[np.float32]  # degrees; NaN, like longitude: unknown
    longitude: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.timestamp)

    def part(self, start: int, end: int) -> SampleColumns:
        """Rows `start` to `end`, as views."""
        names = [f.name for f in fields(self) if f.name != "origins"]
        return SampleColumns(origins=self.origins, **{n: getattr(self, n)[start:end] for n in names})

    @classmethod
    def join(cls, parts: Sequence[SampleColumns], origins: Sequence[str] = ()) -> Self:
        """All parts, one after the other; `origins` are needed when there are no parts."""
        names = [f.name for f in fields(cls) if f.name != "origins"]
        parts = parts or [RawColumns.blank(0).usable(tuple(origins), np.zeros(0, bool))]
        return cls(
            origins=parts[0].origins, **{n: np.concatenate([getattr(p, n) for p in parts]) for n in names}
        )

    @classmethod
    def from_samples(
        cls, samples: Iterable[Sample], origins: Sequence[str], *, now: float, private_asns: bool = True
    ) -> tuple[Self, Rejects]:
        """The daemon's own samples, by the rules for files. Places in the rejects are ("samples", position from 1).

        Its targets are the user's own words, so private-use ASNs (RFC 6996) count unless told otherwise.
        """
        rows = list(samples)
        index = {name: number for number, name in enumerate(origins)}
        raw = RawColumns.blank(len(rows))
        for row, sample in enumerate(rows):
            raw.timestamp[row] = sample.timestamp
            raw.origin[row] = index.get(sample.origin, -1)
            raw.asn[row] = sample.asn if 0 <= sample.asn <= 0xFFFFFFFF else 0
            raw.country[row] = letters(sample.country) or 0
            raw.colo[row] = letters(sample.colo) or 0
            raw.continent[row] = letters(sample.continent) or 0
            raw.rtt_ms[row] = np.nan if sample.rtt_ms is None else sample.rtt_ms
            raw.latitude[row] = np.nan if sample.latitude is None else sample.latitude
            raw.longitude[row] = np.nan if sample.longitude is None else sample.longitude
            raw.outcome[row] = OUTCOMES.index(sample.outcome)
        rejects = Rejects()
        return cls.join(
            [screen(raw, tuple(origins), now, "samples", rejects, private_asns=private_asns)]
        ), rejects


@dataclass(slots=True, kw_only=True, eq=False)
class RawColumns:
    """Rows as they were read, before `screen`. `reason` is 0, or CODE of what is wrong with a row."""

    line: NDArray[np.int64]
    reason: NDArray[np.uint8]
    outcome: NDArray[np.uint8]  # index into OUTCOMES
    timestamp: NDArray[np.float64]
    origin: NDArray[np.int32]  # -1: unknown
    asn: NDArray[np.uint32]
    country: NDArray[np.uint16]
    colo: NDArray[np.uint16]
    continent: NDArray[np.uint16]
    rtt_ms: NDArray[np.float64]  # NaN: empty
    latitude: NDArray[np.float64]  # NaN: empty
    longitude: NDArray[np.float64]

    @classmethod
    def blank(cls, n: int, first_line: int = 1) -> Self:
        """Rows that say nothing yet, on lines that follow each other."""
        return cls(
            line=np.arange(first_line, first_line + n),
            reason=np.zeros(n, np.uint8),
            outcome=np.zeros(n, np.uint8),
            timestamp=np.zeros(n),
            origin=np.full(n, -1, np.int32),
            asn=np.zeros(n, np.uint32),
            country=np.zeros(n, np.uint16),
            colo=np.zeros(n, np.uint16),
            continent=np.zeros(n, np.uint16),
            rtt_ms=np.full(n, np.nan),
            latitude=np.full(n, np.nan),
            longitude=np.full(n, np.nan),
        )

    def usable(self, origins: tuple[str, ...], keep: NDArray[np.bool_]) -> SampleColumns:
        """The rows of `keep` as samples."""
        latitude, longitude = self.latitude[keep], self.longitude[keep]
        # One coordinate alone says nothing, and 0, 0 is what a failed look-up leaves, not a place in the Gulf of Guinea.
        unknown = np.isnan(latitude) | np.isnan(longitude) | ((latitude == 0) & (longitude == 0))
        return SampleColumns(
            origins=origins,
            timestamp=self.timestamp[keep],
            origin=self.origin[keep].astype(np.uint16),
            asn=self.asn[keep],
            country=self.country[keep],
            colo=self.colo[keep],
            continent=self.continent[keep],
            rtt_ms=self.rtt_ms[keep].astype(np.float32),
            latitude=np.where(unknown, np.nan, latitude).astype(np.float32),
            longitude=np.where(unknown, np.nan, longitude).astype(np.float32),
        )


def screen(
    raw: RawColumns,
    origins: tuple[str, ...],
    now: float,
    path: str,
    rejects: Rejects,
    *,
    private_asns: bool = False,
) -> SampleColumns:
    """The rows that can be used; the others are counted in `rejects`, each under the first reason that applies."""
    reason, rtt = raw.reason, raw.rtt_ms

    def refuse(mask: NDArray[np.bool_], why: Reason) -> None:
        reason[mask & (reason == 0)] = CODE[why]

    reserved = _within(raw.asn, RESERVED_ASNS)
    if private_asns:
        reserved &= ~_within(raw.asn, PRIVATE_ASNS)
    ok = raw.outcome == 0
    refuse(~np.isfinite(raw.timestamp) | (raw.timestamp < 0), Reason.TIMESTAMP)
    refuse((np.abs(raw.latitude) > 90) | (np.abs(raw.longitude) > 180), Reason.PLACE)
    refuse(raw.timestamp >= MILLISECONDS_FROM, Reason.TIMESTAMP_MILLISECONDS)
    refuse(raw.timestamp > now + CLOCK_SKEW_SECONDS, Reason.TIMESTAMP_FUTURE)
    refuse(raw.origin < 0, Reason.ORIGIN_UNKNOWN)
    refuse(reserved, Reason.ASN_RESERVED)
    refuse(ok & np.isnan(rtt), Reason.RTT_MISSING)
    refuse(ok & (rtt < 0), Reason.RTT_NEGATIVE)
    refuse(ok & (rtt == 0), Reason.RTT_ZERO)
    refuse(ok & (rtt > RTT_MAX_MS), Reason.RTT_HUGE)
    good = reason == 0
    outcomes = np.bincount(raw.outcome[good], minlength=3)
    rejects.rows += len(reason)
    rejects.used += int(outcomes[0])
    rejects.target_failed += int(outcomes[1])
    rejects.prober_failed += int(outcomes[2])
    if outcomes.sum() < len(reason):
        for code, count in enumerate(np.bincount(reason, minlength=len(REASONS) + 1)[1:], 1):
            if count:
                lines = raw.line[np.flatnonzero(reason == code)[:FIRST_LINES]]
                rejects.add(REASONS[code - 1], path, lines, int(count))
    return raw.usable(origins, good & ok)


def _within(numbers: NDArray[np.uint32], ranges: tuple[tuple[int, int], ...]) -> NDArray[np.bool_]:
    inside = np.zeros(len(numbers), bool)
    for first, last in ranges:
        inside |= (numbers >= first) & (numbers <= last)
    return inside
