"""HTTP/3 to one address (RFC 9114), with the public host as server name."""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import StreamReset

from isochrone.client.errors import (
    CertificateRefusedError,
    HandshakeRefusedError,
    RequestFailedError,
    UnreachableError,
)
from isochrone.client.exchange import MAX_BODY, Request, Response, TooLarge
from isochrone.probing.prober import own_fault
from isochrone.probing.quic_link import LinkClosed, QuicLink

if TYPE_CHECKING:
    from aioquic.quic.events import QuicEvent

    from isochrone.verification.certificates import TrustStore

_NO_APPLICATION_PROTOCOL = 0x178  # CRYPTO_ERROR with TLS alert 120, RFC 9001 section 8.1
_LATER = frozenset({"expiring"})  # faults of a certificate that is good today


@dataclass(slots=True)
class _Stream:
    """One request's answer as it comes."""

    head: tuple[tuple[str, str], ...] | None = None
    body: bytearray | None = None
    first_byte: float | None = None  # loop time
    over: bool = False
    failure: str = ""


class Http3Connection:
    """One connection; open it by `connect`."""

    def __init__(self, link: QuicLink, authority: str, protocol: str) -> None:
        self.link = link
        self.protocol = protocol
        self.address = ""
        self.phases: dict[str, float] = {}
        self._authority = authority
        self._http: H3Connection | None = None
        self._streams: dict[int, _Stream] = {}

    async def ask(self, request: Request, deadline: float) -> Response:
        """See exchange.Connection."""
        loop = asyncio.get_running_loop()
        http = self._http = self._http or H3Connection(self.link.quic)
        number = self.link.quic.get_next_available_stream_id()
        stream = self._streams[number] = _Stream(body=bytearray())
        asked = loop.time()
        fields = [
            (":method", request.method), (":scheme", "https"), (":authority", request.authority), (":path", request.path),
            *request.fields(),
        ]  # fmt: skip
        http.send_headers(
            number, [(k.encode("ascii"), v.encode("latin-1")) for k, v in fields], end_stream=not request.body
        )
        if request.body:
            http.send_data(number, request.body, end_stream=True)
        self.link.transmit()
        try:
            await self.link.until(lambda: stream.over, deadline)
        except TimeoutError:
            raise RequestFailedError(self._authority, f"no answer within {deadline - asked:.1f} s") from None
        except LinkClosed as closed:
            raise RequestFailedError(self._authority, f"connection closed: {_said(closed)}") from None
        finally:
            del self._streams[number]
        if stream.first_byte is not None:
            self.phases["first_byte"] = (stream.first_byte - asked) * 1000
        head = stream.head or ()
        status = dict(head).get(":status", "")
        if stream.failure or not (status.isascii() and status.isdigit()):
            raise RequestFailedError(self._authority, stream.failure or f"status {status!r}")
        headers = tuple((k, v) for k, v in head if not k.startswith(":"))
        return Response(int(status), headers, bytes(stream.body or b""))

    def close(self) -> None:
        """See exchange.Connection."""
        self.link.close()

    def on_event(self, event: QuicEvent) -> None:
        """Follow the connection; the server's settings may come before our request."""
        if self.link.completed is None:
            return
        http = self._http = self._http or H3Connection(self.link.quic)
        if isinstance(event, StreamReset) and event.stream_id in self._streams:
            stream = self._streams[event.stream_id]
            stream.failure, stream.over = f"the request was reset, error {event.error_code:#x}", True
        for answer in http.handle_event(event):
            if isinstance(answer, HeadersReceived | DataReceived) and answer.stream_id in self._streams:
                self._received(self._streams[answer.stream_id], answer)

    def _received(self, stream: _Stream, event: HeadersReceived | DataReceived) -> None:
        if stream.first_byte is None:
            stream.first_byte = asyncio.get_running_loop().time()
        if isinstance(event, DataReceived):
            if stream.body is not None:
                stream.body += event.data
                if len(stream.body) > MAX_BODY:
                    stream.failure, stream.over = str(TooLarge()), True
        elif stream.head is None or dict(stream.head).get(":status", "").startswith("1"):
            stream.head = tuple((k.decode("latin-1"), v.decode("latin-1")) for k, v in event.headers)
        stream.over = stream.over or event.stream_ended


async def connect(
    address: str,
    port: int,
    *,
    authority: str,
    server_name: str,
    trust: TrustStore,
    deadline: float,
    source_address: str | None = None,
    alpn: str = "h3",
) -> Http3Connection:
    """A QUIC connection with the handshake done and the certificate judged for `server_name`.

    `authority` stands in errors; `deadline` is the loop's time. Raises UnreachableError, HandshakeRefusedError or
    CertificateRefusedError. The phases are `connect` (first packet to the server's first) and `tls`.
    """
    loop = asyncio.get_running_loop()
    begun = loop.time()
    configuration = QuicConfiguration(
        is_client=True,
        alpn_protocols=[alpn],
        server_name=server_name,
        verify_mode=ssl.CERT_NONE,  # judged below, before anything is asked: every fault in words
    )
    try:
        link = QuicLink(configuration, address, port, source_address=source_address)
    except OSError as error:
        what = f"cannot send from {source_address}" if source_address else f"cannot send to {address}"
        raise UnreachableError(authority, f"{what}: {own_fault(error)}", own=True) from None
    connection = Http3Connection(link, authority, alpn)
    link.on_event = connection.on_event
    connection.address = address
    try:
        await _shake_hands(link, authority, begun, deadline)
        faults = trust.faults(link.peer_certificates(), server_name, now=time.time())
        for fault in faults:
            if fault.kind not in _LATER:
                raise CertificateRefusedError(authority, fault.evidence)
    except BaseException:
        link.close()
        raise
    if link.first_sent is not None and link.first_received is not None and link.completed is not None:
        connection.phases["connect"] = (link.first_received - link.first_sent) * 1000
        connection.phases["tls"] = (link.completed - link.first_received) * 1000
    return connection


async def _shake_hands(link: QuicLink, authority: str, begun: float, deadline: float) -> None:
    try:
        link.start()
        await link.until(lambda: link.completed is not None, deadline)
    except OSError as error:
        if isinstance(error, TimeoutError):
            raise UnreachableError(authority, f"no handshake within {deadline - begun:.1f} s") from None
        raise UnreachableError(authority, own_fault(error), own=True) from None
    except LinkClosed as closed:
        if closed.error_code is None:
            raise UnreachableError(authority, str(closed)) from None
        if closed.error_code == _NO_APPLICATION_PROTOCOL:
            raise HandshakeRefusedError(authority, f"no common protocol: {_said(closed)}") from None
        raise HandshakeRefusedError(authority, _said(closed)) from None


def _said(closed: LinkClosed) -> str:
    words = str(closed) or "no reason given"
    return words if closed.error_code is None else f"{words} (QUIC error {closed.error_code:#x})"
