"""One origin: a real HTTP/1.1 server over TLS (aiohttp) and a real HTTP/3 server (aioquic), one certificate, one app."""

from __future__ import annotations

import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

from isochrone.lab.app import AppRequest, RegionApp
from isochrone.lab.h3server import IDLE_S, quic_server_configuration, serve_http3

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from isochrone.lab.relay_flow import Address

# An origin's own field: wrong on purpose, so that an edge which lets it through is found out.
OWN_ALT_SVC = 'h3="wrong.isochrone.test:1"; ma=86400'


@dataclass(frozen=True, slots=True)
class OriginConfig:
    """What one origin needs: where to listen, PEM files, which client network an address belongs to."""

    id: str
    https: Address  # TCP
    http3: Address  # UDP
    chain: str
    key: str
    asns: Mapping[str, int] = field(default_factory=dict)
    idle_s: float = IDLE_S  # after which an idle HTTP/3 connection ends

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> OriginConfig:
        """From a JSON object with the same keys; raises `KeyError`, `TypeError` or `ValueError`."""
        return cls(
            id=str(document["id"]),
            https=(str(document["https"][0]), int(document["https"][1])),
            http3=(str(document["http3"][0]), int(document["http3"][1])),
            chain=str(document["chain"]),
            key=str(document["key"]),
            asns={str(k): int(v) for k, v in document.get("asns", {}).items()},
            idle_s=float(document.get("idle_s", IDLE_S)),
        )


def server_context(chain: str, key: str) -> ssl.SSLContext:
    """TLS for a server that speaks HTTP/1.1 only."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain, key)
    context.set_alpn_protocols(["http/1.1"])
    return context


def http1_handler(app: RegionApp) -> Any:
    """The application as a handler of aiohttp's low-level server."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        answer = await app.answer(
            AppRequest(
                http="1.1",
                method=request.method,
                target=request.raw_path,
                host=request.headers.get("host", ""),
                headers=[(name.lower(), value) for name, value in request.headers.items()],
                body=request.content.iter_any(),
                peer=request.remote or "",
            )
        )
        headers = {**dict(answer.headers), "alt-svc": OWN_ALT_SVC}
        if isinstance(answer.body, bytes):
            headers.pop("content-length", None)
            return web.Response(status=answer.status, headers=headers, body=answer.body)
        response = web.StreamResponse(status=answer.status, headers=headers)
        await response.prepare(request)
        if request.method != "HEAD":
            async for chunk in answer.body:
                await response.write(chunk)
        await response.write_eof()
        return response

    return handle


@asynccontextmanager
async def run_origin(config: OriginConfig) -> AsyncIterator[None]:
    """Serves while the context lasts; raises `OSError` when an address is taken."""
    app = RegionApp(config.id, config.asns)
    runner = web.ServerRunner(web.Server(http1_handler(app)), handle_signals=False)
    await runner.setup()
    try:
        host, port = config.https
        await web.TCPSite(
            runner, host, port, ssl_context=server_context(config.chain, config.key), shutdown_timeout=0.2
        ).start()
        quic = quic_server_configuration(config.chain, config.key, idle_s=config.idle_s)
        http3 = await serve_http3(config.http3, quic, app)
        try:
            yield
        finally:
            http3.close()
    finally:
        await runner.cleanup()
