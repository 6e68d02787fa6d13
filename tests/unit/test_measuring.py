"""A round that says nothing about the network is not a good one."""

from __future__ import annotations

import random

import pytest

from isochrone.model import Origin, Outcome
from isochrone.probing.agent import Agent
from isochrone.probing.prober import ProbeResult
from isochrone.probing.target_source import TargetSource
from isochrone.service.choosing import Choosing
from isochrone.service.jobs import Jobs
from isochrone.service.measuring import Measuring, NothingLearntError
from isochrone.settings import OriginSettings, Probing, Settings, TargetSettings
from isochrone.store.sqlite import Store

PROBING = Probing(methods=("tcp",), interval_seconds=1, timeout_seconds=0.1, lab=True)


class Answers:
    """Answers as it is told to."""

    method = "tcp"

    def __init__(self, outcome):
        self.outcome = outcome

    async def run_once(self, target, *, source_address=None, timeout):
        rtt = 1.0 if self.outcome is Outcome.OK else None
        return ProbeResult(self.outcome, rtt, detail="" if rtt else "this host has no route to the address")


@pytest.fixture
def measuring(tmp_path):
    targets = [TargetSettings(address=f"192.0.2.{n}", asn=3320) for n in range(1, 4)]
    origin = OriginSettings(id="fra-1", host="fra.example.com", latitude=50.1, longitude=8.7)
    settings = Settings(site="www.example.com", origins=(origin,), targets=targets, probing=PROBING)
    prober = Answers(Outcome.OK)
    agent = Agent(
        Origin(id="fra-1", host="fra.example.com", latitude=50.1, longitude=8.7),
        prober, concurrency=4, timeout=0.1, rng=random.Random(1),
    )  # fmt: skip
    with Store.open(tmp_path / "isochrone.db") as store:
        choosing = Choosing(PROBING, TargetSource(settings), store)
        made = Measuring({"fra-1": agent}, choosing, store, PROBING, lambda: 1_790_000_000.0)
        yield made, prober, store


async def test_the_age_of_the_last_good_round_grows_while_nothing_is_learnt(measuring):
    made, prober, store = measuring
    now = 100.0
    jobs = Jobs(lambda: now)

    async def run():
        return await jobs.run("probe", 5, lambda: made.round(0.1), expected=(NothingLearntError,))

    assert await run() is None
    for outcome, good in ((Outcome.PROBER_FAILED, False), (Outcome.TARGET_FAILED, True)):
        now += 10
        prober.outcome = outcome
        assert ((await run()) is None) == good
        assert (jobs.records["probe"].last_success == now) == good
    now += 10
    prober.outcome = Outcome.PROBER_FAILED
    await run()
    record = jobs.records["probe"]
    assert record.failures == 2
    assert (
        record.problem == "none of 3 probes could be made, most often: this host has no route to the address"
    )
    assert store.sample_counts() == {"ok": 3, "target_failed": 3, "prober_failed": 6}
    assert made.tally.rounds == 4


async def test_a_round_in_which_nothing_was_planned_is_good(measuring):
    made, _, _ = measuring
    made._agents = {}  # agents elsewhere measure
    await made.round(0.1)
