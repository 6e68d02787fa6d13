"""Echo requests to thousands of targets through one socket, in bursts: what a full round of ICMP runs on.

A burst goes out in one system call. Departures and arrivals have the kernel's stamps; where it does not stamp departures they are
taken as evenly spread over that call, and a burst during which we were not running gives no sample.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import struct
from typing import TYPE_CHECKING

import numpy as np

from isochrone.probing import icmp_packet, mmsg
from isochrone.probing.icmp_flight import Flight, failed, judge, packed_address
from isochrone.probing.icmp_receive import Receiver
from isochrone.probing.icmp_socket import blame, drops, open_icmp
from isochrone.probing.prober import (
    ProbeResult,
    ProberTrouble,
    own_fault,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from isochrone.model import Target
    from isochrone.probing.icmp_packet import Answer, Version
    from isochrone.probing.icmp_socket import IcmpSocket
    from isochrone.probing.prober import Gate

BURST = 512  # packets in one system call, when no rate holds them apart
WINDOW = 4096  # requests under way at once: their answers fit into the receive buffer
_SAME = 1e-5  # seconds by which clocks that were read one after the other may differ
TICK = 0.001  # seconds between looks at the clock when there is nothing to send
_FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}
_NAME_BYTES = {4: 16, 6: 28}  # struct sockaddr_in, sockaddr_in6


async def burst(
    targets: Sequence[Target],
    *,
    source_address: str | None,
    timeout: float,
    rate: float | None,
    gate: Gate | None,
    raw: bool | None = None,
) -> list[ProbeResult]:
    """One echo request to each target, at most `rate` a second; the results in the targets' order."""
    results: list[ProbeResult | None] = [None] * len(targets)
    families: dict[Version, list[tuple[int, bytes]]] = {4: [], 6: []}
    for index, target in enumerate(targets):
        packed = packed_address(target.address)
        if packed is None:
            results[index] = failed("a batch takes addresses, no host names", target.address)
        elif gate is not None and (refusal := gate.refusal(target.address)) is not None:
            results[index] = failed(refusal, target.address)
        else:
            families[4 if len(packed) == 4 else 6].append((index, packed))
    for version, chosen in families.items():
        for begin in range(0, len(chosen), 0x10000):  # a sequence number for each
            part = chosen[begin : begin + 0x10000]
            await _fly(targets, part, results, version, source_address, timeout, rate, raw=raw)
    return [result for result in results if result is not None]


async def _fly(
    targets: Sequence[Target],
    chosen: list[tuple[int, bytes]],
    results: list[ProbeResult | None],
    version: Version,
    source_address: str | None,
    timeout: float,
    rate: float | None,
    *,
    raw: bool | None,
) -> None:
    try:
        opened = open_icmp(version, source_address, raw=raw)
    except (ProberTrouble, OSError) as error:
        why = own_fault(error) if isinstance(error, OSError) else str(error)
        for index, _ in chosen:
            results[index] = failed(why, targets[index].address)
        return
    addresses = b"".join(packed for _, packed in chosen)
    flight = Flight(
        [index for index, _ in chosen],
        np.frombuffer(addresses, np.uint8).reshape(len(chosen), -1),
        secrets.token_bytes(icmp_packet.TOKEN_BYTES),
    )
    before = drops(opened.socket)
    try:
        late = await _Sender(opened, flight, timeout=timeout, rate=rate).run()
        lost = drops(opened.socket) - before
    finally:
        opened.socket.close()
    judge(targets, flight, results, timeout, late=late, lost=lost)


