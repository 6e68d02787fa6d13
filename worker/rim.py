# ruff: noqa: ANN001, ANN201, ANN202, ANN204 - JavaScript's objects have no types here
"""The rim: what the front door needs of JavaScript and of the workers SDK, piece by piece.

A crossing costs 1 to 25 us, more than a plan does, so whatever can be had in one is: a request's fields come and go as
one JSON text, a deadline is one call of setTimeout.
"""

import asyncio
from json import dumps, loads
from time import time

import js
from js import AbortController
from js import Request as JsRequest
from js import Response as JsResponse
from js import fetch as js_fetch
from js import setTimeout as set_timeout  # noqa: N813
from pyodide.ffi import JsException, create_proxy

from isochrone_edge import cache
from isochrone_edge.breaker import CUT_WEIGHT
from isochrone_edge.colour import BELIEVED
from isochrone_edge.forward import Unreachable
from isochrone_edge.headers import HOP_BY_HOP, dropped_from_request, nominated, to_origin
from isochrone_edge.isolate import Isolate
from isochrone_edge.latency_map import Facts
from isochrone_edge.steer import Origin

WATCH_BYTES = 65536  # a shorter answer comes in one piece with its head: it isn't watched for being cut off
_PENDING = 4096


class Rim:
    """What one isolate keeps on this side of Python: functions of JavaScript, taken at the first request.

    Not at import: the memory image that a deploy makes holds globals of JavaScript only.
    """

    def __init__(self, env) -> None:
        self.isolate = Isolate(lambda name: getattr(env, name, None))
        self.entries, self.stringify, self.parse = js.Object.fromEntries, js.JSON.stringify, js.JSON.parse
        #: fetches that are under way, by number. Each is touched only by its own request: by the timer it has set.
        self._waiting: dict[int, asyncio.Future] = {}
        self._number = 0
        self._on_deadline = create_proxy(
            self._expire
        )  # one for all: making one costs more than all of steering

    def fields(self, headers) -> str:
        """Header fields as JSON, in one crossing; names in lower case, repeated ones joined with commas."""
        return self.stringify(self.entries(headers))

    async def until(self, future, seconds: float):
        """What the future brings, or TimeoutError: an `asyncio.timeout` at a third of its cost."""
        self._number = number = self._number + 1
        waiting = self._waiting
        waiting[number] = future
        if len(waiting) > _PENDING:  # left by requests that the runtime ended before they could tidy up
            del waiting[next(iter(waiting))]
        set_timeout(self._on_deadline, seconds * 1000, number)
        try:
            return await future
        finally:
            waiting.pop(number, None)

    def _expire(self, number: int) -> None:
        future = self._waiting.pop(number, None)
        if future is not None and not future.done():
            future.set_exception(TimeoutError())


class Sender:
    """Sends one request to one origin after another, body streamed."""

    def __init__(self, rim: Rim, request, *, keep: bool) -> None:
        self.rim, self.request, self.keep = rim, request, keep

    async def __call__(self, origin: Origin, seconds: float):
        """Status and answer of the origin, or Unreachable, or TimeoutError after `seconds`."""
        one, rim, controller = self.request, self.rim, None
        url = "https://" + origin.host + one.path
        ours = one.ours(origin)  # members of a JSON object
        # A signal costs as much as all of steering. Without one a fetch given up goes on until this request ends: so
        # be it for an origin that has been good so far.
        signalled = rim.isolate.hedging is not None or rim.isolate.breaker.troubled(origin.id)
        try:
            if one.bodyless and not signalled:
                # Made anew from JSON. Of a name that is there twice the later one counts: ours.
                theirs = one.fields[1:-1] if one.plain else dumps(to_origin(one.headers))[1:-1]
                comma = "," if theirs else ""
                init = f'{{"method":"{one.method}","redirect":"manual","headers":{{{theirs}{comma}{ours}}}}}'
                future = js_fetch(url, rim.parse(init))
            else:
                outbound = self._copy(url, loads(f"{{{ours}}}"))
                if signalled:
                    controller = AbortController.new()
                    future = js_fetch(outbound, signal=controller.signal)
                else:
                    future = js_fetch(outbound)
            response = await rim.until(future, seconds)
        except (TimeoutError, asyncio.CancelledError):
            if controller is not None:
                controller.abort()
            raise
        except (JsException, OSError) as error:
            raise Unreachable(str(error)) from error
        status = response.status
        if not 100 <= status <= 599:
            raise Unreachable(f"status {status}")
        return status, response

    def _copy(self, url: str, ours: dict[str, str]):
        """The client's request for another URL, body and all: field by field, many crossings."""
        one = self.request
        outbound = JsRequest.new(url, one.js_request.clone() if self.keep else one.js_request)
        fields = outbound.headers
        for name in dropped_from_request(one.headers):
            fields.delete(name)
        for name, value in ours.items():
            fields.set(name, value)
        return outbound


