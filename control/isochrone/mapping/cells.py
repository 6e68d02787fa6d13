"""What is coloured, and how alike is alike enough. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from isochrone.mapping.partition import STATE_STEP, UNKNOWN, Tolerance
from isochrone_edge.latency_map import RTT_MAX_MS, RTT_UNIT_MS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from isochrone.mapping.partition import Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """n cells to be coloured, m origins."""

    rtt_ms: NDArray[np.float32]  # (n, m) NaN: unknown
    samples: NDArray[np.int32]  # (n, m) 0: inferred
    order: NDArray[np.int16]  # (n, k) candidates, best first, NONE after the last; at least one
    flags: NDArray[np.uint8]  # (n,)
    states: NDArray[np.uint8]  # (m,) index into rank.STATES

    def take(self, rows: Ints) -> Cells:
        """Some of the cells."""
        return Cells(self.rtt_ms[rows], self.samples[rows], self.order[rows], self.flags[rows], self.states)

    def units(self) -> Floats:
        """(n, m) round-trip times as `partition` wants them."""
        units = np.rint(np.minimum(self.rtt_ms, np.float32(RTT_MAX_MS)) / np.float32(RTT_UNIT_MS)).astype(
            np.float32
        )
        return np.where(np.isnan(units), np.float32(UNKNOWN), units + self.states * np.float32(STATE_STEP))


@dataclass(frozen=True, slots=True)
class Looseness:
    """How alike is alike enough."""

    tolerance: Tolerance
    exact: bool  # cells of a colour have the same candidates in the same order
    first: float  # factor on the tolerance for the first choice's round-trip time: 1 but for hopeless budgets
    others: float  # factor for the other candidates
