"""HTTP/3 for the small application: aioquic's connection, one task for each request."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, cast

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import QuicServer
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import (
    ConnectionTerminated,
    ProtocolNegotiated,
    QuicEvent,
    StopSendingReceived,
    StreamDataReceived,
    StreamReset,
)

from isochrone.lab.app import AppRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aioquic.quic.connection import NetworkAddress
    from aioquic.tls import SessionTicket

    from isochrone.lab.relay_flow import Address
    from isochrone.lab.streams import App

RECEIVE_BUFFER = 1 << 20  # bytes
IDLE_S = 60.0
MAX_TICKETS = 1000


class Tickets:
    """The sessions that clients may take up again (RFC 8446 section 2.2); the oldest are forgotten."""

    def __init__(self) -> None:
        self._kept: dict[bytes, SessionTicket] = {}

    def keep(self, ticket: SessionTicket) -> None:
        """One that was given to a client."""
        if len(self._kept) >= MAX_TICKETS:
            del self._kept[next(iter(self._kept))]
        self._kept[ticket.ticket] = ticket

    def find(self, identity: bytes) -> SessionTicket | None:
        """The one that a client shows."""
        return self._kept.get(identity)


class _Exchange:
    """One request stream: the chunks of its body as they come, None at the end."""

    def __init__(self) -> None:
        self.chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.task: asyncio.Task[None] | None = None

    async def body(self) -> AsyncIterator[bytes]:
        """The body, chunk by chunk."""
        while (chunk := await self.chunks.get()) is not None:
            yield chunk


class RegionProtocol(QuicConnectionProtocol):
    """One client's connection; `app` is set by the factory that `serve_http3` makes."""

    app: App
    eager = True  # opens HTTP/3's control streams at once, not first when the client opens a stream

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._http: H3Connection | None = None
        self._exchanges: dict[int, _Exchange] = {}
        self._peer = ""

    def datagram_received(self, data: bytes | str, addr: NetworkAddress) -> None:
        """Remembers who speaks before aioquic handles the datagram."""
        self._peer = str(addr[0])
        super().datagram_received(data, addr)

    def quic_event_received(self, event: QuicEvent) -> None:
        """Turns events of the connection into requests."""
        match event:
            case ProtocolNegotiated() if self.eager:
                self._http = H3Connection(self._quic)
            case StreamDataReceived() if self._http is None:
                self._http = H3Connection(self._quic)
            case StreamReset(stream_id=stream) | StopSendingReceived(stream_id=stream):
                self._abandon(stream)
            case ConnectionTerminated():
                for stream in list(self._exchanges):
                    self._abandon(stream)
        if self._http is not None:
            for http_event in self._http.handle_event(event):
                self._http_event(http_event)

    def _http_event(self, event: H3Event) -> None:
        match event:
            case HeadersReceived(stream_id=stream, headers=headers, stream_ended=ended):
                if stream in self._exchanges:  # trailers
                    self._exchanges[stream].chunks.put_nowait(None)
                    return
                exchange = self._exchanges[stream] = _Exchange()
                if ended:
                    exchange.chunks.put_nowait(None)
                exchange.task = asyncio.create_task(self._serve(stream, headers, exchange))
            case DataReceived(stream_id=stream, data=data, stream_ended=ended):
                known = self._exchanges.get(stream)
                if known is not None:
                    if data:
                        known.chunks.put_nowait(data)
                    if ended:
                        known.chunks.put_nowait(None)
            case _:
                pass

    async def _serve(self, stream: int, raw: list[tuple[bytes, bytes]], exchange: _Exchange) -> None:
        http = cast("H3Connection", self._http)
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in raw]
        pseudo = {name: value for name, value in pairs if name.startswith(":")}
        request = AppRequest(
            http="3",
            method=pseudo.get(":method", "GET"),
            target=pseudo.get(":path", "/"),
            host=pseudo.get(":authority", ""),
            headers=[(name, value) for name, value in pairs if not name.startswith(":")],
            body=exchange.body(),
            peer=self._peer,
        )
        try:
            response = await self.app.answer(request)
            headers = [(b":status", str(response.status).encode())]
            headers += [(name.encode(), value.encode()) for name, value in response.headers]
            without_body = request.method == "HEAD" or response.body == b""
            http.send_headers(stream, headers, end_stream=without_body)
            self.transmit()
            if without_body:
                return
            if isinstance(response.body, bytes):
                http.send_data(stream, response.body, end_stream=True)
            else:
                async for chunk in response.body:
                    http.send_data(stream, chunk, end_stream=False)
                    self.transmit()
                    await asyncio.sleep(0)
                http.send_data(stream, b"", end_stream=True)
            self.transmit()
        finally:
            self._exchanges.pop(stream, None)

    def _abandon(self, stream: int) -> None:
        exchange = self._exchanges.pop(stream, None)
        if exchange is not None and exchange.task is not None:
            exchange.task.cancel()


def quic_server_configuration(chain: str, key: str, *, idle_s: float = IDLE_S) -> QuicConfiguration:
    """A server's configuration for ALPN h3 with the PEM files of its certificate; idle connections end after `idle_s`."""
    configuration = QuicConfiguration(alpn_protocols=H3_ALPN, is_client=False, idle_timeout=idle_s)
    configuration.load_cert_chain(chain, key)
    return configuration


async def serve_quic(
    address: Address, configuration: QuicConfiguration, protocol: type[QuicConnectionProtocol]
) -> tuple[QuicServer, Address]:
    """A QUIC server on an address (port 0: any) and the address it got; raises `OSError`."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        sock.bind(address)
        tickets = Tickets()
        _, server = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: QuicServer(
                configuration=configuration,
                create_protocol=protocol,
                session_ticket_handler=tickets.keep,
                session_ticket_fetcher=tickets.find,
            ),
            sock=sock,
        )
    except BaseException:
        sock.close()
        raise
    host, port = sock.getsockname()
    return server, (host, port)


async def serve_http3(address: Address, configuration: QuicConfiguration, app: App) -> QuicServer:
    """Serves the application over HTTP/3; `close()` of the result ends it. Raises `OSError`."""
    protocol = type("BoundProtocol", (RegionProtocol,), {"app": app})
    server, _ = await serve_quic(address, configuration, protocol)
    return server
