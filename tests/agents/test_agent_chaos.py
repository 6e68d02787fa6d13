"""Whatever dies, is cut, is full or goes wrong between an agent and its control plane: each sample is stored once.

Both are real processes, killed by SIGKILL again and again; the network between them is a relay that resets connections, also when the
control plane has stored a batch and its answer is lost; the disk of both is a small file system that is filled once; the agent's
clock is an hour ahead once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
from agents_support import (
    TOKENS,
    Forker,
    Relay,
    Targets,
    control_document,
    environment,
    status,
    until,
    write,
)

from isochrone.store.sqlite import Store
from ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.timeout(170)]

KILLS = 50  # of each
CUTS = 20
TARGETS = 40
AHEAD = 3600  # seconds
RSS_GROWTH = 60 << 20
NAME = re.compile(r"\d{16}-([0-9a-f]{32})-(\d+)\.batch\Z")

# The clock of this process is wrong, before anything looks at it.
WRONG_CLOCK = f"""
import time
right = time.time
time.time = lambda: right() + {AHEAD}
from isochrone.cli import main
main()
"""


class Watch:
    """Every batch that was ever in the spool, id -> samples: whatever has its name there is acknowledged by the agent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.seen: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            with contextlib.suppress(OSError):
                for name in os.listdir(self._folder):  # noqa: PTH208  quick and often
                    if found := NAME.match(name):
                        self.seen[found[1]] = int(found[2])


