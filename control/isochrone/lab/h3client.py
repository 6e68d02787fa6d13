"""One HTTP/3 request over one aioquic connection.

It has what aioquic's own `connect()` lacks: a bound source address, a deadline, a server name apart from the address,
typed errors, and refusals told at once.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted, QuicEvent, StreamReset

if TYPE_CHECKING:
    from pathlib import Path

    from isochrone.lab.relay_flow import Address

TLS_ALERT = 0x100  # RFC 9001 section 4.8: QUIC error codes 0x100 to 0x1ff are TLS alerts
CERTIFICATE_ALERTS = range(42, 49)  # bad_certificate to unknown_ca, RFC 8446 section 6
NO_APPLICATION_PROTOCOL = 120  # RFC 7301 section 3.2


class ClientError(Exception):
    """The endpoint could not be used. `authority`: host:port; `phase`: alt_svc, resolve, handshake or request."""

    phase = "request"

    def __init__(self, authority: str, problem: str) -> None:
        super().__init__(f"{authority}: {problem}")
        self.authority = authority
        self.problem = problem


class NoAlternativeError(ClientError):
    """The field offers no HTTP/3 alternative."""

    phase = "alt_svc"


class UnresolvedError(ClientError):
    """The alternative's host has no address."""

    phase = "resolve"


class UnreachableError(ClientError):
    """No handshake in time."""

    phase = "handshake"


class CertificateRefusedError(ClientError):
    """The endpoint's certificate is not valid for the server name, has expired, or nobody trusted issued it."""

    phase = "handshake"


class HandshakeRefusedError(ClientError):
    """One side ended the handshake for another reason, such as no common ALPN."""

    phase = "handshake"


class RequestFailedError(ClientError):
    """The handshake was good, the request was not answered."""


@dataclass(frozen=True, slots=True)
class Http3Answer:
    """What came back. `handshake_ms`: first datagram to end of handshake; `request_ms`: from there to the last byte."""

    status: int
    protocol: str  # the negotiated ALPN id
    handshake_ms: float
    request_ms: float
    headers: tuple[tuple[str, str], ...]
    body: bytes


class _Connection(QuicConnection):
    """Tells of a close when it is decided: aioquic raises its event only three probe timeouts later."""

    on_close: Any = None

    def close(self, error_code: int = 0, frame_type: int | None = None, reason_phrase: str = "") -> None:
        super().close(error_code=error_code, frame_type=frame_type, reason_phrase=reason_phrase)
        if self.on_close is not None:
            self.on_close(error_code, reason_phrase)


class _Protocol(QuicConnectionProtocol):
    """One connection, one request; `handshake` ends with the ALPN id, `answer` with the last byte."""

    def __init__(self, quic: _Connection, authority: str) -> None:
        super().__init__(quic)
        loop = asyncio.get_running_loop()
        self.handshake: asyncio.Future[str] = loop.create_future()
        self.answer: asyncio.Future[None] = loop.create_future()
        self.headers: list[tuple[str, str]] = []
        self.body = bytearray()
        self._authority = authority
        self._http: H3Connection | None = None
        quic.on_close = self._over

    def request(self, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self._http = H3Connection(self._quic)
        stream = self._quic.get_next_available_stream_id()
        self._http.send_headers(stream, headers, end_stream=not body)
        if body:
            self._http.send_data(stream, body, end_stream=True)
        self.transmit()

    def quic_event_received(self, event: QuicEvent) -> None:
        match event:
            case HandshakeCompleted(alpn_protocol=alpn) if not self.handshake.done():
                self.handshake.set_result(alpn or "")
            case ConnectionTerminated(error_code=code, reason_phrase=reason):
                self._over(code, reason)
            case StreamReset(error_code=code):
                self._fail(self.answer, RequestFailedError(self._authority, f"stream reset, error {code:#x}"))
        for http_event in self._http.handle_event(event) if self._http is not None else ():
            match http_event:
                case HeadersReceived(headers=headers):
                    self.headers += [(k.decode("latin-1"), v.decode("latin-1")) for k, v in headers]
                case DataReceived(data=data):
                    self.body += data
            ended = isinstance(http_event, HeadersReceived | DataReceived) and http_event.stream_ended
            if ended and not self.answer.done():
                self.answer.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:  # it would wake up without a socket
            self._timer.cancel()
            self._timer = None

    def _over(self, code: int, reason: str) -> None:
        said = f"{reason or 'no reason given'} (QUIC error {code:#x})"
        alert = code - TLS_ALERT
        error: ClientError
        if alert in CERTIFICATE_ALERTS:
            error = CertificateRefusedError(self._authority, said)
        elif alert == NO_APPLICATION_PROTOCOL:
            error = HandshakeRefusedError(self._authority, f"no common protocol: {said}")
        else:
            error = HandshakeRefusedError(self._authority, said)
        self._fail(self.handshake, error)
        self._fail(self.answer, RequestFailedError(self._authority, f"connection closed: {said}"))

    @staticmethod
    def _fail(future: asyncio.Future[Any], error: ClientError) -> None:
        if not future.done():
            future.set_exception(error)
            future.exception()  # marked as seen: nobody may be waiting for this phase


async def request_http3(
    address: Address,
    *,
    authority: str,
    server_name: str,
    headers: list[tuple[bytes, bytes]],
    ca_pem: Path,
    source_address: str,
    deadline: float,
    alpn: str = "h3",
    body: bytes = b"",
) -> Http3Answer:
    """One connection to `address`, one request with these fields (pseudo-header fields first).

    `authority` stands in errors; the certificate must be valid for `server_name`; `deadline` is the loop's time.
    Raises `UnreachableError`, `CertificateRefusedError`, `HandshakeRefusedError` or `RequestFailedError`.
    """
    loop = asyncio.get_running_loop()
    configuration = QuicConfiguration(alpn_protocols=[alpn], is_client=True, server_name=server_name)
    configuration.load_verify_locations(str(ca_pem))
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        sock.bind((source_address, 0))
    except OSError as error:
        sock.close()
        raise UnreachableError(authority, f"cannot send from {source_address}: {error.strerror}") from error
    transport, protocol = await loop.create_datagram_endpoint(
        lambda: _Protocol(_Connection(configuration=configuration), authority), sock=sock
    )
    try:
        begun = loop.time()
        protocol.connect(address)
        try:
            async with asyncio.timeout_at(deadline):
                negotiated = await protocol.handshake
        except TimeoutError as error:
            raise UnreachableError(authority, f"no handshake within {deadline - begun:.1f} s") from error
        shaken = loop.time()
        protocol.request(headers, body)
        try:
            async with asyncio.timeout_at(deadline):
                await protocol.answer
        except TimeoutError as error:
            raise RequestFailedError(authority, f"no answer within {deadline - begun:.1f} s") from error
        return Http3Answer(
            status=int(dict(protocol.headers).get(":status", "0")),
            protocol=negotiated,
            handshake_ms=(shaken - begun) * 1e3,
            request_ms=(loop.time() - shaken) * 1e3,
            headers=tuple(protocol.headers),
            body=bytes(protocol.body),
        )
    finally:
        protocol.close()
        transport.close()
