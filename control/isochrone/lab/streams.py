"""HTTP/1.1 and HTTP/2 over TLS for the small application, whichever of them ALPN chooses."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h11

from isochrone.lab.app import AppRequest, AppResponse

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

    from isochrone.lab.relay_flow import Address

READ = 1 << 16  # bytes


class App(Protocol):
    """What answers."""

    async def answer(self, request: AppRequest) -> AppResponse:
        """The response to one request."""


@asynccontextmanager
async def serve_streams(address: Address, context: ssl.SSLContext, app: App) -> AsyncIterator[int]:
    """Serves while the context lasts; yields the port (of an address with port 0: the one it got). Raises `OSError`."""
    open_ones: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        secure = writer.get_extra_info("ssl_object")
        connection = _Http2 if secure.selected_alpn_protocol() == "h2" else _Http1
        with contextlib.suppress(OSError, h11.RemoteProtocolError, h2.exceptions.ProtocolError):
            await connection(reader, writer, app).serve()
        writer.transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        open_ones.add(task)
        task.add_done_callback(open_ones.discard)

    server = await asyncio.start_server(accept, *address, ssl=context)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in open_ones:
            task.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)


async def _once(body: bytes) -> AsyncIterator[bytes]:
    if body:
        yield body


async def _whole(response: AppResponse) -> bytes:
    if isinstance(response.body, bytes):
        return response.body
    return b"".join([chunk async for chunk in response.body])


class _Http1:
    """One HTTP/1.1 connection: requests one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, app: App) -> None:
        self._reader, self._writer, self._app = reader, writer, app
        self._peer = writer.get_extra_info("peername")[0]

    async def serve(self) -> None:
        """Until the client leaves."""
        http = h11.Connection(h11.SERVER)
        head: h11.Request | None = None
        body = b""
        while True:
            event = http.next_event()
            match event:
                case h11.NEED_DATA:
                    http.receive_data(await self._reader.read(READ))
                case h11.Request():
                    head, body = event, b""
                case h11.Data():
                    body += event.data
                case h11.EndOfMessage() if head is not None:
                    await self._answer(http, head, body)
                    if http.our_state is not h11.DONE:
                        return
                    http.start_next_cycle()
                case _:
                    return

    async def _answer(self, http: h11.Connection, head: h11.Request, body: bytes) -> None:
        headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in head.headers]
        request = AppRequest(
            http="1.1", method=head.method.decode(), target=head.target.decode("latin-1"),
            host=dict(headers).get("host", ""), headers=headers, body=_once(body), peer=self._peer,
        )  # fmt: skip
        response = await self._app.answer(request)
        content = await _whole(response)
        fields = [(k, v) for k, v in response.headers if k != "content-length"]
        length = [] if response.status in {204, 304} else [("content-length", str(len(content)))]
        out = http.send(h11.Response(status_code=response.status, headers=[*fields, *length]))
        if content and request.method != "HEAD" and length:
            out = (out or b"") + (http.send(h11.Data(data=content)) or b"")
        self._writer.write((out or b"") + (http.send(h11.EndOfMessage()) or b""))
        await self._writer.drain()


class _Http2:
    """One HTTP/2 connection: a task for each stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, app: App) -> None:
        self._reader, self._writer, self._app = reader, writer, app
        self._peer = writer.get_extra_info("peername")[0]
        self._http = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="latin-1")
        )
        self._heads: dict[int, list[tuple[str, str]]] = {}
        self._bodies: dict[int, bytes] = {}
        self._window = asyncio.Event()

    async def serve(self) -> None:
        """Until the client leaves."""
        self._http.initiate_connection()
        self._flush()
        answering: set[asyncio.Task[None]] = set()
        try:
            while data := await self._reader.read(READ):
                for event in self._http.receive_data(data):
                    stream = self._received(event)
                    if stream:
                        task = asyncio.create_task(self._answer(stream))
                        answering.add(task)
                        task.add_done_callback(answering.discard)
                self._flush()
        finally:
            for task in answering:
                task.cancel()
            await asyncio.gather(*answering, return_exceptions=True)

    def _received(self, event: h2.events.Event) -> int:
        """Takes an event in; the stream whose request is complete with it, else 0."""
        match event:
            case h2.events.RequestReceived(stream_id=stream, headers=headers):
                self._heads[stream] = [(str(k), str(v)) for k, v in headers or ()]
                self._bodies[stream] = b""
            case h2.events.DataReceived(stream_id=stream, data=chunk, flow_controlled_length=length):
                self._bodies[stream] = self._bodies.get(stream, b"") + (chunk or b"")
                self._http.acknowledge_received_data(length or 0, stream)
            case h2.events.StreamEnded(stream_id=stream) if stream in self._heads:
                return stream
            case h2.events.WindowUpdated():
                self._window.set()
        return 0

    async def _answer(self, stream: int) -> None:
        pairs, body = self._heads.pop(stream), self._bodies.pop(stream)
        pseudo = {k: v for k, v in pairs if k.startswith(":")}
        request = AppRequest(
            http="2", method=pseudo.get(":method", "GET"), target=pseudo.get(":path", "/"),
            host=pseudo.get(":authority", ""), headers=[p for p in pairs if not p[0].startswith(":")],
            body=_once(body), peer=self._peer,
        )  # fmt: skip
        response = await self._app.answer(request)
        content = b"" if request.method == "HEAD" else await _whole(response)
        try:
            self._http.send_headers(
                stream, [(":status", str(response.status)), *response.headers], end_stream=not content
            )
            while content:
                size = min(self._http.local_flow_control_window(stream), self._http.max_outbound_frame_size)
                if not size:
                    self._window.clear()
                    self._flush()
                    await self._window.wait()
                    continue
                self._http.send_data(stream, content[:size], end_stream=len(content) <= size)
                content = content[size:]
        except h2.exceptions.ProtocolError:
            return  # the client has given the stream up
        self._flush()

    def _flush(self) -> None:
        self._writer.write(self._http.data_to_send())
