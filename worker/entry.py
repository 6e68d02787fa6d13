"""The front door: with `rim.py` the only file that touches the workers SDK and JavaScript.

One request: facts from `request.cf` -> plan (colour, candidates, reason) -> forward along the candidates -> answer
with Alt-Svc and Server-Timing.
"""

import asyncio
import traceback
from json import loads
from random import getrandbits, random
from time import time

import js

from isochrone_edge import cache, log, own_endpoints
from isochrone_edge.forward import IDEMPOTENT, Forwarded, forward
from isochrone_edge.headers import (
    BUDGET, WITH_BODY, added, budget_seconds, host_allowed, is_plain, may_keep, peek,
)  # fmt: skip
from isochrone_edge.isolate import Isolate
from isochrone_edge.problem import problem
from isochrone_edge.steer import Origin, Plan, Steering
from isochrone_edge.trace import trace
from rim import CfFacts, Rim, Sender, Store, Watched, WorkersKV, dressed, watchable
from workers import Response, WorkerEntrypoint

_NO_PLAN = Plan((), "none")
_rim: Rim | None = None


class Default(WorkerEntrypoint):
    """The Worker."""

    async def fetch(self, request):
        """Answer one request."""
        global _rim  # noqa: PLW0603  an isolate's state outlives its requests
        if _rim is None:
            _rim = Rim(self.env)
        isolate = _rim.isolate
        one = Request(_rim, self.ctx, request.js_object)
        try:
            if isolate.snapshot.claim(one.began) or isolate.cold():
                await self._refresh(isolate)
            return await one.answer()
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer that says nothing of it
            print(traceback.format_exc())
            return one.fail(500, f"edge:{type(error).__name__}")

    async def _refresh(self, isolate: Isolate) -> None:
        """The look at KV goes on beside the request; only an isolate without a map waits for it, and not long."""
        look = asyncio.ensure_future(isolate.look(WorkersKV(self.env.LATENCY_MAP), time()))
        self.ctx.waitUntil(look)
        wait = isolate.variables.cold_wait
        if isolate.steering.map is None and wait:
            await asyncio.wait((look,), timeout=wait)


