"""The edge's cache as the runtime has it: what may be kept, and for how long, is `isochrone_edge.cache`'s word."""

from json import dumps, loads
from random import getrandbits
from time import time

import js
from js import Response as JsResponse
from pyodide.ffi import JsException

from isochrone_edge import cache
from rim import Rim


class Store:
    """The Cache API under the public URL, with `Vary` honoured."""

    def __init__(self, rim: Rim, url: str, headers: dict[str, str]) -> None:
        self._rim, self._url, self._headers = rim, url.partition("#")[0], headers
        self._generation = ""  # of the first copy, when that is another variant
        self._cache = js.caches.default

    async def find(self):
        """A kept answer for this request and its fields, or None."""
        hit = await self._cache.match(cache.key(self._url))
        if not hit or hit.headers.has(cache.ENDED_AT):
            return None
        chosen = cache.variant(hit.headers.get(cache.VARY) or None, self._headers)
        if chosen is None:
            return None
        if chosen != (hit.headers.get(cache.VARIANT) or ""):
            self._generation = hit.headers.get(cache.GENERATION) or ""
            hit = await self._cache.match(cache.key(self._url, chosen, self._generation))
            if not hit:
                return None
        return hit

    def give(self, hit, now: float):
        """The answer that a kept one makes: 304 for a client that has it already."""
        kept = loads(self._rim.fields(hit.headers))
        fields, gone = cache.given(kept, now)
        if not cache.unchanged(hit.status, kept, self._headers):
            return _changed(JsResponse.new(hit.body, hit), fields, gone)
        if hit.body:
            hit.body.cancel()
        ours = JsResponse.new(None, status=304, headers=hit.headers)
        return _changed(ours, fields, [*gone, "content-length", "content-type"])

    async def end(self) -> None:
        """What was kept is out of date, and what is still on its way; for `waitUntil`. Variants go with the first one."""
        mark = JsResponse.new("ended")
        fields = {"cache-control": f"public, max-age={cache.ENDED_SECONDS}", cache.ENDED_AT: repr(time())}
        await self._cache.put(cache.key(self._url), _changed(mark, fields, []))

    async def keep(self, copy, fields: dict[str, str], seconds: int, asked: float, came: float) -> None:
        """Keep a copy of an answer that was asked for and came at these times; for `waitUntil`."""
        chosen = cache.variant(fields.get("vary"), self._headers)
        try:
            # Whole first: an origin may break off, and what is put then would be kept as cut off as it came.
            body = await copy.arrayBuffer()
            seconds -= int(time() - came)
            first = await self._cache.match(cache.key(self._url))
            ended = first.headers.get(cache.ENDED_AT) if first else None
            if chosen is None or seconds <= 0 or (ended and asked <= float(ended)):
                return
            generation = self._generation or f"{getrandbits(64):016x}"
            kept = JsResponse.new(body if copy.body else None, copy)
            kept = _changed(kept, *cache.kept(fields, seconds, chosen, came, generation))
            name = cache.key(self._url, chosen, generation) if self._generation else cache.key(self._url)
            await self._cache.put(name, kept)
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
