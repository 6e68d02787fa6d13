"""How far from the truth are probes? Every method over IPv4 and IPv6, against injected delay and loss, beside fping.

    python bench/probe_accuracy.py [--json] [--quick] [--methods quic,h3]

Two network namespaces of this machine and a link between them whose delay and loss are ours: the packets cross real stacks. The link
logs each packet, so that three things are told apart: what was injected, how long the far host itself took (a QUIC server's cryptography, for
instance, which no prober can subtract), and what the prober added. Needs root or an unprivileged user namespace.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from itertools import product
from typing import TYPE_CHECKING, Any

from _machine import bar, machine
from isochrone.lab.packets import PacketLab, Path, unavailable
from isochrone.lab.packets.paths import PORT, VERSION_PORT
from isochrone.model import Target
from isochrone.probing.methods import make

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isochrone.lab.packets import Crossing

DELAYS_MS = (1.0, 20.0, 150.0)
LOSS = 0.05  # of round trips
METHODS = ("icmp", "tcp", "quic-vn", "http", "h1", "h2", "quic", "h3")
SINGLE = ("icmp", "tcp", "quic-vn")  # one exchange: what the link lost decides the outcome
SLOTS = {"quic-vn": 4, "http": 4, "h1": 4, "h2": 4, "quic": 2, "h3": 2}  # probes at once; others: any number
PROTOCOLS = {"icmp": (1, 58), "quic-vn": (17,), "quic": (17,), "h3": (17,)}  # others: TCP
MEAN_MS, MAX_MS = 0.1, 1.0
#: Each way, so that LOSS of the round trips is hit.
PATHS = tuple(Path(delay, loss=loss) for delay, loss in product(DELAYS_MS, (0.0, 1 - (1 - LOSS) ** 0.5)))


SPIN = """
import os, sys
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
os.sched_setaffinity(0, {int(sys.argv[1])})
while os.getppid() == int(sys.argv[2]): pass
"""


@contextlib.contextmanager
def awake() -> Iterator[None]:
    """No core halts meanwhile: each has a process that runs when nothing else wants to (SCHED_IDLE).

    A virtual core that has halted takes some 0.1 ms to wake up, which would be measured as the far host's time. A host that has
    other work to do does not halt.
    """
    own = str(os.getpid())
    spinning = [
        subprocess.Popen([sys.executable, "-c", SPIN, str(core), own]) for core in os.sched_getaffinity(0)
    ]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


async def probe_all(methods: list[str], count: int, addresses: list[list[str]]) -> dict[str, Any]:
    """In the near namespace: each method in turn. `addresses`: for each path, one a version."""
    told: dict[str, Any] = {}
    for method in methods:
        begun = time.time_ns()
        rows = await probe_paths(method, count, addresses)
        ended = time.time_ns()
        told[method] = {
            "begun": begun,
            "ended": ended,
            "rows": rows,
            "trouble": await own_trouble(method, addresses),
        }
        await asyncio.sleep(0.5)  # what is still on the link is not the next method's
    return told


async def probe_paths(method: str, count: int, addresses: list[list[str]]) -> list[dict[str, Any]]:
    """Each path at its own pace, its probes one after the other."""
    rng = random.Random(5)
    # Handshakes cost milliseconds of CPU here, on both sides: with all paths at once they would wait for each other.
    slots = asyncio.Semaphore(SLOTS.get(method, 100))
    prober, port = make(method), VERSION_PORT if method == "quic-vn" else PORT
    rows: list[dict[str, Any]] = []

    async def one(number: int, version: int, address: str) -> None:
        for _ in range(count):
            await asyncio.sleep(rng.expovariate(1 / 0.02))
            async with slots:
                result = await prober.run_once(
                    Target(address, port, 1), timeout=1.0 if method in SINGLE else 8.0
                )
            rows.append(
                {"path": number, "version": version, "outcome": result.outcome.value, "rtt_ms": result.rtt_ms,
                 "detail": result.detail}
            )  # fmt: skip

    every = [(number, address) for number, row in enumerate(addresses) for address in row]
    await asyncio.gather(*(one(number, 6 if ":" in address else 4, address) for number, address in every))
    return rows


async def own_trouble(method: str, addresses: list[list[str]]) -> list[str]:
    """Outcomes of probes that this host can't make: no route, not its address, no such name, no socket."""
    import resource

    prober = make(method)
    target = addresses[0][0]
    outcomes = [
        await prober.run_once(Target("192.0.2.1", PORT, 1), timeout=1),
        await prober.run_once(Target(target, PORT, 1), source_address="192.0.2.7", timeout=1),
        await prober.run_once(Target("no-such-name.invalid", PORT, 1), timeout=1),
    ]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        outcomes.append(await prober.run_once(Target(target, PORT, 1), timeout=1))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return [result.outcome.value for result in outcomes]


