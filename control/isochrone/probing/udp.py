"""UDP sockets for measuring: connected, so that refusals are heard, and stamped by the kernel where it can."""

from __future__ import annotations

import socket

from isochrone.probing.stamps import arrival, stamp_arrivals, stamp_departures

RECEIVE_BYTES = (
    2048  # more than any datagram of an Ethernet path; a longer one is cut and dropped as undecipherable
)
ANCILLARY_BYTES = 192


def connected_socket(
    address: str, port: int, source_address: str | None = None, *, departures: bool = False
) -> socket.socket:
    """A non-blocking socket that only hears from that address; the caller closes it.

    `departures`: the kernel also stamps what is sent, into the error queue. Raises OSError when this host can't open, bind or
    route it.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_DGRAM)
    try:
        opened.setblocking(False)
        stamp_arrivals(opened)
        if departures:
            stamp_departures(opened)
        if source_address is not None:
            opened.bind((source_address, 0))
        opened.connect((address, port))
    except BaseException:
        opened.close()
        raise
    return opened


def lateness(ancillary: list[tuple[int, int, bytes]]) -> float:
    """Seconds that a datagram just read has waited since the kernel received it; 0 when the kernel did not say."""
    return arrival(ancillary)[1]
