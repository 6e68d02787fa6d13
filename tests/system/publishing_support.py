"""A real local KV for the tests of publishing, a KV API that refuses, and small maps."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from aiohttp import web

from isochrone.lab.local_edge import LocalEdge
from isochrone.publishing.kv import Kv
from isochrone_edge.latency_map_writer import Colour, encode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

NAMESPACE = "latency-map"
EMPTY_WORKER = "export default { fetch() { return new Response('ok') } }"


@asynccontextmanager
async def local_kv(folder: Path) -> AsyncIterator[str]:
    """The base URL of a real KV API that lives as long as the block."""
    folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240  a test
    worker = folder / "empty.mjs"
    worker.write_text(EMPTY_WORKER)
    async with LocalEdge(
        main=worker, kv_namespaces={"LATENCY_MAP": NAMESPACE}, cache=folder / "cache"
    ) as edge:
        yield edge.kv_api


def client(base_url: str, *, token: str = "token", timeout_seconds: float = 10) -> Kv:
    return Kv(
        account_id="account",
        namespace_id=NAMESPACE,
        token=token,
        token_env="ISOCHRONE_TOKEN",
        base_url=base_url,
        timeout_seconds=timeout_seconds,
    )


@dataclass
class Refusal:
    """One answer of Cloudflare's shape."""

    status: int
    code: int
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str | None = None

    def response(self) -> web.Response:
        if self.text is not None:
            return web.Response(status=self.status, text=self.text, headers=self.headers)
        body: dict[str, Any] = {
            "success": False,
            "errors": [{"code": self.code, "message": self.message}],
            "messages": [],
            "result": None,
        }
        return web.json_response(body, status=self.status, headers=self.headers)


class RefusingApi:
    """A KV API that gives the same answer to everything; `asked` holds what came."""

    def __init__(self) -> None:
        self.refusal = Refusal(500, 0, "")
        self.asked: list[web.Request] = []
        self.base_url = ""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{rest:.*}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.base_url = f"http://{host}:{port}/client/v4"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        await request.read()
        self.asked.append(request)
        return self.refusal.response()


ORIGINS = [
    {"id": "fra", "host": "fra.example.test", "weight": 1.0, "state": "up"},
    {"id": "iad", "host": "iad.example.test", "weight": 1.0, "state": "up"},
]


def small_map(built_at: float, *, firsts: Mapping[int, int] | None = None, rtt_ms: float = 10.0) -> bytes:
    """A map of two origins; `firsts` gives each ASN's first choice, 0 or 1."""
    firsts = {3320: 0, 7018: 1, 3215: 0, 2856: 0} if firsts is None else firsts
    palette = [
        Colour(((0, rtt_ms, 20), (1, rtt_ms + 80, 20))),
        Colour(((1, rtt_ms, 20), (0, rtt_ms + 80, 20))),
    ]
    return encode(built_at=built_at, origins=ORIGINS, palette=palette, default=0, cells={"asn": dict(firsts)})