def judge(method: str, told: dict[str, Any], crossings: list[Crossing]) -> dict[str, Any]:
    """One method's errors, against what was injected and against what the far host's interface saw."""
    flows: dict[tuple[int, int], dict[tuple[int, int, int], list[Crossing]]] = defaultdict(dict)
    earlier = {(c.path, c.version, c.flow) for c in crossings if c.came < told["begun"]}  # still closing
    for c in crossings:
        if (
            told["begun"] <= c.came <= told["ended"]
            and c.flow[0] in PROTOCOLS.get(method, (6,))
            and (c.path, c.version, c.flow) not in earlier
        ):
            flows[c.path, c.version].setdefault(c.flow, []).append(c)
    streams: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for row in told["rows"]:
        streams[row["path"], row["version"]].append(row)
    nominal: list[float] = []
    errors: list[float] = []
    own: list[float] = []
    by_place: dict[str, list[float]] = defaultdict(list)
    wrong = unmatched = 0
    for (path, version), rows in streams.items():
        exchanges = list(flows[path, version].values())
        matched = len(exchanges) == len(rows)  # in order: probes of one path are made one after the other
        unmatched += 0 if matched else len(rows)
        for number, row in enumerate(rows):
            if row["outcome"] == "ok":
                nominal.append(abs(row["rtt_ms"] - PATHS[path].delay_ms))
                if matched:
                    # Of a handshake's exchanges, the one that the sample is nearest to.
                    wire, held = min(seen(exchanges[number]), key=lambda times: abs(row["rtt_ms"] - times[0]))
                    errors.append(abs(row["rtt_ms"] - held))
                    own.append(abs(row["rtt_ms"] - wire))
                    place = f"IPv{version}, {PATHS[path].delay_ms:g} ms, loss {LOSS if PATHS[path].loss else 0:.0%}"
                    by_place[place].append(errors[-1])
            if row["outcome"] == "prober_failed":
                wrong += 1  # nothing ailed this host; what it says of itself is told beside
            elif method in SINGLE and matched:
                wrong += lost(exchanges[number]) != (row["outcome"] == "target_failed")
    outcomes = Counter(row["outcome"] for row in told["rows"])
    return {
        "outcomes": dict(outcomes),
        "details": dict(Counter(row["detail"] for row in told["rows"] if row["outcome"] != "ok")),
        "error_ms": spread(errors),
        "error_against_the_delay_asked_for_ms": spread(nominal),
        "error_without_the_far_hosts_time_ms": spread(own),
        "mean_error_by_path_ms": {place: round(statistics.mean(e), 4) for place, e in sorted(by_place.items())},
        "blamed_wrongly": wrong,
        "probes_without_a_matching_log": unmatched,
        "own_trouble_told_as": dict(Counter(told["trouble"])),
    }  # fmt: skip


def seen(flow: list[Crossing]) -> list[tuple[float, float]]:
    """Ms of each exchange: on the wire at our side, there and back; and held by the link, which leaves out the far host's time."""
    times = []
    for number, there in enumerate(flow):
        if there.outward and there.went:
            back = next((c for c in flow[number:] if not c.outward and c.went and c.came >= there.went), None)
            if back is not None:
                held = there.went - there.came + back.went - back.came
                times.append(((back.went - there.came) / 1e6, held / 1e6))
    return times or [(float("nan"), float("nan"))]


def lost(flow: list[Crossing]) -> bool:
    """Whether the first packet, or the first answer to it, was lost."""
    there = next(c for c in flow if c.outward)
    back = next((c for c in flow if not c.outward), None)
    return not there.went or back is None or not back.went


def fping(lab: PacketLab, count: int) -> dict[str, Any] | None:
    """Fping's own errors on the same paths. It prints three digits."""
    if shutil.which("fping") is None:
        return None
    errors: list[float] = []
    for version in lab.versions:
        addresses = [lab.address(number, version) for number in range(len(PATHS))]
        done = lab.run(
            "fping",
            f"-{version}",
            "-q",
            "-C",
            str(count),
            "-p",
            "200",
            "-t",
            "1000",
            "-i",
            "5",
            *addresses,
            seconds=600,
        )
        for line in done.stderr.splitlines():
            address, colon, times = line.partition(" : ")
            if colon and address.strip() in addresses:
                delay = PATHS[addresses.index(address.strip())].delay_ms
                errors += [abs(float(text) - delay) for text in times.split() if text != "-"]
    return {"error_ms": spread(errors)}


