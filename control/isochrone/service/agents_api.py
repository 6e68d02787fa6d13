"""The HTTP API of remote agents: `GET /agents/ORIGIN/plan` and `POST /agents/ORIGIN/batches`.

A token opens its own origin and nothing else. Whoever has none is told 401 before a byte of the body is read, whatever the path.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections import Counter
from typing import TYPE_CHECKING, Any

from aiohttp import web

from isochrone.agents.checks import Refused
from isochrone.agents.wire import MAX_BODY_BYTES
from isochrone.store.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from isochrone.service.remote_agents import RemoteAgents

UPLOADS, UPLOADS_EACH = 32, 4  # bodies held at once, and of one origin: none can keep the others out
READ_SECONDS = 30.0  # for one body
MAX_TOKEN = 512
RETRY_SECONDS = 5
TOO_LARGE = Refused("too_large", f"a batch has at most {MAX_BODY_BYTES} bytes", 413)


class CertificateError(Exception):
    """service.certificate or service.key can't be used; one sentence."""


def tls_of(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """A server's context with these PEM files; None without.

    Raises:
        CertificateError: they are unreadable, or do not belong together.
    """
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise CertificateError(
            f"service.certificate, service.key: not a certificate chain and its key in PEM ({error})"
        ) from None
    return context


class AgentsApi:
    """Two handlers for an aiohttp application whose server does not unpack bodies (`auto_decompress=False`)."""

    def __init__(self, agents: RemoteAgents) -> None:
        self._agents = agents
        self._uploads: Counter[str] = Counter()

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_get("/agents/{origin}/plan", self._plan)
        app.router.add_post("/agents/{origin}/batches", self._batch)
        app.router.add_route("*", "/agents/{rest:.*}", self._nothing)

    async def _plan(self, request: web.Request) -> web.Response:
        origin = self._origin(request)
        if isinstance(origin, web.Response):
            return origin
        try:
            plan = await self._agents.plan_for(origin)
        except StoreError:
            return _busy("the store can't be used now")
        etag = f'"{plan.id}"'
        headers = {"ETag": etag, "Cache-Control": "private, no-cache", "Vary": "Accept-Encoding"}
        asked = {
            tag.strip().removeprefix("W/") for tag in request.headers.get("If-None-Match", "").split(",")
        }
        if asked & {etag, "*"}:
            return _answer(304, None, headers)
        body = plan.body
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
            body = await asyncio.to_thread(plan.packed)
        return _answer(200, body, headers | {"Content-Type": "application/json"})

    async def _batch(self, request: web.Request) -> web.Response:
        origin = self._origin(request)
        if isinstance(origin, web.Response):
            return origin
        if request.headers.get("Content-Encoding", "").strip().lower() != "gzip":
            return self._refused(origin, Refused("encoding", "a batch has Content-Encoding: gzip", 415))
        if (request.content_length or 0) > MAX_BODY_BYTES:
            return self._refused(origin, TOO_LARGE)
        if self._uploads[origin] >= UPLOADS_EACH or self._uploads.total() >= UPLOADS:
            return _busy("too many batches at once")
        with self._upload(origin):
            try:
                async with asyncio.timeout(READ_SECONDS):
                    body = await _read(request)
            except TimeoutError:
                return _problem(408, "timeout", f"the body did not come within {READ_SECONDS:g} s")
            if body is None:
                return self._refused(origin, TOO_LARGE)
            try:
                taken = await self._agents.take(origin, body, _note(request))
            except Refused as refused:
                return _refusal(refused)
            except StoreError:
                return _busy("the store can't be written now")
        return _json(
            200,
            {
                "batch": taken.batch,
                "samples": taken.samples,
                "set_aside": taken.set_aside,
                "repeat": taken.repeat,
            },
        )

    def _refused(self, origin: str, refused: Refused) -> web.Response:
        self._agents.refuse(origin, refused)
        return _refusal(refused)

    async def _nothing(self, request: web.Request) -> web.Response:
        origin = self._origin(request)
        return (
            origin
            if isinstance(origin, web.Response)
            else _problem(404, "not_found", "there is nothing here")
        )

    def _origin(self, request: web.Request) -> str | web.Response:
        """Whose token the request brings, when the path is that origin's own; else the answer."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        known = None
        if scheme.lower() == "bearer" and 0 < len(token) <= MAX_TOKEN:
            known = self._agents.origin_of(token.strip())
        if known is None:
            answer = _problem(401, "unauthorized", "an agent's token is needed: Authorization: Bearer ...")
            answer.headers["WWW-Authenticate"] = 'Bearer realm="isochrone agents"'
            answer.force_close()  # the body is not read
            return answer
        if request.match_info.get("origin", known) != known:
            answer = _problem(404, "not_found", "this token opens nothing here")
            answer.force_close()
            return answer
        return known

    @contextlib.contextmanager
    def _upload(self, origin: str) -> Iterator[None]:
        self._uploads[origin] += 1
        try:
            yield
        finally:
            self._uploads[origin] -= 1


async def _read(request: web.Request) -> bytes | None:
    """The body; None as soon as it is too large."""
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            return None
    return bytes(body)


def _note(request: web.Request) -> str:
    """What the agent says of itself, for people."""
    text = request.headers.get("Isochrone-Agent", "")[:200]
    return "".join(letter for letter in text if letter.isascii() and letter.isprintable())


def _answer(status: int, body: bytes | None, headers: dict[str, str]) -> web.Response:
    return web.Response(status=status, body=body, headers={"Isochrone-Control": "1"} | headers)


def _json(status: int, document: dict[str, Any], kind: str = "application/json") -> web.Response:
    body = (json.dumps(document) + "\n").encode()
    return _answer(status, body, {"Content-Type": kind, "Cache-Control": "no-store"})


def _problem(status: int, code: str, detail: str) -> web.Response:
    """RFC 9457; `code` is what a program looks at."""
    titles = {401: "Unauthorized", 404: "Not found", 408: "Too slow", 503: "Try again later"}
    document = {
        "title": titles.get(status, "Batch refused"),
        "status": status,
        "code": code,
        "detail": detail,
    }
    return _json(status, document, "application/problem+json")


def _refusal(refused: Refused) -> web.Response:
    answer = _problem(refused.status, refused.code, str(refused))
    if refused.status == 413:
        answer.force_close()  # the rest of the body is not read
    return answer


def _busy(detail: str) -> web.Response:
    answer = _problem(503, "busy", detail)
    answer.headers["Retry-After"] = str(RETRY_SECONDS)
    return answer
