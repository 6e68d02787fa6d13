"""The edge's share of a request: this Worker beside a bare Python forwarder and a bare JavaScript one, alternating.

.venv/bin/python bench/edge.py [--json] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import statistics
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

from _load import load, median_ratio
from _machine import bar, machine
from isochrone.lab.local_edge import EdgeOrigin, LocalEdge
from isochrone_edge.latency_map import LatencyMap
from isochrone_edge.latency_map_writer import Colour, encode

HERE = Path(__file__).parent
NAMESPACE = "0" * 32
CF = {
    "asn": 3320, "country": "DE", "colo": "FRA", "continent": "EU", "latitude": "50.11", "longitude": "8.68",
    "city": "Frankfurt", "httpProtocol": "HTTP/2", "tlsVersion": "TLSv1.3", "clientTcpRtt": 9,
}  # fmt: skip


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


async def publish(edge: LocalEdge, session: aiohttp.ClientSession, data: bytes) -> None:
    """Write the map and its manifest into the edge's KV."""
    version = LatencyMap(data).version
    manifest = {"version": version, "key": f"map/{version}", "sha256": hashlib.sha256(data).hexdigest()}
    for key, value in ((f"map%2F{version}", data), ("map%2Fcurrent", json.dumps(manifest).encode())):
        form = aiohttp.FormData()
        form.add_field("value", value, filename="value")
        form.add_field("metadata", "{}")
        url = aiohttp.client.URL(
            f"{edge.kv_api}/storage/kv/namespaces/{NAMESPACE}/values/{key}", encoded=True
        )
        async with session.put(url, data=form) as response:
            response.raise_for_status()


async def measure(rounds: int, count: int) -> dict[str, Any]:
    """All three Workers, in turn, round after round."""
    async with AsyncExitStack() as stack:
        server = await asyncio.start_server(fixed_origin, "127.0.0.1", 0)
        stack.callback(server.close)
        origins = {"one.origins.test": EdgeOrigin(address=f"127.0.0.1:{server.sockets[0].getsockname()[1]}")}
        mains = {
            "isochrone": None,
            "bare_python": HERE / "workers/bare.py",
            "bare_javascript": HERE / "workers/bare.mjs",
        }
        edges = {}
        for name, main in mains.items():
            edges[name] = await stack.enter_async_context(
                LocalEdge(main=main, kv_namespaces={"LATENCY_MAP": NAMESPACE}, origins=origins)
            )
        session = await stack.enter_async_context(aiohttp.ClientSession())
        await publish(edges["isochrone"], session, large_map())
        request = (
            f"GET /hello?x=1 HTTP/1.1\r\nhost: www.example.test\r\nMF-CF-Blob: {json.dumps(CF)}\r\n\r\n"
        ).encode()
        ports = {name: int(edge.url.rpartition(":")[2]) for name, edge in edges.items()}
        async with session.get(edges["isochrone"].url, headers={"MF-CF-Blob": json.dumps(CF)}) as response:
            if "asn:measured" not in response.headers["server-timing"]:
                raise RuntimeError(f"the map is not in use: {response.headers['server-timing']}")
        for port in ports.values():
            await load(port, request, connections=4, count=count)
        figures: dict[str, Any] = {}
        for connections in (1, 16):
            raw: dict[str, dict[str, list[float]]] = {
                name: {"p50": [], "p99": [], "rate": []} for name in edges
            }
            for turn in range(rounds):
                names = list(edges) if turn % 2 else list(edges)[::-1]
                for name in names:
                    result = await load(ports[name], request, connections=connections, count=count)
                    if result.failed:
                        raise RuntimeError(f"{name}: {result.failed} of {count} requests failed")
                    raw[name]["p50"].append(result.quantile(0.5))
                    raw[name]["p99"].append(result.quantile(0.99))
                    raw[name]["rate"].append(result.rate)
            figures[f"concurrency_{connections}"] = raw
        return figures


def main() -> None:
    """Measure, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    figures = asyncio.run(measure(*((3, 600) if arguments.quick else (11, 2000))))
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
            bars.append(bar(f"{level}_{figure}_ratio", ratio, limit, better))
    document = {"benchmark": "edge", "machine": machine(), "medians_ms": medians, "bars": bars}
    print(json.dumps(document, indent=None if arguments.json else 2))


if __name__ == "__main__":
    main()
