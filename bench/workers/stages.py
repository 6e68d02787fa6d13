"""The stages of a request one by one, for `bench/edge.py`: each is run n times inside one request, and timed from outside.

Mounted beside worker/'s own files. `?stage=NAME&n=COUNT`; without a name, the list of names.
"""

from json import dumps
from random import getrandbits
from time import time
from urllib.parse import parse_qs, urlsplit

from js import Promise
from js import Response as JsResponse

from isochrone_edge.breaker import Breaker
from isochrone_edge.forward import Limits, forward
from isochrone_edge.latency_map import Facts
from isochrone_edge.steer import Steering
from isochrone_edge.trace import begun
from rim import Rim
from workers import WorkerEntrypoint

_rim: Rim | None = None


class Default(WorkerEntrypoint):
    async def fetch(self, request):
        global _rim  # noqa: PLW0603
        if _rim is None:
            _rim = Rim(self.env)
            _rim.begin(print)
        rim, isolate, js_request = _rim, _rim.isolate, request.js_object
        if isolate.steering.map is None:
            data = await self.env.LATENCY_MAP.get("map", "arrayBuffer")
            isolate.steering = Steering(_latency_map(data))
        _, url, _, facts, _ = rim.read(js_request)
        lane, steering = isolate.lane(facts), isolate.steering
        plan, breaker, limits = lane.plan, Breaker(), Limits()
        response, client = JsResponse.new(None), Facts(3320, "DE", "FRA", "EU", 50.1, 8.7)

        async def send(origin, seconds):
            return 200, None

        stages = {
            "glance at a request (one crossing)": lambda: rim.glance(js_request).split("\n"),
            "read it in full (one crossing)": lambda: rim.read(js_request),
            "the same in many crossings": lambda: _slowly(rim, js_request),
            "map look-up, facts to colour": lambda: steering.map.find(client),
            "plan, remembered by facts": lambda: isolate.lane(facts),
            "a trace begun": lambda: begun(getrandbits(192)),
            "dress an answer (one crossing)": lambda: rim.dress(
                response, "clear", "x;dur=1", "one", js_request
            ),
            "clock": time,
        }
        awaited = {
            "along the candidates (forward)": lambda: forward(
                plan.origins, send, repeatable=lambda _: True, breaker=breaker, clock=time, limits=limits
            ),
            "a promise awaited by Python": Promise.resolve,
        }
        asked = parse_qs(urlsplit(url).query)
        if "stage" not in asked:
            return JsResponse.new(dumps([*stages, *awaited]))
        count, name = int(asked["n"][0]), asked["stage"][0]
        for _ in range(count):
            if name in stages:
                stages[name]()
            else:
                await awaited[name]()
        return JsResponse.new("done")


def _slowly(rim, js_request):
    crossing, rim.crossing = rim.crossing, None
    try:
        rim.read(js_request)
    finally:
        rim.crossing = crossing


def _latency_map(data):
    from isochrone_edge.latency_map import LatencyMap

    return LatencyMap(data.tobytes() if isinstance(data, memoryview) else data.to_bytes())