def dressed(response, body, status: int, alt_svc: str):
    """The origin's answer with our Alt-Svc in place of its own, without fields of its connection. And its fields."""
    ours = JsResponse.new(body, response)
    fields = ours.headers
    if alt_svc and 200 <= status < 500 and status != 421:
        fields.set("alt-svc", alt_svc)
    else:
        fields.delete("alt-svc")
    connection = fields.get("connection")
    if connection and status != 101:  # otherwise the runtime keeps it from the client by itself
        for name in (*nominated(connection), *HOP_BY_HOP):
            fields.delete(name)
    return ours, fields


class Watched:
    """A body on its way to the client, watched for being cut off by the origin."""

    def __init__(self, rim: Rim, body, length: str, origin: str) -> None:
        self.rim, self.origin, self._body = rim, origin, body
        pipe = js.FixedLengthStream.new(int(length)) if length else js.IdentityTransformStream.new()
        self.readable, self._writable = pipe.readable, pipe.writable

    async def run(self) -> None:
        """Tells the breaker how it ended; for `waitUntil`."""
        breaker = self.rim.isolate.breaker
        try:
            await self._body.pipeTo(self._writable, preventCancel=True)
        except JsException:
            if await self._still_reads():
                return  # it was the client who left
            self.rim.isolate.counters["cut"] += 1
            breaker.failed(self.origin, time(), CUT_WEIGHT)
            print(dumps({"event": "cut", "reason": "origin:reset_in_body", "origin": self.origin}))
        else:
            breaker.succeeded(self.origin, time())

    async def _still_reads(self) -> bool:
        try:
            reader = self._body.getReader()
            await self.rim.until(reader.read(), 0.05)
        except TimeoutError:
            pass
        except JsException:
            return False
        reader.cancel()
        return True


def watchable(fields) -> tuple[bool, str]:
    """Whether a body with these fields is worth watching, and its length as the origin says it."""
    length = fields.get("content-length") or ""
    if length and len(length) < 6 and int(length) < WATCH_BYTES:
        return False, length
    # Read through a pipe, an encoded body would be decoded.
    return not fields.get("content-encoding"), length


class Store:
    """The Cache API under the public URL, with `Vary` honoured."""

    def __init__(self, rim: Rim, url: str, headers: dict[str, str]) -> None:
        self._rim, self._url, self._headers = rim, url.partition("#")[0], headers
        self._taken = False  # the first key holds another variant
        self._cache = js.caches.default

    async def find(self):
        """A kept answer for this request and its fields, or None."""
        hit = await self._cache.match(cache.key(self._url))
        if not hit:
            return None
        chosen = cache.variant(hit.headers.get(cache.VARY) or None, self._headers)
        if chosen != (hit.headers.get(cache.VARIANT) or ""):
            self._taken = True
            hit = await self._cache.match(cache.key(self._url, chosen))
            if not hit:
                return None
        return hit

    def give(self, hit, now: float):
        """The answer that a kept one makes."""
        ours = JsResponse.new(hit.body, hit)
        return _changed(ours, *cache.given(loads(self._rim.fields(hit.headers)), now))

    async def keep(self, copy, fields: dict[str, str], seconds: int, now: float) -> None:
        """Keep a copy of an answer; for `waitUntil`."""
        chosen = cache.variant(fields.get("vary"), self._headers)
        kept = _changed(JsResponse.new(copy.body, copy), *cache.kept(fields, seconds, chosen, now))
        try:
            await self._cache.put(cache.key(self._url, chosen if self._taken else ""), kept)
            self._rim.isolate.counters["cache_stored"] += 1
        except JsException as error:
            print(dumps({"event": "cache", "reason": str(error)[:200]}))


def _changed(response, fields: dict[str, str], gone: list[str]):
    headers = response.headers
    for name in gone:
        headers.delete(name)
    for name, value in fields.items():
        headers.set(name, value)
    return response


class CfFacts:
    """`Facts` read from `request.cf` only when a kind of cell asks for them. Any of it, and all of it, may be missing."""

    __slots__ = ("_cf", *Facts._fields)

    def __init__(self, cf: object) -> None:
        self._cf = cf

    def __getattr__(self, name: str):
        value = BELIEVED[name](getattr(self._cf, name, None))
        setattr(self, name, value)
        return value


class WorkersKV:
    """The KV binding as the snapshot wants it."""

    def __init__(self, binding: object) -> None:
        self._binding = binding

    async def text(self, key: str) -> str | None:
        """A value as text."""
        value = await self._binding.get(key, "text")
        return value if isinstance(value, str) else None

    async def data(self, key: str) -> bytes | None:
        """A value as bytes."""
        value = await self._binding.get(key, "arrayBuffer")
        if isinstance(value, memoryview):  # the SDK's bindings convert what they return
            return value.tobytes()
        return value.to_bytes() if hasattr(value, "to_bytes") else None
