"""How many probes a second, at what cost? 10,000 targets by ICMP beside fping, by TCP beside prometheus-blackbox-exporter.

    python bench/probe_rate.py [--json] [--quick]

All targets are addresses of 127.0.0.0/8 on this machine, each prober has one core, taken in turn in the same run. Ours is measured from
inside: the batch, not the interpreter's start, which an agent pays once. The others are whole processes; the exporter, a server, from
its first request to its last. Who answers TCP has the other core.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _machine import bar, machine
from isochrone.model import Target
from isochrone.probing.icmp import IcmpProber
from isochrone.probing.tcp import TcpProber

if TYPE_CHECKING:
    from collections.abc import Iterator

TARGETS = 10_000
TIMEOUT = 1.0
EXPORTER_THREADS = 8
CORES = sorted(os.sched_getaffinity(0))
PROBER_CORE, OTHER_CORE = CORES[-1], CORES[0]
_EXPORTER = "prometheus-blackbox-exporter"
_LISTENER = """
import select, socket
server = socket.create_server(("0.0.0.0", 0), backlog=4096)
server.setblocking(False)
print(server.getsockname()[1], flush=True)
ready = select.epoll()
ready.register(server, select.EPOLLIN)
while True:
    ready.poll()
    try:
        while True:
            server.accept()[0].close()
    except BlockingIOError:
        pass
"""


def addresses(count: int) -> list[str]:
    """That many addresses of 127.0.0.0/8, in networks of their own."""
    return [f"127.{1 + n // 62_500}.{n // 250 % 250}.{n % 250 + 1}" for n in range(count)]


def inside(method: str, port: int, count: int) -> dict[str, Any]:
    """One batch in this process, on one core."""
    os.sched_setaffinity(0, {PROBER_CORE})
    prober = IcmpProber() if method == "icmp" else TcpProber()
    targets = [Target(address, port, 1) for address in addresses(count)]

    async def run() -> dict[str, Any]:
        await prober.run_batch(targets[:100], timeout=TIMEOUT)  # what is imported at first use
        before, begun = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        results = await prober.run_batch(targets, timeout=TIMEOUT)
        seconds, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_SELF)
        return {
            "seconds": seconds,
            "cpu": cpu(after) - cpu(before),
            "outcomes": Counter(r.outcome.value for r in results),
        }

    return asyncio.run(run())


def ours(method: str, port: int, count: int) -> dict[str, Any]:
    """A fresh process for each batch, as for the others."""
    done = subprocess.run(
        [sys.executable, __file__, "--inside", json.dumps([method, port, count])],
        capture_output=True,
        text=True,
        check=True,
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def fping(count: int) -> dict[str, Any]:
    """Fping without any pause between packets, without repetition, without printing."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listed:
        listed.write("\n".join(addresses(count)) + "\n")
        listed.flush()
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        subprocess.run(
            ["fping", "-q", "-i", "0", "-r", "0", "-t", str(int(TIMEOUT * 1000)), "-f", listed.name],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {PROBER_CORE}),
        )  # fmt: skip
        seconds, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"seconds": seconds, "cpu": cpu(after) - cpu(before)}


@contextlib.contextmanager
def exporter() -> Iterator[tuple[int, int]]:
    """A running blackbox exporter on one core: (its process id, its port)."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as config:
        config.write("modules:\n  tcp_connect:\n    prober: tcp\n    timeout: 1s\n")
        config.flush()
        process = subprocess.Popen(
            [_EXPORTER, f"--config.file={config.name}", f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"],
            env=os.environ | {"GOMAXPROCS": "1"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=lambda: os.sched_setaffinity(0, {PROBER_CORE}),  # noqa: PLW1509
        )  # fmt: skip
        try:
            for _ in range(200):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.05)
            yield process.pid, port
        finally:
            process.terminate()
            process.wait()


def blackbox(pid: int, exporter_port: int, port: int, count: int) -> dict[str, Any]:
    """Have the exporter probe: some clients at once, on the other core, each on one connection."""
    chosen = addresses(count)
    succeeded: list[int] = []

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", exporter_port, timeout=30)
        good = 0
        for address in chosen[number::EXPORTER_THREADS]:
            connection.request("GET", f"/probe?module=tcp_connect&target={address}:{port}")
            good += b"\nprobe_success 1" in connection.getresponse().read()
        connection.close()
        succeeded.append(good)

    before, begun = process_cpu(pid), time.monotonic()
    threads = [threading.Thread(target=client, args=(number,)) for number in range(EXPORTER_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begun
    return {"seconds": seconds, "cpu": process_cpu(pid) - before, "ok": sum(succeeded)}


def process_cpu(pid: int) -> float:
    """CPU seconds of another process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu(usage: resource.struct_rusage) -> float:
    """User and system seconds."""
    return usage.ru_utime + usage.ru_stime


