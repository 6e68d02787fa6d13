"""The cheap QUIC probe: a packet of a version that nobody speaks, answered by Version Negotiation (RFC 9000 section 6).

The server keeps no state and does no cryptography for it; the packet must be padded as an Initial is (section 14.1), and the answer
echoes both connection ids (section 17.2.1), so that nobody who has not seen the packet can forge it.
"""

from __future__ import annotations

import asyncio
import errno
import secrets
import struct
from typing import TYPE_CHECKING

from isochrone.probing.prober import IDENTITY, SEND_BOUND, ProberTrouble, TargetTrouble, attempt, silence
from isochrone.probing.stamps import MSG_ERRQUEUE, arrival, departure
from isochrone.probing.udp import ANCILLARY_BYTES, RECEIVE_BYTES, connected_socket

if TYPE_CHECKING:
    import socket

    from isochrone.model import Target
    from isochrone.probing.prober import Gate, ProbeResult

DATAGRAM_BYTES = 1200
CID_BYTES = 8
MAX_DATAGRAMS = 16  # read in one go
_TEXT = IDENTITY.encode("ascii")


def probe_packet(version: int, destination_cid: bytes, source_cid: bytes) -> bytes:
    """A long-header packet (RFC 8999 section 5.1) of `version` that says in the clear who sends it, padded to 1,200 bytes.

    Only what comes before and with the connection ids means anything. Still the rest has the form of an Initial of version 1,
    without a token: some servers take the packet apart before they look at its version.
    """
    head = struct.pack("!BI", 0xC0 | secrets.randbits(4), version)
    head += bytes([len(destination_cid)]) + destination_cid + bytes([len(source_cid)]) + source_cid
    rest = DATAGRAM_BYTES - len(head) - 3
    return (head + b"\0" + struct.pack("!H", 0x4000 | rest) + b"\0\0\0\0" + _TEXT).ljust(
        DATAGRAM_BYTES, b"\0"
    )


def greased_version() -> int:
    """A version of the form 0x?a?a?a?a: reserved to be unknown for ever (RFC 9000 section 15)."""
    return secrets.randbits(32) & 0xF0F0F0F0 | 0x0A0A0A0A


def negotiated(
    data: bytes, version: int, destination_cid: bytes, source_cid: bytes
) -> tuple[int, ...] | None:
    """The versions that an answer to that probe offers; None when it is no valid Version Negotiation for it."""
    if len(data) < 7 or not data[0] & 0x80 or data[1:5] != b"\0\0\0\0":
        return None
    end = 6 + data[5]
    if data[6:end] != source_cid or len(data) < end + 1 or data[5] != len(source_cid):
        return None
    begin = end + 1 + data[end]
    if data[end] != len(destination_cid) or data[end + 1 : begin] != destination_cid:
        return None
    offered = data[begin:]
    if not offered or len(offered) % 4:
        return None
    versions = struct.unpack(f"!{len(offered) // 4}I", offered)
    return None if version in versions else versions  # section 6.2: such a packet is to be discarded


class QuicVersionProber:
    """One datagram there, one back."""

    method = "quic-vn"

    def __init__(self, *, gate: Gate | None = None) -> None:
        self._gate = gate

    async def run_once(
        self, target: Target, *, source_address: str | None = None, timeout: float
    ) -> ProbeResult:
        """One datagram; `timeout` seconds at most."""

        async def measure(address: str, deadline: float, _: dict[str, float]) -> tuple[float, str]:
            opened = connected_socket(address, target.port, source_address, departures=True)
            try:
                return await _Exchange(opened).run(deadline, timeout) * 1000, ""
            finally:
                opened.close()

        return await attempt(target, measure, timeout=timeout, gate=self._gate)


class _Exchange:
    """One probe on its socket."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self._loop = asyncio.get_running_loop()
        self._version = greased_version()
        self._cids = secrets.token_bytes(CID_BYTES), secrets.token_bytes(CID_BYTES)
        self._answered: asyncio.Future[float] = self._loop.create_future()
        self._strange = 0  # datagrams that were no answer
        self._sent = 0.0
        self._uncertain = 0.0  # seconds by which that may be wrong; 0 once the kernel has said when

    async def run(self, deadline: float, timeout: float) -> float:
        """The round trip in seconds."""
        packet = probe_packet(self._version, *self._cids)
        self._loop.add_reader(self._socket, self._readable)
        timer = self._loop.call_at(deadline, self._overdue, deadline, timeout)
        try:
            self._sent = self._loop.time()
            self._socket.send(packet)
            self._uncertain = self._loop.time() - self._sent
            self._departed()  # most devices are handed the packet before send returns
            arrived = await self._answered
            self._departed()
        finally:
            timer.cancel()
            self._loop.remove_reader(self._socket)
        if self._uncertain > SEND_BOUND:
            took = self._uncertain * 1000
            raise ProberTrouble(f"this host was too busy: {took:.1f} ms passed while the datagram was sent")
        return max(arrived - self._sent, 0.0)

    def _departed(self) -> None:
        """The kernel's word on when it left, in place of ours; must be fetched, or the socket stays readable."""
        try:
            _, ancillary, _, _ = self._socket.recvmsg(0, ANCILLARY_BYTES, MSG_ERRQUEUE)
        except OSError:
            return
        left = departure(ancillary)
        if left is not None and self._sent <= left.at <= self._loop.time():
            self._sent, self._uncertain = left.at, 0.0

    def _readable(self) -> None:
        self._departed()
        for _ in range(MAX_DATAGRAMS):
            if self._answered.done():
                return
            try:
                data, ancillary, _, _ = self._socket.recvmsg(RECEIVE_BYTES, ANCILLARY_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                closed = error.errno == errno.ECONNREFUSED
                why = (
                    "the port is closed (ICMP port unreachable)"
                    if closed
                    else f"the network answered: {error.strerror}"
                )
                self._answered.set_exception(TargetTrouble(why))
                return
            arrived = arrival(ancillary)[0]
            if negotiated(data, self._version, *self._cids) is not None:
                self._answered.set_result(arrived)
            else:
                self._strange += 1

    def _overdue(self, deadline: float, timeout: float) -> None:
        late = self._loop.time() - deadline
        self._readable()  # the answer may lie in the socket, unread because the event loop was late
        if not self._answered.done():
            what = "answered, but not with Version Negotiation," if self._strange else "no answer"
            self._answered.set_exception(silence(late, timeout, what))