class Request:
    """One request, from its fields to its answer."""

    def __init__(self, rim: Rim, ctx, js_request) -> None:
        self.began = time()
        self.rim, self.ctx, self.isolate, self.js_request = rim, ctx, rim.isolate, js_request
        self.url: str = js_request.url  # never normalised: scheme, Host field and target, put together
        self.end = self.url.find("/", 8)
        self.path = self.url[self.end :] if self.end > 0 else "/"
        self.host = self.url[self.url.find("//") + 2 : self.end]
        self.fields = fields = rim.fields(js_request.headers)
        self._headers: dict[str, str] | None = None
        self.method: str = js_request.method
        #: a request without a body is made anew from JSON, at a third of a copy's cost; a plain one from this very text
        self.plain = is_plain(fields)
        self.bodyless = self.method in ("GET", "HEAD") and (
            self.plain or (fields.isascii() and WITH_BODY.isdisjoint(self.headers))
        )
        self.cf = js_request.cf
        self.plan = _NO_PLAN
        share = self.isolate.variables.log_share
        self.sampled = share > 0 and random() < share  # noqa: S311
        self.trace = trace(
            peek(fields, "traceparent"), peek(fields, "tracestate"), getrandbits(192), sampled=self.sampled
        )

    @property
    def headers(self) -> dict[str, str]:
        """The client's fields; names in lower case, repeated ones joined with commas."""
        if self._headers is None:
            self._headers = loads(self.fields)
        return self._headers

    async def answer(self):
        """The answer: a Response of JavaScript or of the SDK."""
        isolate, host = self.isolate, self.host
        isolate.counters["requests"] += 1
        if host not in isolate.hosts or f'"host":"{host}"' not in self.fields:
            if self.end < 0:
                return self.fail(400, "refused:target")
            named = self.headers.get("host", host)
            if not isolate.serves(host) or not host_allowed(named, isolate.variables.site):
                return self.fail(421, "refused:host")
        if "/.isochrone" in self.path:
            local = js.URL.new(self.url).pathname
            if (local + "/").startswith(own_endpoints.OWN):
                return self.own(local)
        steering = isolate.steering if isolate.canary is None else isolate.steering_for(self.headers)
        plan = self.plan = steering.plan(CfFacts(self.cf))
        if plan.band > 1:
            plan = self.plan = plan.for_session(isolate.session(self.headers))
        if not plan.origins:
            return self.fail(503, "refused:no_origins")
        if isolate.variables.cache_ttl and cache.may_answer(self.method, self.headers):
            return await self.through_cache(steering)
        return self.passed_on(await self.forward(), steering)

    def own(self, path: str) -> Response:
        """`/.isochrone/*`: the edge's own."""
        query = self.path.partition("?")[2]
        status, body = own_endpoints.answer(
            self.isolate, path, query, self.headers.get("authorization", ""), time()
        )
        headers = {"content-type": own_endpoints.TYPES[status], "cache-control": "no-store"}
        return Response(body, status=status, headers=headers)

    async def forward(self) -> Forwarded:
        """Along the candidates."""
        isolate, keep = self.isolate, False
        limits = isolate.variables.limits
        if not self.plain:
            if BUDGET in self.headers:
                limits = limits._replace(budget=budget_seconds(self.headers, limits.budget))
            keep = may_keep(self.headers, isolate.variables.keep_body)

        def repeatable(sent: bool) -> bool:
            if sent and self.method not in IDEMPOTENT and "idempotency-key" not in self.headers:
                return False
            return keep or self.bodyless or not self.js_request.body  # null is falsy

        return await forward(
            self.plan.origins,
            Sender(self.rim, self, keep=keep),
            repeatable=repeatable,
            breaker=isolate.breaker,
            clock=time,
            limits=limits,
            hedging=isolate.hedging,
        )

    def ours(self, origin: Origin) -> str:
        """The fields that the edge sets on the way to this origin, as members of a JSON object."""
        plan = self.plan
        return added(
            self.fields,
            colour=plan.colour,
            origin=origin.id,
            version=plan.version,
            trace=self.trace,
            scheme="https" if self.url.startswith("https:") else "http",
            host=self.host,
            protocol=getattr(self.cf, "httpProtocol", None),
        )

    def passed_on(self, done: Forwarded, steering: Steering, note: str = ""):
        """What the candidates brought, as it goes to the client."""
        response, origin, status, plan = done.response, done.origin, done.status, self.plan
        if response is None:
            return self.fail(status, done.reason, done)
        now, alt_svc = time(), steering.promise(origin, time())
        body = response.body if status != 101 else None
        ours, fields = dressed(response, body, status, alt_svc)
        if body and not note:
            watch, length = watchable(fields)
            if watch:
                watched = Watched(self.rim, body, length, origin.id)
                self.ctx.waitUntil(watched.run())
                ours, fields = dressed(response, watched.readable, status, alt_svc)
        edge = max(0.0, now - self.began - done.seconds)
        fields.append(
            "server-timing",
            f'colour;desc="{plan.colour}", map;desc="{plan.version}", origin;desc="{origin.id}";dur={done.seconds * 1000:.1f}, '
            f'edge;dur={edge * 1000:.1f}, tries;desc="{done.tries}", reason;desc="{plan.reason}"{note}',
        )
        if done.tries > 1 or status >= 500 or self.sampled or done.seconds > self.isolate.variables.slow:
            self.tell(done, edge)
        return ours

    async def through_cache(self, steering: Steering):
        """From a copy at the edge, else from an origin, and then perhaps with a copy kept."""
        store, isolate = Store(self.rim, self.url, self.headers), self.isolate
        hit = await store.find()
        if hit:
            isolate.counters["cache_hits"] += 1
            done = Forwarded(store.give(hit, time()), self.plan.origins[0], 0, hit.status, 0.0)
            return self.passed_on(done, steering, ', cache;desc="hit"')
        done = await self.forward()
        if done.response is not None and done.status != 101:
            fields = loads(self.rim.fields(done.response.headers))
            seconds = cache.lifetime(done.status, fields, isolate.variables.cache_ttl)
            if seconds:
                self.ctx.waitUntil(store.keep(done.response.clone(), fields, seconds, time()))
        return self.passed_on(done, steering)

    def fail(self, status: int, reason: str, done: Forwarded | None = None) -> Response:
        """Our own failure (RFC 9457). Says nothing of what is inside."""
        done = done or Forwarded(None, None, 0, status, 0.0)
        plan = self.plan
        self.isolate.counters["refused" if status in (400, 421, 503) else "failed"] += 1
        body, headers = problem(status, self.trace.id)
        headers["server-timing"] = (
            f'colour;desc="{plan.colour}", map;desc="{plan.version}", tries;desc="{done.tries}"'
        )
        self.tell(done._replace(reason=reason), max(0.0, time() - self.began - done.seconds), "failure")
        return Response(None if self.method == "HEAD" else body, status=status, headers=headers)

    def tell(self, done: Forwarded, edge: float, event: str = "") -> None:
        """One line for the log, and the counters that go with it."""
        counters, cf = self.isolate.counters, CfFacts(self.cf)
        counters["retried"] += max(0, done.tries - 1 - done.hedged)
        counters["hedged"] += done.hedged
        if not event:
            slow = done.seconds > self.isolate.variables.slow
            event = (
                "failure"
                if done.status >= 500
                else "failover"
                if done.tries > 1
                else "slow"
                if slow
                else "sampled"
            )
        print(
            log.line(
                event,
                reason=f"{self.plan.reason}|{done.reason}",
                trace_id=self.trace.id,
                method=self.method,
                path=self.path,
                status=done.status,
                colour=self.plan.colour,
                map_version=self.plan.version,
                origin=done.origin.id if done.origin else "",
                tries=done.tries,
                edge_ms=edge * 1000,
                origin_ms=done.seconds * 1000,
                asn=cf.asn,
                country=cf.country,
                colo=cf.colo,
            )
        )
