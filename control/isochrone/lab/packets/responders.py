"""The far hosts' servers, in the far namespace: TLS with HTTP/1.1 and HTTP/2 on TCP, HTTP/3 on UDP. ICMP is the kernel's.

Run as `python -m isochrone.lab.packets.responders CHAIN KEY ADDRESS...`; says `ready` on standard output.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ssl
import sys

import h2.config
import h2.connection
import h2.events
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import QuicServer
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ProtocolNegotiated, QuicEvent

from isochrone.lab.packets.kernel import be_punctual
from isochrone.lab.packets.paths import PORT

#: Far hosts are other machines: what else this one does must not slow them. Below the link.
PRIORITY = 20
BODY = b"ok\n"


class Http3(QuicConnectionProtocol):
    """Answers every request with 200."""

    _http: H3Connection | None = None

    def quic_event_received(self, event: QuicEvent) -> None:
        """Aioquic's events."""
        if isinstance(event, ProtocolNegotiated):
            self._http = H3Connection(self._quic)
        for told in self._http.handle_event(event) if self._http is not None else ():
            if isinstance(told, HeadersReceived) and self._http is not None:
                self._http.send_headers(told.stream_id, [(b":status", b"200")])
                self._http.send_data(told.stream_id, BODY, end_stream=True)
                self.transmit()


async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One TCP connection."""
    secure: ssl.SSLObject | None = writer.get_extra_info("ssl_object")
    with contextlib.suppress(OSError, ssl.SSLError, asyncio.IncompleteReadError):
        if secure is not None and secure.selected_alpn_protocol() == "h2":
            await _http2(reader, writer)
        else:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\n" + BODY)
            await writer.drain()
    writer.transport.abort()


async def _http2(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    connection.initiate_connection()
    writer.write(connection.data_to_send())
    while data := await reader.read(65_536):
        for event in connection.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                connection.send_headers(event.stream_id, [(":status", "200")])
                connection.send_data(event.stream_id, BODY, end_stream=True)
        writer.write(connection.data_to_send())
        await writer.drain()


async def serve(chain: str, key: str, addresses: list[str]) -> None:
    """Serve until cancelled. Raises OSError when an address can't be had."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    context.set_alpn_protocols(["h2", "http/1.1"])
    configuration = QuicConfiguration(is_client=False, alpn_protocols=["h3"])
    configuration.load_cert_chain(chain, key)
    loop = asyncio.get_running_loop()
    for address in addresses:
        await loop.create_datagram_endpoint(
            lambda: QuicServer(configuration=configuration, create_protocol=Http3), local_addr=(address, PORT)
        )
        await asyncio.start_server(http, address, PORT, ssl=context, backlog=1024)
    be_punctual(PRIORITY)
    gc.freeze()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2], sys.argv[3:]))
