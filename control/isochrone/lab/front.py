"""The way from a client to the local edge: TLS with HTTP/1.1 and HTTP/2, and HTTP/3, on one port; what Cloudflare is to a Worker.

It says who the client is (`request.cf`), which a browser can't, and can be told to do to answers what a misconfigured zone does.
"""

from __future__ import annotations

import errno
import json
import ssl
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import aiohttp
from yarl import URL

from isochrone.lab.app import AppRequest, AppResponse, RegionApp
from isochrone.lab.h3server import quic_server_configuration, serve_http3
from isochrone.lab.streams import serve_streams

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from isochrone.lab.authority import Certificate

HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "upgrade", "host"})
TIMEOUT = aiohttp.ClientTimeout(total=20)
TRIES = 20


@dataclass(slots=True)
class EdgeApp:
    """Passes requests on to the local edge, for the length of an `async with`.

    Attributes:
        edge: the local edge's URL.
        cf: what `request.cf` says of the client.
        cf_of: what it says for one request, in place of `cf`; None: no difference.
        change: what is done to an answer on its way back; None: nothing.
        requests: what came, as (HTTP version, path).
    """

    edge: str
    cf: Mapping[str, Any] = field(default_factory=dict)
    cf_of: Callable[[AppRequest], Mapping[str, Any]] | None = None
    change: Callable[[AppRequest, AppResponse], AppResponse] | None = None
    requests: list[tuple[str, str]] = field(default_factory=list)
    _session: aiohttp.ClientSession | None = None

    async def answer(self, request: AppRequest) -> AppResponse:
        """The edge's answer, or 502 when the edge does not answer."""
        self.requests.append((request.http, request.target))
        if self._session is None:
            return AppResponse(502, [("content-length", "0")], b"")
        headers = [(k, v) for k, v in request.headers if k not in HOP_BY_HOP]
        cf = self.cf if self.cf_of is None else self.cf_of(request)
        headers += [("Host", request.host), ("MF-CF-Blob", json.dumps(dict(cf)))]
        body = b"".join([chunk async for chunk in request.body])
        try:
            async with self._session.request(
                request.method, URL(self.edge + request.target, encoded=True), headers=headers, data=body or None,
                allow_redirects=False,
            ) as came:  # fmt: skip
                fields = [(k.lower(), v) for k, v in came.headers.items() if k.lower() not in HOP_BY_HOP]
                content = await came.read()
                response = AppResponse(came.status, [*fields, ("content-length", str(len(content)))], content)
        except (aiohttp.ClientError, TimeoutError):
            response = AppResponse(502, [("content-length", "0")], b"")
        return self.change(request, response) if self.change is not None else response

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            timeout=TIMEOUT, auto_decompress=False, skip_auto_headers=("Accept-Encoding", "User-Agent")
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


class Front:
    """A listening front, for the length of an `async with`. `http3=False` leaves UDP closed.

    Attributes:
        port: of TCP and UDP.
        app: what answers.
    """

    def __init__(
        self,
        app: EdgeApp | RegionApp,
        certificate: Certificate,
        *,
        address: str = "127.0.0.1",
        port: int = 0,
        alpn: tuple[str, ...] = ("h2", "http/1.1"),
        http3: bool = True,
    ) -> None:
        self.app, self.address, self.port = app, address, port
        self._certificate, self._alpn, self._http3 = certificate, alpn, http3
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for left in reversed(range(TRIES)):
            try:
                await self._begin(self.port)
            except OSError as error:
                await self._stack.aclose()
                # A port that is free for TCP may be taken for UDP: then another one is tried.
                if error.errno != errno.EADDRINUSE or self.port or not left:
                    raise
            except BaseException:
                await self._stack.aclose()
                raise
            else:
                break
        return self

    async def _begin(self, port: int) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._certificate.chain, self._certificate.key)
        context.set_alpn_protocols(list(self._alpn))
        found = await self._stack.enter_async_context(serve_streams((self.address, port), context, self.app))
        if self._http3:
            configuration = quic_server_configuration(
                str(self._certificate.chain), str(self._certificate.key)
            )
            server = await serve_http3((self.address, found), configuration, self.app)
            self._stack.callback(server.close)
        self.port = found

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
