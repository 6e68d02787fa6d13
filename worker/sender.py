"""What the long way needs of JavaScript: sending one request to one origin, and dressing its answer."""

import asyncio
from json import dumps, loads

import js
from js import AbortController
from js import Request as JsRequest
from js import Response as JsResponse
from js import fetch as js_fetch
from pyodide.ffi import JsException

from isochrone_edge.forward import Blameless, Unreachable
from isochrone_edge.headers import HOP_BY_HOP, dropped_from_request, nominated, to_origin
from isochrone_edge.steer import Origin
from rim import WATCH_BYTES, Rim

#: errors of crossing.mjs, and the client's status
_CLIENT_BODY = {"ClientBodyBroken": 400, "ClientBodyStalled": 408}


class Sender:
    """Sends one request to one origin after another; `body` is the one that was kept, None: it is streamed."""

    def __init__(self, rim: Rim, request, body=None) -> None:
        self.rim, self.request, self.body = rim, request, body

    async def __call__(self, origin: Origin, seconds: float):
        """Status and answer of the origin; or Unreachable, TimeoutError after `seconds`, or Blameless."""
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
                gone = dumps(dropped_from_request(request.headers, request.method))
                response = await rim.send_copy(
                    url, request.js_request, gone, f"{{{ours}}}", seconds * 1000, self.body, *abort
                )
        except BaseException as error:
            if abort:
                abort[0].abort()
            raise self._failure_of(error) from error
        return checked(response)

    def _failure_of(self, error: BaseException) -> BaseException:
        """What `forward` makes of it. Where it can't be seen whether the body came, nobody is blamed."""
        failure, request = failure_of(error), self.request
        if isinstance(failure, (Unreachable, TimeoutError)) and not request.bodyless and self.body is None:
            watched = self.rim.crossing is not None and request.method not in ("GET", "HEAD")
            if not watched and request.js_request.body:
                late = isinstance(failure, TimeoutError)
                return Blameless(504, "timeout") if late else Blameless(502, "unreachable")
        return failure

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
            theirs = request.js_request
            if self.body is None:
                outbound = JsRequest.new(url, theirs)
            else:
                outbound = JsRequest.new(
                    url, method=theirs.method, headers=theirs.headers, body=self.body, redirect="manual"
                )
            fields = outbound.headers
            for name in dropped_from_request(request.headers, request.method):
                fields.delete(name)
            for name, value in loads(f"{{{ours}}}").items():
                fields.set(name, value)
        future = js_fetch(outbound, signal=abort[0].signal) if abort else js_fetch(outbound)
        if not request.bodyless and self.body is None and request.js_request.body:
            return (
                await future
            )  # from here it can't be seen whether the body still moves: it takes the time it takes
        return await rim.until(future, seconds)


async def gathered(rim: Rim, js_request, seconds: float):
    """A small body, whole, for JavaScript; it may take its time, but not stand still for `seconds`. Raises Blameless."""
    try:
        if rim.crossing is not None:
            return await rim.gather_body(js_request, seconds * 1000)
        reader, chunks = js_request.body.getReader(), js.Array.new()
        while True:
            part = await rim.until(reader.read(), seconds)
            if part.done:
                return await js.Blob.new(chunks).arrayBuffer()
            chunks.push(part.value)
    except (JsException, OSError) as error:
        stalled = isinstance(error, TimeoutError) or getattr(error, "name", "") == "ClientBodyStalled"
        raise Blameless(408 if stalled else 400) from error


def checked(response):
    """Status and answer. None is what has a status that no Response can have: a 101 without a WebSocket, too."""
    status = response.status
    if not (200 <= status <= 599 or (status == 101 and response.webSocket)):
        raise Unreachable(f"status {status}")
    length = response.headers.get("content-length")
    if length and not (length.isascii() and length.isdecimal() and len(length) < 16):
        raise Unreachable(f"content-length {length[:40]}")
    return status, response


def failure_of(error: BaseException) -> BaseException:
    """What `forward` makes of an error that a fetch ended with."""
    if isinstance(error, (JsException, OSError)) and not isinstance(error, TimeoutError):
        name = getattr(error, "name", "")
        if name in _CLIENT_BODY:
            return Blameless(_CLIENT_BODY[name])
        return TimeoutError() if name == "TimeoutError" else Unreachable(str(error))
    return error


def dressed(rim: Rim, ctx, request, response, status: int, alt_svc: str, timing: str, watched: str):
    """The origin's answer with our Alt-Svc in place of its own, Server-Timing, and nothing of its connection.

    A long body, or one of unknown length, is watched for being cut off; with `watched` "" none is. See `Rim.ended`.
    """
    if status >= 500 or status in (101, 421):  # section 6 of RFC 7838 for 421
        alt_svc = ""
    if rim.crossing is not None:
        return rim.dress(response, alt_svc, timing, watched, request)
    body = response.body if status != 101 else None
    theirs = response.headers
    length = theirs.get("content-length") or ""
    short = length and len(length) < 6 and int(length) < WATCH_BYTES
    # Read through a pipe, an encoded body would be decoded.
    if watched and body and not short and not theirs.has("content-encoding"):
        pipe = js.FixedLengthStream.new(int(length)) if length else js.IdentityTransformStream.new()
        ctx.waitUntil(_watch(rim, body, pipe.writable, watched, request.signal))
        body = pipe.readable
    ours = JsResponse.new(body, response)
    fields = ours.headers
    if status != 101:
        for name in (*nominated(fields.get("connection") or ""), *HOP_BY_HOP):
            fields.delete(name)
    if alt_svc:
        fields.set("alt-svc", alt_svc)
    else:
        fields.delete("alt-svc")
    fields.append("server-timing", timing)
    return ours


async def _watch(rim: Rim, body, writable, watched: str, signal) -> None:
    try:
        await body.pipeTo(writable)
    except JsException:
        await asyncio.sleep(0.005)
        rim.ended(watched, None if signal.aborted else False)
    else:
        rim.ended(watched, True)
