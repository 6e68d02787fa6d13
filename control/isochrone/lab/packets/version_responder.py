"""A far host's QUIC server as far as a probe of an unknown version sees it: Version Negotiation, at once (RFC 9000 section 6).

A blocking socket and nothing else, so that the far host's own time is small beside the path's. Run as a module with 4 or 6, the
highest IP version; says `ready` on standard output.
"""

from __future__ import annotations

import socket
import sys

from isochrone.lab.packets.kernel import be_punctual
from isochrone.lab.packets.paths import VERSION_PORT

PRIORITY = 60  # above the link, which would have it wait, for some microseconds of work
INITIAL_BYTES = 1200
VERSIONS = b"\0\0\0\1" + b"\x6b\x33\x43\xcf"  # RFC 9000, RFC 9369
_IP_PKTINFO, _IPV6_RECVPKTINFO, _IPV6_PKTINFO = 8, 49, 50


def answer(data: bytes) -> bytes | None:
    """The Version Negotiation packet for a datagram; None when it deserves none."""
    if (
        len(data) < INITIAL_BYTES
        or not data[0] & 0x80
        or data[1:5] in (VERSIONS[:4], VERSIONS[4:], b"\0\0\0\0")
    ):
        return None
    middle = 6 + data[5]
    end = middle + 1 + data[middle]
    return b"\x80\0\0\0\0" + data[middle:end] + data[5:middle] + VERSIONS


def serve(version: int) -> None:
    """Answer until ended. The answer leaves from the address that was asked."""
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_DGRAM)
    if version == 6:
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        opened.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, 1)
    else:
        opened.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
    opened.bind(("::" if version == 6 else "0.0.0.0", VERSION_PORT))
    be_punctual(PRIORITY, beside_the_link=True)
    print("ready", flush=True)
    while True:
        data, ancillary, _, peer = opened.recvmsg(2048, 128)
        reply = answer(data)
        if reply is None:
            continue
        for level, kind, told in ancillary:
            if kind == _IPV6_PKTINFO:
                own = told[:16] + bytes(4)
            elif kind == _IP_PKTINFO:
                own = (
                    bytes(4) + told[8:12] + bytes(4)
                )  # struct in_pktinfo: the address asked is to be the source
            else:
                continue
            opened.sendmsg([reply], [(level, kind, own)], 0, peer)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
