"""The kernel's own times of arrival and departure of packets (SO_TIMESTAMPNS, SO_TIMESTAMPING), on the monotonic clock. Linux.

With both, neither a busy event loop nor a moment in which this process is not running gets into a round-trip time.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

SO_TIMESTAMPNS: int = getattr(socket, "SO_TIMESTAMPNS", 35)  # Python did not name it before 3.14
MSG_ERRQUEUE = 0x2000
IP_RECVERR, IPV6_RECVERR = 11, 25
#: struct sock_extended_err: errno, origin, type, code, info, data; a socket address of who sent the error follows.
EXTENDED_ERROR = struct.Struct("=IBBBxII")
_SO_TIMESTAMPING = 37
#: SOF_TIMESTAMPING_TX_SOFTWARE, _SOFTWARE, _OPT_ID and _OPT_TSONLY, include/uapi/linux/net_tstamp.h
_DEPARTURES = 1 << 1 | 1 << 4 | 1 << 7 | 1 << 11
ORIGIN_TIMESTAMPING = 4
_TIMESPEC = struct.Struct("qq")
_PLAUSIBLE_LATENESS = 60.0  # seconds; a larger one is a stepped clock
_SIMULTANEOUS = 2e-6  # seconds: two clocks read within this are read together
_TRIES = 5


class Departure(NamedTuple):
    """When a packet left the stack for the device: its number among those of its socket, `time.monotonic()`."""

    number: int
    at: float


def stamp_arrivals(opened: socket.socket) -> None:
    """Have the kernel stamp what arrives. Where it can't, arrivals count from when the event loop sees them."""
    with contextlib.suppress(OSError):
        opened.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


def stamp_departures(opened: socket.socket) -> None:
    """Have the kernel stamp what leaves, into the error queue, which must be read from then on."""
    with contextlib.suppress(OSError):
        opened.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPING, _DEPARTURES)


def arrival(ancillary: Iterable[tuple[int, int, bytes]]) -> tuple[float, float]:
    """(`time.monotonic()` at which the kernel received a datagram just read, seconds that it has waited since).

    The kernel's stamp is of the wall clock. Both clocks are read together, again should we be interrupted between them,
    so that neither an interruption nor a clock that is being set gets into a round-trip time.
    """
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            monotonic, wall = clocks()
            late = wall - (int(seconds) + int(nanoseconds) * 1e-9)
            if 0 <= late < _PLAUSIBLE_LATENESS:
                return monotonic - late, late
            return monotonic, 0.0
    return time.monotonic(), 0.0


def departure(ancillary: Iterable[tuple[int, int, bytes]]) -> Departure | None:
    """What an entry of the error queue says of a departure; None when it is about something else."""
    number = stamp = None
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPING and len(data) >= _TIMESPEC.size:
            stamp = _TIMESPEC.unpack_from(data)
        elif len(data) >= EXTENDED_ERROR.size and level != socket.SOL_SOCKET:
            _, origin, _, _, _, told = EXTENDED_ERROR.unpack_from(data)
            number = told if origin == ORIGIN_TIMESTAMPING else None
    if number is None or stamp is None:
        return None
    monotonic, wall = clocks()
    return Departure(number, monotonic - (wall - (int(stamp[0]) + int(stamp[1]) * 1e-9)))


def clocks() -> tuple[float, float]:
    """The monotonic clock and the wall clock, read together: of a few tries, the one with the least time in it."""
    best = (float("inf"), 0.0, 0.0)
    for _ in range(_TRIES):
        before, wall, after = time.monotonic(), time.time(), time.monotonic()
        best = min(best, (after - before, (before + after) / 2, wall))
        if best[0] < _SIMULTANEOUS:
            break
    return best[1], best[2]
