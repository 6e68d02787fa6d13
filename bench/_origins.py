"""Origins for benchmarks of the edge: small HTTP/1.1 servers on loopback whose behaviour can be switched."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING

import aiohttp

from isochrone.lab.local_edge import EdgeOrigin
from isochrone_edge.latency_map import LatencyMap

if TYPE_CHECKING:
    from isochrone.lab.local_edge import LocalEdge

NAMESPACE = "0" * 32
GOOD = b'{"ok": true}'
LARGE = bytes(200_000)  # so long that a reset falls into it
WAYS = ("killed", "hung", "slow", "500", "cut")


class Origin:
    """One origin. `way` is "good" or one of WAYS."""

    def __init__(self, name: str, *, slow_seconds: float = 0.3) -> None:
        self.name, self.way, self.requests = name, "good", 0
        self._slow = slow_seconds
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    @property
    def place(self) -> EdgeOrigin:
        """How the local edge reaches it."""
        return EdgeOrigin(address=f"127.0.0.1:{self.port}")

    async def start(self) -> None:
        """Listen, on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def turn(self, way: str) -> None:
        """Behave so from now on. Connections that are open end when it is killed, and with "cut" in mid-answer."""
        before, self.way = self.way, way
        if way == "killed":
            self.close()
        elif before == "killed":
            await self.start()

    def close(self) -> None:
        """No longer listen, and reset what is open."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests += 1
                await self._answer(head, writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, OSError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        body = LARGE if b" /large" in head[:64] else GOOD
        way = self.way
        if way == "hung":
            await asyncio.sleep(60)
        if way == "slow":
            await asyncio.sleep(self._slow)
        status = b"500 Internal Server Error" if way == "500" else b"200 OK"
        writer.write(
            b"HTTP/1.1 %b\r\ncontent-length: %d\r\nx-region: %b\r\n\r\n"
            % (status, len(body), self.name.encode())
        )
        if way == "cut" and body is LARGE:
            writer.write(body[: len(body) // 2])
            await writer.drain()
            await asyncio.sleep(0.005)
            writer.transport.abort()
            raise ConnectionResetError
        writer.write(body)
        await writer.drain()


async def put(edge: LocalEdge, session: aiohttp.ClientSession, key: str, value: bytes) -> None:
    """Write a value into the edge's KV."""
    form = aiohttp.FormData()
    form.add_field("value", value, filename="value")
    form.add_field("metadata", "{}")
    async with session.put(_url(edge, key), data=form) as response:
        response.raise_for_status()


async def delete(edge: LocalEdge, session: aiohttp.ClientSession, key: str) -> None:
    """Take a value out of the edge's KV."""
    async with session.delete(_url(edge, key)):
        pass


async def publish(edge: LocalEdge, session: aiohttp.ClientSession, data: bytes) -> str:
    """Write a map and its manifest into the edge's KV; the map's version."""
    version = LatencyMap(data).version
    manifest = {"version": version, "key": f"map/{version}", "sha256": hashlib.sha256(data).hexdigest()}
    await put(edge, session, f"map/{version}", data)
    await put(edge, session, "map/current", json.dumps(manifest).encode())
    return version


def _url(edge: LocalEdge, key: str) -> aiohttp.client.URL:
    path = f"{edge.kv_api}/storage/kv/namespaces/{NAMESPACE}/values/{key.replace('/', '%2F')}"
    return aiohttp.client.URL(path, encoded=True)
