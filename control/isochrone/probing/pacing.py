"""When to probe whom within a round: a Poisson process under the caps of a Limiter. Pure: the clock is an argument.

Independent uniform times are a Poisson process given its number of arrivals, so that rounds of many agents never fall into step
(PASTA, RFC 2330 section 11.1.1). What a cap holds back waits for its own bucket only; nobody else waits behind it.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Hashable, Sequence

    from isochrone.model import Target
    from isochrone.probing.limiter import Limiter


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is to be done before `until`."""

    until: float


@dataclass(slots=True)
class _Network:
    """Targets of one network that its cap holds back, first come first served."""

    key: Hashable
    waiting: deque[Target]


class Pacer:
    """One round: each of `targets` once (one that is listed twice, twice), from `start` on over `span` seconds and not after `end`.

    `next(now)` gives the target to probe now, or how long to wait, or None when the round is over. It may be called late: a
    delay never lets more through at once than the caps allow.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        *,
        start: float,
        span: float,
        end: float,
        limiter: Limiter,
        rng: random.Random,
    ) -> None:
        self._limiter = limiter
        self._end = end
        self._order = count()  # equal times keep the order in which they were drawn
        self._networks: dict[Hashable, _Network] = {}
        self._left = len(targets)
        times = sorted(start + rng.uniform(0.0, span) for _ in targets)
        self._due: list[tuple[float, int, Target | _Network]] = [
            (at, next(self._order), target)
            for at, target in zip(times, rng.sample(targets, len(targets)), strict=True)
        ]

    @property
    def left(self) -> int:
        """Targets not probed so far; those that stay so when the round is over were held back."""
        return self._left

    def next(self, now: float) -> Target | Wait | None:
        """What to do at `now`. A target that is returned counts as probed at `now`."""
        while self._due and now <= self._end:
            at = self._due[0][0]
            if at > now:
                return Wait(at) if at <= self._end else None
            # The agent's own cap holds everybody back alike: no need to look at the others.
            ready = self._limiter.agent_ready_at(now)
            if ready > now:
                return Wait(ready) if ready <= self._end else None
            _, _, item = heapq.heappop(self._due)
            target = self._released(item, now) if isinstance(item, _Network) else self._drawn(item, now)
            if target is not None:
                self._limiter.take(target, now)
                self._left -= 1
                if isinstance(item, _Network):
                    self._again(item, now)
                return target
        return None

    def _drawn(self, target: Target, now: float) -> Target | None:
        """The target, unless its own cap or its network's holds it back."""
        ready = self._limiter.target_ready_at(target, now)
        if ready > now:
            self._push(ready, target)
            return None
        key = self._limiter.network_of(target)
        network = self._networks.get(key)
        if network is None and self._limiter.network_ready_at(key, now) <= now:
            return target
        if network is None:
            network = self._networks[key] = _Network(key, deque())
            self._push(self._limiter.network_ready_at(key, now), network)
        network.waiting.append(target)
        return None

    def _released(self, network: _Network, now: float) -> Target | None:
        """The first that waited for the network, when its cap allows."""
        ready = self._limiter.network_ready_at(network.key, now)
        if ready > now:
            self._push(ready, network)
            return None
        while network.waiting:
            target = network.waiting.popleft()
            ready = self._limiter.target_ready_at(target, now)
            if ready <= now:
                return target
            self._push(ready, target)  # it was probed while this probe waited
        del self._networks[network.key]
        return None

    def _again(self, network: _Network, now: float) -> None:
        if network.waiting:
            self._push(self._limiter.network_ready_at(network.key, now), network)
        else:
            del self._networks[network.key]

    def _push(self, at: float, item: Target | _Network) -> None:
        heapq.heappush(self._due, (at, next(self._order), item))
