"""A DNS server for one process: real sockets on loopback (UDP, TCP, TLS, HTTPS), any zones, and anything that can be wrong with it.

async with DnsServer([read_zone("example.test", "fra 60 IN A 203.0.113.7")], faults=[code("SERVFAIL")]) as server:
...  # server.at() is its NameServer
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Self, cast

import dns.exception
import dns.message
import dns.zone
from aiohttp import web

from isochrone.lab.dns_faults import Request
from isochrone.lab.dns_zone import answer
from isochrone.nameserver import NameServer, Transport

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Sequence

    from isochrone.lab.dns_faults import Fault

    Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_TRIES = 20  # for a port that is free for UDP and TCP
_MEDIA_TYPE = "application/dns-message"


class DnsServer:
    """Serves `zones`, with authority or (`resolver`) as one that resolves.

    `faults` may be exchanged while it runs. `tls` adds TLS and HTTPS listeners with that context; `tcp=False` leaves TCP closed;
    `doh_status` is what HTTPS answers with when it is not 200. Only one caller may use it at a time as an async context manager.
    """

    def __init__(
        self,
        zones: Sequence[dns.zone.Zone],
        *,
        faults: Sequence[Fault] = (),
        resolver: bool = False,
        address: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        tcp: bool = True,
        doh_status: int = 200,
    ) -> None:
        self.zones = list(zones)
        self.faults = list(faults)
        self.questions = 0  # how many have come in
        self.port = self.tls_port = self.https_port = 0
        self._resolver = resolver
        self._address = address
        self._tls = tls
        self._tcp = tcp
        self._doh_status = doh_status
        self._answered: dict[tuple[bytes, str], bytes] = {}
        self._stack = contextlib.AsyncExitStack()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        try:
            await self._listen()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    def at(self, transport: Transport | None = None, *, host: str = "") -> NameServer:
        """How to ask it; without a transport, as one that is written without a scheme."""
        ports = {Transport.TLS: self.tls_port, Transport.HTTPS: self.https_port}
        plain = NameServer(
            self._address, self.port, authoritative=not self._resolver, plain=transport is None
        )
        if transport is None:
            return plain
        return replace(plain, transport=transport, port=ports.get(transport, self.port), host=host)

    def serve(self, zones: Sequence[dns.zone.Zone]) -> None:
        """Serve these zones from now on."""
        self.zones = list(zones)
        self._answered.clear()

    async def respond(self, wire: bytes, transport: str) -> bytes | None:
        """The answer to one message; None for none."""
        known = self._answered.get((wire[2:], transport))
        if known is not None and not self.faults:  # the same question has the same answer but for its id
            self.questions += 1
            return wire[:2] + known
        response = await self._respond(wire, transport)
        if response is not None and not self.faults:
            self._answered[wire[2:], transport] = response[2:]
        return response

    async def _respond(self, wire: bytes, transport: str) -> bytes | None:
        try:
            request = Request(dns.message.from_wire(wire), transport)
        except dns.exception.DNSException:
            return None
        self.questions += 1
        response: dns.message.Message | bytes | None
        response = answer(self.zones, request.query, resolver=self._resolver)
        for fault in self.faults:
            if not isinstance(response, dns.message.Message):
                break
            response = await fault(request, response)
        if not isinstance(response, dns.message.Message):
            return response
        size = max(request.query.payload, 512) if transport == "udp" else 65_535
        try:
            return response.to_wire(max_size=size)
        except dns.exception.TooBig:
            short = dns.message.make_response(request.query)
            short.flags |= response.flags | dns.flags.TC
            return short.to_wire()

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        for attempt in range(_TRIES):
            transport, _ = await loop.create_datagram_endpoint(
                lambda: _Udp(self), local_addr=(self._address, 0)
            )
            self.port = transport.get_extra_info("sockname")[1]
            if not self._tcp:
                self._stack.callback(transport.close)
                break
            try:
                server = await asyncio.start_server(self._stream("tcp"), self._address, self.port)
            except OSError:  # the port is taken for TCP
                transport.close()
                if attempt == _TRIES - 1:
                    raise
                continue
            self._stack.callback(transport.close)
            self._stack.callback(server.close)
            break
        if self._tls is not None:
            secure = await asyncio.start_server(self._stream("tls"), self._address, 0, ssl=self._tls)
            self._stack.callback(secure.close)
            self.tls_port = secure.sockets[0].getsockname()[1]
            await self._listen_https()

    async def _listen_https(self) -> None:
        app = web.Application()
        app.router.add_post("/dns-query", self._https)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        self._stack.push_async_callback(runner.cleanup)
        await runner.setup()
        site = web.TCPSite(runner, self._address, 0, ssl_context=self._tls)
        await site.start()
        self.https_port = runner.addresses[0][1]

    def _stream(self, transport: str) -> Serve:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            if task is not None:
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            try:
                while True:
                    length = int.from_bytes(await reader.readexactly(2), "big")
                    response = await self.respond(await reader.readexactly(length), transport)
                    if response is not None:
                        writer.write(len(response).to_bytes(2, "big") + response)
                        await writer.drain()
            except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass  # the client has left, or the server is going
            finally:
                writer.transport.abort()

        return serve

    def datagram(self, transport: asyncio.DatagramTransport, data: bytes, client: tuple[str, int]) -> None:
        """One datagram came in."""

        async def serve() -> None:
            response = await self.respond(data, "udp")
            if response is not None and not transport.is_closing():
                transport.sendto(response, client)

        task = asyncio.get_running_loop().create_task(serve())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _https(self, request: web.Request) -> web.Response:
        if self._doh_status != 200:
            return web.Response(status=self._doh_status)
        response = await self.respond(await request.read(), "https")
        if response is None:
            await asyncio.sleep(3600)  # silence; ended when the client leaves
        return web.Response(body=response, content_type=_MEDIA_TYPE)


class _Udp(asyncio.DatagramProtocol):
    def __init__(self, server: DnsServer) -> None:
        self._server = server
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if self._transport is not None:
            self._server.datagram(self._transport, data, addr)
