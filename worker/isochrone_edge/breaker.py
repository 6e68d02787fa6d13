"""What this isolate has seen fail. Plain data, no asyncio object, clock passed in (seconds)."""

from collections.abc import Iterable

FAILURES = 5  # in a row until an origin is ejected
EJECT_SECONDS = 30.0  # doubling with each ejection that follows
EJECT_LIMIT = 300.0


class Breaker:
    """Ejects an origin after FAILURES in a row; one trial request may bring it back. Fails open."""

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}  # origin -> failures in a row
        self._ejected: dict[str, float] = {}  # origin -> when a trial may be made
        self._length: dict[str, float] = {}  # origin -> the last ejection's length

    def succeeded(self, origin: str) -> None:
        """The origin answered."""
        if self._failures:
            self._failures.pop(origin, None)
            self._ejected.pop(origin, None)
            self._length.pop(origin, None)

    def failed(self, origin: str, now: float) -> bool:
        """The origin could not be reached. True when this ejects it."""
        count = self._failures[origin] = self._failures.get(origin, 0) + 1
        if count < FAILURES:
            return False
        length = min(EJECT_LIMIT, 2 * self._length[origin]) if origin in self._length else EJECT_SECONDS
        self._length[origin] = length
        self._ejected[origin] = now + length
        return True

    def any_ejected(self) -> bool:
        """Whether `order` would look at anything: false in good times, and then costs nothing."""
        return bool(self._ejected)

    def order(self, origins: Iterable[str], now: float) -> list[str]:
        """The same origins, the ejected ones last. At most half are treated as ejected, and none when all are.

        An origin whose time is over gets one trial, from a request that would go to it first: it keeps its place once,
        and is put back meanwhile. (From another request the trial would be spent and never made.)
        """
        names = list(origins)
        if not self._ejected:
            return names
        good: list[str] = []
        out: list[str] = []
        limit = len(names) // 2
        for name in names:
            until = self._ejected.get(name)
            if until is None or len(out) >= limit:
                good.append(name)
            elif until <= now and not good:
                self._ejected[name] = now + self._length[name]
                good.append(name)
            else:
                out.append(name)
        return good + out

    def proved(self, origin: str) -> None:
        """The control plane found the origin well again: better evidence than what this isolate saw before."""
        self.succeeded(origin)

    def ejected(self, now: float) -> dict[str, float]:
        """Origins now ejected, with the seconds until a trial."""
        return {name: round(until - now, 1) for name, until in self._ejected.items() if until > now}
