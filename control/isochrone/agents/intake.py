"""From what was measured to batches in the spool. While the disk is full it waits in memory, up to a bound; nothing is lost untold."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from typing import TYPE_CHECKING

from isochrone.agents.spool import FULL
from isochrone.agents.wire import Header, Row, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isochrone.agents.clock import AgentClock
    from isochrone.agents.spool import Spool
    from isochrone.probing.keeping import Measured

log = logging.getLogger(__name__)

BATCH_SAMPLES = 5_000
WAITING_SAMPLES = 50_000  # in memory, while the disk is full: some 20 MB


class Intake:
    """Takes samples stamped with the clock's `elapsed` and spools them as batches of one plan."""

    def __init__(self, spool: Spool, lock: asyncio.Lock, clock: AgentClock, origin: str) -> None:
        self._spool = spool
        self._lock = lock  # of the spool
        self._clock = clock
        self._origin = origin
        self._waiting: deque[tuple[str, Measured]] = deque()  # with the plan's id
        self._trouble = ""
        self.spooled = asyncio.Event()  # there is something to send
        if len(spool):
            self.spooled.set()

    @property
    def waiting(self) -> int:
        """Samples that are in memory only."""
        return len(self._waiting)

    async def keep(self, plan: str, measured: Sequence[Measured]) -> None:
        """Spool what was measured by a plan, and what waits from before. Never raises; what it can't spool waits."""
        self._waiting.extend((plan, one) for one in measured)
        async with self._lock:
            await asyncio.to_thread(self._spool_all)
        if len(self._spool):
            self.spooled.set()

    def _spool_all(self) -> None:
        try:
            while self._waiting:
                batch, header, body = self._batch()
                dropped = self._spool.add(header.batch, header.samples, body)
                for _ in batch:
                    self._waiting.popleft()
                if dropped:
                    log.warning(
                        "the spool is full: the oldest %d samples were dropped (%d in all); is the control plane away?",
                        dropped, self._spool.counts.dropped,
                    )  # fmt: skip
        except OSError as error:
            self._complain(error)
        else:
            if self._trouble:
                log.info("the spool can be written again")
            self._trouble = ""

    def _batch(self) -> tuple[list[Measured], Header, bytes]:
        """The next batch: the oldest that wait, of one plan."""
        plan = self._waiting[0][0]
        batch: list[Measured] = []
        for of, one in self._waiting:
            if of != plan or len(batch) >= BATCH_SAMPLES:
                break
            batch.append(one)
        offset = self._clock.offset
        rows = [
            Row(
                at=round(one.sample.timestamp + offset, 6),
                address=one.target.address,
                port=one.target.port,
                method=one.sample.method,
                outcome=one.sample.outcome.value,
                rtt_ms=one.sample.rtt_ms,
            )
            for one in batch
        ]
        header = Header(
            isochrone=1, batch=secrets.token_hex(16), origin=self._origin, plan=plan, samples=len(rows),
            clock=self._clock.note(),
        )  # fmt: skip
        return batch, header, encode(header, rows)

    def _complain(self, error: OSError) -> None:
        """Told once, not with every batch."""
        trouble = "the disk is full" if error.errno in FULL else error.strerror or str(error)
        if trouble != self._trouble:
            log.error(
                "%s: can't be written (%s); up to %d samples wait in memory, make room and it goes on by itself",
                self._spool.folder, trouble, WAITING_SAMPLES,
            )  # fmt: skip
        self._trouble = trouble
        lost = len(self._waiting) - WAITING_SAMPLES
        if lost > 0:
            for _ in range(lost):
                self._waiting.popleft()
            self._spool.count(unkept=lost)
            log.warning("%d samples were lost: no room on the disk and none in memory", lost)
