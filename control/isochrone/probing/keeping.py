"""Hands on what a round measures while it is measured: a process that dies loses the last few seconds, not the round."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from isochrone.model import Sample, Target

KEEP_SECONDS = 2.0  # between two hand-overs


class Measured(NamedTuple):
    """A sample and whom it was taken from."""

    target: Target
    sample: Sample


class Keeper:
    """Calls `keep` every `seconds` with what came since, and once more at the end of the block, one call at a time.

    What `keep` could not take is offered again with the next; what the last call could not take is its error, which is raised.
    A call that has begun is never cancelled: half-done, nobody would know whether its samples were kept.
    """

    def __init__(
        self, keep: Callable[[Sequence[Measured]], Awaitable[None]], seconds: float = KEEP_SECONDS
    ) -> None:
        self._keep = keep
        self._seconds = seconds
        self._pending: list[Measured] = []
        self._taking: list[Measured] = []
        self._call: asyncio.Future[None] | None = None
        self._ticker: asyncio.Task[None] | None = None

    def add(self, measured: Measured) -> None:
        """To be kept with the next call."""
        self._pending.append(measured)

    async def __aenter__(self) -> Self:
        self._ticker = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.wait({self._ticker})
        await self._settle()
        if self._pending:
            self._begin()
            error = await self._settle()
            if error is not None:
                raise error

    async def _tick(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(self._seconds)
                await self._settle()
                if self._pending:
                    self._begin()

    def _begin(self) -> None:
        self._taking, self._pending = self._pending, []
        self._call = asyncio.ensure_future(self._keep(self._taking))

    async def _settle(self) -> BaseException | None:
        """Wait for the call under way, without ending it; its error, when it had one."""
        if self._call is None:
            return None
        await asyncio.wait({self._call})
        error = self._call.exception() if not self._call.cancelled() else asyncio.CancelledError()
        self._call = None
        if error is not None:
            self._pending = self._taking + self._pending
        self._taking = []
        return error