def spread(values: list[float]) -> dict[str, Any]:
    """Mean, median, 99th percentile, maximum."""
    if not values:
        return {"samples": 0}
    ordered = sorted(values)
    return {
        "samples": len(ordered),
        "mean": round(statistics.mean(ordered), 4),
        "median": round(statistics.median(ordered), 4),
        "p99": round(ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 4),
        "max": round(ordered[-1], 4),
    }


def bench(count: int, asked: list[str]) -> dict[str, Any]:
    """The document."""
    reason = unavailable()
    if reason is not None:
        return {"benchmark": "probe_accuracy", "machine": machine(), "skipped": reason, "bars": []}
    load = os.getloadavg()
    with awake(), PacketLab(PATHS) as lab:
        addresses = [
            [lab.address(number, version) for version in lab.versions] for number in range(len(PATHS))
        ]
        beside = fping(lab, count)
        done = lab.run(
            sys.executable, __file__, "--inside", json.dumps([asked, count, addresses]), seconds=3000
        )
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        told = json.loads(done.stdout)
    methods = {method: judge(method, told[method], lab.crossings) for method in asked}
    late = [crossing.late_ms for crossing in lab.crossings if crossing.went]
    bars = []
    for method, found in methods.items():
        for what, key in (
            ("error", "error_ms"),
            ("error beyond the far host's time", "error_without_the_far_hosts_time_ms"),
        ):
            bars.append(bar(f"{method}: mean {what}, ms", found[key].get("mean", 99.0), MEAN_MS))
            bars.append(bar(f"{method}: max {what}, ms", found[key].get("max", 99.0), MAX_MS))
        bars.append(bar(f"{method}: probes that blame the wrong side", found["blamed_wrongly"], 0))
        trouble = found["own_trouble_told_as"]
        bars.append(
            bar(
                f"{method}: own trouble told as loss",
                sum(trouble.values()) - trouble.get("prober_failed", 0),
                0,
            )
        )
    return {
        "benchmark": "probe_accuracy",
        "machine": machine(),
        "load_average": {"before": load, "after": os.getloadavg()},
        "compared": f"{count} probes of each method and of fping on each of {len(PATHS)} paths ({', '.join(f'{d:g}' for d in DELAYS_MS)} ms; loss 0 and {LOSS:.0%}) over IPv{' and IPv'.join(map(str, lab.versions))}",
        "far_host": lab.far_host,
        "link_late_ms": spread(late),
        "fping": beside if beside is not None else "not installed",
        "fping_note": "fping prints three digits: its error at 20 and 150 ms is rounded to 0.1 and 1 ms",
        "methods": methods,
        "notes": [
            (
                "error: |sample - time for which the link held the two packets|, so with the far host's own time. Beyond the far "
                "host's time: |sample - time from the packet's departure to its answer's arrival on our side of the link|."
            ),
            (
                "quic and h3 samples hold the work that the far host's server (far_host) does for a handshake; no prober can take it "
                "out. quic-vn is answered by a plain Python server of our own, which is faster at that than Caddy."
            ),
        ],
        "bars": bars,
    }  # fmt: skip


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--methods", default=",".join(METHODS), help="which, with commas between")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        print(json.dumps(asyncio.run(probe_all(*json.loads(arguments.inside)))))
        return
    asked = arguments.methods.split(",")
    if unknown := set(asked) - set(METHODS):
        parser.error(f"unknown method {', '.join(sorted(unknown))}: there are {', '.join(METHODS)}")
    document = bench(4 if arguments.quick else 40, asked)
    if arguments.json:
        print(json.dumps(document, indent=2))
        return
    for line in document["bars"]:
        print(f"{'ok  ' if line['ok'] else 'MISS'} {line['name']}: {line['value']} (bar {line['bar']})")
    for name, found in document.get("methods", {}).items():
        print(name, found["error_ms"], found["outcomes"])
    print("fping", document.get("fping"), "link", document.get("link_late_ms"), document.get("skipped", ""))
    print("far host", document.get("far_host"))


if __name__ == "__main__":
    main()
