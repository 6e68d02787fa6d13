"""The agent's side of the protocol: fetch the plan, hand over a batch. One answer each, never more than it can hold."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import aiohttp

from isochrone import __version__
from isochrone.agents.plan import MAX_PLAN_BYTES, Plan, PlanError, read
from isochrone.agents.wire import MalformedError, unpack

if TYPE_CHECKING:
    from isochrone.agents.clock import AgentClock
    from isochrone.agents.settings import AgentSettings

MAX_ANSWER_BYTES = 64 << 10  # of any answer but a plan


class ControlPlaneError(Exception):
    """No useful answer: try again later. `wait` is what the control plane asked for, in seconds."""

    def __init__(self, sentence: str, wait: float = 0.0) -> None:
        super().__init__(sentence)
        self.wait = wait


class RefusedError(Exception):
    """The control plane has read the batch and will never take it."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code


class Acknowledged(NamedTuple):
    """The batch is stored."""

    repeat: bool  # it had been before
    set_aside: int  # samples of it that were not


class TrustError(Exception):
    """The trust store can't be used; one sentence."""


class Client:
    """A connection to the control plane, kept open between requests."""

    def __init__(self, settings: AgentSettings, token: str, clock: AgentClock) -> None:
        self._base = f"{settings.control_plane}/agents/{settings.origin}"
        self._clock = clock
        self._timeout = aiohttp.ClientTimeout(total=settings.timeout_seconds)
        self._tls: ssl.SSLContext | bool = True
        if settings.control_plane.startswith("https:"):
            try:
                self._tls = ssl.create_default_context(cafile=settings.trust_store)
            except (OSError, ValueError) as error:
                raise TrustError(
                    f"trust_store: {settings.trust_store} holds no usable certificate ({error})"
                ) from None
        self._headers = {"Authorization": f"Bearer {token}", "User-Agent": f"isochrone-agent/{__version__}"}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            timeout=self._timeout,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def plan(self, known: str | None) -> Plan | None:
        """The plan; None when it is still the one with the id `known`.

        Raises:
            ControlPlaneError: there is none to be had now.
            PlanError: it is none that this version understands.
        """
        headers = {"Accept-Encoding": "gzip"} | ({"If-None-Match": f'"{known}"'} if known else {})
        status, fields, body = await self._ask("GET", "/plan", headers=headers, most=MAX_PLAN_BYTES)
        if status == 304 and known:
            return None
        if status != 200:
            raise _no_use(status, fields, body)
        if fields.get("Content-Encoding") == "gzip":
            body = await asyncio.to_thread(_unpack, body)
        return await asyncio.to_thread(read, body)

    async def ask_time(self) -> None:
        """Hear the control plane's time. Raises ControlPlaneError."""
        status, fields, body = await self._ask(
            "GET", "/plan", headers={"Accept-Encoding": "gzip"}, most=MAX_PLAN_BYTES
        )
        if status != 200:
            raise _no_use(status, fields, body)

    async def send(self, batch: str, body: bytes, note: str = "") -> Acknowledged:
        """Hand over a batch. Only when this returns, it may be forgotten.

        Raises:
            RefusedError: it will never be taken.
            ControlPlaneError: it may or may not have been taken: send it again.
        """
        headers = {"Content-Type": "application/x-ndjson", "Content-Encoding": "gzip"}
        if note:
            headers["Isochrone-Agent"] = note
        status, fields, answer = await self._ask("POST", "/batches", headers=headers, data=body)
        document = _json(answer)
        if status == 200 and document.get("batch") == batch:  # not just any server's 200
            return Acknowledged(bool(document.get("repeat")), int(document.get("set_aside") or 0))
        if status in {400, 409, 413, 415, 422} and isinstance(document.get("code"), str):
            raise RefusedError(document["code"], str(document.get("detail", ""))[:300])
        raise _no_use(status, fields, answer)

    async def _ask(
        self, method: str, path: str, *, most: int = MAX_ANSWER_BYTES, **arguments: Any
    ) -> tuple[int, Any, bytes]:
        if self._session is None:
            raise RuntimeError("used outside of its block")
        begun = time.monotonic()
        try:
            async with self._session.request(
                method, self._base + path, ssl=self._tls, allow_redirects=False, **arguments
            ) as answer:
                body = bytearray()
                async for chunk in answer.content.iter_any():
                    body += chunk
                    if len(body) > most:
                        raise ControlPlaneError(f"{method} {path}: the answer is larger than {most} bytes")
                self._hear(answer, time.monotonic() - begun)
                return answer.status, answer.headers, bytes(body)
        except TimeoutError:
            raise ControlPlaneError(
                f"{self._base}{path}: no answer within {self._timeout.total:g} s"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise ControlPlaneError(f"{self._base}{path}: {_why(error)}") from None

    def _hear(self, answer: aiohttp.ClientResponse, took: float) -> None:
        """The control plane's time, when it was the control plane that answered."""
        if answer.headers.get("Isochrone-Control") is None:
            return
        try:
            told = parsedate_to_datetime(answer.headers.get("Date", "")).timestamp()
        except ValueError:
            return
        self._clock.hear(told, took)


def _why(error: Exception) -> str:
    """Without aiohttp's "ssl:<ssl.SSLContext object at 0x...>", which tells nobody anything."""
    cause = getattr(error, "os_error", None) or getattr(error, "certificate_error", None)
    return f"can't connect ({cause})" if cause is not None else str(error) or type(error).__name__


def _no_use(status: int, fields: Any, body: bytes) -> ControlPlaneError:
    advice = {
        401: "is the token that of this origin's [[agents]] entry?",
        404: "is there an [[agents]] entry for this origin, and is control_plane right?",
    }.get(status, str(_json(body).get("detail") or "is control_plane right?")[:200])
    wait = str(fields.get("Retry-After", ""))
    return ControlPlaneError(
        f"the control plane answers {status}; {advice}",
        min(float(wait), 3600.0) if wait.isascii() and wait.isdigit() else 0.0,
    )


def _json(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _unpack(body: bytes) -> bytes:
    try:
        return unpack(body, MAX_PLAN_BYTES)
    except MalformedError as error:
        raise PlanError(f"the plan is {error}") from None