@contextlib.contextmanager
def small_disk(folder: Path):
    """Yields whether `folder` is a file system of its own, of 12 MiB."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "none", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, check=False, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take all the room that is left."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return path


async def test_each_sample_is_stored_once_whatever_happens(tmp_path):
    rng = random.Random(5)
    port = free_port()
    disk = tmp_path / "disk"
    with small_disk(disk) as mounted, Watch(disk / "spool") as watch, Forker() as forker:
        async with Targets(TARGETS) as targets, Relay(port) as relay:
            control = write(
                tmp_path / "isochrone.toml",
                control_document(
                    port=port,
                    targets=targets.entries,
                    state_dir=disk / "state",
                    probing={"interval_seconds": 0.3},
                ),
            )
            agent = write(
                tmp_path / "agent.toml",
                {
                    "control_plane": f"http://127.0.0.1:{relay.port}", "origin": "eu-1", "lab": True,
                    "spool_dir": str(disk / "spool"), "batch_seconds": 0.1, "poll_seconds": 1, "timeout_seconds": 5,
                },
            )  # fmt: skip
            control_log, agent_log = tmp_path / "control.log", tmp_path / "agent.log"

            def start_control():
                return forker.start("run", "-c", str(control), log=control_log)

            def start_agent():
                return forker.start(
                    "agent", "-c", str(agent), log=agent_log, ISOCHRONE_AGENT_TOKEN=TOKENS["eu-1"]
                )

            async def stored(more_than=0):
                told = await status(port)
                return told if told and told["agents"][0]["batches"] > more_than else None

            running = {"control": start_control(), "agent": start_agent()}
            await until(stored, log=agent_log)

            async def kill(name, start):
                for number in range(KILLS):
                    await asyncio.sleep(rng.uniform(0.05, 0.4))
                    if number % 10 == 9:  # now and then it gets as far as to work for a while
                        await asyncio.sleep(1.5)
                    await running[name].kill()
                    running[name] = start()

            async def trouble():
                for number in range(CUTS):
                    before = sum(relay.cuts.values())
                    await asyncio.sleep(rng.uniform(0.0, 0.5))
                    if number % 3 == 0:
                        await until(lambda: relay.carries)
                        relay.cut()
                        await asyncio.sleep(rng.uniform(0.0, 0.3))
                        relay.mend()
                    elif number % 3 == 1:
                        relay.breaking = 1
                    else:
                        relay.losing = 1
                    await until(lambda before=before: sum(relay.cuts.values()) > before, log=agent_log)

            await asyncio.gather(kill("control", start_control), kill("agent", start_agent), trouble())
            assert sum(relay.cuts.values()) >= CUTS
            assert min(relay.cuts.values()) >= CUTS // 3
            assert len(watch.seen) > 40

            # The disk is full: measuring goes on in memory, and nothing is forgotten.
            await until(stored, log=agent_log)
            memory = {name: process.rss() for name, process in running.items()}
            if mounted:
                filler = fill(disk)
                await until(lambda: "the disk is full" in agent_log.read_text(), log=agent_log)
                await asyncio.sleep(2)
                filler.unlink()
                await until(lambda: "can be written again" in agent_log.read_text(), log=agent_log)

            # An answer is lost after the batch was stored: the repeat is acknowledged, and stored no more.
            relay.losing = 3

            async def repeated():
                told = await status(port)
                return told and told["agents"][0]["repeats"]

            await until(repeated, log=agent_log)
            relay.losing = 0
            for name, process in running.items():
                assert process.alive(), name
                assert process.rss() - memory[name] < RSS_GROWTH, name

            # The clock is wrong, and the control plane is away until much was measured by it.
            await running["agent"].kill()
            relay.cut()
            with agent_log.open("ab") as log:
                wrong = subprocess.Popen(  # noqa: ASYNC220  ended below
                    [sys.executable, "-c", WRONG_CLOCK, "agent", "-c", str(agent)],
                    stdout=log, stderr=log, env=environment(ISOCHRONE_AGENT_TOKEN=TOKENS["eu-1"]),
                )  # fmt: skip
            try:
                known = len(watch.seen)
                await until(lambda: len(watch.seen) > known + 3, log=agent_log)
                relay.mend()
                await until(lambda: "ahead of the control plane's" in agent_log.read_text(), log=agent_log)
                known = len(watch.seen)
                await until(lambda: len(watch.seen) > known + 2, log=agent_log)
            finally:
                wrong.terminate()
                assert wrong.wait(30) == 0

            # The end of it: everything that waits is handed over.
            running["agent"] = start_agent()
            await until(
                lambda: _batches(disk / "spool") and "started" in agent_log.read_text(), log=agent_log
            )
            await running["agent"].kill(15)
            await until(lambda: _drained(forker, agent, agent_log, disk / "spool"), log=agent_log)
            await running["control"].kill(15)
            for log in (control_log, agent_log):
                assert "Traceback" not in log.read_text()

            _check(disk, watch.seen)


def _batches(spool: Path) -> list[str]:
    return [path.name for path in spool.iterdir() if NAME.match(path.name)]


async def _drained(forker, agent, log, spool) -> bool:
    """A round and everything sent; whether nothing is left."""
    process = forker.start("agent", "-c", str(agent), "--once", log=log, ISOCHRONE_AGENT_TOKEN=TOKENS["eu-1"])
    await until(lambda: not process.alive(), 60, log=log)
    return not _batches(spool)


def _check(disk: Path, seen: dict[str, int]) -> None:
    counts = json.loads((disk / "spool" / "state.json").read_text())
    assert [counts[name] for name in ("dropped", "refused", "damaged", "unkept")] == [0, 0, 0, 0]
    with Store.open(disk / "state" / "isochrone.db") as store:
        with store.reader() as connection:
            accepted = dict(connection.execute("SELECT id, samples FROM agent_batches"))
        columns = store.sample_columns()
    lost = {batch: count for batch, count in seen.items() if accepted.get(batch) != count}
    assert not lost, f"{len(lost)} of {len(seen)} batches were acknowledged by the agent and are not stored"
    assert len(columns) == sum(accepted.values())  # none twice: each id is there once, with all its samples
    rows = set(zip(columns.timestamp.tolist(), columns.asn.tolist(), strict=True))
    assert len(rows) == len(columns)
    assert abs(columns.timestamp - time.time()).max() < AHEAD / 2  # also what the wrong clock measured
