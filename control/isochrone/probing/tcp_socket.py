"""TCP handshakes and what the kernel knows of them (TCP_INFO, Linux): the time from SYN to SYN-ACK as its own stack saw it.

Our event loop's lateness is not in that time. Elsewhere the time from connect() to the event is all there is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from typing import NamedTuple

from isochrone.probing.prober import ProberTrouble, TargetTrouble, own_fault
from isochrone.probing.stamps import EXTENDED_ERROR, IP_RECVERR, IPV6_RECVERR, MSG_ERRQUEUE

_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)
_INFO_BYTES = 104
_RTT_AT, _TOTAL_RETRANS_AT = 68, 100  # struct tcp_info, include/uapi/linux/tcp.h; microseconds, packets
_U32 = struct.Struct("=I")
_ORIGIN_LOCAL = 1
#: Errors that a packet from the network brings to a connection that is being made.
_REFUSED = errno.ECONNREFUSED
_FROM_THE_NETWORK = {
    errno.ECONNRESET: "the target reset the connection",
    errno.EHOSTUNREACH: "the network answered: host unreachable",
    errno.ENETUNREACH: "the network answered: network unreachable",
    errno.ENOPROTOOPT: "the network answered: protocol or port unreachable",
    errno.EACCES: "the network answered: prohibited by a filter",
    errno.EPROTO: "the network answered: parameter problem",
    errno.ETIMEDOUT: "no answer to any SYN",
}


class Refused(TargetTrouble):
    """A RST came back. A round trip, but one that any filter on the way can give: never a sample."""


#: RFC 6298 section 2.1: a SYN or SYN-ACK is sent again after a second, which a kernel's ticks may cut short a little
FIRST_REPEAT_SECONDS = 0.95


class Handshake(NamedTuple):
    """What the kernel measured, in seconds; `rtt` is None where it does not say."""

    rtt: float | None
    repeated: int  # SYNs sent again: the time is ambiguous (Karn)


def begin(address: str, port: int, source_address: str | None = None) -> socket.socket:
    """A non-blocking socket on which a connection is being made; the caller closes it.

    Raises OSError when this host can't: no socket, no route, no such source address.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM | getattr(socket, "SOCK_NONBLOCK", 0))
    try:
        opened.setblocking(False)
        if source_address is not None:
            opened.bind((source_address, 0))
        with contextlib.suppress(OSError):  # so that an error tells who made it
            if family == socket.AF_INET:
                opened.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
            else:
                opened.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVERR, 1)
        code = opened.connect_ex((address, port))
        # A target on this very host refuses at once; that is told as any other refusal, by finish().
        if code not in (0, errno.EINPROGRESS, _REFUSED, errno.EWOULDBLOCK):
            raise OSError(code, os.strerror(code))
        if code == _REFUSED:
            raise Refused("the port is closed (RST)")
    except BaseException:
        opened.close()
        raise
    return opened


def finish(opened: socket.socket) -> Handshake:
    """What came of it, once the socket is writable.

    Raises:
        Refused: by a RST.
        TargetTrouble: an error came back over the network.
        ProberTrouble: this host's own stack gave up.
    """
    code = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise _trouble(opened, code)
    return handshake(opened)


def sample(made: Handshake, seen: float) -> float:
    """The round trip in ms; `seen` seconds passed until we saw its end.

    Raises TargetTrouble when a SYN was sent again, or the server may have sent its SYN-ACK again: its timer and ours run alike.
    """
    if made.repeated:
        raise TargetTrouble(f"packets were lost: the SYN was sent {made.repeated + 1} times")
    rtt = made.rtt if made.rtt is not None else seen
    if rtt >= FIRST_REPEAT_SECONDS:
        raise TargetTrouble(f"packets were lost: an answer after {rtt:.2f} s may be one that was sent again")
    return rtt * 1000


def handshake(opened: socket.socket) -> Handshake:
    """The kernel's figures for a connection that is made."""
    if _TCP_INFO is None:
        return Handshake(None, 0)
    try:
        info = opened.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _INFO_BYTES)
    except OSError:
        return Handshake(None, 0)
    if len(info) < _INFO_BYTES:
        return Handshake(None, 0)
    (rtt,), (repeated,) = _U32.unpack_from(info, _RTT_AT), _U32.unpack_from(info, _TOTAL_RETRANS_AT)
    return Handshake(rtt * 1e-6 if rtt else None, repeated)


def _trouble(opened: socket.socket, code: int) -> Exception:
    if code == _REFUSED:
        return Refused("the port is closed (RST)")
    why = _FROM_THE_NETWORK.get(code)
    if why is None:
        return ProberTrouble(own_fault(OSError(code, os.strerror(code))))
    if code in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES) and _own_error(opened):
        return ProberTrouble("this host could not reach its next hop")
    return TargetTrouble(why)


def _own_error(opened: socket.socket) -> bool:
    """Whether the waiting error was made by this host: its offender is the connection's own address."""
    try:
        _, ancillary, _, _ = opened.recvmsg(256, 256, MSG_ERRQUEUE)
        own = opened.getsockname()[0]
    except OSError:
        return False
    for _, _, told in ancillary:
        if len(told) < EXTENDED_ERROR.size:
            continue
        if EXTENDED_ERROR.unpack_from(told)[1] == _ORIGIN_LOCAL:
            return True
        offender = told[EXTENDED_ERROR.size :]
        packed = offender[4:8] if opened.family == socket.AF_INET else offender[8:24]
        return packed == socket.inet_pton(opened.family, own.partition("%")[0])
    return False