class _Sender:
    """Sends a flight and collects its answers on the running loop."""

    def __init__(self, opened: IcmpSocket, flight: Flight, *, timeout: float, rate: float | None) -> None:
        self._opened = opened
        self._flight = flight
        self._timeout = timeout
        self._rate = rate
        self._loop = asyncio.get_running_loop()
        self._out = _requests(opened, flight)
        self._receiver = Receiver(
            opened,
            flight.packed,
            flight.token,
            flight.arrived,
            on_error=self._error,
            on_departures=self._departed,
        )
        self._numbered = True  # the kernel's numbers of departures are our sequence numbers
        self.late = 0.0

    async def run(self) -> float:
        """Seconds by which the loop was late, at worst, while nothing but waiting was to be done."""
        self._loop.add_reader(self._opened.socket, self._receiver.drain)
        try:
            await self._send_all()
            await self._wait()
        finally:
            self._loop.remove_reader(self._opened.socket)
        return self.late

    async def _send_all(self) -> None:
        count, number, began = len(self._flight.indices), 0, self._loop.time()
        while number < count:
            allowed = count if self._rate is None else int((self._loop.time() - began) * self._rate) + 1
            room = WINDOW - (number - self._receiver.received - self._expired(number))
            stop = min(count, allowed, number + BURST, number + room)
            if stop > number:
                done = self._send(number, stop)
                number += done
                self._receiver.drain()
                if done:
                    await asyncio.sleep(0)
                    continue
            await asyncio.sleep(TICK)

    def _expired(self, number: int) -> int:
        """How many of those sent so far are overdue and unanswered: they take no room any more."""
        if number < WINDOW:
            return 0
        sent = self._flight.sent[:number]
        overdue = np.isnan(self._flight.arrived[:number]) & ~(sent > self._loop.time() - self._timeout)
        return int(overdue.sum())

    def _send(self, start: int, stop: int) -> int:
        """How many of them are dealt with."""
        flight = self._flight
        before = self._loop.time()
        try:
            done = self._out.send(self._opened.socket, start, stop)
        except BlockingIOError:
            return 0
        except OSError as error:
            if self._receiver.told():
                return 0  # that was an earlier request's error: again
            self._numbered = False  # whether the kernel gave a number to what failed is not known
            flight.trouble[start] = ProberTrouble(own_fault(error))
            return 1
        took = self._loop.time() - before
        flight.sent[start : start + done] = before + took * (np.arange(done) + 0.5) / done
        flight.uncertain[start : start + done] = took
        return done

    def _departed(self, numbers: NDArray[np.int64], at: NDArray[np.float64]) -> None:
        """The kernel's word on when they left, in place of ours."""
        flight = self._flight
        known = numbers < len(flight.indices)
        numbers, at = numbers[known], at[known]
        earliest = flight.sent[numbers] - flight.uncertain[numbers]
        good = at >= earliest - _SAME  # false where nothing was sent, as far as we know
        if self._numbered:
            flight.sent[numbers[good]] = at[good]
            flight.uncertain[numbers[good]] = 0.0

    async def _wait(self) -> None:
        """Until everything is answered or overdue."""
        sent = self._flight.sent
        while True:
            waiting = np.isnan(self._flight.arrived) & ~np.isnan(sent)
            if self._flight.trouble:
                waiting[list(self._flight.trouble)] = False
            if not waiting.any():
                return
            due = float(sent[waiting].max()) + self._timeout
            now = self._loop.time()
            if now >= due:
                self.late = max(self.late, now - due)
                self._receiver.drain()
                return
            await asyncio.sleep(min(due - now, 0.01))

    def _error(self, answer: Answer) -> None:
        number = answer.sequence
        if number < len(self._flight.indices) and answer.destination == self._flight.packed[number].tobytes():
            self._flight.trouble.setdefault(number, blame(answer))


def _requests(opened: IcmpSocket, flight: Flight) -> mmsg.Messages:
    """All echo requests, ready to go: they differ in their sequence number, and so in their checksum."""
    count = len(flight.indices)
    out = mmsg.Messages(count, icmp_packet.PACKET_BYTES, name=_NAME_BYTES[opened.version])
    first = icmp_packet.echo_request(opened.version, opened.ident, 0, flight.token)
    out.data[:] = np.frombuffer(first, np.uint8)
    sequences = np.arange(count, dtype=np.uint32)
    out.data[:, 6] = sequences >> 8
    out.data[:, 7] = sequences & 0xFF
    if opened.version == 4:
        # RFC 1624: the checksum's complement is a sum to which the sequence number is added, with end-around carry.
        (zero,) = struct.unpack_from("!H", first, 2)
        total = (~zero & 0xFFFF) + sequences
        total = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
        out.data[:, 2] = total >> 8
        out.data[:, 3] = total & 0xFF
    out.names[:, :2] = np.frombuffer(struct.pack("=H", _FAMILY[opened.version]), np.uint8)
    begin = 4 if opened.version == 4 else 8
    out.names[:, begin : begin + flight.packed.shape[1]] = flight.packed
    return out
