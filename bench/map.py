"""What a map of the whole Internet costs: building it, its size, and in workerd loading it and looking it up.

    .venv/bin/python bench/map.py [--json] [--quick]

The samples are synthetic, shaped like the real thing: `synthetic.py`. Builds are processes of their own, `isochrone map build`
from gzip files, so that their time and memory are all they cost. Needs 3 GB of disk for a while, with --quick a fortieth of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import numpy as np
import psutil

from _machine import bar, machine
from isochrone.estimation.estimate import estimate_again
from isochrone.estimation.running import Running
from isochrone.estimation.samples import SampleColumns
from isochrone.lab.local_edge import REPOSITORY, LocalEdge
from isochrone.mapping.build import build_map
from isochrone.settings import Estimation, Steering
from isochrone_edge.latency_map import Facts, LatencyMap, letters
from synthetic import COUNTRIES, Scale, World, write

FULL, QUICK = Scale(), Scale(asns=10_000, samples=1_500_000)
CLIENTS = 500
REBUILDS = 3
LOADS, LOOKUPS = 50, 200  # a request: processor time is told in steps of 10 ms
HERE = Path(__file__).parent


class Ran(NamedTuple):
    """A process that has ended."""

    seconds: float  # by the clock on the wall
    cpu_seconds: float  # of all its threads
    memory_mb: float  # the greatest resident set
    output: str


def run(command: list[str]) -> Ran:
    """Run it to its end."""
    with tempfile.TemporaryFile("w+") as output:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=output)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{command[:3]} ended with {process.returncode}")
        output.seek(0)
        return Ran(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, output.read())


def build(folder: Path, samples: list[Path], scale: Scale) -> dict[str, Any]:
    """`isochrone map build`, as a user runs it."""
    command = [
        sys.executable,
        "-m",
        "isochrone.cli",
        "map",
        "build",
        "--json",
        "--origins",
        str(folder / "origins.csv"),
    ]
    command += ["--out", str(folder / "built.map"), "--now", str(scale.now), "--samples", *map(str, samples)]
    load = os.getloadavg()[0]
    ran = run(command)
    report = json.loads(ran.output)
    return {
        "seconds": round(ran.seconds, 2),
        "cpu_seconds": round(ran.cpu_seconds, 2),
        "load_before": round(load, 2),
        "peak_memory_mb": round(ran.memory_mb, 1),
        "samples": report["samples"]["used"],
        **{name: report[name] for name in ("bytes", "colours", "cells", "tolerance")},
    }


def rebuild(scale: Scale) -> dict[str, Any]:
    """A map of everything, then maps after new samples of 1 % of the networks, in a process that goes on as a daemon does."""
    world = World(scale)
    origins, settings, steering = world.origins(), Estimation(), Steering()
    running = Running(origins, settings, scale.now)
    for part in world.columns():
        running.add(part)
    times: list[dict[str, float]] = []
    began = time.perf_counter()
    table, standing = estimate_again(None, running.aggregates(), origins, settings)
    built = build_map(table, origins, settings=steering, now=scale.now)
    first = time.perf_counter() - began
    random = np.random.default_rng(7)
    cpu: list[float] = []
    now, changed = scale.now, []
    for _ in range(REBUILDS):
        now += settings.interval_seconds
        fresh = _news(world, random, now)
        laps, cpu_before = [time.perf_counter()], time.process_time()
        running.advance(now)
        running.add(fresh)
        counted = running.aggregates()
        laps.append(time.perf_counter())
        table, standing = estimate_again(standing, counted, origins, settings)
        laps.append(time.perf_counter())
        built = build_map(table, origins, settings=steering, now=now, previous=LatencyMap(built.data))
        laps.append(time.perf_counter())
        cpu.append(round(time.process_time() - cpu_before, 2))
        changed.append(built.report.changed)
        names = ("aggregate", "estimate", "build")
        steps = {name: round(b - a, 2) for name, a, b in zip(names, laps, laps[1:], strict=False)}
        times.append({**steps, "all": round(laps[-1] - laps[0], 2)})
    return {
        "first_seconds": round(first, 2), "each": times, "new_samples": len(fresh), "first_choices_changed": changed,
        "seconds": statistics.median(lap["all"] for lap in times), "bytes": len(built.data), "cpu_seconds_each": cpu,
    }  # fmt: skip


def _news(world: World, random: np.random.Generator, now: float) -> SampleColumns:
    """As many samples as 1 % of the networks have in a day, of just these."""
    scale = world.scale
    some = random.choice(len(world.asn), len(world.asn) // 100, replace=False)
    count = scale.samples // 100
    pair, origin = random.choice(some, count), random.integers(0, scale.origins, count)
    rtt = world.base_ms[pair, origin] + random.standard_exponential(count) * 1.5
    code = {
        key: np.array([letters(str(c[i])) for c in COUNTRIES], np.uint16)
        for key, i in (("cc", 0), ("cont", 1), ("colo", 2))
    }
    country = world.country[pair]
    return SampleColumns(
        origins=world.ids, timestamp=np.full(count, now - 1.0), origin=origin.astype(np.uint16), asn=world.asn[pair],
        country=code["cc"][country], colo=code["colo"][country], continent=code["cont"][country],
        rtt_ms=rtt.astype(np.float32), latitude=world.latitude[pair].astype(np.float32),
        longitude=world.longitude[pair].astype(np.float32),
    )  # fmt: skip


def clients(world: World, count: int = CLIENTS) -> list[tuple[Any, ...]]:
    """Who asks: mostly known networks, at home or elsewhere in the world, and some that nobody measured."""
    random = np.random.default_rng(5)
    rows = random.integers(0, len(world.asn), count)
    asked = []
    for row, luck in zip(rows.tolist(), random.random(count).tolist(), strict=True):
        place = row if luck < 0.8 else int(random.integers(0, len(world.asn)))
        country = COUNTRIES[world.country[place]]
        known = luck < 0.9
        asked.append(
            (
                int(world.asn[row]) if known else 4_200_000 + row,
                str(country[0]), str(country[2]), str(country[1]),
                float(world.latitude[place]), float(world.longitude[place]),
            )
        )  # fmt: skip
    return asked


async def at_the_edge(data: bytes, asked: list[tuple[Any, ...]], rounds: int) -> dict[str, Any]:
    """Loading, looking up and memory in real workerd."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        shutil.copy(HERE / "workers/map_cost.py", root)
        shutil.copytree(
            REPOSITORY / "worker/isochrone_edge",
            root / "isochrone_edge",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        async with (
            LocalEdge(main=root / "map_cost.py", root=root) as edge,
            aiohttp.ClientSession() as session,
        ):
            worker = psutil.Process(edge.pid)

            def spent() -> float:
                """Processor time of workerd in ms: what a crowded machine adds to the wall clock is not the map's."""
                times = worker.cpu_times()
                return (times.user + times.system) * 1e3

            async def ask(
                path: str, times: int = 0, body: bytes | None = None
            ) -> tuple[float, dict[str, Any]]:
                began = spent()
                async with session.post(f"{edge.url}{path}?times={times}", data=body) as response:
                    response.raise_for_status()
                    answer: dict[str, Any] = json.loads(await response.read())
                return spent() - began, answer

            await ask("/data", body=data)
            await ask("/clients", body=json.dumps(asked).encode())
            for path in ("/load", "/lookup", "/loop"):
                await ask(path, 1)
            load, lookup = [], []
            for _ in range(rounds):
                load.append((await ask("/load", LOADS))[0] / LOADS)
                loop = (await ask("/loop", LOOKUPS))[0]
                lookup.append(((await ask("/lookup", LOOKUPS))[0] - loop) * 1e3 / LOOKUPS / len(asked))
            _, memory = await ask("/memory")
    live = LatencyMap(data)
    levels: dict[str, int] = {}
    for client in asked:
        level = live.find(Facts(*client))[0]
        levels[level] = levels.get(level, 0) + 1
    return {
        "load_ms": round(statistics.median(load), 3), "load_ms_each": [round(x, 3) for x in load],
        "lookup_us": round(statistics.median(lookup), 3), "lookup_us_each": [round(x, 3) for x in lookup],
        "lookups_by_level": levels, "memory": memory,
    }  # fmt: skip


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rebuild", action="store_true", help="only the rebuilds, in this process")
    arguments = parser.parse_args()
    scale = QUICK if arguments.quick else FULL
    if arguments.rebuild:
        print(json.dumps(rebuild(scale)))
        return
    world = World(scale)
    with tempfile.TemporaryDirectory(prefix="isochrone-bench-") as name:
        folder = Path(name)
        samples = write(world, folder, files=8)
        built = build(folder, samples, scale)
        data = (folder / "built.map").read_bytes()
    command = [sys.executable, __file__, "--rebuild", *(["--quick"] if arguments.quick else [])]
    load = os.getloadavg()[0]
    ran = run(command)
    rebuilt = {
        **json.loads(ran.output),
        "peak_memory_mb": round(ran.memory_mb, 1),
        "load_before": round(load, 2),
    }
    edge = asyncio.run(at_the_edge(data, clients(world), 3 if arguments.quick else 9))
    bars = [
        bar("build_seconds", built["seconds"], 60.0),
        bar("build_memory_gb", built["peak_memory_mb"] / 1000, 4.0),
        bar("rebuild_seconds", rebuilt["seconds"], 5.0),
        bar("map_kilobytes", built["bytes"] / 1000, 600.0),
        bar("edge_load_ms", edge["load_ms"], 20.0),
        bar("edge_lookup_us", edge["lookup_us"], 5.0),
        bar("edge_memory_mb", max(edge["memory"]["python_peak"], edge["memory"]["wasm_growth"]) / 1e6, 6.0),
    ]
    document = {
        "benchmark": "map", "machine": machine(), "build": built, "rebuild": rebuilt, "edge": edge, "bars": bars,
        "scale": {"asns": scale.asns, "origins": scale.origins, "samples": scale.samples},
    }  # fmt: skip
    print(json.dumps(document, indent=None if arguments.json else 2))


if __name__ == "__main__":
    main()
