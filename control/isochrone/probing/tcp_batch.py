"""TCP handshakes with thousands of targets: an epoll of its own inside the event loop, no task for each."""

from __future__ import annotations

import asyncio
import errno
import resource
import select
from collections import deque
from typing import TYPE_CHECKING

from isochrone.model import Outcome
from isochrone.probing import tcp_socket
from isochrone.probing.prober import (
    LATE_BOUND,
    ProbeResult,
    ProberTrouble,
    TargetTrouble,
    is_address,
    own_fault,
)
from isochrone.probing.tcp_socket import Refused

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from isochrone.model import Target
    from isochrone.probing.prober import Gate

BURST = 32  # handshakes begun before answers are looked at
WINDOW = 2048  # handshakes under way at once, if the limit of open files allows
SPARE_FILES = 128  # descriptors left to the rest of the process
TICK = 0.001  # seconds
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class TcpBatch:
    """One run over the targets."""

    def __init__(
        self,
        targets: Sequence[Target],
        *,
        source_address: str | None,
        timeout: float,
        rate: float | None,
        gate: Gate | None,
    ) -> None:
        self._targets = targets
        self._source = source_address
        self._timeout = timeout
        self._rate = rate
        self._gate = gate
        self._results: list[ProbeResult | None] = [None] * len(targets)
        self._open: dict[
            int, tuple[int, socket.socket, float]
        ] = {}  # descriptor -> index, socket, when begun
        self._begun: deque[tuple[float, int, int]] = deque()  # when, descriptor, index: in time order
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._window = max(1, min(WINDOW, limit - SPARE_FILES))

    async def run(self) -> list[ProbeResult]:
        """The results in the targets' order."""
        loop = self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        loop.add_reader(self._epoll.fileno(), self._collect)
        try:
            await self._begin_all()
            while self._open:
                await asyncio.sleep(min(0.01, self._timeout))
                self._collect()
                self._expire()
        finally:
            loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            for _, opened, _ in self._open.values():
                opened.close()
        return [result for result in self._results if result is not None]

    async def _begin_all(self) -> None:
        loop = asyncio.get_running_loop()
        count, number, began = len(self._targets), 0, loop.time()
        while number < count:
            allowed = count if self._rate is None else int((loop.time() - began) * self._rate) + 1
            stop = min(count, allowed, number + BURST, number + self._window - len(self._open))
            idle = stop <= number
            while number < stop and self._begin(number):
                number += 1
            self._collect()
            self._expire()
            await asyncio.sleep(TICK if idle or number < stop else 0)

    def _begin(self, number: int) -> bool:
        """Whether it was dealt with; it is not, when sockets are scarce and some of ours will be free soon."""
        target = self._targets[number]
        if not is_address(target.address):
            self._end(number, Outcome.PROBER_FAILED, detail="a batch takes addresses, no host names")
            return True
        refusal = self._gate.refusal(target.address) if self._gate is not None else None
        if refusal is not None:
            self._end(number, Outcome.PROBER_FAILED, detail=refusal)
            return True
        begun = self._loop.time()
        try:
            opened = tcp_socket.begin(target.address, target.port, self._source)
        except Refused as refused:
            self._end(number, Outcome.TARGET_FAILED, detail=str(refused))
        except OSError as error:
            if error.errno in _SCARCE and self._open:
                return False
            self._end(number, Outcome.PROBER_FAILED, detail=own_fault(error))
        else:
            descriptor = opened.fileno()
            self._open[descriptor] = (number, opened, begun)
            self._begun.append((begun, descriptor, number))
            self._epoll.register(descriptor, select.EPOLLOUT)
        return True

    def _collect(self) -> None:
        """Take all handshakes that have an end."""
        for descriptor, _ in self._epoll.poll(0, 1024):
            number, opened, begun = self._open.pop(descriptor)
            self._judge(number, opened, self._loop.time() - begun)
            opened.close()  # leaves the epoll by itself

    def _judge(self, number: int, opened: socket.socket, seen: float) -> None:
        phases: dict[str, float] = {}
        try:
            rtt = tcp_socket.sample(tcp_socket.finish(opened), seen)
        except TargetTrouble as trouble:
            if isinstance(trouble, Refused):
                phases["refused"] = seen * 1000
            self._end(number, Outcome.TARGET_FAILED, detail=str(trouble), phases=phases)
        except ProberTrouble as trouble:
            self._end(number, Outcome.PROBER_FAILED, detail=str(trouble))
        else:
            self._end(number, Outcome.OK, rtt=rtt, phases={"connect": rtt})

    def _expire(self) -> None:
        """End those whose time is over; call it after _collect, so that an answer that is there counts."""
        now = self._loop.time()
        while self._begun and self._begun[0][0] + self._timeout <= now:
            begun, descriptor, number = self._begun.popleft()
            held = self._open.get(descriptor)
            if held is None or held[0] != number:  # ended; the descriptor may be another's by now
                continue
            del self._open[descriptor]
            held[1].close()
            late = now - begun - self._timeout
            if late > LATE_BOUND:
                self._end(
                    number, Outcome.PROBER_FAILED,
                    detail=f"this prober's event loop was late by {late * 1000:.0f} ms",
                )  # fmt: skip
            else:
                self._end(number, Outcome.TARGET_FAILED, detail=f"no answer within {self._timeout:g} s")

    def _end(
        self,
        number: int,
        outcome: Outcome,
        *,
        rtt: float | None = None,
        detail: str = "",
        phases: dict[str, float] | None = None,
    ) -> None:
        self._results[number] = ProbeResult(
            outcome=outcome,
            rtt_ms=rtt,
            phases=phases or {},
            detail=detail,
            address=self._targets[number].address,
        )
