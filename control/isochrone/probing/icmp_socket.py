"""ICMP sockets: the unprivileged datagram kind where the system allows it, else raw. Linux.

A datagram socket (`net.ipv4.ping_group_range`) gets only the answers to its own requests, and errors through its error queue; a
raw socket sees every ICMP message of the host and is told apart by identifier and token.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
from typing import TYPE_CHECKING, NamedTuple

from isochrone.probing import icmp_packet
from isochrone.probing.icmp_packet import Answer
from isochrone.probing.prober import ProberTrouble, TargetTrouble
from isochrone.probing.stamps import (
    EXTENDED_ERROR,
    IP_RECVERR,
    IPV6_RECVERR,
    MSG_ERRQUEUE,
    Departure,
    departure,
    stamp_arrivals,
    stamp_departures,
)

if TYPE_CHECKING:
    from isochrone.probing.icmp_packet import Version

RECEIVE_BUFFER = 8 << 20  # bytes: the answers of some 10,000 requests at once
ANCILLARY_BYTES = 256
_SO_RCVBUFFORCE, _SO_MEMINFO = 33, 55
_MEMINFO_DROPS = 8  # include/uapi/linux/sock_diag.h
_SOL_RAW, _ICMP_FILTER, _ICMP6_FILTER = 255, 1, 1
_ORIGINS = {4: 2, 6: 3}  # SO_EE_ORIGIN_ICMP, SO_EE_ORIGIN_ICMP6
_NOT_ALLOWED = (
    "this process may not send ICMP: allow its group in net.ipv4.ping_group_range, or give it CAP_NET_RAW"
)


class IcmpSocket(NamedTuple):
    """An open socket and how it behaves."""

    socket: socket.socket
    version: Version
    raw: bool
    ident: int  # what our requests carry, and so their answers

    @property
    def ip_header(self) -> bool:
        """Whether received data begins with the IP header."""
        return self.raw and self.version == 4


def open_icmp(version: Version, source_address: str | None = None, *, raw: bool | None = None) -> IcmpSocket:
    """A non-blocking socket; the caller closes it. `raw` picks the kind; None takes what is allowed.

    Raises:
        ProberTrouble: this process may send ICMP in neither way.
        OSError: no such source address, no socket left.
    """
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    protocol = socket.IPPROTO_ICMP if version == 4 else socket.IPPROTO_ICMPV6
    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
        if raw is not None and raw is not (kind == socket.SOCK_RAW):
            continue
        try:
            opened = socket.socket(family, kind, protocol)
        except PermissionError:
            continue
        try:
            return _prepared(opened, version, source_address, raw=kind == socket.SOCK_RAW)
        except BaseException:
            opened.close()
            raise
    raise ProberTrouble(_NOT_ALLOWED)


def _prepared(
    opened: socket.socket, version: Version, source_address: str | None, *, raw: bool
) -> IcmpSocket:
    opened.setblocking(False)
    stamp_arrivals(opened)
    stamp_departures(opened)
    try:
        opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BUFFER)
    except OSError:  # not root: as much as the system grants
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    wildcard = "0.0.0.0" if version == 4 else "::"
    opened.bind((source_address or wildcard, 0))
    if not raw:
        level, option = (
            (socket.IPPROTO_IP, IP_RECVERR) if version == 4 else (socket.IPPROTO_IPV6, IPV6_RECVERR)
        )
        opened.setsockopt(level, option, 1)
        return IcmpSocket(opened, version, raw=False, ident=opened.getsockname()[1])
    with contextlib.suppress(OSError):  # fewer messages to throw away; a set bit blocks
        if version == 4:
            opened.setsockopt(_SOL_RAW, _ICMP_FILTER, struct.pack("=I", 0xFFFFFFFF & ~(1 | 1 << 3 | 1 << 11)))
        else:
            blocked = [0xFFFFFFFF] * 8
            for kind in (1, 3, icmp_packet.ECHO_REPLY[6]):
                blocked[kind >> 5] &= ~(1 << (kind & 31))
            opened.setsockopt(socket.IPPROTO_ICMPV6, _ICMP6_FILTER, struct.pack("=8I", *blocked))
    return IcmpSocket(opened, version, raw=True, ident=secrets.randbelow(0xFFFF) + 1)


def drops(opened: socket.socket) -> int:
    """Messages that the kernel threw away because this socket's buffer was full, so far; 0 when it does not say."""
    try:
        told = opened.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 64)
    except OSError:
        return 0
    words = struct.unpack(f"={len(told) // 4}I", told[: len(told) // 4 * 4])
    return words[_MEMINFO_DROPS] if len(words) > _MEMINFO_DROPS else 0


def next_told(opened: IcmpSocket) -> tuple[bool, Answer | Departure | None]:
    """(whether there was anything, what it says) of the socket's error queue: departures, and a datagram socket's errors.

    An error that waits there would otherwise be raised by the next call for another target.
    """
    try:
        data, ancillary, _, destination = opened.socket.recvmsg(256, ANCILLARY_BYTES, MSG_ERRQUEUE)
    except OSError:
        return False, None
    left = departure(ancillary)
    if left is not None:
        return True, left
    packed = socket.inet_pton(opened.socket.family, destination[0].partition("%")[0]) if destination else b""
    return True, error_in(opened, data, ancillary, packed)


def error_in(
    opened: IcmpSocket, data: bytes, ancillary: list[tuple[int, int, bytes]], destination: bytes
) -> Answer | None:
    """What an entry of a datagram socket's error queue says about the request `data` to `destination` (packed)."""
    for level, _, told in ancillary:
        if (
            level == socket.SOL_SOCKET
            or len(data) < icmp_packet.HEADER.size
            or len(told) < EXTENDED_ERROR.size
        ):
            continue
        _, origin, kind, code, _, _ = EXTENDED_ERROR.unpack_from(told)
        if origin != _ORIGINS[opened.version]:
            continue
        _, _, _, _, sequence = icmp_packet.HEADER.unpack_from(data)
        why = icmp_packet.reason(opened.version, kind, code)
        own = _is_own(opened, told[EXTENDED_ERROR.size :])
        return Answer(opened.ident, sequence, b"", why, destination, own=own)
    return None


def _is_own(opened: IcmpSocket, offender: bytes) -> bool:
    """Whether the error came from an address of this host (its neighbour did not answer): one that it can bind."""
    if opened.version == 4:
        address = socket.inet_ntop(socket.AF_INET, offender[4:8]) if len(offender) >= 8 else ""
    else:
        address = socket.inet_ntop(socket.AF_INET6, offender[8:24]) if len(offender) >= 24 else ""
    if not address:
        return False
    with socket.socket(opened.socket.family, socket.SOCK_DGRAM) as trial:
        try:
            trial.bind((address, 0))
        except OSError:
            return False
    return True


def blame(answer: Answer) -> Exception:
    """Whose fault an ICMP error is: our own stack sends one too, when the next hop does not answer it."""
    if answer.own:
        return ProberTrouble(f"this host could not reach its next hop ({answer.refusal})")
    return TargetTrouble(f"the network answered: {answer.refusal}")
