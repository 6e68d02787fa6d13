"""The front door: the quick way of a request, which nearly all of them take; long_way.py has the other.

Facts from `request.cf` -> lane (colour, first candidate) -> that origin -> answer with Alt-Svc and Server-Timing.
"""

import asyncio
import traceback
from random import getrandbits
from time import time

from isochrone_edge.headers import forwarded_for
from isochrone_edge.isolate import Isolate
from isochrone_edge.trace import begun
from rim import Rim, WorkersKV
from workers import WorkerEntrypoint

_WARM_SECONDS = 1.0  # after an isolate's first request; see `_warm`
_rim: Rim | None = None


class Default(WorkerEntrypoint):
    """The Worker."""

    async def fetch(self, request):
        """Answer one request."""
        global _rim  # noqa: PLW0603  an isolate's state outlives its requests
        began = time()
        if _rim is None:
            made = Rim(self.env)  # another request may run meanwhile: an import of JavaScript lets it
            if _rim is None:
                _rim = made
                made.begin()
                self.ctx.waitUntil(asyncio.ensure_future(_warm()))
        rim, isolate, js_request, first = _rim, _rim.isolate, request.js_object, None
        isolate.counters["requests"] += 1
        try:
            waited_for_map = (
                began >= isolate.snapshot.next_look or isolate.steering.map is None
            ) and await self._refresh(isolate, began)
            # The quick way: the first candidate answers, and nothing is out of the ordinary. All in one function, since
            # each line that a request runs through costs it about a microsecond.
            seen = rim.glance(js_request) if isolate.ordinary and not waited_for_map else ""
            if seen:
                base, named, facts, client, listed = seen.split("\n")
                lane = isolate.lanes.get(facts) or isolate.lane(facts)
                if (
                    lane is not None
                    and (not isolate.breaker.known or isolate.breaker.calm(lane.origin.id))
                    and (isolate.fronts.get(base) == named or isolate.front(base, named) is not None)
                ):
                    origin, shape = lane.origin, lane.shape or rim.shape(lane)
                    if client:
                        client = forwarded_for(client, listed)
                    try:  # no `await` since the glance: crossing.mjs still has the fields
                        return await rim.send_along(shape, begun(getrandbits(192)), client, began)
                    except Exception as error:  # noqa: BLE001 - the long way knows what it means
                        first = origin, getattr(error, "response", None) or error
            return await rim.long_way(self.ctx, js_request, began, first).answer()
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer that says nothing of it
            print(traceback.format_exc())
            return rim.long_way(self.ctx, js_request, began).fail(500, f"edge:{type(error).__name__}")

    async def _refresh(self, isolate: Isolate, now: float) -> bool:
        """The look at KV goes on beside the request; only an isolate without a map waits for it, and not long.

        True when so much of the budget went by that the quick way is none: it gives a whole try.
        """
        if not (isolate.snapshot.claim(now) or isolate.cold()):
            return False
        look = asyncio.ensure_future(isolate.look(WorkersKV(getattr(self.env, "LATENCY_MAP", None)), time()))
        self.ctx.waitUntil(look)
        wait = min(isolate.variables.cold_wait, isolate.variables.limits.budget / 2)
        if isolate.steering.map is None and wait:
            await asyncio.wait((look,), timeout=wait)
            return time() - now + isolate.first_ms / 1000 > isolate.variables.limits.budget
        return False


async def _warm() -> None:
    """Import the long way: not before an isolate's first answer, for which it isn't needed, nor while a client waits for it."""
    await asyncio.sleep(_WARM_SECONDS)
    import long_way  # noqa: F401
