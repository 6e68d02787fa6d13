"""Growing pauses with jitter. Pure but for the random number, which is passed in."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(slots=True)
class Backoff:
    """Pauses that double from `first` to `most` seconds, each shortened by up to half so that controllers don't march in step."""

    first: float = 1.0
    most: float = 60.0
    chance: Callable[[], float] = field(default=random)
    failures: int = 0

    def next(self, at_least: float = 0.0) -> float:
        """The pause after one more failure in a row; never shorter than what the other side asked for."""
        pause = min(self.most, self.first * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return max(at_least, pause * (0.5 + 0.5 * self.chance()))

    def reset(self) -> None:
        """After a success."""
        self.failures = 0
