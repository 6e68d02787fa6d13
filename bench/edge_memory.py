"""Memory of workerd over many requests, and while a large upload passes.

The resident set is read every 10,000 requests (GET and POST, some of them to an origin that refuses, so that failover
and breaker take part). JavaScript's heap fills until its collector sees a reason to work, for this Worker and for a
bare one alike: it levels off after some 60,000 requests, so the first 100,000 are the warm-up. From then on the largest
must not be more than 5 % above the largest of the warm-up. Then one upload of 2 GB passes through: its bytes must not
stay.

.venv/bin/python bench/edge_memory.py [--json] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import aiohttp
import psutil

from _load import load
from _machine import bar, machine
from _origins import NAMESPACE, publish
from isochrone.lab.local_edge import EdgeOrigin, LocalEdge
from isochrone_edge.latency_map_writer import Colour, encode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CHUNK = bytes(1 << 16)
LIMIT_MB = 64.0  # what an upload in passing may cost


async def origin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes any body, and answers in a few bytes; long ones for /large."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if b"transfer-encoding: chunked" in head:
                while size := int(await reader.readline(), 16):
                    while size > 0:
                        chunk = await reader.read(min(size, 1 << 20))
                        if not chunk:
                            return
                        size -= len(chunk)
                    await reader.readline()
                await reader.readline()
            elif b"content-length: " in head:
                await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
            body = bytes(50_000) if b" /large" in head else b"ok"
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            await writer.drain()
    writer.close()


def the_map() -> bytes:
    """ASN 1 meets an origin that refuses before the one that answers."""
    origins = [{"id": name, "host": f"{name}.origins.test", "state": "up"} for name in ("good", "dead")]
    palette = [Colour(((0, 5.0, 20), (1, 9.0, 20))), Colour(((1, 5.0, 20), (0, 9.0, 20)))]
    return encode(built_at=1.0, origins=origins, palette=palette, default=0, cells={"asn": {1: 1, 2: 0}})


def request(line: str, asn: int, body: bytes = b"", extra: str = "") -> bytes:
    """One request, as bytes."""
    length = f"content-length: {len(body)}\r\n" if body else ""
    return (
        f'{line} HTTP/1.1\r\nhost: www.example.test\r\nMF-CF-Blob: {{"asn": {asn}}}\r\n{extra}{length}\r\n'.encode()
        + body
    )


async def measure(warm_up: int, total: int, step: int, upload_mb: int) -> dict[str, Any]:
    """The resident sets in MB, and the upload's highest."""
    async with AsyncExitStack() as stack:
        server = await asyncio.start_server(origin, "127.0.0.1", 0, limit=1 << 20)
        stack.callback(server.close)
        port = server.sockets[0].getsockname()[1]
        edge = await stack.enter_async_context(
            LocalEdge(
                vars={"MAP_REFRESH_SECONDS": "2"},
                kv_namespaces={"LATENCY_MAP": NAMESPACE},
                origins={
                    "good.origins.test": EdgeOrigin(address=f"127.0.0.1:{port}"),
                    "dead.origins.test": EdgeOrigin(address="127.0.0.1:1"),
                },
            )
        )
        session = await stack.enter_async_context(aiohttp.ClientSession())
        await publish(edge, session, the_map())
        await session.get(edge.url)
        process, port = psutil.Process(edge.pid), int(edge.url.rpartition(":")[2])
        mix = [
            (request("GET /small?x=1", 2), 0.80),
            (request("GET /large", 2), 0.05),
            (request("GET /small", 1), 0.05),
            (request("POST /small", 2, b"x" * 1000), 0.05),
            (
                request(
                    "GET /traced", 2, extra=f"traceparent: 00-{'1' * 32}-{'2' * 16}-01\r\ncookie: a=b\r\n"
                ),
                0.05,
            ),
        ]
        rss = []
        for _ in range(0, warm_up + total, step):
            for data, share in mix:
                result = await load(port, data, connections=8, count=int(step * share))
                if result.failed:
                    raise RuntimeError(f"{result.failed} requests failed: {data[:40]!r}")
            rss.append(round(process.memory_info().rss / 1e6, 1))
        highest = before = process.memory_info().rss

        async def parts() -> AsyncIterator[bytes]:
            nonlocal highest
            for number in range(upload_mb * 16):
                yield CHUNK
                if number % 256 == 0:
                    highest = max(highest, process.memory_info().rss)

        async with session.post(
            edge.url + "/upload", data=parts(), timeout=aiohttp.ClientTimeout(total=600)
        ) as response:
            response.raise_for_status()
        return {"rss_mb": rss, "upload_mb": upload_mb, "upload_cost_mb": round((highest - before) / 1e6, 1)}


def main() -> None:
    """Measure, judge, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    warm_up, total, step, upload = (
        (60_000, 20_000, 5_000, 256) if arguments.quick else (100_000, 200_000, 10_000, 2048)
    )
    figures = asyncio.run(measure(warm_up, total, step, upload))
    warm, after = figures["rss_mb"][: warm_up // step], figures["rss_mb"][warm_up // step :]
    document = {
        "benchmark": "edge_memory",
        "machine": machine(),
        "warm_up": warm_up,
        "requests": total,
        "every": step,
        **figures,
        "bars": [
            bar("edge_memory_growth", max(after) / max(warm), 1.05),
            bar("edge_memory_upload_mb", figures["upload_cost_mb"], LIMIT_MB),
        ],
    }
    print(json.dumps(document, indent=None if arguments.json else 2))


if __name__ == "__main__":
    main()
