"""When a second origin is asked although the first may still answer: after the first one's usual time, and seldom.

"The Tail at Scale" (Dean and Barroso, 2013): a second request after the 95th percentile costs some 5 % more requests
and takes away most of the tail. Plain data, clock passed in.
"""

from __future__ import annotations

from .record import Record

SHARE = 0.05  # of the requests, at most
BURST = 10.0  # hedges that may be saved up
MIN_SAMPLES = 20  # of an origin, before its p95 is believed
QUANTILE = 0.95
_STEP = 0.05  # of the estimate, for each sample


class TokenBucket:
    """Earns SHARE of a token with each request; a hedge costs one."""

    def __init__(self, share: float = SHARE, burst: float = BURST) -> None:
        self._share, self._burst, self._tokens = share, burst, 0.0
        self.taken = 0

    def earn(self) -> None:
        """A request came."""
        self._tokens = min(self._burst, self._tokens + self._share)

    def take(self) -> bool:
        """Whether a hedge may be sent now; True takes its token."""
        if self._tokens < 1:
            return False
        self._tokens -= 1
        self.taken += 1
        return True


class Usual:
    """The running p95 of each origin's time to first byte, in seconds, by stochastic approximation (constant memory)."""

    def __init__(self) -> None:
        self._estimate: dict[str, float] = {}
        self._samples: dict[str, int] = {}

    def add(self, origin: str, seconds: float) -> None:
        """One answer's time."""
        count = self._samples.get(origin, 0)
        estimate = self._estimate.get(origin, seconds)
        self._samples[origin] = count + 1
        if count < MIN_SAMPLES:  # until it is believed: the largest seen
            self._estimate[origin] = max(estimate, seconds)
        elif seconds > estimate:
            self._estimate[origin] = estimate * (1 + _STEP * QUANTILE)
        else:
            self._estimate[origin] = estimate * (1 - _STEP * (1 - QUANTILE))

    def p95(self, origin: str) -> float | None:
        """Seconds; None while too little is known."""
        return self._estimate[origin] if self._samples.get(origin, 0) >= MIN_SAMPLES else None


class Hedging(Record):
    """What decides on a second request beside the first."""

    bucket: TokenBucket
    usual: Usual
