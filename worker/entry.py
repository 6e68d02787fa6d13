"""The front door: the only file that touches the workers SDK and JavaScript.

One request: facts from `request.cf` -> plan (colour, candidates, reason) -> forward along the candidates -> answer
with Alt-Svc and Server-Timing. Each crossing between Python and JavaScript costs about as much as all of steering,
so what can be had in one crossing is had in one.
"""

import asyncio
import json
import time
from hmac import compare_digest
from random import getrandbits
from urllib.parse import parse_qsl, urlsplit

from js import Request as JsRequest
from js import Response as JsResponse
from js import fetch as js_fetch
from pyodide.ffi import JsException

from isochrone_edge.breaker import Breaker
from isochrone_edge.colour import facts_of
from isochrone_edge.forward import IDEMPOTENT, Forwarded, Limits, Unreachable, forward
from isochrone_edge.latency_map import Facts
from isochrone_edge.snapshot import Snapshot
from isochrone_edge.steer import Origin, Plan, Steering, built_in_origins
from workers import Response, WorkerEntrypoint

OWN = "/.isochrone/"


class Isolate:
    """What requests of one isolate share: plain data only, never a task, lock or future of asyncio."""

    def __init__(self, env: object) -> None:
        self.config = {name: _variable(env, name, value) for name, value in DEFAULTS.items()}
        self.origins = built_in_origins(json.loads(self.config["ORIGINS"]))
        self.promise = self.config["ALT_SVC"] != "off"
        self.limits = Limits(
            budget=float(self.config["BUDGET_MS"]) / 1000,
            each_try=float(self.config["TRY_MS"]) / 1000,
            tries=int(self.config["MAX_TRIES"]),
        )
        self.snapshot = Snapshot(float(self.config["MAP_REFRESH_SECONDS"]))
        self.steering = Steering(None, self.origins)
        self.breaker = Breaker()
        self.counters = {"requests": 0, "failed": 0, "retried": 0}

    async def look(self, kv: "WorkersKV") -> None:
        """Refresh the snapshot; steer by the new map when there is one."""
        await self.snapshot.refresh(kv, time.time())
        live = self.snapshot.map
        if live is not None and live is not self.steering.map:
            try:
                before = {o.id for o in self.steering.origins if o.state == "down"}
                self.steering = Steering(live, promise=self.promise)
                for origin in self.steering.origins:
                    if origin.id in before and origin.state == "up":
                        self.breaker.proved(origin.id)
            except (ValueError, KeyError, TypeError) as error:
                self.snapshot.problem = f"map refused: {error!r}"
                self.snapshot.counters["damaged"] += 1


DEFAULTS = {
    "ORIGINS": "[]",  # the built-in order, JSON: [{"id": ..., "host": ...}, ...]
    "MAP_REFRESH_SECONDS": "60",
    "COLD_MAP_WAIT_MS": "500",  # how long an isolate's first requests wait for the map; 0: not at all
    "BUDGET_MS": "2500",
    "TRY_MS": "2000",
    "MAX_TRIES": "4",
    "ALT_SVC": "on",
    "ISOCHRONE_SECRET": "",  # opens /.isochrone/*; a secret, not a variable
}
_isolate: Isolate | None = None


class Default(WorkerEntrypoint):
    """The Worker."""

    async def fetch(self, request):
        """Answer one request."""
        global _isolate  # noqa: PLW0603  an isolate's state outlives its requests
        if _isolate is None:
            _isolate = Isolate(self.env)
        isolate = _isolate
        began = time.time()
        if isolate.snapshot.claim(began) or (
            isolate.steering.map is None and not isolate.snapshot.counters["looks"]
        ):
            await self._refresh(isolate)
        js_request = request.js_object
        url: str = js_request.url
        start = url.find("/", 8)
        path = url[start:]
        if path.startswith(OWN):
            return own_endpoint(isolate, js_request, path)
        plan = isolate.steering.plan(CfFacts(js_request.cf))
        method: str = js_request.method
        done = await forward(
            plan.origins,
            Sender(js_request, path, plan),
            repeatable=lambda: method in IDEMPOTENT and not js_request.body,  # null is falsy
            breaker=isolate.breaker,
            clock=time.time,
            limits=isolate.limits,
        )
        isolate.counters["requests"] += 1
        isolate.counters["retried"] += done.tries - 1
        if done.response is None:
            isolate.counters["failed"] += 1
            return failure(plan, done)
        return answer(plan, done, began)

    async def _refresh(self, isolate: Isolate) -> None:
        """The look at KV goes on beside the request; only an isolate without a map waits for it, and not long."""
        look = asyncio.ensure_future(isolate.look(WorkersKV(self.env.LATENCY_MAP)))
        self.ctx.waitUntil(look)
        wait = float(isolate.config["COLD_MAP_WAIT_MS"]) / 1000
        if isolate.steering.map is None and wait:
            await asyncio.wait((look,), timeout=wait)


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


