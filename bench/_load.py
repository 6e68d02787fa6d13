"""A load generator that costs little itself: raw HTTP/1.1 keep-alive connections, one request in flight on each."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass


@dataclass
class Result:
    """Latencies in ms, and how long the run took in seconds."""

    latencies: list[float]
    seconds: float
    failed: int

    def quantile(self, q: float) -> float:
        """A latency quantile in ms."""
        return quantile(self.latencies, q)

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self.latencies) / self.seconds


def quantile(values: list[float], q: float) -> float:
    """The q-quantile, by rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


async def read_response(reader: asyncio.StreamReader) -> int:
    """The status of one response, its body read and dropped."""
    head = await reader.readuntil(b"\r\n\r\n")
    lower = head.lower()
    at = lower.find(b"content-length:")
    if at >= 0:
        await reader.readexactly(int(lower[at + 15 : lower.index(b"\r\n", at)]))
    elif b"transfer-encoding: chunked" in lower:
        while True:
            size = int((await reader.readline()).strip() or b"0", 16)
            await reader.readexactly(size + 2)
            if not size:
                break
    return int(head[9:12])


async def load(port: int, request: bytes, *, connections: int, count: int) -> Result:
    """Send `count` requests over so many connections."""
    latencies: list[float] = []
    failed = 0
    left = count

    async def one() -> None:
        nonlocal failed, left
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while left > 0:
                left -= 1
                began = time.perf_counter()
                writer.write(request)
                if await read_response(reader) != 200:
                    failed += 1
                latencies.append((time.perf_counter() - began) * 1e3)
        finally:
            writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(connections)))
    return Result(latencies, time.perf_counter() - began, failed)


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the ratios pair by pair: what drifts in the machine's speed hits both."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
