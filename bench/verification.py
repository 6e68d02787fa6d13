"""How long does it take to verify 16 endpoints with 4 addresses each, and does the verifier stay as small as it began?

    python bench/verification.py [--json] [--quick]

Real aioquic servers with TLS, HTTP/1.1 and HTTP/2 beside them, in a process of their own on another core; the verifier has one core.
A thorough check is what `isochrone verify http3` makes: six connections to each address, one of them moved to another port, one
resumed with 0-RTT, and five handshakes each of HTTP/1.1 and HTTP/2. A cheap one is the daemon's: one connection to each address.
The rounds for memory are smaller: one endpoint with 4 addresses, thorough every tenth time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from _machine import bar, machine
from isochrone.lab.h3_certificates import Chains
from isochrone.lab.h3_endpoint import Manner
from isochrone.lab.h3_faults import IPV6, SITE, H3Fault, Place, inject
from isochrone.model import AltSvcEndpoint, Origin
from isochrone.settings import Verification
from isochrone.verification.http3 import EndpointChecker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ENDPOINTS = 16
ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.3", IPV6)
CORES = sorted(os.sched_getaffinity(0))
VERIFIER_CORE, SERVER_CORE = CORES[-1], CORES[0]
WARM = 0.2  # of the rounds: what grows before is caches
DEEP_EVERY = 10


def addresses() -> tuple[str, ...]:
    """Four, one of them IPv6 where this host has it."""
    import socket

    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.bind((IPV6, 0))
    except OSError:
        return (*ADDRESSES[:3], "127.0.0.4")
    return ADDRESSES


async def serve(folder: Path) -> None:
    """All endpoints until standard input ends; tells where they are."""
    os.sched_setaffinity(0, {SERVER_CORE})
    chains = Chains(folder)
    async with contextlib.AsyncExitStack() as stack:
        told = []
        for number in range(ENDPOINTS):
            region = f"region-{number}"
            fault = H3Fault("none", "", dict.fromkeys(addresses(), Place(Manner(regions=(region,)))))
            origin = await stack.enter_async_context(
                inject(fault, chains, region, f"{region}.isochrone.test")
            )
            told.append([origin.id, origin.host, origin.alt_svc.authority if origin.alt_svc else ""])
        print(json.dumps({"ca": str(chains.ca_pem), "origins": told, "addresses": addresses()}), flush=True)
        await asyncio.to_thread(sys.stdin.read)


@contextlib.contextmanager
def servers() -> Iterator[dict[str, Any]]:
    """The servers' process while the context lasts."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, __file__, "--serve", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            yield {**json.loads(process.stdout.readline()), "pid": process.pid}
        finally:
            process.communicate()


def origins(told: dict[str, Any]) -> list[Origin]:
    """What to verify."""
    return [
        Origin(
            id=name, host=host, latitude=0, longitude=0, alt_svc=AltSvcEndpoint(authority, 300), addresses=tuple(told["addresses"])
        )
        for name, host, authority in told["origins"]
    ]  # fmt: skip


async def verify(
    checker: EndpointChecker, wanted: Sequence[Origin], serving: psutil.Process, *, deep: bool
) -> dict[str, Any]:
    """One check of all at once, and what it cost on both sides."""
    cpu, begun, before = time.process_time(), time.monotonic(), sum(serving.cpu_times()[:2])
    rounds = await asyncio.gather(*(checker.check(o, now=time.time(), deep=deep) for o in wanted))
    checks = [check for checked in rounds for check in checked]
    return {
        "seconds": round(time.monotonic() - begun, 3),
        "cpu_seconds": round(time.process_time() - cpu, 3),
        "server_cpu_seconds": round(sum(serving.cpu_times()[:2]) - before, 3),
        "addresses": len(checks),
        "ok": sum(check.outcome.value == "ok" for check in checks),
        "findings": sorted({f"{f.check}: {f.evidence}" for check in checks for f in check.findings}),
    }


async def inside(told: dict[str, Any], *, repeats: int, rounds: int) -> dict[str, Any]:
    """All measurements, on one core."""
    os.sched_setaffinity(0, {VERIFIER_CORE})
    wanted, process, serving = origins(told), psutil.Process(), psutil.Process(told["pid"])
    checker = EndpointChecker(SITE, Verification(trust_store=Path(told["ca"]), slow_ms=10_000))
    await verify(checker, wanted[:1], serving, deep=True)  # what is imported at first use
    tasks, descriptors = len(asyncio.all_tasks()), process.num_fds()
    thorough = [await verify(checker, wanted, serving, deep=True) for _ in range(repeats)]
    cheap = [await verify(checker, wanted, serving, deep=False) for _ in range(repeats)]
    resident: list[int] = []
    findings = 0
    for number in range(rounds):
        one = await verify(checker, wanted[:1], serving, deep=number % DEEP_EVERY == 0)
        findings += len(one["findings"])
        if number % 10 == 9:
            gc.collect()
            resident.append(process.memory_info().rss)
    await asyncio.sleep(0.1)
    warm = resident[int(len(resident) * WARM) :]
    third = max(1, len(warm) // 3)
    growth = (statistics.median(warm[-third:]) - statistics.median(warm[:third])) / 2**20
    return {
        "thorough": thorough,
        "cheap": cheap,
        "rounds": rounds,
        "findings_in_rounds": findings,
        "resident_mib": {"first": round(resident[0] / 2**20, 2), "last": round(resident[-1] / 2**20, 2)},
        "growth_mib": round(growth, 3),
        "descriptors_left": process.num_fds() - descriptors,
        "tasks_left": len(asyncio.all_tasks()) - tasks,
    }


def main() -> None:
    """One JSON document, or a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(Path(options.serve)))
        return
    where = machine()  # before this process keeps to one core
    repeats, rounds = (1, 200) if options.quick else (3, 1000)
    with servers() as told:
        measured = asyncio.run(inside(told, repeats=repeats, rounds=rounds))
    runs = measured["thorough"] + measured["cheap"]
    wrong = (
        sum(len(run["findings"]) + run["addresses"] - run["ok"] for run in runs)
        + measured["findings_in_rounds"]
    )
    document = {
        "benchmark": "verification",
        "machine": where,
        "endpoints": ENDPOINTS,
        "addresses": told["addresses"],
        "measured": measured,
        "bars": [
            bar(
                "thorough check of all, s",
                statistics.median(r["seconds"] for r in measured["thorough"]),
                10.0,
            ),
            bar("cheap check of all, s", statistics.median(r["seconds"] for r in measured["cheap"]), 10.0),
            bar("findings about healthy endpoints", wrong, 0),
            bar(f"growth of memory over {rounds} rounds, MiB", measured["growth_mib"], 1.0),
            bar("sockets left", measured["descriptors_left"], 0),
            bar("tasks left", measured["tasks_left"], 0),
        ],
    }
    if options.json:
        print(json.dumps(document, indent=2))
    else:
        for line in document["bars"]:
            print(f"{line['name']}: {line['value']} (bar {line['bar']}) {'ok' if line['ok'] else 'MISSED'}")


if __name__ == "__main__":
    main()
