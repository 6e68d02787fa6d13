"""The agent's clock: counts the time since the machine's start, and takes from the control plane what time that is.

A sample is stamped with the time since the start, which nobody sets. A wrong system clock thus harms nothing for longer than until
the next answer of the control plane, whose `Date` (RFC 9110 section 6.6.1) tells the right one: batches that are still in the
spool are shifted by as much before they are sent.
"""

from __future__ import annotations

import logging
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

TOLERANCE_SECONDS = 5.0  # `Date` has whole seconds, and an answer takes its time


def elapsed() -> float:
    """Seconds since the machine's start, sleep included where the system can tell."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def boot_id() -> str:
    """Which start of the machine `elapsed` counts from; one for each process where the system can't tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return str(uuid.uuid4())


class AgentClock:
    """Unix time for the agent."""

    def __init__(
        self,
        *,
        wall: Callable[[], float] = time.time,
        since_boot: Callable[[], float] = elapsed,
        boot: str | None = None,
    ) -> None:
        self.elapsed = since_boot
        self.boot = boot or boot_id()
        self.offset = wall() - since_boot()  # Unix time of the machine's start
        self.confirmed = False  # by the control plane

    def now(self) -> float:
        """Unix seconds."""
        return self.elapsed() + self.offset

    def hear(self, told: float, took: float) -> None:
        """The control plane's time, read from an answer that took so many seconds."""
        ahead = self.now() - told
        if abs(ahead) > TOLERANCE_SECONDS + took:
            log.warning(
                "this host's clock is %.0f s %s the control plane's; samples carry the control plane's time",
                abs(ahead), "ahead of" if ahead > 0 else "behind",
            )  # fmt: skip
            self.offset -= ahead
        self.confirmed = True

    def note(self) -> str:
        """What a batch says of the clock by which it was stamped."""
        return f"{self.boot} {self.offset:.3f}"

    def shift_of(self, note: str) -> float:
        """Seconds by which the times of a batch with this note are to be shifted; 0 unless that is known to be right."""
        boot, _, offset = note.partition(" ")
        if boot != self.boot or not self.confirmed:
            return 0.0
        try:
            shift = self.offset - float(offset)
        except ValueError:
            return 0.0
        return shift if abs(shift) > TOLERANCE_SECONDS else 0.0
