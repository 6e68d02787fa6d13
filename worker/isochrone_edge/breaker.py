"""What this isolate has seen fail. Plain data, no asyncio object, clock passed in (seconds)."""

from __future__ import annotations

from collections.abc import Iterable

FAILURES = 5  # in a row until an origin is ejected
EJECT_SECONDS = 30.0  # doubling with each ejection that follows
EJECT_LIMIT = 300.0  # also how long an origin must be good until its earlier ejections are forgotten
CUT_WEIGHT = 3  # failures that an answer cut off in its body counts for: no other origin can make up for it


class _Standing:
    """One origin, from its first failure on."""

    __slots__ = ("cut_at", "failures", "good_since", "length", "trial", "until")

    def __init__(self) -> None:
        self.failures = 0  # in a row
        self.until = 0.0  # ejected until then; 0: not ejected
        self.length = 0.0  # of the last ejection
        self.trial = False  # a request is out that decides
        self.good_since = 0.0
        self.cut_at: float | None = None  # when it last broke off in a body


class Breaker:
    """Ejects an origin after FAILURES in a row; one trial request may bring it back. Fails open."""

    def __init__(self) -> None:
        self._most: int | None = None  # that may be ejected at once; None: any number
        #: those that have failed lately: none in good times
        self.known: dict[str, _Standing] = {}
        self._ejected: dict[str, _Standing] = {}

    def among(self, origins: Iterable[str]) -> None:
        """These are the origins from now on: no more than half of them are ejected, and all others are forgotten."""
        names = frozenset(origins)
        for name in self.known.keys() - names:
            self.proved(name)
        self._most = len(names) // 2
        for name in sorted(self._ejected, key=lambda name: self._ejected[name].until)[: -self._most or None]:
            self.proved(name)

    def succeeded(self, origin: str, now: float = 0.0, *, whole: bool = False) -> None:
        """The origin answered; `whole`: its body is known to have come to its end.

        Of an origin that broke off in a body lately, the head of an answer proves nothing.
        """
        if not self.known:
            return
        known = self.known.get(origin)
        if known is None:
            return
        if known.cut_at is not None and not whole and now - known.cut_at < EJECT_SECONDS:
            return
        known.cut_at = None
        if known.failures:
            known.failures, known.until, known.trial, known.good_since = 0, 0.0, False, now
            self._ejected.pop(origin, None)
        elif now - known.good_since > EJECT_LIMIT:
            del self.known[origin]

    def failed(self, origin: str, now: float, weight: int = 1) -> bool:
        """The origin could not be reached, or failed to answer. True when this ejects it."""
        known = self.known.get(origin)
        if known is None:
            known = self.known[origin] = _Standing()
        known.failures += weight
        if weight == CUT_WEIGHT:
            known.cut_at = now
        if known.until and not known.trial:
            return False  # a request that was under way when it was ejected
        if known.failures < FAILURES or not self._room_for(origin):
            return False
        known.length = min(EJECT_LIMIT, 2 * known.length) if known.length else EJECT_SECONDS
        known.until, known.trial = now + known.length, False
        self._ejected[origin] = known
        return True

    def _room_for(self, origin: str) -> bool:
        """Whether it may be ejected. Where half are already, the one whose time is over first makes room: newer evidence is better.

        That one is ejected again by its next failure.
        """
        if self._most is None or origin in self._ejected or len(self._ejected) < self._most:
            return True
        if not self._most:
            return False
        first = min(self._ejected, key=lambda name: self._ejected[name].until)
        known = self._ejected.pop(first)
        known.failures, known.until, known.trial = FAILURES - 1, 0.0, False
        return True

    def any_ejected(self) -> bool:
        """Whether `order` would look at anything: false in good times, and then costs nothing."""
        return bool(self._ejected)

    def calm(self, origin: str) -> bool:
        """Whether there is nothing to think about before a request goes to this origin."""
        return not self.known or (not self._ejected and origin not in self.known)

    def troubled(self, origin: str) -> bool:
        """Whether it has failed lately."""
        return origin in self.known

    def order(self, origins: Iterable[str], now: float, *, trial: bool = True) -> list[str]:
        """The same origins, the ejected ones last. At most half are treated as ejected.

        An origin whose time is over gets one trial, from a request that would go to it first: it keeps its place once,
        and is put back meanwhile. (From another request the trial would be spent and never made.) A request that can't
        be repeated should not be the one: `trial=False`.
        """
        names = list(origins)
        if not self._ejected:
            return names
        good: list[str] = []
        out: list[str] = []
        limit = len(names) // 2
        for name in names:
            known = self._ejected.get(name)
            if known is None:
                good.append(name)
            elif known.until <= now and trial and not good:
                known.until, known.trial = now + known.length, True
                good.append(name)
            elif len(out) < limit:
                out.append(name)
            else:
                good.append(name)
        return good + out

    def proved(self, origin: str) -> None:
        """The control plane found the origin well again: better evidence than what this isolate saw before."""
        self.known.pop(origin, None)
        self._ejected.pop(origin, None)

    def ejected(self, now: float) -> dict[str, float]:
        """Origins now ejected, with the seconds until a trial."""
        return {
            name: round(known.until - now, 1) for name, known in self._ejected.items() if known.until > now
        }
