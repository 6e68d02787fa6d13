"""The long way of a request: bodies, fields that must be looked at, sessions, a second candidate, failures, the log.

One request: plan (colour, candidates, reason) -> forward along the candidates -> answer with Alt-Svc and Server-Timing.
"""

from json import dumps, loads
from random import getrandbits
from time import time

import js

from isochrone_edge import log
from isochrone_edge.colour import facts_of
from isochrone_edge.forward import IDEMPOTENT, Blameless, Forwarded, forward
from isochrone_edge.headers import BUDGET, WITH_BODY, added, budget_seconds, may_keep, one_cookie_field, peek
from isochrone_edge.isolate import protocol_of
from isochrone_edge.problem import problem
from isochrone_edge.steer import Origin, Plan, Steering
from isochrone_edge.trace import Trace, trace
from rim import Rim
from sender import Sender, dressed, gathered
from workers import Response

_NO_PLAN = Plan((), "none")
_BODYLESS = ("GET", "HEAD")


class Request:
    """One request, from its fields to its answer."""

    def __init__(self, rim: Rim, ctx, js_request, began: float, first=None) -> None:
        self.rim, self.ctx, self.isolate = rim, ctx, rim.isolate
        self.js_request, self.began = js_request, began
        plain, url, self.method, self.facts, fields = rim.read(js_request)
        self.fields = one_cookie_field(fields)
        self.several_cookies = self.fields is not fields
        # The URL is never normalised: scheme, Host field and target, put together.
        self.url, self.end = url, url.find("/", 8)
        self.path = url[self.end :]
        #: the origin that the quick way has asked, and what came of it: an answer or an error
        self.first = first
        self.plan, self.front, self._headers, self._trace = _NO_PLAN, "", None, None
        #: a request without a body is made anew from JSON, which is cheaper than a copy; a plain one from this very text
        self.plain = plain != "0"
        self.bodyless = self.method in _BODYLESS and (self.plain or self._without_body())

    def _without_body(self) -> bool:
        return self.fields.isascii() and WITH_BODY.isdisjoint(self.headers)

    @property
    def headers(self) -> dict[str, str]:
        """The client's fields; names in lower case, repeated ones joined with commas."""
        if self._headers is None:
            self._headers = loads(self.fields)
        return self._headers

    @property
    def trace(self) -> Trace:
        """The trace that the client began, else one that begins here; `sampled` ones are told in the log."""
        if self._trace is None:
            share, fields, entropy = self.isolate.variables.log_share, self.fields, getrandbits(192)
            sampled = share > 0 and (entropy & 0xFFFFFF) / 0x1000000 < share
            self._trace = trace(
                peek(fields, "traceparent"), peek(fields, "tracestate"), entropy, sampled=sampled
            )
        return self._trace

    async def answer(self):
        """The answer: a Response of JavaScript or of the SDK."""
        isolate = self.isolate
        if self.end < 0:
            return self.fail(400, "refused:target")
        front = isolate.front(self.url[: self.end], self.headers.get("host", ""))
        if front is None:
            return self.fail(421, "refused:host")
        self.front = front
        if ".isochrone" in self.path:  # a backslash is a slash for URLs
            local = js.URL.new(self.url).pathname
            if (local + "/").startswith("/.isochrone/"):
                return self.own(local)
        steering = isolate.steering if isolate.canary is None else isolate.steering_for(self.headers)
        plan = self.plan = steering.plan_for(self.facts)
        if plan.band > 1:
            plan = self.plan = plan.for_session(isolate.session(self.headers))
        if not plan.origins:
            return self.fail(503, "refused:no_origins")
        if isolate.variables.cache_ttl:
            return await self.through_cache(steering)
        return self.passed_on(await self.forward(), steering)

    def own(self, path: str) -> Response:
        """`/.isochrone/*`: the edge's own."""
        from isochrone_edge import own_endpoints

        query = self.path.partition("?")[2]
        status, body = own_endpoints.answer(
            self.isolate, path, query, self.headers, time(), self.facts, self.method
        )
        headers = {"content-type": own_endpoints.TYPES[status], "cache-control": "no-store"}
        if status == 405:
            headers["allow"] = ", ".join(own_endpoints.METHODS)
        return Response(None if self.method == "HEAD" else body, status=status, headers=headers)

    async def forward(self) -> Forwarded:
        """Along the candidates."""
        isolate, body = self.isolate, None
        limits = isolate.variables.limits
        if not self.plain:
            if BUDGET in self.headers:
                budget = budget_seconds(self.headers, limits.budget)
                limits = limits._replace(budget=budget, shortened=budget < limits.budget)
            if (
                self.method not in _BODYLESS
                and may_keep(self.headers, isolate.variables.keep_body)
                and self.js_request.body
            ):
                # Before the first try: a client that takes its time over its body takes it from no origin.
                began = time()
                try:
                    body = await gathered(
                        self.rim, self.js_request, min(limits.budget, limits.each_try) or 0.001
                    )
                except Blameless as error:
                    return Forwarded(None, None, 0, error.status, 0.0, "client:body")
                self.began += time() - began

        def repeatable(sent: bool) -> bool:
            if sent and self.method not in IDEMPOTENT and "idempotency-key" not in self.headers:
                return False
            return body is not None or self.bodyless or not self.js_request.body  # null is falsy

        return await forward(
            self.plan.origins,
            Sender(self.rim, self, body),
            repeatable=repeatable,
            breaker=isolate.breaker,
            clock=time,
            limits=limits,
            hedging=isolate.hedging,
            began=self.began,
            first=self.first[0] if self.first else None,
            asks_to_wait=lambda response: response.headers.has("retry-after"),
        )

    def ours(self, origin: Origin) -> str:
        """The fields that the edge sets on the way to this origin, as members of a JSON object."""
        plan = self.plan
        ours = added(
            self.fields,
            colour=plan.colour,
            origin=origin.id,
            version=plan.version,
            trace=self.trace,
            front=self.front,
            protocol=protocol_of(self.facts),
        )
        return f'{ours},"cookie":{dumps(self.headers["cookie"])}' if self.several_cookies else ours

    def passed_on(self, done: Forwarded, steering: Steering, note: str = "", held: int = 0):
        """What the candidates brought, as it goes to the client; `held` is given back when the client has it."""
        response, origin, status, plan = done.response, done.origin, done.status, self.plan
        if response is None:
            return self.fail(status, done.reason, done)
        now = time()
        edge = max(0.0, now - self.began - done.seconds)
        timing = (
            f'colour;desc="{plan.colour}", map;desc="{plan.version}", origin;desc="{origin.id}";dur={done.seconds * 1000:.1f}, '
            f'edge;dur={edge * 1000:.1f}, tries;desc="{done.tries}", reason;desc="{plan.reason}"{note}'
        )
        ours = dressed(
            self.rim,
            self.ctx,
            self.js_request,
            response,
            status,
            steering.promise(origin, now),
            timing,
            # a copy's end tells nothing of an origin
            "" if not done.tries else f"{origin.id}\n{held}" if held else origin.id,
        )
        if (
            done.tries > 1
            or status >= 500
            or self.trace.sampled
            or done.seconds > self.isolate.variables.slow
        ):
            self.tell(done, edge)
        return ours

    async def through_cache(self, steering: Steering):
        """From a copy at the edge, else from an origin, and then perhaps with a copy kept."""
        from edge_cache import Store
        from isochrone_edge import cache

        if not cache.may_answer(self.method, self.headers):
            done = await self.forward()
            if done.response is not None and cache.ends_copies(self.method, done.status):
                self.ctx.waitUntil(Store(self.rim, self.url, self.headers).end())
            return self.passed_on(done, steering)
        store, isolate, asked = Store(self.rim, self.url, self.headers), self.isolate, time()
        hit = await store.find()
        if hit:
            isolate.counters["cache_hits"] += 1
            response, origins = store.give(hit, time()), {origin.id: origin for origin in self.plan.origins}
            first = isolate.breaker.order(origins, time(), trial=False)[0]
            done = Forwarded(response, origins[first], 0, response.status, 0.0)
            return self.passed_on(done, steering, ', cache;desc="hit"')
        done = await self.forward()
        if done.response is not None and done.status != 101:
            fields, came = loads(self.rim.fields(done.response.headers)), time()
            seconds = cache.lifetime(
                done.status, fields, isolate.variables.cache_ttl, came, cookie="cookie" in self.headers
            )
            if seconds:
                isolate.held = isolate.held or cache.Held()
                size = int(fields.get("content-length") or 0) if done.response.body else 0
                held = isolate.held.take(size, came)
                if held is not None:
                    self.ctx.waitUntil(store.keep(done.response.clone(), fields, seconds, asked, came))
                    return self.passed_on(done, steering, held=held)
        return self.passed_on(done, steering)

    def fail(self, status: int, reason: str, done: Forwarded | None = None) -> Response:
        """Our own failure (RFC 9457). Says nothing of what is inside."""
        done = done or Forwarded(None, None, 0, status, 0.0)
        plan = self.plan
        self.isolate.counters["refused" if status in (400, 408, 421, 503) else "failed"] += 1
        body, headers = problem(status, self.trace.id)
        headers["server-timing"] = (
            f'colour;desc="{plan.colour}", map;desc="{plan.version}", tries;desc="{done.tries}"'
        )
        self.tell(done._replace(reason=reason), max(0.0, time() - self.began - done.seconds), "failure")
        return Response(None if self.method == "HEAD" else body, status=status, headers=headers)

    def tell(self, done: Forwarded, edge: float, event: str = "") -> None:
        """One line for the log, and the counters that go with it."""
        counters, facts = self.isolate.counters, facts_of(*loads(self.facts)[:6])
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
                asn=facts.asn,
                country=facts.country,
                colo=facts.colo,
            )
        )
