"""Origins that die, hang, crawl, fail and break off under steady load, and a KV that is cut off and corrupted.

KV is cut off at the connection: what the Worker reads breaks off, fails, or never comes (`lab/kv_gate.py`).

Fourteen origins, one isolate. Every few seconds another origin goes wrong in another way, drawn at random, and another
one recovers; at most three are wrong at once. The map stays as it is throughout: only the edge's own breaker and
failover stand between the clients and what happens. Requests are GET, half of them for 12 bytes and half for 200 KB:
in the long ones an origin may break off. (Short ones leave an origin in one piece with their head; the edge watches
bodies from 16 KB on.) Counted as failed: a status of 500 or more, a body cut short, or no answer. An answer that breaks
off can't be taken back, so the first three of an origin are not counted: from then on the breaker knows.

.venv/bin/python bench/chaos.py [--json] [--quick] [--seconds N] [--seed N]
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import random
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from _load import quantile
from _machine import bar, machine
from _origins import LARGE, NAMESPACE, WAYS, Origin, delete, publish, put
from isochrone.lab.kv_gate import KVGate, Way
from isochrone.lab.local_edge import LocalEdge
from isochrone_edge.latency_map_writer import Colour, encode

ORIGINS = 14
WRONG_AT_ONCE = 3
RATE = 60.0  # requests a second
BUDGET_MS, TRY_MS = 2500, 500
GRACE_S = 1.0  # beyond the budget: this machine is shared
EXCEPTED = 3  # failures of an origin until the breaker knows


def the_map(built_at: float) -> bytes:
    """Each origin is the first choice of one ASN, and its neighbours follow."""
    origins = [{"id": f"o{n}", "host": f"o{n}.origins.test", "state": "up"} for n in range(ORIGINS)]
    palette = [Colour(tuple(((n + k) % ORIGINS, 5.0 + k, 20) for k in range(6))) for n in range(ORIGINS)]
    cells = {"asn": {100 + n: n for n in range(ORIGINS)}}
    return encode(built_at=built_at, origins=origins, palette=palette, default=0, cells=cells)


@dataclass
class Report:
    """What the clients saw."""

    requests: int = 0
    failed: list[dict[str, Any]] = field(default_factory=list)
    excepted: collections.Counter[str] = field(default_factory=collections.Counter)
    tries: collections.Counter[int] = field(default_factory=collections.Counter)
    latencies: list[float] = field(default_factory=list)  # seconds to the whole answer
    hung: int = 0  # no answer within budget and grace
    turned: collections.Counter[str] = field(default_factory=collections.Counter)
    kv: collections.Counter[str] = field(default_factory=collections.Counter)


async def one(session: aiohttp.ClientSession, url: str, number: int, report: Report) -> None:
    """One request, judged."""
    large = number // ORIGINS % 2
    cf = json.dumps({"asn": 100 + number % ORIGINS, "country": "DE"})
    began, status, got, timing = time.monotonic(), 0, -1, ""
    try:
        async with asyncio.timeout(BUDGET_MS / 1000 + GRACE_S):
            async with session.get(
                f"{url}/{'large' if large else 'small'}/{number}", headers={"MF-CF-Blob": cf}
            ) as response:
                status, timing = response.status, response.headers.get("server-timing", "")
                got = len(await response.read())
    except TimeoutError:
        report.hung += 1
    except aiohttp.ClientError:
        pass
    took = time.monotonic() - began
    report.requests += 1
    report.latencies.append(took)
    report.tries[int(timing.partition('tries;desc="')[2].partition('"')[0] or 0)] += 1
    if status == 200 and got == (len(LARGE) if large else 12):
        return
    origin = timing.partition('origin;desc="')[2].partition('"')[0]
    if status == 200 and report.excepted[origin] < EXCEPTED:
        report.excepted[origin] += 1
    else:
        report.failed.append(
            {
                "number": number,
                "status": status,
                "bytes": got,
                "origin": origin,
                "took_ms": round(took * 1000),
            }
        )


async def load(url: str, report: Report, ends: float) -> None:
    """Requests at a steady rate, whatever becomes of those before."""
    connector = aiohttp.TCPConnector(limit=200)
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
        started, number = time.monotonic(), 0
        while time.monotonic() < ends:
            group.create_task(one(session, url, number, report))
            number += 1
            await asyncio.sleep(max(0.0, started + number / RATE - time.monotonic()))


async def turn_origins(origins: list[Origin], rng: random.Random, report: Report, period: float) -> None:
    """Every period one origin goes wrong, and the one that has been wrong longest recovers."""
    plan = [(origin, way) for origin in origins for way in WAYS]
    rng.shuffle(plan)
    wrong: list[Origin] = []
    try:
        for origin, way in plan:
            if origin in wrong:
                continue
            if len(wrong) == WRONG_AT_ONCE:
                await wrong.pop(0).turn("good")
            await origin.turn(way)
            wrong.append(origin)
            report.turned[way] += 1
            await asyncio.sleep(period)
    finally:
        for origin in wrong:
            with contextlib.suppress(OSError):
                await origin.turn("good")


async def turn_kv(edge: LocalEdge, gate: KVGate, rng: random.Random, report: Report, period: float) -> None:
    """KV goes wrong in one way after another; each time it comes back with a map that is newer."""
    cut_off: tuple[Way, ...] = ("reset", "hung", "failing")
    damaged = ("no manifest", "manifest damaged", "map damaged", "no map")
    built_at, turns = 2.0, list[Way | str]()
    async with aiohttp.ClientSession() as session:
        while True:
            if not turns:
                turns = [*cut_off, *damaged]
                rng.shuffle(turns)
            what = turns.pop()
            report.kv[what] += 1
            if what in cut_off:
                gate.way = what
            elif what == "no manifest":
                await delete(edge, session, "map/current")
            elif what == "manifest damaged":
                await put(edge, session, "map/current", rng.randbytes(200))
            else:
                manifest = {"version": f"bad-{built_at}", "key": f"map/bad-{built_at}", "sha256": "0" * 64}
                if what == "map damaged":
                    await put(edge, session, manifest["key"], rng.randbytes(5000))
                await put(edge, session, "map/current", json.dumps(manifest).encode())
            await asyncio.sleep(period)
            gate.way = "open"
            built_at += 1
            await publish(edge, session, the_map(built_at))
            await asyncio.sleep(period)


async def run(seconds: float, seed: int) -> tuple[Report, dict[str, Any]]:
    """All of it; the report, and the edge's own account at the end."""
    rng, report = random.Random(seed), Report()
    async with AsyncExitStack() as stack:
        origins = [Origin(f"o{n}") for n in range(ORIGINS)]
        for origin in origins:
            await origin.start()
            stack.callback(origin.close)
        variables = {
            "ORIGINS": json.dumps([{"id": o.name, "host": f"{o.name}.origins.test"} for o in origins]),
            "MAP_REFRESH_SECONDS": "1", "TRY_MS": str(TRY_MS), "BUDGET_MS": str(BUDGET_MS), "RETRY_STATUSES": "500,502,503,504",
        }  # fmt: skip
        gate = await stack.enter_async_context(KVGate())
        edge = await stack.enter_async_context(
            LocalEdge(
                vars=variables,
                secrets={"ISOCHRONE_SECRET": "bench"},
                kv_namespaces={"LATENCY_MAP": NAMESPACE},
                kv_servers={"LATENCY_MAP": gate.address},
                origins={f"{o.name}.origins.test": o.place for o in origins},
            )
        )
        gate.serve(edge.kv_api, NAMESPACE)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        await publish(edge, session, the_map(1.0))
        for number in range(50):
            await one(session, edge.url, number, Report())
        chaos = [
            asyncio.create_task(turn_origins(origins, rng, report, period=3.0)),
            asyncio.create_task(turn_kv(edge, gate, rng, report, period=4.0)),
        ]
        await load(edge.url, report, time.monotonic() + seconds)
        for task in chaos:
            task.cancel()
        await asyncio.gather(*chaos, return_exceptions=True)
        headers = {"authorization": "Bearer bench"}
        async with session.get(edge.url + "/.isochrone/status", headers=headers) as response:
            return report, await response.json()


