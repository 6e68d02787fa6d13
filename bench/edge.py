"""The edge's share of a request: this Worker beside a bare Python forwarder and a bare JavaScript one, alternating.

Also: what the stages of a request cost (CPU time of workerd, in a loop inside one request), and how much longer than an
empty Python Worker this one takes to start.

.venv/bin/python bench/edge.py [--json] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import tempfile
import urllib.parse
from contextlib import AsyncExitStack
from itertools import cycle, islice, permutations
from pathlib import Path
from typing import Any

import aiohttp

from _load import load, median_ratio
from _machine import bar, machine
from _origins import NAMESPACE, publish, put
from isochrone.lab.local_edge import EdgeOrigin, LocalEdge
from isochrone_edge.latency_map_writer import Colour, encode

HERE = Path(__file__).parent
CF = {
    "asn": 3320, "country": "DE", "colo": "FRA", "continent": "EU", "latitude": "50.11", "longitude": "8.68",
    "city": "Frankfurt", "httpProtocol": "HTTP/2", "tlsVersion": "TLSv1.3", "clientTcpRtt": 9,
}  # fmt: skip
REQUEST = (
    f"GET /hello?x=1 HTTP/1.1\r\nhost: www.example.test\r\nMF-CF-Blob: {json.dumps(CF)}\r\nuser-agent: Mozilla/5.0 (X11; Linux)\r\n"
    "accept: */*\r\naccept-encoding: gzip, br\r\naccept-language: de\r\ncookie: session=0123456789abcdef\r\n\r\n"
).encode()
WARM_ROUNDS = 10  # V8's heaps grow for as long
REST_SECONDS = 0.2
WORKERS = {
    "isochrone": None,
    "bare_python": HERE / "workers/bare.py",
    "bare_javascript": HERE / "workers/bare.mjs",
}


async def fixed_origin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An origin that costs next to nothing: the same small answer to every request."""
    body = b'{"ok": true}'
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )
    try:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def large_map() -> bytes:
    """A map of 92,000 ASNs x 36 origins, so that look-ups are as deep as in life. One host answers for all."""
    origins = [
        {
            "id": f"o{n}",
            "host": "one.origins.test",
            "state": "up",
            "alt_svc": {"authority": f"o{n}.origins.test:443", "ma": 300},
        }
        for n in range(36)
    ]
    palette = [Colour(tuple(((n + k) % 36, 5.0 + k, 20) for k in range(6))) for n in range(4000)]
    asns = {3320: 7} | {1 + 4 * n: n % 4000 for n in range(92_000)}
    return encode(built_at=1.0, origins=origins, palette=palette, default=0, cells={"asn": asns})


async def measure(rounds: int, count: int, levels: tuple[int, ...] = (1, 16)) -> dict[str, Any]:
    """All three Workers, in turn, round after round.

    A round is long enough to hold several pauses of the collector: each of them delays all connections at once. V8 goes on
    collecting for a while when a Worker rests: each comes first, second and last equally often, and after each other.
    """
    async with AsyncExitStack() as stack:
        server = await asyncio.start_server(fixed_origin, "127.0.0.1", 0)
        stack.callback(server.close)
        origins = {"one.origins.test": EdgeOrigin(address=f"127.0.0.1:{server.sockets[0].getsockname()[1]}")}
        edges = {}
        for name, main in WORKERS.items():
            edges[name] = await stack.enter_async_context(
                LocalEdge(main=main, kv_namespaces={"LATENCY_MAP": NAMESPACE}, origins=origins)
            )
        session = await stack.enter_async_context(aiohttp.ClientSession())
        await publish(edges["isochrone"], session, large_map())
        ports = {name: int(edge.url.rpartition(":")[2]) for name, edge in edges.items()}
        async with session.get(edges["isochrone"].url, headers={"MF-CF-Blob": json.dumps(CF)}) as response:
            if "asn:measured" not in response.headers["server-timing"]:
                raise RuntimeError(f"the map is not in use: {response.headers['server-timing']}")
        for port in ports.values():
            await load(port, REQUEST, connections=4, count=WARM_ROUNDS * count)
        figures: dict[str, Any] = {}
        for connections in levels:
            raw: dict[str, dict[str, list[float]]] = {
                name: {"p50": [], "p99": [], "rate": [], "cpu_us": []} for name in edges
            }
            for turn in islice(cycle(permutations(edges)), rounds):
                for name in turn:
                    await asyncio.sleep(REST_SECONDS)
                    before = cpu_us(edges[name].pid)
                    result = await load(ports[name], REQUEST, connections=connections, count=count)
                    if result.failed:
                        raise RuntimeError(f"{name}: {result.failed} of {count} requests failed")
                    raw[name]["cpu_us"].append((cpu_us(edges[name].pid) - before) / count)
                    raw[name]["p50"].append(result.quantile(0.5))
                    raw[name]["p99"].append(result.quantile(0.99))
                    raw[name]["rate"].append(result.rate)
            figures[f"concurrency_{connections}"] = raw
        return figures