def summary(runs: list[dict[str, Any]], count: int) -> dict[str, Any]:
    """Medians of the runs, and the runs."""
    return {
        "probes_per_second": round(statistics.median(count / run["seconds"] for run in runs)),
        "cpu_us_per_probe": round(statistics.median(run["cpu"] / count * 1e6 for run in runs), 2),
        "runs": runs,
    }


def bench(rounds: int, tcp_rounds: int, exported: int) -> dict[str, Any]:
    """The document."""
    os.sched_setaffinity(0, {OTHER_CORE})
    load = os.getloadavg()
    bars, found, notes = [], {}, []
    have_fping = shutil.which("fping") is not None
    mine, theirs = [], []
    for _ in range(rounds):
        mine.append(ours("icmp", 0, TARGETS))
        if have_fping:
            theirs.append(fping(TARGETS))
    found["icmp"] = {"isochrone": summary(mine, TARGETS)}
    if theirs:
        found["icmp"]["fping"] = summary(theirs, TARGETS)
        a, b = found["icmp"]["isochrone"], found["icmp"]["fping"]
        bars += [
            bar(
                "ICMP: probes a second, share of fping's",
                a["probes_per_second"] / b["probes_per_second"],
                1.0,
                "higher",
            ),
            bar("ICMP: CPU per probe, share of fping's", a["cpu_us_per_probe"] / b["cpu_us_per_probe"], 1.0),
        ]
    else:
        notes.append("fping is not installed: no comparison for ICMP")
    listener = subprocess.Popen([sys.executable, "-c", _LISTENER], stdout=subprocess.PIPE, text=True)
    try:
        assert listener.stdout is not None
        port = int(listener.stdout.readline())
        found["tcp"] = {
            "isochrone": summary([ours("tcp", port, TARGETS) for _ in range(tcp_rounds)], TARGETS)
        }
        if shutil.which(_EXPORTER) is not None:
            with exporter() as (pid, exporter_port):
                runs = [blackbox(pid, exporter_port, port, exported) for _ in range(tcp_rounds)]
            found["tcp"]["blackbox_exporter"] = summary(runs, exported)
            a, b = found["tcp"]["isochrone"], found["tcp"]["blackbox_exporter"]
            bars += [
                bar(
                    "TCP: probes a second, times the exporter's",
                    a["probes_per_second"] / b["probes_per_second"],
                    3.0,
                    "higher",
                ),
                bar(
                    "TCP: CPU per probe, share of the exporter's",
                    a["cpu_us_per_probe"] / b["cpu_us_per_probe"],
                    0.34,
                ),
            ]
        else:
            notes.append(f"{_EXPORTER} is not installed: no comparison for TCP")
    finally:
        listener.terminate()
        listener.wait()
        if listener.stdout is not None:
            listener.stdout.close()
    bad = sum(
        TARGETS - run["outcomes"].get("ok", 0)
        for method in found.values()
        for run in method["isochrone"]["runs"]
    )
    bars.append(bar("probes of targets that answer told as not ok", bad, 0))
    return {
        "benchmark": "probe_rate",
        "machine": machine(),
        "load_average": {"before": load, "after": os.getloadavg()},
        "compared": f"{TARGETS:,} targets on 127.0.0.0/8, one core each, in turn; the exporter with {exported:,} targets a run",
        "methods": found,
        "notes": notes,
        "bars": bars,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        print(json.dumps(inside(*json.loads(arguments.inside))))
        return
    document = bench(5, 1, 1000) if arguments.quick else bench(15, 5, 5000)
    if arguments.json:
        print(json.dumps(document, indent=2))
        return
    for line in document["bars"]:
        print(f"{'ok  ' if line['ok'] else 'MISS'} {line['name']}: {line['value']} (bar {line['bar']})")
    for name, method in document["methods"].items():
        for who, told in method.items():
            print(
                f"{name} {who}: {told['probes_per_second']:,} probes/s, {told['cpu_us_per_probe']} us CPU a probe"
            )


if __name__ == "__main__":
    main()
