"""The front door: the quick way of a request, which nearly all of them take; long_way.py has the other.

Facts from `request.cf` -> lane (colour, first candidate) -> that origin -> answer with Alt-Svc and Server-Timing.
"""

import asyncio
import traceback
from random import getrandbits
from time import time

from isochrone_edge.hop import forwarded_for
from isochrone_edge.isolate import Isolate
from isochrone_edge.trace import begun
from rim import Rim, WorkersKV
from workers import FetchResponse, WorkerEntrypoint

_WARM_SECONDS = 1.0  # after an isolate's first request; see `_warm`
_rim: Rim | None = None


class Default(WorkerEntrypoint):
    """The Worker."""

    def fetch(self, request):
        """Answer one request.

        Not async: on the quick way what goes back is a promise of JavaScript, wrapped so that it is the runtime that
        awaits it. An `await` here costs as much as all the rest. The long way goes back as a coroutine.
        """
        began = time()
        rim = _rim or self._begin()
        isolate, js_request = rim.isolate, request.js_object
        isolate.counters["requests"] += 1
        try:
            if began >= isolate.snapshot.next_look or isolate.steering.map is None:
                cold = isolate.cold()
                look = self._look(isolate, began)
                if look is not None and cold:
                    return self._cold(look, js_request, began)
            return self._quick_way(rim, js_request, began) or _long_way(self.ctx, js_request, began)
        except Exception as error:  # noqa: BLE001 - as in `_long_way`
            return _broken(error, self.ctx, js_request, began)

    def _quick_way(self, rim: Rim, js_request, began: float) -> FetchResponse | None:
        """To the first candidate, when nothing is out of the ordinary.

        All in one function, since each line that a request runs through costs it about a microsecond.
        """
        isolate = rim.isolate
        seen = rim.glance(js_request) if isolate.ordinary else ""
        if not seen:
            return None
        base, named, facts, client, listed = seen.split("\n")
        lane = isolate.lanes.get(facts) or isolate.lane(facts)
        if (
            lane is None
            or (isolate.breaker.known and not isolate.breaker.calm(lane.origin.id))
            or (isolate.fronts.get(base) != named and isolate.front(base, named) is None)
        ):
            return None
        shape = lane.shape or rim.shape(lane)
        if client:
            client = forwarded_for(client, listed)
        # crossing.mjs still has the fields: nothing else has run since the glance
        sent = rim.send_along(shape, begun(getrandbits(192)), client, began, self.ctx)
        return FetchResponse("", sent.promise)

    async def _cold(self, look: asyncio.Future, js_request, began: float):
        """An isolate's first request waits for the map, though not long."""
        isolate, quick = _rim.isolate, None
        limits, wait = isolate.variables.limits, isolate.variables.cold_wait
        if wait:
            await asyncio.wait((look,), timeout=min(wait, limits.budget / 2))
        try:
            # The quick way gives a whole try: it is none when that is more than what is left of the budget.
            if time() - began + isolate.first_ms / 1000 <= limits.budget:
                quick = self._quick_way(_rim, js_request, began)
        except Exception as error:  # noqa: BLE001 - as in `_long_way`
            return _broken(error, self.ctx, js_request, began)
        return quick or await _long_way(self.ctx, js_request, began)

    def _begin(self) -> Rim:
        global _rim  # noqa: PLW0603  an isolate's state outlives its requests
        made = Rim(self.env)  # another request may run meanwhile: an import of JavaScript lets it
        if _rim is None:
            _rim = made
            made.begin(_go_on)
            self.ctx.waitUntil(asyncio.ensure_future(_warm()))
        return _rim

    def _look(self, isolate: Isolate, now: float) -> asyncio.Future | None:
        """The look at KV, which goes on beside the request; None when there is none to be made now."""
        if not (isolate.snapshot.claim(now) or isolate.cold()):
            return None
        look = asyncio.ensure_future(isolate.look(WorkersKV(getattr(self.env, "LATENCY_MAP", None)), time()))
        self.ctx.waitUntil(look)
        return look


async def _long_way(ctx, js_request, began: float, first=None):
    try:
        return await _rim.long_way(ctx, js_request, began, first).answer()
    except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer that says nothing of it
        return _broken(error, ctx, js_request, began)


async def _go_on(ctx, js_request, began: float, origin: str, outcome):
    """From crossing.mjs, where the quick way ended: `outcome` is the answer of the origin that must be looked at, or an error."""
    answer = await _long_way(ctx, js_request, began, (_rim.origins[origin], outcome))
    return getattr(answer, "js_object", answer)


def _broken(error: Exception, ctx, js_request, began: float):
    print("".join(traceback.format_exception(error)))
    return _rim.long_way(ctx, js_request, began).fail(500, f"edge:{type(error).__name__}")


async def _warm() -> None:
    """Import the long way: not before an isolate's first answer, for which it isn't needed, nor while a client waits for it."""
    await asyncio.sleep(_WARM_SECONDS)
    import long_way  # noqa: F401
