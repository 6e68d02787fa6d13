"""Probes a list of targets from one origin's region: one round at a time, spread over time, ended at its deadline."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from isochrone.model import Outcome, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from isochrone.model import Origin, Target
    from isochrone.probing.prober import Prober

#: Share of a round over which its probes are begun; the rest is for those that were begun last.
SPREAD = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round brought."""

    origin: str  # its id
    samples: tuple[Sample, ...]
    planned: int  # probes that were to be made
    missed: int  # of these, not finished before the deadline; they leave no sample
    seconds: float  # how long the round took
    details: Mapping[str, int]  # why probes were not ok -> how many


class Agent:
    """Measures from `origin`: binds to its source address, at most `concurrency` probes at once."""

    def __init__(
        self,
        origin: Origin,
        prober: Prober,
        *,
        concurrency: int,
        timeout: float,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.origin = origin
        self._prober = prober
        self._concurrency = concurrency
        self._timeout = timeout
        self._rng = rng or random.Random()  # noqa: S311  spacing, not secrets
        self._clock = clock

    async def run_round(self, targets: Sequence[Target], *, seconds: float) -> Round:
        """Probe every target once within `seconds`; what is not done by then is given up and counted as missed."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        samples: list[Sample] = []
        details: Counter[str] = Counter()
        slots = asyncio.Semaphore(self._concurrency)

        async def probe(target: Target) -> None:
            try:
                at = self._clock()
                result = await self._prober.run_once(
                    target, source_address=self.origin.source_address, timeout=self._timeout
                )
            finally:
                slots.release()
            if result.outcome is not Outcome.OK:
                details[result.detail] += 1
            samples.append(
                Sample(
                    at, self.origin.id, target.asn, target.country, result.rtt_ms, self._prober.method, result.outcome,
                    target.colo, target.continent, target.latitude, target.longitude,
                )
            )  # fmt: skip

        try:
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
                for begin, target in plan(targets, span=self._span(seconds), rng=self._rng):
                    await asyncio.sleep(started + begin - loop.time())
                    await slots.acquire()
                    tasks.create_task(probe(target))
        except TimeoutError:
            pass  # the deadline: the group has ended what was still under way
        return Round(
            origin=self.origin.id, samples=tuple(samples), planned=len(targets), missed=len(targets) - len(samples),
            seconds=loop.time() - started, details=dict(details),
        )  # fmt: skip

    def _span(self, seconds: float) -> float:
        return max(0.0, min(seconds * SPREAD, seconds - self._timeout))


def plan(targets: Sequence[Target], *, span: float, rng: random.Random) -> list[tuple[float, Target]]:
    """(seconds after the round's start, target), in time order: a Poisson process given its number of arrivals.

    Independent uniform times are exactly that, so that rounds of many agents never fall into step (PASTA, RFC 2330
    section 11.1.1). Each round has its own order.
    """
    times = sorted(rng.uniform(0.0, span) for _ in targets)
    return list(zip(times, rng.sample(targets, len(targets)), strict=True))
