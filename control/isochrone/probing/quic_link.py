"""One QUIC client connection over a UDP socket of its own, with exact times of departure and arrival.

aioquic's core does no I/O; this is the thin rim around it. It stands in place of `aioquic.asyncio.connect` because that one
can't bind a source address, stamps a datagram when the event loop gets to it, doesn't hear of refusals (its socket is not
connected), and waits for the closing period. Here the kernel stamps arrivals and departures (where the system can), so that
a busy event loop or a busy core doesn't lengthen a round-trip time, and how late the loop was is measured.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import TYPE_CHECKING, Any

from aioquic.h3.connection import ErrorCode
from aioquic.quic import events
from aioquic.quic.connection import QuicConnection, QuicConnectionAdapter, QuicConnectionState
from aioquic.tls import Epoch, Group

from isochrone.probing.stamps import MSG_ERRQUEUE, departure
from isochrone.probing.udp import ANCILLARY_BYTES, RECEIVE_BYTES, connected_socket, lateness

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from aioquic.quic.configuration import QuicConfiguration
    from cryptography import x509

MAX_DATAGRAMS = 64  # read in one go: other probes on this loop get their turn
_SILENT = QuicConnectionAdapter(logging.getLogger(f"{__name__}.aioquic"), {"id": ""})
_SILENT.setLevel(logging.CRITICAL + 1)
_LONG_HEADER = 0x80  # RFC 9000 section 17.2


class LinkClosed(Exception):
    """The connection ended: by the peer (`error_code`), by TLS or by the system (`refused`).

    `application`: the code is HTTP/3's, not QUIC's (RFC 9000 section 20). `ours`: this side ended it, because of what the peer sent.
    """

    def __init__(
        self,
        reason: str,
        *,
        error_code: int | None = None,
        refused: bool = False,
        application: bool = False,
        ours: bool = False,
    ) -> None:
        super().__init__(reason)
        self.error_code = error_code
        self.refused = refused
        self.application = application
        self.ours = ours


class Connection(QuicConnection):
    """aioquic's connection, silent, and with the two key shares that servers choose.

    It would make four (P-256, P-384, X25519, X448) for each handshake, which costs a fifth of a probe's CPU time, and
    log why each connection ended, which LinkClosed tells whoever asked for it.
    """

    def __init__(self, configuration: QuicConfiguration, *, anonymous: bool, **more: Any) -> None:
        super().__init__(configuration=configuration, **more)
        self._logger = _SILENT
        self._anonymous = anonymous

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        tls: Any = self.tls
        tls._supported_groups = [Group.X25519, Group.SECP256R1]  # noqa: SLF001  aioquic has no setting for it
        if self._anonymous:
            tls._check_certificate_verify_signature = _believe  # noqa: SLF001


def _believe(_signature: object) -> None:
    """Who does not ask whose certificate it is need not pay for the proof that the server holds its key."""


class QuicLink:
    """A connection to one address. `on_event` gets aioquic's events; times are `loop.time()` seconds.

    `anonymous` spares the check that the server holds the key of its certificate: for who does not look at the latter.
    `connection` takes the place of the one that would be made.
    Raises OSError from its constructor when this host can't open, bind or route the socket.
    """

    def __init__(
        self,
        configuration: QuicConfiguration,
        address: str,
        port: int,
        *,
        source_address: str | None = None,
        anonymous: bool = False,
        on_event: Callable[[events.QuicEvent], None] = lambda _: None,
        connection: Connection | None = None,
    ) -> None:
        self.quic = connection or Connection(configuration, anonymous=anonymous)
        self.on_event = on_event
        self.first_sent: float | None = None
        self.first_received: float | None = None
        self.completed: float | None = None  # the TLS handshake completed, here
        self.finished_sent: float | None = None  # our last handshake flight left
        self.confirmed: float | None = None  # the server's confirmation arrived (RFC 9001 section 4.1.2)
        self.first_repeated = (
            False  # sent again before anything was received: the exchange's time is ambiguous
        )
        self.finished_repeated = False
        self.ping_sent: float | None = None  # the last PING that the first acknowledgement of any covers
        self.ping_acknowledged: float | None = None
        self.ping_repeated = False
        self._pings: list[float] = []  # when each left; 0 before it has
        self._answer_lost = False  # the server's first answer
        self.late = 0.0  # seconds, all waiting for the event loop added up
        self.alpn: str | None = None
        self.failure: LinkClosed | None = None  # why it ended, unless we ended it
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._peer = (address, port)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._socket: socket.socket | None = connected_socket(address, port, source_address, departures=True)

    def start(self) -> None:
        """Send the first flight. Raises OSError when this host can't send it."""
        if self._socket is None:
            raise RuntimeError("a closed link can't be started")
        self._loop.add_reader(self._socket, self._readable)
        self.quic.connect(self._peer, now=self._loop.time())
        self._send(raising=True)

    def transmit(self) -> None:
        """Send what the connection has to send; to be called after anything was asked of `quic`."""
        self._send()

    def ping(self) -> None:
        """Send PING twice: a peer may delay the acknowledgement of one packet, not of the second (RFC 9000 section 13.2.2)."""
        for number in range(2):
            self._pings.append(0.0)
            self.quic.send_ping(number)
            self._send()

    async def until(self, done: Callable[[], bool], deadline: float) -> None:
        """Wait until `done()`, asked after whatever happens on the connection.

        Raises:
            LinkClosed: the connection ended first.
            TimeoutError: `deadline` (`loop.time()`) passed first.
        """
        while not done():
            if self.failure is not None:
                raise self.failure
            overdue = self._loop.time() - deadline
            if overdue >= 0:
                self.late += overdue
                self._readable()  # an answer may lie in the socket, unread because the event loop was late
                if done() or self.failure is not None:
                    continue
                raise TimeoutError
            self._waiter = self._loop.create_future()
            timer = self._loop.call_at(deadline, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None

    def close(self) -> None:
        """Tell the peer, if there is one, and let go of the socket. A second call does nothing."""
        try:
            if self._socket is not None and self.first_received is not None and self.failure is None:
                self.quic.close(error_code=ErrorCode.H3_NO_ERROR)
                self._send()
        finally:
            self._release()

    def peer_certificates(self) -> tuple[x509.Certificate, ...]:
        """What the server presented, leaf first; empty before the handshake has come so far."""
        tls: Any = self.quic.tls
        leaf = tls._peer_certificate  # noqa: SLF001  aioquic has no public way to see it
        return () if leaf is None else (leaf, *tls._peer_certificate_chain)  # noqa: SLF001

    def _readable(self) -> None:
        self._departed(0.0)
        for _ in range(MAX_DATAGRAMS):
            if self._socket is None:
                return
            try:
                data, ancillary, _flags, _ = self._socket.recvmsg(RECEIVE_BYTES, ANCILLARY_BYTES)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._fail(error)
                return
            late = lateness(ancillary)
            self.late += late
            self._received(data, self._loop.time() - late)
        self._send()
        self._wake()

    def _received(self, data: bytes, arrived: float) -> None:
        first = self.first_received is None
        if first:
            self.first_received = arrived
        self.quic.receive_datagram(data, self._peer, now=self._loop.time())
        if first and self._received_numbers(Epoch.INITIAL)[:1] not in ([], [0]):
            self.first_repeated = self._answer_lost = (
                True  # the server has repeated its answer: this is not its first
            )
        if self.completed is not None and self.confirmed is None and self.quic._handshake_confirmed:  # noqa: SLF001
            self.confirmed = arrived
            # Servers that count packets of all spaces together leave gaps too, so that a gap alone is no sign of loss.
            if self._answer_lost and len(self._received_numbers(Epoch.ONE_RTT)) > 1:
                self.finished_repeated = True
        self._deliver(arrived)

    def _received_numbers(self, epoch: Epoch) -> list[int]:
        """Where each unbroken row of the server's packet numbers begins; they count from 0 (RFC 9000 section 12.3)."""
        space = self.quic._spaces.get(epoch)  # noqa: SLF001  aioquic has no public way to see it
        return [row.start for row in space.ack_queue] if space is not None else []

    def _deliver(self, arrived: float) -> None:
        while (event := self.quic.next_event()) is not None:
            if isinstance(event, events.HandshakeCompleted):
                self.completed = self._loop.time()
                self.alpn = event.alpn_protocol
            elif isinstance(event, events.PingAcknowledged) and self.ping_acknowledged in (None, arrived):
                self.ping_acknowledged = arrived
                self.ping_sent = max(self.ping_sent or 0.0, self._pings[event.uid])
            self.on_event(event)
        # aioquic tells of the end only after the closing period; who waits for an answer must know now.
        ending = self.quic._close_event  # noqa: SLF001
        if ending is not None:
            ours = self.quic._close_pending or self.quic._state is QuicConnectionState.CLOSING  # noqa: SLF001
            self._end(
                LinkClosed(
                    ending.reason_phrase,
                    error_code=ending.error_code,
                    application=ending.frame_type is None,
                    ours=ours,
                )
            )

    def _send(self, *, raising: bool = False, timed: bool = False) -> None:
        if self._socket is None:
            return
        for data, _ in self.quic.datagrams_to_send(now=self._loop.time()):
            before = self._loop.time()
            try:
                self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                break  # the socket's buffer is full: QUIC sends it again
            except OSError as error:
                if raising:
                    raise
                self._fail(error)
                return
            self._stamp(data, self._departed(before), timed=timed)
        self._arm()

    def _departed(self, before: float) -> float:
        """When what was sent since `before` left: by the kernel, which mostly knows before send returns, or else `before`.

        What it tells later must be fetched too, or the socket would stay readable.
        """
        left = None
        while self._socket is not None:
            try:
                _, ancillary, _, _ = self._socket.recvmsg(0, ANCILLARY_BYTES, MSG_ERRQUEUE)
            except OSError:
                break
            left = departure(ancillary)
        return left.at if left is not None and before <= left.at <= self._loop.time() else before

    def _stamp(self, data: bytes, sent: float, *, timed: bool) -> None:
        if self.first_sent is None:
            self.first_sent = sent
        elif self.first_received is None:
            self.first_repeated = True
        elif self.completed is not None and self.confirmed is None and data[0] & _LONG_HEADER:
            # After completion long headers carry Finished, or acknowledgements; these are not sent because of a timer.
            if self.finished_sent is None:
                self.finished_sent = sent
            elif timed:
                self.finished_repeated = True
        elif self._pings:
            self._pings[-1] = self._pings[-1] or sent
            # A timer also sends acknowledgements, which repeat nothing; this counts timeouts since the last one that came.
            self.ping_repeated = self.ping_repeated or (timed and self.quic._loss._pto_count > 0)  # noqa: SLF001

    def _arm(self) -> None:
        due = self.quic.get_timer()
        if self._timer is not None and due != self._timer_at:
            self._timer.cancel()
            self._timer = None
        if self._timer is None and due is not None:
            self._timer = self._loop.call_at(due, self._timed)
        self._timer_at = due

    def _timed(self) -> None:
        now, due = self._loop.time(), self._timer_at
        self._timer = None
        self._timer_at = None
        if due is not None:
            self.late += max(0.0, now - due)
            now = max(now, due)
        self.quic.handle_timer(now=now)
        self._deliver(now)
        self._send(timed=True)
        self._wake()

    def _fail(self, error: OSError) -> None:
        refused = error.errno == errno.ECONNREFUSED
        reason = (
            "the port is closed (ICMP port unreachable)"
            if refused
            else f"the network answered: {error.strerror or error}"
        )
        self._end(LinkClosed(reason, refused=refused))
        self._release()

    def _end(self, error: LinkClosed) -> None:
        if self.failure is None:
            self.failure = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
