"""TCP connect probes: the time from SYN to SYN-ACK, as the kernel measured it where it says so (TCP_INFO).

A RST is target_failed, though it is a round trip: whatever filters in front of the target can send it, and a round trip
that is too short misleads the map where a missing one does not. Its time is shown as the phase `refused`. A SYN that was sent
again is target_failed too: which of them was answered is not known.
"""

from __future__ import annotations

import asyncio
import select
from typing import TYPE_CHECKING

from isochrone.probing import tcp_socket
from isochrone.probing.prober import attempt, silence
from isochrone.probing.tcp_batch import TcpBatch
from isochrone.probing.tcp_socket import Refused

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from isochrone.model import Target
    from isochrone.probing.prober import Gate, ProbeResult


class TcpProber:
    """One handshake, then an orderly close; nothing is sent."""

    method = "tcp"

    def __init__(self, *, gate: Gate | None = None) -> None:
        self._gate = gate

    async def run_once(
        self, target: Target, *, source_address: str | None = None, timeout: float
    ) -> ProbeResult:
        """Connect and close; `timeout` seconds at most."""

        async def measure(address: str, deadline: float, phases: dict[str, float]) -> tuple[float, str]:
            opened, rtt = await connect(address, target.port, source_address, deadline, timeout, phases)
            opened.close()
            return rtt, ""

        return await attempt(target, measure, timeout=timeout, gate=self._gate)

    async def run_batch(
        self,
        targets: Sequence[Target],
        *,
        source_address: str | None = None,
        timeout: float,
        rate: float | None = None,
    ) -> list[ProbeResult]:
        """Each target once, without a task for each."""
        return await TcpBatch(
            targets, source_address=source_address, timeout=timeout, rate=rate, gate=self._gate
        ).run()


async def connect(
    address: str,
    port: int,
    source_address: str | None,
    deadline: float,
    timeout: float,
    phases: dict[str, float],
) -> tuple[socket.socket, float]:
    """(a connected socket, the round trip of its handshake in ms). Writes the phase `connect`, or `refused`.

    Raises TargetTrouble, ProberTrouble or this host's own OSError.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    opened = None
    try:
        opened = tcp_socket.begin(address, port, source_address)
        late = await _writable(opened, deadline)
        seen = loop.time() - began
        if late is not None and not _is_writable(opened):
            raise silence(late, timeout)
        rtt = tcp_socket.sample(tcp_socket.finish(opened), seen)
        phases["connect"] = rtt
        return opened, rtt
    except BaseException as error:
        if isinstance(error, Refused):
            phases["refused"] = (loop.time() - began) * 1000
        if opened is not None:
            opened.close()
        raise


async def _writable(opened: socket.socket, deadline: float) -> float | None:
    """Waits until the handshake has an end: None, or seconds by which we noticed too late that the deadline had passed."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[float | None] = loop.create_future()

    def overdue() -> None:
        if not future.done():
            future.set_result(loop.time() - deadline)

    def ready() -> None:
        if not future.done():
            future.set_result(None)

    loop.add_writer(opened, ready)
    timer = loop.call_at(deadline, overdue)
    try:
        return await future
    finally:
        timer.cancel()
        loop.remove_writer(opened)


def _is_writable(opened: socket.socket) -> bool:
    """The handshake may have ended while the event loop was late."""
    with select.epoll() as poller:  # not select(): descriptors may be large
        poller.register(opened.fileno(), select.EPOLLOUT)
        return bool(poller.poll(0))
