"""The rim: what one isolate keeps of JavaScript and of the workers SDK.

A crossing costs 1 to 25 us, more than a plan does. `crossing.mjs` does in one what takes many from here; where it can't
be imported, the functions here and in `sender.py` do the same field by field.
"""

import asyncio
from json import dumps
from time import time

import js
from js import setTimeout as set_timeout  # noqa: N813
from pyodide.ffi import create_proxy

from isochrone_edge.breaker import CUT_WEIGHT
from isochrone_edge.hop import KEPT
from isochrone_edge.isolate import Isolate
from isochrone_edge.lane import Lane
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
        self.isolate = Isolate(lambda name: getattr(env, name, None), js.URL.canParse)
        self.entries, self.stringify, self.parse = js.Object.fromEntries, js.JSON.stringify, js.JSON.parse
        #: fetches that are under way, by number. Each is touched only by its own request: by the timer it has set.
        self._waiting: dict[int, asyncio.Future] = {}
        self._number = 0
        #: those that the quick way has led to, by id: a request is on its way for longer than a map may last
        self.origins: dict[str, Origin] = {}
        # One for all requests: making one costs more than all of steering.
        self._on_deadline = create_proxy(self._expire)
        self.on_end = create_proxy(self.ended)
        self.crossing = None
        if self.isolate.variables.crossing:
            try:
                self.crossing = import_from_javascript("crossing.mjs")
                found = self.crossing
                self.glance, self.send_along = found.glance, found.sendAlong
                self.read_text, self.send, self.send_copy, self.dress, self.gather_body = (
                    found.read, found.send, found.sendCopy, found.dress, found.gather,
                )  # fmt: skip
            except Exception as error:  # noqa: BLE001 - a runtime that does not offer it
                self.crossing = None
                print(dumps({"event": "start", "reason": f"without crossing.mjs: {error}"}))
        if self.crossing is None:
            self.isolate.ordinary = False

    def begin(self, go_on) -> None:
        """This is the isolate's one: it is told how watched bodies end; `go_on` has the requests for which the quick way ended."""
        if self.crossing is not None:
            self.crossing.configure(dumps(sorted(KEPT)), WATCH_BYTES, self.on_end, create_proxy(go_on))

    def shape(self, lane: Lane):
        """A lane on the other side, made when its first request comes."""
        lane.shape = self.crossing.lane(lane.text)
        self.origins[lane.origin.id] = lane.origin
        return lane.shape

    def long_way(self, ctx, js_request, began: float, first=None):
        """The request as the long way has it; `first` is the origin that was asked already, and what came of it."""
        from long_way import Request  # here: a cold start is shorter by a quarter without it

        return Request(self, ctx, js_request, began, first)

    def read(self, js_request) -> list[str]:
        """Of a request: whether its fields can go on as they are ("1") or not ("0"), URL, method, facts and fields.

        Facts and fields as JSON: a list in the order of `_FACTS`; an object, names in lower case, repeated ones joined.
        """
        if self.crossing is not None:
            return self.read_text(js_request).split("\n", 4)
        cf = js_request.cf
        facts = (
            dumps([_plain(getattr(cf, name, None)) for name in _FACTS], separators=(",", ":")) if cf else "[]"
        )
        fields = self.fields(js_request.headers)
        from isochrone_edge.headers import is_plain  # here: as `long_way`

        return ["1" if is_plain(fields) else "0", js_request.url, js_request.method, facts, fields]

    def fields(self, headers) -> str:
        """Header fields as JSON; names in lower case, repeated ones joined with commas."""
        return self.stringify(self.entries(headers))

    def ended(self, watched: str, whole: bool | None) -> None:
        """A watched body has ended: tells the breaker how. None: its client has left.

        `watched`: the origin's id, and after a line break the number of what is held for a copy.
        """
        isolate, (origin, _, held) = self.isolate, watched.partition("\n")
        if held:
            isolate.held.give_back(int(held))
        if whole is None:
            return
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


def _plain(value):
    return value if isinstance(value, (int, float, str)) else None


class WorkersKV:
    """The KV binding as the snapshot wants it."""

    def __init__(self, binding: object) -> None:
        self._binding = binding

    async def text(self, key: str) -> str | None:
        """A value as text."""
        if self._binding is None:
            raise ConnectionError("there is no KV binding LATENCY_MAP")
        value = await self._binding.get(key, "text")
        return value if isinstance(value, str) else None

    async def data(self, key: str) -> bytes | None:
        """A value as bytes."""
        value = await self._binding.get(key, "arrayBuffer")
        if isinstance(value, memoryview):  # the SDK's bindings convert what they return
            return value.tobytes()
        return value.to_bytes() if hasattr(value, "to_bytes") else None
