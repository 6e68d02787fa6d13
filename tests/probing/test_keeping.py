"""What was measured is handed on while the round goes on, once, whatever fails meanwhile."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from isochrone.model import Origin, Outcome, Sample, Target
from isochrone.probing.agent import Agent
from isochrone.probing.keeping import Keeper, Measured
from isochrone.probing.prober import ProbeResult

TARGET = Target("192.0.2.1", 443, 64500)


def measured(number):
    return Measured(TARGET, Sample(float(number), "fra-1", 64500, "", 1.0))


def numbers(batch):
    return [int(one.sample.timestamp) for one in batch]


async def until(condition):
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to that")


class Shelf:
    """Keeps what it is given; fails as often as told, after or before a pause."""

    def __init__(self, failures=0, pause=0.0):
        self.kept, self.calls, self.failures, self.pause, self.now = [], 0, failures, pause, 0

    async def __call__(self, batch):
        self.calls += 1
        self.now += 1
        assert self.now == 1, "two calls at once"
        await asyncio.sleep(self.pause)
        self.now -= 1
        if self.failures:
            self.failures -= 1
            raise OSError("no room")
        self.kept += numbers(batch)


async def test_samples_are_kept_before_the_end():
    shelf = Shelf()
    async with Keeper(shelf, 0.01) as keeper:
        for number in range(5):
            keeper.add(measured(number))
        await until(lambda: shelf.kept == [0, 1, 2, 3, 4])
        keeper.add(measured(5))
    assert shelf.kept == [0, 1, 2, 3, 4, 5]


async def test_what_failed_is_offered_again_in_order_and_once():
    shelf = Shelf(failures=3)
    async with Keeper(shelf, 0.01) as keeper:
        for number in range(20):
            keeper.add(measured(number))
            await asyncio.sleep(0.005)
        await until(lambda: not shelf.failures)
    assert shelf.kept == list(range(20))


async def test_the_last_failure_is_told():
    with pytest.raises(OSError, match="no room"):
        async with Keeper(Shelf(failures=1), 60) as keeper:
            keeper.add(measured(0))
    async with Keeper(Shelf(failures=1), 60):
        pass  # nothing to keep, nothing to fail


async def test_a_call_under_way_survives_the_end_of_the_round():
    """Cancelled half-way, the same samples would be kept twice, or not at all."""
    shelf = Shelf(pause=0.2)

    async def work():
        async with Keeper(shelf, 0.01) as keeper:
            keeper.add(measured(0))
            await until(lambda: shelf.now)
            keeper.add(measured(1))
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await until(lambda: shelf.now)
    await asyncio.sleep(0.05)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert shelf.kept == [0, 1]


async def test_a_round_keeps_what_it_gives():
    class Quick:
        method = "tcp"

        async def run_once(self, target, *, source_address=None, timeout):
            return ProbeResult(outcome=Outcome.OK, rtt_ms=1.0)

    agent = Agent(Origin(id="fra-1", host="h", latitude=0, longitude=0), Quick(), concurrency=4, timeout=0.1)
    targets = [Target(f"192.0.2.{n}", 443, 64500) for n in range(9)]
    kept = []

    async def keep(batch):
        kept.extend(batch)

    done = await agent.run_round(targets, seconds=0.3, keep=keep)
    assert sorted(one.target.address for one in kept) == sorted(target.address for target in targets)
    assert sorted(one.sample.timestamp for one in kept) == sorted(s.timestamp for s in done.samples)
