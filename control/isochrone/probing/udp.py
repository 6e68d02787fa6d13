"""UDP sockets for measuring: connected, so that refusals are heard, and stamped by the kernel where it can."""

from __future__ import annotations

import contextlib
import socket
import struct
import time

RECEIVE_BYTES = (
    2048  # more than any datagram of an Ethernet path; a longer one is cut and dropped as undecipherable
)
ANCILLARY_BYTES = 64
_SO_TIMESTAMPNS: int = getattr(socket, "SO_TIMESTAMPNS", 35)  # Linux; Python did not name it before 3.14
_TIMESPEC = struct.Struct("qq")
_PLAUSIBLE_LATENESS = 60.0  # seconds; a larger one is a stepped clock


def connected_socket(address: str, port: int, source_address: str | None = None) -> socket.socket:
    """A non-blocking socket that only hears from that address; the caller closes it.

    Raises OSError when this host can't open, bind or route it.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_DGRAM)
    try:
        opened.setblocking(False)
        with contextlib.suppress(
            OSError
        ):  # no kernel stamps here: arrivals count from when the event loop sees them
            opened.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        if source_address is not None:
            opened.bind((source_address, 0))
        opened.connect((address, port))
    except BaseException:
        opened.close()
        raise
    return opened


def lateness(ancillary: list[tuple[int, int, bytes]]) -> float:
    """Seconds that a datagram just read has waited since the kernel received it; 0 when the kernel did not say."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(data) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            late = time.time() - (int(seconds) + int(nanoseconds) * 1e-9)
            if 0 <= late < _PLAUSIBLE_LATENESS:
                return late
    return 0.0
