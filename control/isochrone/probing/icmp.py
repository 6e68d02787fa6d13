"""ICMP echo probes: one shared socket for each address family and source, thousands of requests under way at once."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from isochrone.probing import icmp_packet, mmsg
from isochrone.probing.batch import side_by_side
from isochrone.probing.icmp_burst import burst
from isochrone.probing.icmp_socket import ANCILLARY_BYTES, blame, drops, next_told, open_icmp
from isochrone.probing.prober import (
    LATE_BOUND,
    SEND_BOUND,
    ProberTrouble,
    attempt,
    silence,
)
from isochrone.probing.stamps import Departure, arrival

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isochrone.model import Target
    from isochrone.probing.icmp_packet import Answer, Version
    from isochrone.probing.icmp_socket import IcmpSocket
    from isochrone.probing.prober import Gate, ProbeResult

RECEIVE_BYTES = 1024  # more than an error with the whole of a request in it
MAX_MESSAGES = 256  # read in one go: other probes on this loop get their turn
SEQUENCES = 0x10000


class IcmpProber:
    """Echo requests of 64 bytes that say who asks. Sockets are open while probes are under way."""

    method = "icmp"

    def __init__(self, *, gate: Gate | None = None, raw: bool | None = None) -> None:
        self._gate = gate
        self._raw = raw
        self._channels: dict[tuple[Version, str | None], _Channel] = {}

    async def run_once(
        self, target: Target, *, source_address: str | None = None, timeout: float
    ) -> ProbeResult:
        """One echo request; `timeout` seconds at most."""

        async def measure(address: str, deadline: float, _: dict[str, float]) -> tuple[float, str]:
            version: Version = 6 if ":" in address else 4
            key = (version, source_address)
            channel = self._channels.get(key)
            if channel is None or channel.closed:
                channel = self._channels[key] = _Channel(open_icmp(version, source_address, raw=self._raw))
            return await channel.ping(address, deadline, timeout) * 1000, ""

        return await attempt(target, measure, timeout=timeout, gate=self._gate)

    async def run_batch(
        self,
        targets: Sequence[Target],
        *,
        source_address: str | None = None,
        timeout: float,
        rate: float | None = None,
    ) -> list[ProbeResult]:
        """One echo request to each, in bursts through one socket; `timeout` seconds for each answer."""
        if not mmsg.AVAILABLE:
            return await side_by_side(
                self, targets, source_address=source_address, timeout=timeout, rate=rate
            )
        return await burst(
            targets, source_address=source_address, timeout=timeout, rate=rate, gate=self._gate, raw=self._raw
        )


@dataclass(slots=True)
class _Waiting:
    """One request under way."""

    destination: bytes
    token: bytes
    answered: asyncio.Future[float]  # seconds
    number: int = -1  # the kernel's, of its departure
    sent: float = 0.0
    uncertain: float = 0.0  # seconds by which that may be wrong; 0 once the kernel has said when


class _Channel:
    """One socket and the requests that were sent through it; closed with the last of them."""

    def __init__(self, opened: IcmpSocket) -> None:
        self._opened = opened
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, _Waiting] = {}
        self._sequences = itertools.count(secrets.randbelow(SEQUENCES))
        self._sends = 0  # packets that the kernel has numbered so far
        self._numbered: dict[int, _Waiting] = {}
        self._loop.add_reader(opened.socket, self._readable)

    @property
    def closed(self) -> bool:
        # A channel whose loop ended under it (its probes were cancelled with the loop) is no good for another.
        return self._opened.socket.fileno() < 0 or self._loop is not asyncio.get_running_loop()

    async def ping(self, address: str, deadline: float, timeout: float) -> float:
        """The round trip in seconds."""
        if len(self._waiting) >= SEQUENCES:
            raise ProberTrouble("65,536 echo requests are under way: no sequence number is left")
        sequence = next(number for n in self._sequences if (number := n % SEQUENCES) not in self._waiting)
        waiting = _Waiting(
            socket.inet_pton(self._opened.socket.family, address.partition("%")[0]),
            secrets.token_bytes(icmp_packet.TOKEN_BYTES),
            self._loop.create_future(),
        )
        self._waiting[sequence] = waiting
        dropped = drops(self._opened.socket)
        timer = self._loop.call_at(deadline, self._overdue, waiting, deadline, timeout, dropped)
        try:
            self._send(waiting, sequence, address)
            return await waiting.answered
        finally:
            timer.cancel()
            del self._waiting[sequence]
            self._numbered.pop(waiting.number, None)
            if not self._waiting:
                self._loop.remove_reader(self._opened.socket)
                self._opened.socket.close()

    def _send(self, waiting: _Waiting, sequence: int, address: str) -> None:
        packet = icmp_packet.echo_request(self._opened.version, self._opened.ident, sequence, waiting.token)
        while True:
            waiting.sent = self._loop.time()
            try:
                self._opened.socket.sendto(packet, (address, 0))
                break
            except BlockingIOError:
                raise ProberTrouble("this host's send buffer is full") from None
            except OSError:
                if not self._told():  # else it was an earlier probe's error, not this one's
                    raise
        waiting.uncertain = self._loop.time() - waiting.sent
        waiting.number = self._sends
        self._numbered[self._sends] = waiting
        self._sends += 1
        self._told()  # most devices are handed the packet before sendto returns

    def _readable(self) -> None:
        opened = self._opened
        for _ in range(MAX_MESSAGES):
            try:
                data, ancillary, _, peer = opened.socket.recvmsg(RECEIVE_BYTES, ANCILLARY_BYTES)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self._told()
                continue
            arrived = arrival(ancillary)[0]
            sender = socket.inet_pton(opened.socket.family, peer[0].partition("%")[0])
            answer = icmp_packet.parse(opened.version, data, ip_header=opened.ip_header, sender=sender)
            if answer is not None and answer.ident == opened.ident:
                self._answered(answer, sender, arrived)
        self._told()  # epoll reports what waits there until it is fetched

    def _told(self) -> bool:
        """Take what waits in the error queue; whether there were errors."""
        errors = False
        while True:
            there, told = next_told(self._opened)
            if not there:
                return errors
            if isinstance(told, Departure):
                self._departed(told)
            else:
                errors = True
                if told is not None:
                    self._answered(told, b"", 0.0)

    def _departed(self, departure: Departure) -> None:
        waiting = self._numbered.pop(departure.number, None)
        # A send that failed may have been numbered or not; a time that can't be shows that the numbers are off.
        if waiting is not None and waiting.sent <= departure.at <= self._loop.time():
            waiting.sent, waiting.uncertain = departure.at, 0.0

    def _answered(self, answer: Answer, sender: bytes, arrived: float) -> None:
        waiting = self._waiting.get(answer.sequence)
        if waiting is None or waiting.answered.done():
            return
        if answer.refusal:
            if answer.destination == waiting.destination:
                waiting.answered.set_exception(blame(answer))
            return
        if answer.token != waiting.token or sender != waiting.destination:
            return
        self._told()  # its departure, at the latest
        if waiting.uncertain > SEND_BOUND:
            took = waiting.uncertain * 1000
            waiting.answered.set_exception(
                ProberTrouble(f"this host was too busy: {took:.1f} ms passed while the request was sent")
            )
        else:
            waiting.answered.set_result(max(arrived - waiting.sent, 0.0))

    def _overdue(self, waiting: _Waiting, deadline: float, timeout: float, dropped: int) -> None:
        late = self._loop.time() - deadline
        self._readable()  # the answer may lie in the socket, unread because the event loop was late
        if waiting.answered.done():
            return
        lost = drops(self._opened.socket) - dropped
        if lost and late <= LATE_BOUND:
            waiting.answered.set_exception(
                ProberTrouble(f"this host's receive buffer was full: {lost} ICMP messages were dropped")
            )
        else:
            waiting.answered.set_exception(silence(late, timeout))