def main() -> None:
    """Run, judge, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    seconds = arguments.seconds or (35 if arguments.quick else 120)
    report, edge = asyncio.run(run(seconds, arguments.seed))
    slowest = max(report.latencies)
    document = {
        "benchmark": "chaos",
        "machine": machine(),
        "seconds": seconds,
        "seed": arguments.seed,
        "requests": report.requests,
        "origins_turned": dict(sorted(report.turned.items())),
        "kv_turned": dict(sorted(report.kv.items())),
        "failed": report.failed[:20],
        "excepted": dict(sorted(report.excepted.items())),
        "answered_at_try": dict(sorted(report.tries.items())),
        "latency_ms": {
            f"p{q:g}": round(quantile(report.latencies, q / 100) * 1000, 1) for q in (50, 90, 99, 99.9)
        },
        "slowest_ms": round(slowest * 1000, 1),
        "edge": {name: edge[name] for name in ("requests", "snapshot", "ejected")},
        "bars": [
            bar("chaos_failed_after_breaker_knows", len(report.failed), 0),
            bar("chaos_hung_past_deadline", report.hung, 0),
            bar("chaos_slowest_ms", slowest * 1000, BUDGET_MS + GRACE_S * 1000),
        ],
    }
    print(json.dumps(document, indent=None if arguments.json else 2))


if __name__ == "__main__":
    main()