class Sender:
    """Sends the request to one origin after another, body streamed."""

    def __init__(self, js_request, path: str, plan: Plan) -> None:
        self.js_request, self.path, self.plan = js_request, path, plan

    async def __call__(self, origin: Origin, seconds: float):
        """The origin's answer, or Unreachable, or TimeoutError after `seconds`."""
        outbound = JsRequest.new("https://" + origin.host + self.path, self.js_request)
        headers = outbound.headers
        put = headers.set
        put("x-isochrone-colour", str(self.plan.colour))
        put("x-isochrone-origin", origin.id)
        put("x-isochrone-map", self.plan.version)
        if not headers.has("traceparent"):
            put("traceparent", f"00-{getrandbits(128) or 1:032x}-{getrandbits(64) or 1:016x}-00")
        try:
            # A fetch given up goes on until this request ends; an abort signal would cost more, and cut streams too.
            async with asyncio.timeout(seconds):
                return await js_fetch(outbound)
        except (JsException, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise Unreachable(str(error)) from error


class CfFacts:
    """`Facts` read from `request.cf` only when a kind of cell asks for them. Any of it, and all of it, may be missing."""

    __slots__ = ("_cf", *Facts._fields)

    def __init__(self, cf: object) -> None:
        self._cf = cf

    def __getattr__(self, name: str):
        value = getattr(facts_of(**{name: getattr(self._cf, name, None)}), name)
        setattr(self, name, value)
        return value


def answer(plan: Plan, done: Forwarded, began: float):
    """The origin's response with our Alt-Svc in place of its own, and Server-Timing."""
    response, origin = done.response, done.origin
    if response.status == 101:
        return response  # an upgraded connection is passed through untouched
    ours = JsResponse.new(response.body, response)
    headers = ours.headers
    if origin.alt_svc:
        headers.set("alt-svc", origin.alt_svc)
    else:
        headers.delete("alt-svc")
    edge = max(0.0, time.time() - began - done.seconds) * 1000
    headers.append(
        "server-timing",
        f'colour;desc="{plan.colour}", map;desc="{plan.version}", origin;desc="{origin.id}";dur={done.seconds * 1000:.1f}, '
        f'edge;dur={edge:.1f}, tries;desc="{done.tries}", reason;desc="{plan.reason}"',
    )
    return ours


def failure(plan: Plan, done: Forwarded) -> Response:
    """No origin answered (RFC 9457). Says nothing of what is inside."""
    title = "The service did not answer in time" if done.status == 504 else "The service can't be reached"
    return Response(
        json.dumps({"type": "about:blank", "title": title, "status": done.status}),
        status=done.status,
        headers={
            "content-type": "application/problem+json",
            "server-timing": f'colour;desc="{plan.colour}", map;desc="{plan.version}", tries;desc="{done.tries}"',
        },
    )


def own_endpoint(isolate: Isolate, js_request, path: str) -> Response:
    """`/.isochrone/status` and `/.isochrone/decision`: 404 to whoever does not bring the secret."""
    given = js_request.headers.get("authorization")
    wanted = "Bearer " + isolate.config["ISOCHRONE_SECRET"]
    if (
        not isolate.config["ISOCHRONE_SECRET"]
        or not isinstance(given, str)
        or not compare_digest(given.encode(), wanted.encode())
    ):
        return Response("Not Found", status=404)
    parts = urlsplit(path)
    name = parts.path.removeprefix(OWN)
    if name == "status":
        return Response.from_json(status(isolate, time.time()))
    if name == "decision":
        asked = dict(parse_qsl(parts.query))
        asn = asked.get("asn", "")
        facts = facts_of(
            int(asn) if asn.isascii() and asn.isdigit() else None,
            asked.get("country"), asked.get("colo"), asked.get("continent"), asked.get("latitude"), asked.get("longitude"),
        )  # fmt: skip
        plan = isolate.steering.plan(facts)
        origins = [
            {"origin": o.id, "host": o.host, "state": o.state, "alt_svc": o.alt_svc} for o in plan.origins
        ]
        return Response.from_json(
            {"map": plan.version, "colour": plan.colour, "reason": plan.reason, "candidates": origins}
        )
    return Response("Not Found", status=404)


def status(isolate: Isolate, now: float) -> dict:
    """What this isolate knows. Every isolate has its own."""
    live, snapshot = isolate.snapshot.map, isolate.snapshot
    return {
        "map": live.version if live else None,
        "age_s": round(now - live.built_at, 1) if live else None,
        "loaded_s_ago": round(now - snapshot.loaded_at, 1) if live else None,
        "cells": live.cells if live else 0,
        "colours": live.colours if live else 0,
        "problem": snapshot.problem,
        "snapshot": snapshot.counters,
        "requests": isolate.counters,
        "ejected": isolate.breaker.ejected(now),
    }


def _variable(env, name: str, default: str) -> str:
    value = getattr(env, name, None)
    return value if isinstance(value, str) else default
