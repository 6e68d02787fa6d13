"""Probe rounds: every origin's agent probes every target, in this process. What was measured is on disk before it counts."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from isochrone.model import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from isochrone.model import Target
    from isochrone.probing.agent import Agent, Round
    from isochrone.probing.keeping import Measured
    from isochrone.service.choosing import Choosing
    from isochrone.settings import Probing
    from isochrone.store.sqlite import Store

log = logging.getLogger(__name__)

WARM_PROBES_PER_SECOND = 100.0


@dataclass(slots=True)
class Tally:
    """What the rounds of this process came to."""

    rounds: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    missed: int = 0  # planned and not probed before the round's deadline
    reasons: Counter[str] = field(default_factory=Counter)  # why samples were not ok, in the last round
    last_round: dict[str, Any] = field(default_factory=dict)


class NothingLearntError(Exception):
    """A round that says nothing about the network: it does not count as a good one."""

    def __init__(self, planned: int, reasons: Counter[str]) -> None:
        most = f", most often: {reasons.most_common(1)[0][0]}" if reasons else ""
        super().__init__(f"none of {planned} probes could be made{most}")


class Measuring:
    """The agents of all origins and what they are to probe."""

    def __init__(
        self,
        agents: Mapping[str, Agent],
        choosing: Choosing,
        store: Store,
        probing: Probing,
        clock: Callable[[], float],
    ) -> None:
        self.tally = Tally()
        self._agents = agents
        self._choosing = choosing
        self._store = store
        self._probing = probing
        self._clock = clock

    @property
    def warm_round(self) -> float:
        """Seconds of each of the first rounds, which follow each other, yet slowly: this process's load stays out of the figures."""
        probes = self._choosing.most * len(self._agents)
        return max(self._shortest, min(self._probing.interval_seconds, probes / WARM_PROBES_PER_SECOND))

    @property
    def round_seconds(self) -> float:
        """Seconds of every other round: done before the next begins."""
        return max(0.95 * self._probing.interval_seconds, self._shortest)

    @property
    def _shortest(self) -> float:
        return shortest_round(self._probing, self._choosing.most)

    @staticmethod
    def deadline(seconds: float) -> float:
        """Seconds after which a round is stopped from outside, should an agent not keep to its own end."""
        return round_deadline(seconds)

    async def round(self, seconds: float) -> None:
        """One round of all agents at once, spread over `seconds`. What they measure is stored every few seconds.

        Raises:
            StoreError: samples could not be kept.
            NothingLearntError: probes were planned, and every one of them failed on our side or was not made.
        """
        targets = await self._choosing.next_round(self._clock())
        if not self._agents:  # others measure for every origin
            return
        rounds = await asyncio.gather(
            *(self._one(agent, targets, seconds) for agent in self._agents.values()), return_exceptions=True
        )
        done = [result for result in rounds if not isinstance(result, BaseException)]
        self._count(done)
        for result in rounds:
            if isinstance(result, BaseException):
                raise result
        planned = sum(result.planned for result in done)
        if planned and not any(s.outcome is not Outcome.PROBER_FAILED for r in done for s in r.samples):
            raise NothingLearntError(planned, self.tally.reasons)

    async def _one(self, agent: Agent, targets: Sequence[Target], seconds: float) -> Round:
        result = await agent.run_round(targets, seconds=seconds, keep=self._keep)
        self._choosing.told(result.outcomes)
        return result

    async def _keep(self, measured: Sequence[Measured]) -> None:
        await asyncio.to_thread(self._store.add_samples, [one.sample for one in measured])

    def _count(self, rounds: Sequence[Round]) -> None:
        tally = self.tally
        tally.rounds += 1
        outcomes = Counter(sample.outcome.value for result in rounds for sample in result.samples)
        tally.outcomes.update(outcomes)
        missed = sum(result.missed for result in rounds)
        tally.missed += missed
        tally.reasons = Counter()
        for result in rounds:
            tally.reasons.update(result.details)
        seconds = max((result.seconds for result in rounds), default=0.0)
        tally.last_round = {"seconds": round(seconds, 3), "missed": missed, **outcomes}
        told = " ".join(f"{name}={count}" for name, count in sorted(outcomes.items()))
        log.info(
            "probe round %d: %s missed=%d seconds=%.1f", tally.rounds, told or "no samples", missed, seconds
        )


def round_deadline(seconds: float) -> float:
    """Seconds after which a round of so many is stopped from outside."""
    return seconds * 1.25 + 15.0


def shortest_round(probing: Probing, targets: int) -> float:
    """Seconds that a round takes when nobody answers, and that the agent's own cap asks for."""
    probes = targets * len(probing.methods)
    silent = math.ceil(probes / probing.concurrency) * probing.timeout_seconds
    return max(silent, probes / probing.agent_rate) + 1.0
