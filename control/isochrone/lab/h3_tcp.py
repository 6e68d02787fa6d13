"""The TCP side of a small endpoint: TLS with HTTP/1.1 and HTTP/2 on the same port, so that handshakes can be compared."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import h2.config
import h2.connection
import h2.events
import h2.exceptions

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator
    from pathlib import Path

MAX_HEAD_BYTES = 16_384
HTTP1_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n"


@asynccontextmanager
async def tcp_side(listening: socket.socket, pem: tuple[Path, Path]) -> AsyncIterator[None]:
    """Answers every request with 200 on a bound TCP socket while the context lasts. Closes the socket."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pem)
    context.set_alpn_protocols(["h2", "http/1.1"])
    server = await asyncio.start_server(_serve, sock=listening, ssl=context)
    try:
        yield
    finally:
        server.close()
        await asyncio.sleep(0)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    secure: ssl.SSLObject = writer.get_extra_info("ssl_object")
    try:
        if secure.selected_alpn_protocol() == "h2":
            await _serve_h2(reader, writer)
        else:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HTTP1_ANSWER)
            await writer.drain()
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, h2.exceptions.ProtocolError):
        pass  # the client has gone, as it may
    finally:
        writer.transport.abort()


async def _serve_h2(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    connection.initiate_connection()
    writer.write(connection.data_to_send())
    while data := await reader.read(MAX_HEAD_BYTES):
        for event in connection.receive_data(data):
            if isinstance(event, h2.events.RequestReceived) and event.stream_id is not None:
                connection.send_headers(event.stream_id, [(":status", "200")])
                connection.send_data(event.stream_id, b"ok\n", end_stream=True)
        writer.write(connection.data_to_send())
        await writer.drain()
