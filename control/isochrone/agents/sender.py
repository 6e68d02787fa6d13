"""Sends what is in the spool, oldest first, one batch at a time, until each is acknowledged."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from isochrone import __version__
from isochrone.agents.client import ControlPlaneError, RefusedError
from isochrone.agents.wire import MalformedError, decode, encode, peek

if TYPE_CHECKING:
    from isochrone.agents.client import Client
    from isochrone.agents.clock import AgentClock
    from isochrone.agents.intake import Intake
    from isochrone.agents.spool import Entry, Spool
    from isochrone.backoff import Backoff

log = logging.getLogger(__name__)


class Sender:
    """A batch leaves the spool when the control plane has acknowledged it, or has said that it will never take it."""

    def __init__(
        self,
        spool: Spool,
        lock: asyncio.Lock,
        client: Client,
        clock: AgentClock,
        intake: Intake,
        backoff: Backoff,
    ) -> None:
        self._spool = spool
        self._lock = lock
        self._client = client
        self._clock = clock
        self._intake = intake
        self._backoff = backoff
        self.sent = 0  # batches acknowledged
        self._away = False

    async def run(self) -> None:
        """For ever; pauses grow while the control plane is away."""
        while True:
            await self._intake.spooled.wait()
            self._intake.spooled.clear()
            while (entry := self._spool.oldest()) is not None:
                try:
                    await self.send(entry)
                except ControlPlaneError as error:
                    pause = self._backoff.next(error.wait)
                    if not self._away:
                        log.warning("%s; %d batches wait in the spool", error, len(self._spool))
                    self._away = True
                    await asyncio.sleep(pause)
                except Exception as error:  # a fault of ours must not end the sending
                    log.exception("sending failed: %s", type(error).__name__)
                    await asyncio.sleep(self._backoff.next())
                else:
                    if self._away:
                        log.info("the control plane is back; %d batches wait in the spool", len(self._spool))
                    self._away = False
                    self._backoff.reset()

    async def send(self, entry: Entry) -> None:
        """Send one batch and let go of it. Raises ControlPlaneError: it stays."""
        if not self._clock.confirmed:  # else a batch that was stamped by a wrong clock would be sent as it is
            await self._client.ask_time()
        try:
            async with self._lock:
                body = await asyncio.to_thread(self._spool.read, entry)
            body, shifted = await asyncio.to_thread(self._in_time, body)
        except (OSError, MalformedError) as error:
            if self._spool.oldest() == entry:  # it was not dropped meanwhile
                log.error("%s: can't be read (%s); put aside", entry.name, error)  # noqa: TRY400  the sentence says it
                await self._put_aside(entry, damaged=True)
            return
        try:
            answer = await self._client.send(entry.id, body, self._note())
        except RefusedError as refused:
            if refused.code in {"time_ahead", "time_past"} and not shifted and (await self._shifts(body)):
                return  # the clock was just set right by that very answer: the next try shifts the batch
            log.error("the control plane refused batch %s: %s; put aside", entry.id, refused)  # noqa: TRY400
            await self._put_aside(entry)
            return
        if answer.set_aside:
            log.warning("%d samples were faster than light and are not used", answer.set_aside)
        self.sent += 1
        async with self._lock:
            await asyncio.to_thread(self._spool.remove, entry)

    async def _put_aside(self, entry: Entry, *, damaged: bool = False) -> None:
        async with self._lock:
            await asyncio.to_thread(self._spool.put_aside, entry, damaged=damaged)

    def _in_time(self, body: bytes) -> tuple[bytes, bool]:
        """The batch with its times set right, when it was stamped by a clock that was wrong; else as it is."""
        shift = self._clock.shift_of(peek(body).clock)
        if not shift:
            return body, False
        batch = decode(body)
        rows = [row.model_copy(update={"at": round(row.at + shift, 6)}) for row in batch.rows]
        return encode(batch.header, rows), True

    async def _shifts(self, body: bytes) -> bool:
        return (await asyncio.to_thread(self._in_time, body))[1]

    def _note(self) -> str:
        counts = self._spool.counts
        return (
            f"isochrone/{__version__} batches={len(self._spool)} bytes={self._spool.bytes} dropped={counts.dropped}"
            f" refused={counts.refused} damaged={counts.damaged} unkept={counts.unkept}"
        )
