"""Probes a list of targets from one origin's region: one round at a time, spread over time, ended at its deadline."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from isochrone.model import Outcome, Sample
from isochrone.probing.keeping import KEEP_SECONDS, Keeper, Measured
from isochrone.probing.limiter import Cap, Limiter
from isochrone.probing.pacing import Pacer, Wait

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from isochrone.model import Origin, Target
    from isochrone.probing.prober import Prober

#: Share of a round over which its probes are begun; the rest is for those that were begun last.
SPREAD = 0.8
_TELLING = (Outcome.PROBER_FAILED, Outcome.TARGET_FAILED, Outcome.OK)  # the later says more about a target


def uncapped() -> Limiter:
    """Caps that hold nobody back: for tests, and for targets that are one's own."""
    cap = Cap(1e9, 1_000_000)
    return Limiter(agent=cap, network=cap, target=cap)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round brought."""

    origin: str  # its id
    samples: tuple[Sample, ...]
    planned: int  # probes that were to be made
    missed: int  # of these, not finished before the deadline; they leave no sample
    seconds: float  # how long the round took
    details: Mapping[str, int]  # why probes were not ok -> how many
    outcomes: Mapping[tuple[str, int], Outcome]  # (address, port) -> the best that any method saw there


class Agent:
    """Measures from `origin`: binds to its source address, at most `concurrency` probes at once, never above its caps.

    Each of `probers` measures each target at a time of its own: every probe counts in the caps, whatever its method.
    """

    def __init__(
        self,
        origin: Origin,
        *probers: Prober,
        concurrency: int,
        timeout: float,
        limiter: Limiter | None = None,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.origin = origin
        self._probers = probers
        self._concurrency = concurrency
        self._timeout = timeout
        self._limiter = limiter or uncapped()
        self._rng = rng or random.Random()  # noqa: S311  spacing, not secrets
        self._clock = clock

    async def run_round(
        self,
        targets: Sequence[Target],
        *,
        seconds: float,
        keep: Callable[[Sequence[Measured]], Awaitable[None]] | None = None,
        keep_seconds: float = KEEP_SECONDS,
    ) -> Round:
        """Probe every target once by each method within `seconds`; what is not done by then counts as missed.

        `keep` is called every `keep_seconds` with what was measured since, and at the end; what it raises then is raised.
        """
        if keep is None:
            return await self._round(targets, seconds, None)
        async with Keeper(keep, keep_seconds) as keeper:
            return await self._round(targets, seconds, keeper)

    async def _round(self, targets: Sequence[Target], seconds: float, keeper: Keeper | None) -> Round:
        loop = asyncio.get_running_loop()
        started = loop.time()
        samples: list[Sample] = []
        details: Counter[str] = Counter()
        outcomes: dict[tuple[str, int], Outcome] = {}
        slots = asyncio.Semaphore(self._concurrency)
        probers = {(target.address, target.port): itertools.cycle(self._probers) for target in targets}

        async def probe(target: Target, prober: Prober) -> None:
            try:
                at = self._clock()
                result = await prober.run_once(
                    target, source_address=self.origin.source_address, timeout=self._timeout
                )
            finally:
                slots.release()
            if result.outcome is not Outcome.OK:
                details[result.detail] += 1
            key = (target.address, target.port)
            outcomes[key] = max(result.outcome, outcomes.get(key, result.outcome), key=_TELLING.index)
            sample = Sample(
                at, self.origin.id, target.asn, target.country, result.rtt_ms, prober.method, result.outcome,
                target.colo, target.continent, target.latitude, target.longitude,
            )  # fmt: skip
            samples.append(sample)
            if keeper is not None:
                keeper.add(Measured(target, sample))

        pacer = Pacer(
            [target for target in targets for _ in self._probers],
            start=started,
            span=self._span(seconds),
            end=started + seconds,
            limiter=self._limiter,
            rng=self._rng,
        )
        try:
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
                while True:
                    # The slot comes first: a probe that is counted at one time and sent at another would break the caps.
                    await slots.acquire()
                    step = pacer.next(loop.time())
                    if step is None:
                        break
                    if isinstance(step, Wait):
                        slots.release()
                        await asyncio.sleep(step.until - loop.time())
                        continue
                    tasks.create_task(probe(step, next(probers[step.address, step.port])))
        except TimeoutError:
            pass  # the deadline: the group has ended what was still under way
        planned = len(targets) * len(self._probers)
        return Round(
            origin=self.origin.id, samples=tuple(samples), planned=planned, missed=planned - len(samples),
            seconds=loop.time() - started, details=dict(details), outcomes=outcomes,
        )  # fmt: skip

    def _span(self, seconds: float) -> float:
        return max(0.0, min(seconds * SPREAD, seconds - self._timeout))
