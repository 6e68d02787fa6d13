"""`isochrone agent`: fetches its plan, probes by it on a schedule, spools what it measured and sends it."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from isochrone.agents import plan as plans
from isochrone.agents.client import Client, ControlPlaneError
from isochrone.agents.clock import AgentClock
from isochrone.agents.intake import Intake
from isochrone.agents.plan import Plan, PlanError
from isochrone.agents.sender import Sender
from isochrone.backoff import Backoff
from isochrone.model import Origin
from isochrone.probing.agent import Agent, Round
from isochrone.probing.methods import limiter_of, probers_of
from isochrone.service.jobs import Jobs
from isochrone.service.measuring import round_deadline, shortest_round
from isochrone.service.schedule import Recurring, add, scheduler_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from isochrone.agents.settings import AgentSettings
    from isochrone.agents.spool import Spool

log = logging.getLogger(__name__)

EXPECTED = (ControlPlaneError, PlanError)
END_SECONDS = 5.0  # what is under way gets so long to end


class AgentProcess:
    """One origin's agent, until it is told to stop. Raises TrustError from its constructor."""

    def __init__(
        self, settings: AgentSettings, token: str, spool: Spool, *, clock: AgentClock | None = None
    ) -> None:
        self._settings = settings
        self._spool = spool
        self._clock = clock or AgentClock()
        self._client = Client(settings, token, self._clock)
        lock = asyncio.Lock()
        self._intake = Intake(spool, lock, self._clock, settings.origin)
        backoff = Backoff(most=settings.poll_seconds)
        self._sender = Sender(spool, lock, self._client, self._clock, self._intake, backoff)
        self._plan: Plan | None = None
        self._agent: Agent | None = None
        self._jobs = Jobs(self._clock.now)
        self._scheduler = scheduler_of(
            [Recurring("plan", settings.poll_seconds, self._look)],
            run=self._tracked,
            skipped=self._jobs.skipped,
        )
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    def stop(self) -> None:
        """Ask it to end."""
        self._stop.set()

    async def run(self) -> None:
        """Until SIGTERM, SIGINT or `stop`; what was measured by then is in the spool."""
        self._hear_signals()
        log.info(
            "started: agent of %s, control plane %s, %d batches (%d samples) in the spool",
            self._settings.origin, self._settings.control_plane, len(self._spool), self._spool.samples,
        )  # fmt: skip
        async with self._client:
            await self._recall()
            self._scheduler.start()
            self._tasks.add(asyncio.create_task(self._sender.run()))
            try:
                await self._stop.wait()
            finally:
                log.info("stopping")
                # Ended once: a second cancellation, of the scheduler's, would cut short what they still keep.
                self._scheduler.pause()
                await self._end(set(self._tasks))
                self._scheduler.shutdown(wait=False)
                await self._intake.keep("", ())
                self._last_words()

    @property
    def unspooled(self) -> int:
        """Samples that are in memory only."""
        return self._intake.waiting

    async def once(self) -> Round | None:
        """Fetch the plan, make one round and send everything; None when it was stopped before the end.

        What could not be spooled by the end is told and stays in `unspooled`.

        Raises:
            ControlPlaneError: there is no plan, or not everything was taken; what was measured is in the spool.
            PlanError: the plan is none that this version understands.
        """
        self._hear_signals()
        async with self._client:
            await self._recall()
            work = asyncio.create_task(self._once())
            stopping = asyncio.create_task(self._stop.wait())
            await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
            await self._end({stopping} if work.done() else {work, stopping})
            if self._intake.waiting:  # sending has made room
                await self._intake.keep("", ())
            self._last_words()
            return None if work.cancelled() else work.result()

    async def _once(self) -> Round:
        try:
            await self._fetch()
        except ControlPlaneError as error:
            if self._plan is None:
                raise
            log.warning("%s; going by the plan that was kept", error)
        done = await self._round()
        if self._intake.waiting:
            await self._intake.keep("", ())
        while (entry := self._spool.oldest()) is not None:
            await self._sender.send(entry)
        return done

    def _hear_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)

    async def _end(self, tasks: set[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=END_SECONDS)

    async def _tracked(self, work: Callable[[], Awaitable[object]]) -> None:
        """So that the end can wait for it."""
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        with suppress(asyncio.CancelledError):
            await work()

    async def _recall(self) -> None:
        """The plan that was kept from before."""
        body = await asyncio.to_thread(self._spool.plan)
        if body is None:
            return
        try:
            self._go_by(await asyncio.to_thread(plans.read, body))
        except PlanError as error:
            log.warning("the plan that was kept can't be used: %s", error)

    async def _look(self) -> None:
        """Whether there is a new plan."""
        deadline = self._settings.timeout_seconds + 15.0
        pauses = Backoff(most=self._settings.poll_seconds)
        await self._jobs.run("plan", deadline, self._fetch, expected=EXPECTED)
        while self._plan is None:  # nothing can be done without one
            await asyncio.sleep(pauses.next())
            await self._jobs.run("plan", deadline, self._fetch, expected=EXPECTED)
        if self._intake.waiting:
            await self._intake.keep("", ())

    async def _fetch(self) -> None:
        plan = await self._client.plan(self._plan.id if self._plan is not None else None)
        if plan is None:
            return
        self._go_by(plan)
        try:
            await asyncio.to_thread(self._spool.keep_plan, plan.body)
        except OSError as error:
            log.warning("the plan can't be kept: %s", error.strerror or error)

    def _go_by(self, plan: Plan) -> None:
        """Measure by this plan from the next round on."""
        settings, probing = self._settings, plan.probing
        # This host's own manners hold beside the plan's: nobody else can loosen them.
        probing = probing.model_copy(
            update={
                "never_probe": (*probing.never_probe, *settings.never_probe),
                "lab": probing.lab and settings.lab,
            }
        )
        origin = Origin(
            id=settings.origin, host="", latitude=0.0, longitude=0.0, source_address=settings.source_address
        )
        self._agent = Agent(
            origin,
            *probers_of(probing),
            concurrency=probing.concurrency,
            timeout=probing.timeout_seconds,
            limiter=limiter_of(probing),
            clock=self._clock.elapsed,
        )
        before, self._plan = self._plan, plan
        log.info(
            "plan %s: %d targets by %s every %g s",
            plan.id[:12], len(plan.targets), ", ".join(probing.methods), probing.interval_seconds,
        )  # fmt: skip
        if before is None or before.probing.interval_seconds != probing.interval_seconds:
            job = Recurring("probe", probing.interval_seconds, self._probe)
            add(self._scheduler, job, run=self._tracked, first=self._until_due(probing.interval_seconds))

    def _until_due(self, interval: float) -> float:
        """Seconds until the next round: an agent that is started again and again must not probe more often for that."""
        since = self._clock.now() - self._spool.counts.round_began
        return interval - since if 0 <= since < interval else 0.0

    async def _probe(self) -> None:
        if self._plan is not None:
            seconds = self._round_seconds(self._plan)
            await self._jobs.run("probe", round_deadline(seconds), self._round)

    async def _round(self) -> Round:
        plan, agent = self._plan, self._agent
        if plan is None or agent is None:
            raise RuntimeError("a round without a plan")
        self._spool.count(round_began=self._clock.now())
        done = await agent.run_round(
            list(plan.targets.values()),
            seconds=self._round_seconds(plan),
            keep=partial(self._intake.keep, plan.id),
            keep_seconds=self._settings.batch_seconds,
        )
        counts = self._spool.counts
        log.info(
            "round: %d samples, %d missed, %.1f s; spool: %d batches, %d bytes, dropped=%d refused=%d damaged=%d unkept=%d",
            len(done.samples), done.missed, done.seconds, len(self._spool), self._spool.bytes,
            counts.dropped, counts.refused, counts.damaged, counts.unkept,
        )  # fmt: skip
        return done

    @staticmethod
    def _round_seconds(plan: Plan) -> float:
        return max(0.95 * plan.probing.interval_seconds, shortest_round(plan.probing, len(plan.targets)))

    def _last_words(self) -> None:
        if self._intake.waiting:
            log.error("%d samples are lost: they could not be spooled", self._intake.waiting)
        if len(self._spool):
            log.info("%d batches wait in the spool for the next start", len(self._spool))
