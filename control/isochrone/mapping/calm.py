"""Hysteresis: a cell's first choice changes only for a gain that is worth it. Pure; Unix time comes in as `now`.

A change needs a gain above a threshold and above the noise of both estimates. A cell that changes is then held down, twice
as long after each further change (as route flap damping does, RFC 2439, though by time alone), and is forgiven when it has
been quiet for a day. What has to move, because its origin went away or can't be measured any more, moves at once and is not
counted: an outage is the origin's doing and has its own damping, the rise and fall counts of verification.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np

from isochrone.mapping.rank import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

SECTION = b"CALM"  # the map's section for `Memory`; the edge skips it
HOLD_SECONDS = 900.0  # after a first change
MAX_HOLD_SECONDS = 6 * 3600.0
MEMORY_SECONDS = 86_400.0
MAX_REMEMBERED = 2048  # cells; the map carries them, 16 bytes each

_RECORD = np.dtype([("cell", "<u8"), ("changed_at", "<u4"), ("changes", "<u2"), ("spare", "<u2")])


def _no_records() -> NDArray[np.void]:
    return np.zeros(0, _RECORD)


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Which cells changed their first choice of late: one record a cell (id, Unix seconds, how often), in order of id."""

    records: NDArray[np.void] = field(default_factory=_no_records)

    def __len__(self) -> int:
        return len(self.records)

    @classmethod
    def read(cls, data: bytes) -> Self:
        """From a map's section. What is no such section is forgotten: it costs calm, not correctness."""
        records = np.frombuffer(data[: len(data) - len(data) % _RECORD.itemsize], _RECORD)
        return cls(records if bool(np.all(records["cell"][1:] > records["cell"][:-1])) else _no_records())

    def bytes(self) -> bytes:
        """For a map's section."""
        return self.records.tobytes()

    def of(self, cells: NDArray[np.uint64], now: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """For each cell how often it changed (0: not remembered) and how many seconds ago."""
        changes, age = np.zeros(len(cells), np.int64), np.full(len(cells), np.inf)
        if len(self.records):
            at = np.minimum(np.searchsorted(self.records["cell"], cells), len(self.records) - 1)
            ages = np.maximum(0.0, now - self.records["changed_at"].astype(np.float64))
            known = (self.records["cell"][at] == cells) & (ages[at] < MEMORY_SECONDS)
            changes[known], age[known] = self.records["changes"][at][known], ages[at][known]
        return changes, age

    def after(self, cells: NDArray[np.uint64], changes: NDArray[np.int64], now: float) -> Memory:
        """With these cells changed now, for the n-th time each, and without what is too old to matter."""
        fresh = np.zeros(len(cells), _RECORD)
        fresh["cell"], fresh["changed_at"], fresh["changes"] = cells, int(now), np.minimum(changes, 65535)
        old = self.records[now - self.records["changed_at"].astype(np.float64) < MEMORY_SECONDS]
        merged = np.concatenate([fresh, old[~np.isin(old["cell"], cells)]])
        # The most restless are kept, then the latest.
        merged = merged[
            np.lexsort(
                (merged["cell"], -merged["changed_at"].astype(np.int64), -merged["changes"].astype(np.int64))
            )
        ]
        merged = merged[:MAX_REMEMBERED]
        return Memory(merged[np.argsort(merged["cell"])])


@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """What came of it, one entry a cell."""

    first: NDArray[np.int16]  # the first choice
    held: NDArray[np.bool_]  # another one would be a little better
    changed: NDArray[np.bool_]  # not what it was before; never for a cell that is new
    memory: Memory


def hold_seconds(changes: NDArray[np.int64]) -> NDArray[np.float64]:
    """How long a cell is held down after its n-th change; 0 for n = 0."""
    doubled = HOLD_SECONDS * 2.0 ** (np.minimum(changes, 32) - 1)
    return np.where(changes > 0, np.minimum(MAX_HOLD_SECONDS, doubled), 0.0)


def settle(
    *,
    cells: NDArray[np.uint64],
    best: NDArray[np.int16],
    previous: NDArray[np.int16],
    rtt_ms: NDArray[np.float32],
    spread_ms: NDArray[np.float32],
    usable: NDArray[np.bool_],
    memory: Memory,
    threshold_ms: float,
    now: float,
) -> Settled:
    """Who is first in each of n cells.

    Args:
        cells: (n,) ids, each once.
        best: (n,) first choice by the estimates alone.
        previous: (n,) first choice so far; NONE: the cell is new, or its origin is gone.
        rtt_ms: (n, m) estimates; NaN: unknown.
        spread_ms: (n, m) half the width within which an estimate is believed.
        usable: (m,) whether an origin is up.
        memory: what happened before.
        threshold_ms: a gain has to be larger than this.
        now: Unix seconds.
    """
    rows = np.arange(len(cells))
    before = np.where(previous == NONE, best, previous)  # so that it indexes
    old, new = rtt_ms[rows, before], rtt_ms[rows, best]
    noise = np.hypot(np.nan_to_num(spread_ms[rows, before]), np.nan_to_num(spread_ms[rows, best]))
    forced = ~usable[before] & usable[best] | np.isnan(old)
    changes, age = memory.of(cells, now)
    worth = (old - new > np.maximum(noise, threshold_ms)) & (age >= hold_seconds(changes))
    wanted = best != before
    changed = wanted & (forced | worth)
    flapped = changed & ~forced
    return Settled(
        first=np.where(changed, best, before).astype(np.int16),
        held=wanted & ~changed,
        changed=changed,
        memory=memory.after(cells[flapped], changes[flapped] + 1, now),
    )
