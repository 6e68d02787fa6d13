"""Between a Worker and its KV: a server that the Worker's binding reads, and that can refuse, hang or fail, as KV itself can't here.

workerd asks a KV namespace by HTTP: `GET /KEY?urlencoded=true`, 200 with the value, or 404. What this server is asked it
asks the REST API of the local edge's own KV, so that what is published there is what is read here.
"""

from __future__ import annotations

import asyncio
from typing import Literal, Self
from urllib.parse import quote, unquote

import aiohttp
from aiohttp import web
from yarl import URL

Way = Literal["open", "reset", "hung", "failing"]


class KVGate:
    """The server, for the length of an `async with`.

    Attributes:
        way: `open`; `reset`: every connection breaks off; `hung`: no answer until the way is another; `failing`: status 500.
        values: URL of the namespace's values in the REST API; until there is one, every key is missing.
        asked: how many requests came, by way.
        address: for `LocalEdge(kv_servers={BINDING: address})`.
    """

    def __init__(self, way: Way = "open") -> None:
        self.values = ""
        self.asked: dict[Way, int] = {"open": 0, "reset": 0, "hung": 0, "failing": 0}
        self.address = ""
        self._way, self._turned = way, asyncio.Event()
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None

    @property
    def way(self) -> Way:  # noqa: D102 - see the class
        return self._way

    @way.setter
    def way(self, way: Way) -> None:
        self._way = way
        self._turned.set()
        self._turned = asyncio.Event()

    def serve(self, kv_api: str, namespace: str) -> None:
        """From now on the values are those of this namespace; `kv_api` as `LocalEdge` has it."""
        self.values = f"{kv_api}/storage/kv/namespaces/{namespace}/values/"

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession()
        app = web.Application()
        app.router.add_get("/{key:.*}", self._get)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    async def _get(self, request: web.Request) -> web.Response:
        self.asked[self._way] += 1
        while self._way == "hung":
            await self._turned.wait()
        if self._way == "reset" and request.transport is not None:
            request.transport.abort()
        if self._way != "open":
            return web.Response(status=500)
        if not self.values or self._session is None:
            return web.Response(status=404)
        key = quote(unquote(request.rel_url.raw_path.removeprefix("/")), safe="")
        async with self._session.get(URL(self.values + key, encoded=True)) as answer:
            return web.Response(status=answer.status, body=await answer.read())
