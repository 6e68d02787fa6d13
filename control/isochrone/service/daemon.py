"""The daemon: what is measured, checked, built and published when. The schedule decides nothing else."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from isochrone.probing.agent import Agent
from isochrone.probing.methods import limiter_of, probers_of
from isochrone.service.api import Api
from isochrone.service.building import Builder, ok_samples
from isochrone.service.choosing import Choosing
from isochrone.service.edge_watch import EDGE, SITE, EdgeWatch
from isochrone.service.jobs import Jobs
from isochrone.service.maps import Maps
from isochrone.service.measuring import Measuring, NothingLearntError
from isochrone.service.publisher import Publisher
from isochrone.service.remote_agents import RemoteAgents
from isochrone.service.schedule import Recurring, scheduler_of
from isochrone.service.status import document
from isochrone.service.verifying import Verifying
from isochrone.store import retention
from isochrone.store.errors import StoreError
from isochrone.store.findings import open_counts
from isochrone.verification.dns import DnsChecker
from isochrone.verification.edge import EdgeChecker
from isochrone.verification.health import HealthChecker
from isochrone.verification.http3 import EndpointChecker
from isochrone.verification.resolving import resolver_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from apscheduler.schedulers.asyncio import AsyncIOScheduler

    from isochrone.probing.target_source import TargetSource
    from isochrone.service.verifying import Key
    from isochrone.settings import Settings
    from isochrone.store.sqlite import Store

log = logging.getLogger(__name__)

HOUSEKEEPING_SECONDS = 3600.0
HOUSEKEEPING_DEADLINE_SECONDS = 300.0
AGENTS_SECONDS = 10.0  # between two looks at whether agents are silent
END_SECONDS = 5.0  # what is under way gets so long to end


class Daemon:
    """One controller: measures, checks, builds and publishes until it is told to stop.

    Raises from its constructor, before anything is started: TrustStoreError, TrustAnchorError, TargetsError, StoreError.
    """

    def __init__(
        self,
        settings: Settings,
        source: TargetSource,
        store: Store,
        *,
        take_over: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.started_at = clock()
        self.store = store
        self.origins = settings.model_origins()
        self.choosing = Choosing(settings.probing, source, store)
        self.jobs = Jobs(clock)
        self.agents = RemoteAgents(
            settings, self.origins, lambda: self.choosing.targets, store, clock, told=self.choosing.told
        )
        probing = settings.probing
        probers = probers_of(probing)
        agents = {
            origin.id: Agent(
                origin,
                *probers,
                concurrency=probing.concurrency,
                timeout=probing.timeout_seconds,
                limiter=limiter_of(probing),
            )
            for origin in self.origins
            if origin.id not in self.agents.origins  # its own agent speaks for it
        }
        self.measuring = Measuring(agents, self.choosing, store, probing, clock)
        self.verifying = Verifying(
            self.origins,
            EndpointChecker(settings.site, settings.verification, resolver_of(settings.dns)),
            HealthChecker(settings.verification),
            DnsChecker(settings) if settings.checks_dns else None,
            store,
            settings.verification,
            clock,
        )
        self.edge: EdgeWatch | None = None
        if settings.checks_edge:
            timeout = settings.edge.timeout_seconds
            self.edge = EdgeWatch(EdgeChecker(settings), store, clock, timeout=timeout)
        self.publisher = Publisher(
            settings,
            store,
            self.jobs,
            lambda: self.maps.want(),  # noqa: PLW0108  they are made after it
            take_over=take_over,
            clock=clock,
        )
        self.maps = Maps(
            self.origins,
            Builder(store, settings, self.origins),
            self.verifying,
            self.publisher,
            self.jobs,
            clock,
            evidence=lambda samples: samples / self._pairs,
            checks={"health", "http3"} | ({"dns"} if settings.checks_dns else set()),
        )
        self.api = Api(self, settings.service)
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.verifying.recall({(EDGE, SITE)} if self.edge else ())
        self.publisher.recall()
        self.agents.recall()

    def stop(self) -> None:
        """Ask it to end."""
        self._stop.set()

    async def run(self) -> None:
        """Until SIGTERM, SIGINT or `stop`.

        Raises:
            ListenError: the API's address can't be had; nothing was started.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        await self.api.start()
        scheduler = self._schedule()
        for work in (self.maps.run(), self.publisher.run()):
            self._tasks.add(asyncio.create_task(work))
        log.info(
            "started: %s, %d origins, %d targets, status on http://%s/status",
            self.settings.site, len(self.origins), self.choosing.counts()["listed"], self.api.address,
        )  # fmt: skip
        try:
            await self._stop.wait()
        finally:
            log.info("stopping")
            # Ended once: a second cancellation, of the scheduler's, would cut short what they still keep.
            scheduler.pause()
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=END_SECONDS)
            scheduler.shutdown(wait=False)
            await self.api.stop()

    def _schedule(self) -> AsyncIOScheduler:
        settings, verifying = self.settings, self.verifying
        checks, build = settings.verification.interval_seconds, settings.estimation.interval_seconds
        recurring = [
            Recurring("probe", settings.probing.interval_seconds, self._probe),
            Recurring("health", checks, partial(self._check, "health", verifying.health_round)),
            Recurring("http3", checks, partial(self._check, "http3", verifying.endpoint_round)),
            Recurring(
                "health-again", checks, partial(self._again, "health", verifying.health_round), checks / 2
            ),
            Recurring(
                "http3-again", checks, partial(self._again, "http3", verifying.endpoint_round), checks / 2
            ),
            Recurring("http3-deep", checks, self._check_deep, checks),
            Recurring("build", build, self._want_build, build),
            Recurring("housekeeping", HOUSEKEEPING_SECONDS, self._housekeeping, HOUSEKEEPING_SECONDS),
        ]
        if self.agents.origins:
            recurring.append(Recurring("agents", AGENTS_SECONDS, self._watch_agents))
        if verifying.names is not None:
            bound = verifying.names.round_deadline
            work = partial(self._check, "dns", verifying.dns_round, bound)
            recurring.append(Recurring("dns", settings.dns.interval_seconds, work))
        if self.edge is not None:
            look = partial(self.jobs.run, EDGE, self.edge.deadline, self.edge.round, expected=(StoreError,))
            recurring.append(Recurring(EDGE, settings.edge.interval_seconds, look))
        scheduler = scheduler_of(
            recurring,
            run=self._tracked,
            skipped=self.jobs.skipped,
        )
        scheduler.start()
        return scheduler

    async def _tracked(self, work: Callable[[], Awaitable[object]]) -> None:
        """So that the end can wait for it."""
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        with suppress(asyncio.CancelledError):
            await work()

    async def _probe(self) -> None:
        """A round; at the very start as many as a first map needs, one after the other."""
        wanted = 1 if self.maps.warm.is_set() else await self._rounds_to_warm()
        for _ in range(wanted):
            warm = self.maps.warm.is_set()
            seconds = self.measuring.round_seconds if warm else self.measuring.warm_round
            await self.jobs.run(
                "probe",
                self.measuring.deadline(seconds),
                partial(self.measuring.round, seconds),
                expected=(StoreError, NothingLearntError),
            )
        if not self.maps.warm.is_set() or self.maps.built is None:
            self.maps.warm.set()
            self.maps.want()

    async def _rounds_to_warm(self) -> int:
        """How many rounds a first map needs; one when a map was live before, or enough was measured before a restart."""
        minimum = self.settings.estimation.min_samples
        if self.publisher.live is not None:
            self.maps.warm.set()
            self.maps.want()
            return 1
        since = self.clock() - self.settings.estimation.window_seconds
        try:
            counts = await asyncio.to_thread(self.store.sample_counts, since)
        except StoreError:
            return minimum
        return max(1, minimum - ok_samples(counts) // self._pairs)

    @property
    def _pairs(self) -> int:
        """Targets and origins that a round measures."""
        return max(1, self.choosing.active * len(self.origins))

    async def _check(
        self, name: str, check: Callable[[], Awaitable[bool]], deadline: float | None = None
    ) -> None:
        """A round of checks. What it changes is published at once, not when the next build is due."""
        changed = False

        async def work() -> None:
            nonlocal changed
            changed = await check()

        await self.jobs.run(name, deadline or self.verifying.deadline, work, expected=(StoreError,))
        self.maps.checked(name, changed=changed)

    async def _again(self, name: str, check: Callable[[Collection[Key]], Awaitable[bool]]) -> None:
        """Halfway between two rounds, of what has begun to fail: so a promise ends within `fall` intervals, whatever a check takes."""
        doubtful = self.verifying.doubtful(name)
        record = self.jobs.records.get(name)
        if doubtful and not (record and record.running_since):
            await self._check(name, partial(check, doubtful))

    async def _check_deep(self) -> None:
        """What it finds counts with the next round of cheap checks."""
        await self.jobs.run("http3-deep", self.verifying.deep.deadline, self.verifying.deep.round)

    async def _want_build(self) -> None:
        self.maps.want()

    async def _housekeeping(self) -> None:
        async def work() -> None:
            before = self.clock() - self.settings.estimation.window_seconds
            stop = self._stop.is_set
            gone = await asyncio.to_thread(retention.forget, self.store, before, stop=stop)
            freed = await asyncio.to_thread(retention.compact, self.store, stop=stop)
            await asyncio.to_thread(self.agents.forget, self.clock())
            log.info("forgot %d samples older than the window, the store shrank by %d bytes", gone, freed)

        await self.jobs.run("housekeeping", HOUSEKEEPING_DEADLINE_SECONDS, work, expected=(StoreError,))

    async def _watch_agents(self) -> None:
        self.agents.watch()

    def stale(self) -> str:
        """Why this daemon should be looked at; "" when it measures as it should."""
        record = self.jobs.records.get("probe")
        last = record.last_success if record and record.last_success else self.started_at
        age = self.clock() - last
        bound = 3 * self.measuring.round_seconds + self.measuring.deadline(self.measuring.round_seconds)
        if len(self.agents.origins) == len(self.origins):
            return self.agents.silent()
        return f"no good probe round for {age:.0f} s" if age > bound else ""

    async def document(self) -> dict[str, Any]:
        """What `/status` tells."""
        since = self.clock() - self.settings.estimation.window_seconds
        try:
            counts = await asyncio.to_thread(self.store.sample_counts, since)
            findings = await asyncio.to_thread(open_counts, self.store)
        except StoreError:
            counts, findings = {}, {}
        return document(self, counts, findings)

    @property
    def pid(self) -> int:
        """The process that it runs in."""
        return os.getpid()