def cpu_us(pid: int) -> float:
    """CPU time of a process and its threads so far, in microseconds (Linux)."""
    return (
        sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e3
    )


async def measure_stages(count: int) -> dict[str, float]:
    """Microseconds of CPU time a stage, the best of three loops."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "worker"
        shutil.copytree(
            HERE.parent / "worker", root, ignore=shutil.ignore_patterns("__pycache__", "entry.py")
        )
        shutil.copy(HERE / "workers/stages.py", root)
        async with (
            LocalEdge(main=root / "stages.py", kv_namespaces={"LATENCY_MAP": NAMESPACE}) as edge,
            aiohttp.ClientSession() as session,
        ):
            await put(edge, session, "map", large_map())

            async def run(query: str) -> str:
                headers = {
                    "MF-CF-Blob": json.dumps(CF),
                    "accept-language": "de",
                    "cookie": "session=0123456789abcdef",
                }
                async with session.get(f"{edge.url}/{query}", headers=headers) as response:
                    response.raise_for_status()
                    return await response.text()

            costs = {}
            for name in json.loads(await run("")):
                query = f"?stage={urllib.parse.quote_plus(name)}&n="
                loops = []
                for _ in range(3):
                    before = cpu_us(edge.pid)
                    await run(query + "1")
                    between = cpu_us(edge.pid)
                    await run(query + str(count + 1))
                    loops.append((cpu_us(edge.pid) - between - (between - before)) / count)
                costs[name] = round(min(loops), 2)
            return costs


async def measure_boot(rounds: int) -> dict[str, list[int]]:
    """Milliseconds from the start of Node until a request would be answered, alternating."""
    boots: dict[str, list[int]] = {"isochrone": [], "empty_python": []}
    for _ in range(rounds + 1):
        for name, main in (("isochrone", None), ("empty_python", HERE / "workers/empty.py")):
            async with LocalEdge(main=main, kv_namespaces={"LATENCY_MAP": NAMESPACE}) as edge:
                boots[name].append(edge.ready_ms)
    return {name: values[1:] for name, values in boots.items()}  # the first ones fill caches


def main() -> None:
    """Measure, compare, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    figures = asyncio.run(measure(*((6, 300) if arguments.quick else (12, 2000))))
    stages = asyncio.run(measure_stages(500 if arguments.quick else 4000))
    boots = asyncio.run(measure_boot(3 if arguments.quick else 15))
    bars, medians = [], {}
    for level, raw in figures.items():
        medians[level] = {
            n: {k: round(statistics.median(v), 4) for k, v in f.items()} for n, f in raw.items()
        }
        for figure, limit, better in (
            ("p50", 1.10, "lower"),
            ("p99", 1.15, "lower"),
            ("rate", 0.90, "higher"),
        ):
            ratio = median_ratio(raw["isochrone"][figure], raw["bare_python"][figure])
            bars.append(bar(f"edge_{level}_{figure}_ratio", ratio, limit, better))
    extra = statistics.median(
        ours - empty for ours, empty in zip(boots["isochrone"], boots["empty_python"], strict=True)
    )
    bars.append(bar("edge_boot_extra_ms", extra, 100))
    document = {
        "benchmark": "edge",
        "machine": machine(),
        "medians": medians,
        "stages_us": stages,
        "boot_ms": boots,
        "bars": bars,
    }
    print(json.dumps(document, indent=None if arguments.json else 2))


if __name__ == "__main__":
    main()
