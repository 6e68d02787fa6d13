# ruff: noqa: ANN001, ANN201, ANN202, ANN204 - JavaScript's objects have no types here
"""The rim: what the front door needs of JavaScript and of the workers SDK, piece by piece.

A crossing costs 1 to 25 us, more than a plan does. `crossing.mjs` does in one what takes many from here; where it can't
be imported, the functions below do the same field by field.
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
from isochrone_edge.forward import Unreachable
from isochrone_edge.headers import HOP_BY_HOP, KEPT, dropped_from_request, is_plain, nominated, to_origin
from isochrone_edge.isolate import Isolate
from isochrone_edge.steer import Origin
from workers import import_from_javascript

WATCH_BYTES = 16384  # a shorter answer comes in one piece with its head: it isn't watched for being cut off
_PENDING = 4096
_FACTS = ("asn", "country", "colo", "continent", "latitude", "longitude", "httpProtocol")


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
        # One for all requests: making one costs more than all of steering.
        self._on_deadline = create_proxy(self._expire)
        self.on_end = create_proxy(self.ended)
        self.crossing = None
        if self.isolate.variables.crossing:
            try:
                self.crossing = import_from_javascript("crossing.mjs")
                self.read_text, self.send, self.send_copy = (
                    self.crossing.read,
                    self.crossing.send,
                    self.crossing.sendCopy,
                )
                self.dress, self.dress_good = self.crossing.dress, self.crossing.dressGood
                self.crossing.configure(dumps(sorted(KEPT)), WATCH_BYTES, self.on_end)
            except Exception as error:  # noqa: BLE001 - a runtime that does not offer it
                self.crossing = None
                print(dumps({"event": "start", "reason": f"without crossing.mjs: {error}"}))
        if self.crossing is None:
            self.isolate.ordinary = False

    def read(self, js_request) -> list[str]:
        """Of a request: how plain it is, URL, method, facts and fields.

        Plain as in `crossing.mjs`, "0" to "2". Facts and fields as JSON: a list in the order of `_FACTS`; an object,
        names in lower case, repeated ones joined.
        """
        if self.crossing is not None:
            return self.read_text(js_request).split("\n", 4)
        cf = js_request.cf
        facts = (
            dumps([_plain(getattr(cf, name, None)) for name in _FACTS], separators=(",", ":")) if cf else "[]"
        )
        fields = self.fields(js_request.headers)
        return ["1" if is_plain(fields) else "0", js_request.url, js_request.method, facts, fields]

    def fields(self, headers) -> str:
        """Header fields as JSON; names in lower case, repeated ones joined with commas."""
        return self.stringify(self.entries(headers))

    def ended(self, origin: str, whole: bool) -> None:
        """A watched body has ended: tells the breaker how."""
        isolate = self.isolate
        if whole:
            isolate.breaker.succeeded(origin, time(), whole=True)
            return
        isolate.counters["cut"] += 1
        isolate.breaker.failed(origin, time(), CUT_WEIGHT)
        print(dumps({"event": "cut", "reason": "origin:reset_in_body", "origin": origin}))

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
        rim, request = self.rim, self.request
        if request.first is not None:  # the quick way has been here already
            (_, outcome), request.first = request.first, None
            if isinstance(outcome, BaseException):
                raise failure_of(outcome)
            return checked(outcome)
        url = "https://" + origin.host + request.path
        ours = request.ours(origin)  # members of a JSON object
        # What is given up goes on until this request ends, unless it can be aborted; that costs as much as all of
        # steering, and is for origins that have failed lately, and for hedging.
        isolate = rim.isolate
        abort = (AbortController.new(),) if isolate.hedging or isolate.breaker.troubled(origin.id) else ()
        try:
            if rim.crossing is None:
                response = await self._send(url, ours, seconds, abort)
            elif request.bodyless:
                response = await rim.send(url, self._init(ours), seconds * 1000, *abort)
            else:
                gone, theirs = dumps(dropped_from_request(request.headers)), request.js_request
                if self.keep:
                    theirs = theirs.clone()
                response = await rim.send_copy(
                    url, theirs, gone, f"{{{ours}}}", seconds * 1000, not self.keep, *abort
                )
        except BaseException as error:
            if abort:
                abort[0].abort()
            raise failure_of(error) from error
        return checked(response)

    def _init(self, ours: str) -> str:
        """A request without a body, made anew. Of a name that is there twice the later one counts: ours."""
        request = self.request
        theirs = request.fields[1:-1] if request.plain else dumps(to_origin(request.headers))[1:-1]
        comma = "," if theirs else ""
        return f'{{"method":"{request.method}","redirect":"manual","headers":{{{theirs}{comma}{ours}}}}}'

    async def _send(self, url: str, ours: str, seconds: float, abort):
        rim, request = self.rim, self.request
        if request.bodyless:
            outbound = JsRequest.new(url, rim.parse(self._init(ours)))
        else:
            outbound = JsRequest.new(url, request.js_request.clone() if self.keep else request.js_request)
            fields = outbound.headers
            for name in dropped_from_request(request.headers):
                fields.delete(name)
            for name, value in loads(f"{{{ours}}}").items():
                fields.set(name, value)
        future = js_fetch(outbound, signal=abort[0].signal) if abort else js_fetch(outbound)
        if not request.bodyless and not self.keep and request.js_request.body:
            return (
                await future
            )  # from here it can't be seen whether the body still moves: it takes the time it takes
        return await rim.until(future, seconds)


def checked(response):
    """Status and answer. What has a status that no Response can have is no answer."""
    status = response.status
    if not 100 <= status <= 599:
        raise Unreachable(f"status {status}")
    return status, response


def failure_of(error: BaseException) -> BaseException:
    """What `forward` makes of an error that a fetch ended with."""
    if isinstance(error, (JsException, OSError)) and not isinstance(error, TimeoutError):
        return TimeoutError() if getattr(error, "name", "") == "TimeoutError" else Unreachable(str(error))
    return error


def dressed(rim: Rim, ctx, request, response, status: int, alt_svc: str, timing: str, origin: str):
    """The origin's answer with our Alt-Svc in place of its own, Server-Timing, and nothing of its connection.

    A long body, or one of unknown length, is watched for being cut off.
    """
    if status >= 500 or status in (101, 421):  # section 6 of RFC 7838 for 421
        alt_svc = ""
    if rim.crossing is not None:
        return rim.dress(response, alt_svc, timing, origin, request)
    body = response.body if status != 101 else None
    theirs = response.headers
    length = theirs.get("content-length") or ""
    short = length and len(length) < 6 and int(length) < WATCH_BYTES
    if body and not short and not theirs.has("content-encoding"):  # read through a pipe it would be decoded
        pipe = js.FixedLengthStream.new(int(length)) if length else js.IdentityTransformStream.new()
        ctx.waitUntil(_watch(rim, body, pipe.writable, origin, request.signal))
        body = pipe.readable
    ours = JsResponse.new(body, response)
    fields = ours.headers
    if alt_svc:
        fields.set("alt-svc", alt_svc)
    else:
        fields.delete("alt-svc")
    fields.append("server-timing", timing)
    connection = fields.get("connection")
    if connection and status != 101:  # otherwise the runtime keeps it from the client by itself
        for name in (*nominated(connection), *HOP_BY_HOP):
            fields.delete(name)
    return ours


async def _watch(rim: Rim, body, writable, origin: str, signal) -> None:
    try:
        await body.pipeTo(writable)
    except JsException:
        await asyncio.sleep(0.005)
        if not signal.aborted:  # else it was the client who left
            rim.ended(origin, whole=False)
    else:
        rim.ended(origin, whole=True)


def _plain(value):
    return value if isinstance(value, (int, float, str)) else None


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
