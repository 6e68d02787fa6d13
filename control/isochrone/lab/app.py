"""The small application every origin of the lab serves, the same over HTTP/1.1 and HTTP/3.

| path          | answer |
|---------------|--------|
| `/healthz`    | 200, the region's id as text |
| `/echo`       | the request's body, streamed back |
| `/bytes/<n>`  | n bytes (at most 16 MiB) |
| `/sse`        | server-sent events; `?n=5&interval_ms=50` |
| `/status/<n>` | that status |
| `/slow/<ms>`  | the JSON below, after a pause |
| any other     | JSON: region, method, path, query, host, http, peer, asn, the received tracing headers, what the body was |
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

MAX_BYTES = 16 << 20  # aioquic buffers all of it: it has no backpressure to wait for
CHUNK = 16 << 10
MAX_PAUSE_MS = 60_000
ECHOED = frozenset({"traceparent", "tracestate", "alt-used"})
ECHOED_PREFIX = "x-isochrone-"

Headers = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class AppRequest:
    """One request, whatever carried it; header names in lower case."""

    http: str  # "1.1" or "3"
    method: str
    target: str  # path and query as sent
    host: str
    headers: Headers
    body: AsyncIterator[bytes]
    peer: str  # the client's address


@dataclass(frozen=True, slots=True)
class AppResponse:
    """The answer; `body` is whole, or a stream of chunks."""

    status: int
    headers: Headers
    body: bytes | AsyncIterator[bytes]


def _number(text: str, limit: int) -> int | None:
    return min(int(text), limit) if text.isascii() and text.isdigit() and len(text) < 12 else None


class RegionApp:
    """The application of one region; `asns` says which client network an address belongs to."""

    def __init__(self, region: str, asns: Mapping[str, int] | None = None) -> None:
        self.region = region
        self._asns = dict(asns or {})

    async def answer(self, request: AppRequest) -> AppResponse:
        """The response to one request."""
        path, _, query = request.target.partition("?")
        first, _, rest = path.lstrip("/").partition("/")
        match first:
            case "healthz":
                return self._text(200, self.region)
            case "echo":
                kind = next(
                    (v for k, v in request.headers if k == "content-type"), "application/octet-stream"
                )
                return self._response(200, kind, request.body)
            case "bytes" if (size := _number(rest, MAX_BYTES)) is not None:
                headers = [*self._headers("application/octet-stream"), ("content-length", str(size))]
                return AppResponse(200, headers, _filler(size))
            case "sse":
                options = parse_qs(query)
                count = _number(options.get("n", ["5"])[0], 10_000) or 0
                pause = _number(options.get("interval_ms", ["50"])[0], MAX_PAUSE_MS) or 0
                return self._response(200, "text/event-stream", self._events(count, pause / 1000))
            case "status" if (status := _number(rest, 599)) is not None and status >= 200:
                return self._text(status, self.region)
            case "slow" if (pause_ms := _number(rest, MAX_PAUSE_MS)) is not None:
                await asyncio.sleep(pause_ms / 1000)
        return await self._report(request, path, query)

    async def _report(self, request: AppRequest, path: str, query: str) -> AppResponse:
        digest, size = hashlib.sha256(), 0
        async for chunk in request.body:
            digest.update(chunk)
            size += len(chunk)
        report: dict[str, object] = {
            "region": self.region,
            "method": request.method,
            "path": unquote(path),
            "query": query,
            "host": request.host,
            "http": request.http,
            "peer": request.peer,
            "headers": {k: v for k, v in request.headers if k.startswith(ECHOED_PREFIX) or k in ECHOED},
        }
        if request.peer in self._asns:
            report["asn"] = self._asns[request.peer]
        if size:
            report |= {"body_bytes": size, "body_sha256": digest.hexdigest()}
        return self._response(200, "application/json", json.dumps(report).encode())

    async def _events(self, count: int, pause: float) -> AsyncIterator[bytes]:
        for number in range(count):
            if number:
                await asyncio.sleep(pause)
            yield f"id: {number}\ndata: {self.region}\n\n".encode()

    def _headers(self, content_type: str) -> Headers:
        return [("content-type", content_type), ("x-isochrone-region", self.region)]

    def _text(self, status: int, text: str) -> AppResponse:
        if status in {204, 304}:
            return AppResponse(status, self._headers("text/plain"), b"")
        return self._response(status, "text/plain", text.encode())

    def _response(self, status: int, content_type: str, body: bytes | AsyncIterator[bytes]) -> AppResponse:
        headers = self._headers(content_type)
        if isinstance(body, bytes):
            headers.append(("content-length", str(len(body))))
        return AppResponse(status, headers, body)


async def _filler(size: int) -> AsyncIterator[bytes]:
    while size > 0:
        yield b"i" * min(size, CHUNK)
        size -= CHUNK
