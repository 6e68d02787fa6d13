"""When a map is built, and what goes out: a whole map after a build, at once the live one restated when a promise changes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from isochrone.mapping.build import EndpointState, NothingToBuildError
from isochrone.service.building import BuildBusyError, Builder, Built, restated
from isochrone.store.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from isochrone.model import Origin
    from isochrone.service.jobs import Jobs
    from isochrone.service.publisher import Publisher
    from isochrone.service.verifying import Verifying

DEADLINE_SECONDS = 300.0
EXPECTED = (StoreError, NothingToBuildError, BuildBusyError)


class Maps:
    """Builds when a map is wanted, one at a time, and offers it to the publisher.

    `evidence` gives a number of good samples as one for each target and origin; `checks` are those to be made before a first map.
    """

    def __init__(
        self,
        origins: Sequence[Origin],
        builder: Builder,
        verifying: Verifying,
        publisher: Publisher,
        jobs: Jobs,
        clock: Callable[[], float],
        *,
        evidence: Callable[[int], float],
        checks: Collection[str],
    ) -> None:
        self.built: Built | None = None
        self.builds = 0
        self.building = False  # a thread is at work that can't be interrupted
        self.warm = asyncio.Event()  # enough was measured for a first map
        self._verified = asyncio.Event()  # each kind of check was made once
        self._unchecked = set(checks)
        self._wanted = asyncio.Event()
        self._origins, self._builder, self._verifying, self._publisher = (
            origins, builder, verifying, publisher,
        )  # fmt: skip
        self._jobs, self._clock, self._evidence = jobs, clock, evidence

    def want(self) -> None:
        """Build soon. Wishes that come while a map is being built are one wish."""
        self._wanted.set()

    def checked(self, name: str, *, changed: bool) -> None:
        """A round of checks has ended, well or not. What it changed goes out at once: a build may take minutes, or be refused."""
        self._unchecked.discard(name)
        if not self._unchecked:
            self._verified.set()
        live = self._publisher.live
        if changed and live is not None and self._verified.is_set():
            data = restated(live, self._origins, endpoints=self.endpoints(), now=self._clock())
            if data is not None:
                self._publisher.offer(data)
        if changed:
            self.want()

    def endpoints(self) -> dict[str, EndpointState]:
        """By id of the origin, what verification knows now."""
        verifying = self._verifying
        return {
            origin.id: EndpointState(
                up=verifying.state(origin) != "down",
                proved=verifying.offered(origin),
                withdrawn=verifying.withdrawn(origin),
            )
            for origin in self._origins
        }

    async def run(self) -> None:
        """Build whenever a map is wanted, until cancelled."""
        await self.warm.wait()
        await self._verified.wait()  # a first map without endpoints would be replaced at once
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self._jobs.run("build", DEADLINE_SECONDS, self._build, expected=EXPECTED)

    async def _build(self) -> None:
        if self.building:
            raise BuildBusyError
        self.building = True
        work = asyncio.to_thread(
            self._builder.build,
            endpoints=self.endpoints(),
            previous=self._publisher.live,
            now=self._clock(),
        )
        thread = asyncio.ensure_future(work)
        thread.add_done_callback(self._done)
        # Shielded: a thread can't be ended, the deadline ends only the waiting for it.
        self.built = await asyncio.shield(thread)
        self.builds += 1
        # What was withdrawn meanwhile must not come back with a map that was begun before.
        fresh = restated(self.built.map, self._origins, endpoints=self.endpoints(), now=self._clock())
        self._publisher.offer(fresh or self.built.data, self._evidence(self.built.samples))

    def _done(self, thread: asyncio.Future[Built]) -> None:
        self.building = False
        if not thread.cancelled():
            thread.exception()  # seen, whoever else waits for it
