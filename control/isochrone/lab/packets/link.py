"""The link: takes what leaves one namespace's device and writes it into the other's, when its path says.

A packet is due at the kernel's own time of its departure plus its delay, so that the link's own waking up takes nothing from
the truth; how late it was written is in the log. Packets of one path and direction keep their order.
"""

from __future__ import annotations

import gc
import heapq
import os
import random
import select
import signal
import socket
import struct
import time
from typing import TYPE_CHECKING, NamedTuple

from isochrone.lab.packets.kernel import be_punctual
from isochrone.lab.packets.paths import Crossing, address
from isochrone.probing.stamps import SO_TIMESTAMPNS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from isochrone.lab.packets.paths import Path

PRIORITY = 50  # above the far hosts' servers
SPIN_NS = 120_000  # before a packet is due the link waits awake
MAX_WAIT = 0.05  # seconds
_PORTS = struct.Struct("!HH")
_TIMESPEC = struct.Struct("qq")
_ICMP, _TCP, _UDP, _ICMP6 = 1, 6, 17, 58


class End(NamedTuple):
    """One end of the link: its device's other side, and the tap that sees what leaves through it."""

    tun: int
    tap: socket.socket


class Link:
    """Runs until SIGTERM."""

    def __init__(self, near: End, far: End, paths: Sequence[Path], *, seed: int) -> None:
        self._ends = near, far
        self._paths = paths
        self._numbers = {
            socket.inet_pton(socket.AF_INET if version == 4 else socket.AF_INET6, address(n, version)): n
            for n in range(len(paths))
            for version in (4, 6)
        }  # type: dict[bytes, int]
        self._rng = random.Random(seed)  # noqa: S311  an experiment must be repeatable
        self._due: list[tuple[int, int, int, bytes]] = []  # when, order, log row, packet
        self._last: dict[tuple[bool, int], int] = {}
        # Each row: outward, path, version, flow, came, due, went. Rows become Crossings at the end.
        self._log: list[list[int | bool | tuple[int, int, int]]] = []
        self._running = True

    def run(self) -> None:
        """Carry packets until told to end."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us ends us
        be_punctual(PRIORITY, beside_the_link=True)
        gc.disable()
        near, far = self._ends
        taps = {near.tap.fileno(): True, far.tap.fileno(): False}
        tuns = {near.tun, far.tun}
        everything = [*taps, *tuns]
        while self._running:
            ready, _, _ = select.select(everything, (), (), self._patience())
            for descriptor in ready:
                if descriptor in tuns:
                    self._discard(descriptor)
                else:
                    self._take(taps[descriptor])
            self._release()

    def crossings(self) -> Iterator[Crossing]:
        """What has crossed, or was lost."""
        return (Crossing(*row) for row in self._log)  # type: ignore[arg-type]

    def _stop(self, *_: object) -> None:
        self._running = False

    def _patience(self) -> float:
        if not self._due:
            return MAX_WAIT
        left = self._due[0][0] - time.time_ns() - SPIN_NS
        return min(max(left, 0) / 1e9, MAX_WAIT)

    @staticmethod
    def _discard(tun: int) -> None:
        """The tap has it already."""
        try:
            while True:
                os.read(tun, 2048)
        except BlockingIOError:
            pass

    def _take(self, outward: bool) -> None:
        tap = self._ends[0 if outward else 1].tap
        while True:
            try:
                packet, ancillary, _, _ = tap.recvmsg(65_536, 64)
            except BlockingIOError:
                return
            came = time.time_ns()
            for _, kind, told in ancillary:
                if kind == SO_TIMESTAMPNS:
                    seconds, nanoseconds = _TIMESPEC.unpack_from(told)
                    came = seconds * 1_000_000_000 + nanoseconds
            self._enter(outward, packet, came)

    def _enter(self, outward: bool, packet: bytes, came: int) -> None:
        version = packet[0] >> 4
        if version == 4:
            far = packet[16:20] if outward else packet[12:16]
            protocol, begin = packet[9], (packet[0] & 0xF) * 4
        else:
            far = packet[24:40] if outward else packet[8:24]
            protocol, begin = packet[6], 40
        number = self._numbers.get(far)
        if number is None:
            return
        path = self._paths[number]
        flow = (protocol, *_flow(protocol, packet, begin, outward=outward))
        lost = path.loss and self._rng.random() < path.loss
        delay = int(
            (path.delay_ms / 2 + (self._rng.random() * path.jitter_ms if path.jitter_ms else 0)) * 1e6
        )
        due = came + delay
        self._log.append([outward, number, version, flow, came, due, 0])
        if lost:
            return
        key = (outward, number)
        due = self._log[-1][5] = self._last[key] = max(due, self._last.get(key, 0))
        heapq.heappush(self._due, (due, len(self._log) - 1, len(self._log) - 1, packet))

    def _release(self) -> None:
        while self._due:
            due = self._due[0][0]
            now = time.time_ns()
            if due - now > SPIN_NS:
                return
            while now < due:
                now = time.time_ns()
            _, _, row, packet = heapq.heappop(self._due)
            entry = self._log[row]
            entry[6] = time.time_ns()
            try:
                os.write(self._ends[1 if entry[0] else 0].tun, packet)
            except OSError:
                entry[6] = 0


def _flow(protocol: int, packet: bytes, begin: int, *, outward: bool) -> tuple[int, int]:
    """(near port or ICMP identifier, far port or sequence number)."""
    if protocol in (_TCP, _UDP):
        source, destination = _PORTS.unpack_from(packet, begin)
        return (source, destination) if outward else (destination, source)
    if protocol in (_ICMP, _ICMP6) and len(packet) >= begin + 8:
        ident, sequence = _PORTS.unpack_from(packet, begin + 4)
        return ident, sequence
    return 0, 0
