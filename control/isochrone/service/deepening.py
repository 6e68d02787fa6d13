"""Thorough HTTP/3 checks between the cheap ones: a few endpoints at a time, each as often as the settings say.

What a thorough check finds holds until the next one. While it is an error, every cheap check of the endpoint counts as failed, and the
endpoint is checked thoroughly in each round, so that fall and rise take no longer than for anything else.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from isochrone.model import Outcome, Severity
from isochrone.verification.http3 import verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from isochrone.model import Finding, Origin
    from isochrone.settings import Verification
    from isochrone.verification.http3 import EndpointCheck, EndpointChecker


def due(
    origins: Sequence[str],
    last: Mapping[str, float],
    broken: Collection[str],
    *,
    now: float,
    interval: float,
    share: int,
) -> list[str]:
    """Whose turn it is at `now`: all that are broken, and of the others the `share` that have waited longest. Pure.

    `last`: Unix time of each one's last thorough check, `interval`: seconds between two; both as far as `now` goes.
    """
    waiting = [
        origin for origin in origins if origin not in broken and now - last.get(origin, -math.inf) >= interval
    ]
    waiting.sort(key=lambda origin: last.get(origin, -math.inf))
    return [*(origin for origin in origins if origin in broken), *waiting[:share]]


class Deepening:
    """Holds what thorough checks have found."""

    def __init__(
        self,
        origins: Sequence[Origin],
        endpoints: EndpointChecker,
        settings: Verification,
        clock: Callable[[], float],
    ) -> None:
        self._origins = {origin.id: origin for origin in origins if origin.alt_svc}
        self._endpoints = endpoints
        self._settings = settings
        self._clock = clock
        self._turned_at = clock()  # Unix time up to which turns were given
        self._last: dict[str, float] = {}
        self._found: dict[str, tuple[Finding, ...]] = {}
        self.broken: set[str] = set()  # origins whose last thorough check failed

    @property
    def pace(self) -> float:
        """Seconds from the turn of one endpoint to that of the next: evenly spread, so that the probes beside are left in peace."""
        return self._settings.deep_interval_seconds / max(1, len(self._origins))

    def _turn(self, now: float) -> list[str]:
        """Whose turn it is. Turns that were missed are not caught up with; one that comes when nobody waits is kept."""
        at_most = math.ceil(self._settings.interval_seconds / self.pace)
        share = min(at_most, int((now - self._turned_at) / self.pace))
        interval = self._settings.deep_interval_seconds
        turn = due(list(self._origins), self._last, self.broken, now=now, interval=interval, share=share)
        taken = sum(origin not in self.broken for origin in turn)
        self._turned_at = max(self._turned_at + taken * self.pace, now - at_most * self.pace)
        return turn

    @property
    def deadline(self) -> float:
        """Seconds by which a round has ended."""
        return max(1, len(self._origins)) * self._endpoints.deadline(deep=True) + 10.0

    async def round(self) -> None:
        """Check those whose turn it is, one after the other: handshakes in a row must not make the probes beside them late."""
        for origin in self._turn(self._clock()):
            checks = await self._endpoints.check(self._origins[origin], now=self._clock(), deep=True)
            self._take(origin, checks)

    def _take(self, origin: str, checks: tuple[EndpointCheck, ...]) -> None:
        self._last[origin] = self._clock()
        deep = [check for check in checks if check.deep]
        if not deep:
            return  # it failed before anything thorough could be done: the cheap check tells of that
        self._found[origin] = tuple(finding for check in deep for finding in check.findings)
        outcome = verdict(deep)
        if outcome is Outcome.TARGET_FAILED:
            self.broken.add(origin)
        elif outcome is Outcome.OK:
            self.broken.discard(origin)

    def beside(self, origin: str, found: Sequence[Finding]) -> tuple[Finding, ...]:
        """The findings of a cheap check, and those of the last thorough one that it can't have.

        Where the cheap check finds an error, what was seen before it is no news.
        """
        if any(finding.severity is Severity.ERROR for finding in found):
            return tuple(found)
        told = {(finding.check, finding.subject) for finding in found}
        return (*found, *(f for f in self._found.get(origin, ()) if (f.check, f.subject) not in told))

    def outcome(self, origin: str, cheap: Outcome) -> Outcome:
        """What a cheap check comes to."""
        return Outcome.TARGET_FAILED if cheap is Outcome.OK and origin in self.broken else cheap
