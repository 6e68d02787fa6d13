"""Small real servers with faults, and the certificates they show. Everything on loopback."""

from __future__ import annotations

import asyncio
import datetime as dt
import queue
import socket
import threading
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003
from typing import ClassVar

import trustme
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import QuicServer
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ProtocolNegotiated

from isochrone.lab.h3server import Tickets

SITE = "www.example.com"


@dataclass(frozen=True)
class Certificates:
    """Leaves of one authority, as (chain, key) files, and the authority's own file."""

    folder: Path
    ca_pem: Path
    ca: trustme.CA

    def leaf(self, stem, *names, expired=False, days_left=30, ca=None):
        now = dt.datetime.now(dt.UTC)
        end = now - dt.timedelta(days=1) if expired else now + dt.timedelta(days=days_left)
        leaf = (ca or self.ca).issue_cert(*names, not_before=end - dt.timedelta(days=90), not_after=end)
        chain, key = self.folder / f"{stem}.pem", self.folder / f"{stem}.key"
        chain.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        key.write_bytes(leaf.private_key_pem.bytes())
        return chain, key


def make_certificates(folder):
    ca = trustme.CA(key_type=trustme.KeyType.ECDSA)
    ca_pem = folder / "ca.pem"
    ca.cert_pem.write_to_path(ca_pem)
    return Certificates(folder, ca_pem, ca)


class Region(QuicConnectionProtocol):
    """Answers every request with its region, or misbehaves as told by `behaviour`."""

    behaviour: ClassVar[dict] = {}

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = None

    def quic_event_received(self, event):
        if isinstance(event, ProtocolNegotiated) and event.alpn_protocol == "h3":
            self.http = H3Connection(self._quic)
        if self.http is None:
            return
        for http_event in self.http.handle_event(event):
            if isinstance(http_event, HeadersReceived):
                self.answer(http_event)

    def answer(self, request):
        told = self.behaviour
        told.setdefault("requests", []).append(dict(request.headers))
        fault = told.get("fault")
        if fault == "silent":
            return
        if fault == "close":
            self.close(error_code=0x102, reason_phrase="going away")
            return
        if fault == "reset":
            self._quic.reset_stream(request.stream_id, 0x10C)
            self.transmit()
            return
        headers = [(b":status", str(told.get("status", 200)).encode())]
        if told.get("region") is not None:
            headers.append((b"x-isochrone-region", told["region"].encode()))
        self.http.send_headers(request.stream_id, headers)
        self.http.send_data(request.stream_id, b"ok\n", end_stream=True)
        self.transmit()


@asynccontextmanager
async def quic_server(pair, *, alpn=("h3",), retry=False, host="127.0.0.1", **behaviour):
    """A server on a free port: yields (port, what it was told, where it also notes the requests it saw)."""
    configuration = QuicConfiguration(is_client=False, alpn_protocols=list(alpn))
    configuration.load_cert_chain(*map(str, pair))
    told, tickets = dict(behaviour), Tickets()
    handler = type("ThisRegion", (Region,), {"behaviour": told})
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(
        lambda: QuicServer(
            configuration=configuration,
            create_protocol=handler,
            retry=retry,
            session_ticket_handler=tickets.keep,
            session_ticket_fetcher=tickets.find,
        ),
        local_addr=(host, 0),
    )
    try:
        yield transport.get_extra_info("sockname")[1], told
    finally:
        protocol.close()
        transport.close()
        await asyncio.sleep(0)


@contextmanager
def black_hole(host="127.0.0.1"):
    """A UDP port that takes everything and says nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as hole:
        hole.bind((host, 0))
        yield hole.getsockname()[1]


def dead_port(host="127.0.0.1"):
    """A UDP port that nobody listens on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as once:
        once.bind((host, 0))
        return once.getsockname()[1]


class Relay(asyncio.DatagramProtocol):
    """Between one client and a server: `drops` client datagrams by number (from 0), delays the others by `delay` seconds each way."""

    def __init__(self, server_port, drops=(), delay=0.0):
        self.server, self.drops, self.delay = ("127.0.0.1", server_port), set(drops), delay
        self.client, self.number, self.transport = None, 0, None

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, addr):
        if addr == self.server:
            to = self.client
        else:
            self.client, to = addr, self.server
            self.number += 1
            if self.number - 1 in self.drops:
                return
        asyncio.get_running_loop().call_later(self.delay, self.forward, data, to)

    def forward(self, data, to):
        if not self.transport.is_closing():
            self.transport.sendto(data, to)


@asynccontextmanager
async def relay(server_port, **how):
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(
        lambda: Relay(server_port, **how), local_addr=("127.0.0.1", 0)
    )
    try:
        yield transport.get_extra_info("sockname")[1]
    finally:
        transport.close()
        await asyncio.sleep(0)


@contextmanager
def server_thread(pair, **behaviour):
    """A server with an event loop of its own, for tests that keep the prober's loop busy. Yields its port."""
    started = queue.Queue()

    async def main():
        stop = asyncio.Event()
        async with quic_server(pair, **behaviour) as (port, _told):
            started.put((asyncio.get_running_loop(), stop, port))
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    loop, stop, port = started.get(timeout=30)
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
