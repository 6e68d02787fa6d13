"""What `bench/map.py` runs in workerd: a latency map loaded and looked up, as often as the request says.

Time stands still inside a request, so the caller measures; it takes away what a request costs that does nothing.
"""

import gc
import json
import tracemalloc

import js
import pyodide_js

from isochrone_edge.latency_map import Facts, LatencyMap
from workers import Response, WorkerEntrypoint

held = {}


def wasm_bytes():
    return pyodide_js._module.HEAPU8.length  # noqa: SLF001  nothing public tells


class Default(WorkerEntrypoint):
    async def fetch(self, request):
        js_request = request.js_object
        path = js.URL.new(js_request.url)
        times = int(path.searchParams.get("times") or 0)
        answer = {}
        match path.pathname:
            case "/data":
                held["data"] = (await js_request.arrayBuffer()).to_bytes()
            case "/clients":
                held["clients"] = [Facts(*client) for client in json.loads(await js_request.text())]
            case "/load":
                for _ in range(times):
                    held["map"] = LatencyMap(held["data"])
            case "/lookup":
                find, clients = held["map"].find, held["clients"]
                for _ in range(times):
                    for facts in clients:
                        find(facts)
            case "/loop":  # the same without looking up
                clients = held["clients"]
                for _ in range(times):
                    for _facts in clients:
                        pass
            case "/memory":
                held.pop("map", None)
                gc.collect()
                wasm = wasm_bytes()
                tracemalloc.start()
                data = bytes(bytearray(held["data"]))  # as it comes from KV: the map's own bytes count
                live = LatencyMap(data)
                for facts in held["clients"]:
                    live.find(facts)
                now, peak = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                answer = {
                    "python": now,
                    "python_peak": peak,
                    "wasm": wasm_bytes(),
                    "wasm_growth": wasm_bytes() - wasm,
                }
        return Response(json.dumps(answer))
