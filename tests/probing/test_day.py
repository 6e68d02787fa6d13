"""A day of schedule in simulated time: the real scheduler, jobs, rounds, caps, selection and store; only the network is played.

Twelve networks of a target each and one of eight, probed by two methods from three origins, every five minutes. In between a
target dies for some hours, a round of one origin hangs, and the host is suspended for a while.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import statistics
from collections import Counter, defaultdict

import pytest
from virtual_time import EPOCH, VirtualLoop, adopt

from isochrone.model import Origin, Outcome
from isochrone.probing import agent as agent_module
from isochrone.probing.agent import SPREAD, Agent
from isochrone.probing.keeping import Keeper
from isochrone.probing.limiter import network_of
from isochrone.probing.methods import limiter_of
from isochrone.probing.prober import ProbeResult
from isochrone.probing.target_source import TargetSource
from isochrone.service.choosing import Choosing
from isochrone.service.jobs import Jobs
from isochrone.service.measuring import Measuring
from isochrone.service.schedule import Recurring, scheduler_of
from isochrone.settings import OriginSettings, Probing, Settings, TargetSettings
from isochrone.store.sqlite import Store

DAY, HOUR, INTERVAL = 86_400.0, 3600.0, 300.0
ORIGINS = ("fra-1", "iad-1", "sin-1")
METHODS = ("one", "two")
DEAD = "203.0.1.1"
DEAD_HOURS = (3.0, 6.0)
HANGS_AT = 9 * HOUR + 1.0  # in the round that begins at 9:00, for one origin
SUSPENDED_AT, SUSPENDED = 15 * HOUR + 130.0, 20 * 60.0
PROBING = Probing(
    methods=("icmp", "tcp"), interval_seconds=INTERVAL, timeout_seconds=3, concurrency=16, targets_per_asn=20,
    lab=True, agent_rate=1.0, agent_burst=3, network_rate=0.2, network_burst=2, target_rate=0.1, target_burst=1,
)  # fmt: skip
TARGETS = [f"203.0.{n}.1" for n in range(12)] + [f"198.51.100.{n}" for n in range(1, 9)]


class PlayedProber:
    """What a network might answer, after a while; every probe is noted."""

    def __init__(self, method, origin, loop, noted):
        self.method, self.origin, self.loop, self.noted = method, origin, loop, noted
        self.rng = random.Random(f"{method} {origin}")

    async def run_once(self, target, *, source_address=None, timeout):
        at = self.loop.time()
        self.noted.append((at, self.origin, target, self.method))
        if self.origin == "iad-1" and HANGS_AT <= at < HANGS_AT + INTERVAL - 10:
            await asyncio.Event().wait()  # whatever the timeout says
        rtt = self.rng.uniform(0.001, 0.3)
        if self.rng.random() < 0.03 or (
            target.address == DEAD and DEAD_HOURS[0] <= at / HOUR < DEAD_HOURS[1]
        ):
            await asyncio.sleep(timeout)
            return ProbeResult(Outcome.TARGET_FAILED, detail="no answer within 3 s")
        await asyncio.sleep(rtt)
        return ProbeResult(Outcome.OK, rtt_ms=rtt * 1000)


class Day:
    """What a day brought."""

    def __init__(self):
        self.probes = []  # (loop time, origin, target, method)
        self.starts = []  # loop times at which rounds began
        self.seconds = 0.0  # of each round
        self.stored = {}
        self.tally = None
        self.records = {}
        self.stuck = []
        self.span = 0.0


@pytest.fixture(scope="module")
def day(tmp_path_factory):
    """The day, once for all tests of this file."""
    loop, told = VirtualLoop(), Day()
    origins = [
        OriginSettings(id=name, host=f"{name}.example.com", latitude=0, longitude=0) for name in ORIGINS
    ]
    targets = [TargetSettings(address=a, asn=3320 + n, country="DE") for n, a in enumerate(TARGETS)]
    settings = Settings(site="www.example.com", origins=origins, targets=targets, probing=PROBING)

    async def stuck():
        told.stuck.append(loop.time())
        await asyncio.Event().wait()

    async def run(work):
        await work()

    async def live(store):
        jobs = Jobs(loop.unix)
        agents = {
            name: Agent(
                Origin(id=name, host=name, latitude=0, longitude=0),
                *(PlayedProber(method, name, loop, told.probes) for method in METHODS),
                concurrency=PROBING.concurrency, timeout=PROBING.timeout_seconds, limiter=limiter_of(PROBING),
                rng=random.Random(name), clock=loop.unix,
            )
            for name in ORIGINS
        }  # fmt: skip
        choosing = Choosing(PROBING, TargetSource(settings), store)
        measuring = Measuring(agents, choosing, store, PROBING, loop.unix)
        told.seconds = measuring.round_seconds

        async def probe():
            told.starts.append(loop.time())
            await jobs.run("probe", measuring.deadline(told.seconds), lambda: measuring.round(told.seconds))

        scheduler = scheduler_of(
            [
                Recurring("probe", INTERVAL, probe),
                Recurring("stuck", 2 * HOUR, lambda: jobs.run("stuck", 5 * HOUR, stuck), 2 * HOUR),
            ],
            run=run,
            skipped=jobs.skipped,
        )
        scheduler.start()
        loop.call_at(SUSPENDED_AT, loop.sleep_through, SUSPENDED)
        await asyncio.sleep(DAY - 1.0)
        scheduler.shutdown(wait=False)
        told.tally, told.records = measuring.tally, jobs.records
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    with pytest.MonkeyPatch.context() as patch:
        adopt(patch, loop)
        patch.setattr(agent_module, "Keeper", lambda keep, _: Keeper(keep, 120.0))  # 2 s would sync all day
        with Store.open(tmp_path_factory.mktemp("day") / "isochrone.db") as store:
            try:
                loop.run_until_complete(live(store))
            finally:
                loop.close()
            told.stored = store.sample_counts()
            told.columns = store.sample_columns()
    told.span = min(told.seconds * SPREAD, told.seconds - PROBING.timeout_seconds)
    return told


def undisturbed(day):
    """Starts of rounds of which nothing is told but that they are like all the others."""
    return [at for at in day.starts if not SUSPENDED_AT - INTERVAL < at < SUSPENDED_AT + SUSPENDED + INTERVAL]


def test_rounds_begin_on_the_grid_from_the_first_to_the_last(day):
    # Datetimes count whole microseconds: the grid is kept to one of them, also after a day.
    late = [at - round(at / INTERVAL) * INTERVAL for at in undisturbed(day)]
    assert max(map(abs, late)) < 1e-4
    numbers = [round(at / INTERVAL) for at in undisturbed(day)]
    missed = set(range(int(DAY / INTERVAL))) - set(numbers)
    awake = SUSPENDED_AT + SUSPENDED
    assert all(SUSPENDED_AT - INTERVAL < n * INTERVAL < awake + INTERVAL for n in missed)
    assert len(numbers) == len(set(numbers))


def test_rounds_missed_in_a_suspended_host_are_made_up_for_once(day):
    awake = SUSPENDED_AT + SUSPENDED
    around = [at for at in day.starts if SUSPENDED_AT < at < awake + 2 * INTERVAL]
    late = [at for at in around if abs(at - round(at / INTERVAL) * INTERVAL) > 1.0]
    assert len(late) <= 1  # four rounds were missed, one is made up for
    assert len(around) <= 3
    assert any(abs(at % INTERVAL) < 1e-4 or abs(at % INTERVAL - INTERVAL) < 1e-4 for at in around)
    assert day.records["probe"].skipped >= 1


def test_a_hung_round_is_ended_and_told_and_the_next_one_is_on_time(day):
    assert 9 * HOUR + INTERVAL in [round(at, 3) for at in day.starts]
    hung = [p for p in day.probes if p[1] == "iad-1" and HANGS_AT <= p[0] < HANGS_AT + INTERVAL - 10]
    # Of the origin that hung nothing more than its slots was begun; all of it counts as missed and left no sample.
    assert 1 <= len(hung) <= PROBING.concurrency + 1
    assert day.tally.missed >= len(TARGETS) * len(METHODS) - 1
    at_nine = [p for p in day.probes if p[1] != "iad-1" and 9 * HOUR <= p[0] < 9 * HOUR + INTERVAL]
    assert len(at_nine) == 2 * len(TARGETS) * len(METHODS)  # the others' rounds went on


def test_a_job_that_hangs_is_ended_by_its_deadline_again_and_again(day):
    record = day.records["stuck"]
    assert record.deadlines == len(day.stuck) - 1 == 3  # the last one is under way at the day's end
    assert record.skipped >= 4  # its time came while it hung
    assert record.problem == "did not end within 18000 s and was stopped"
    gaps = [b - a for a, b in itertools.pairwise(day.stuck)]
    assert all(gap == pytest.approx(6 * HOUR, abs=1.0) for gap in gaps)  # the first turn after its deadline


def test_every_probe_that_ended_is_stored_once(day):
    # The round in which the host was suspended was ended from outside: its samples are kept, and not in the tally.
    assert (
        0
        < sum(day.stored.values()) - sum(day.tally.outcomes.values())
        < len(ORIGINS) * len(TARGETS) * len(METHODS)
    )
    assert sum(day.stored.values()) + day.tally.missed >= len(day.probes)
    began = Counter(round((at + EPOCH) * 1000) for at, *_ in day.probes)
    stored = Counter((day.columns.timestamp * 1000).round().astype(int).tolist())
    assert not stored - began


def in_any_window(times, rate, burst):
    """Whether within every window of w seconds there are at most burst + rate * w of the sorted times."""
    lowest = math.inf
    for number, at in enumerate(times):
        lowest = min(lowest, number - rate * at)
        if number - rate * at - lowest + 1 > burst + 1e-6:
            return False
    return True


def test_a_window_over_the_cap_is_found():
    assert in_any_window([0, 0, 1, 2, 3, 13, 13], 1.0, 2)
    assert not in_any_window([0, 0, 0.9], 1.0, 2)
    assert not in_any_window([0, 10, 10, 10], 1.0, 2)


def test_caps_are_never_exceeded_in_any_window(day):
    for name in ORIGINS:
        mine = [(at, target) for at, origin, target, _ in day.probes if origin == name]
        networks, targets = defaultdict(list), defaultdict(list)
        for at, target in mine:
            networks[network_of(target)].append(at)
            targets[target.address].append(at)
        assert in_any_window([at for at, _ in mine], PROBING.agent_rate, PROBING.agent_burst)
        assert len(networks) == 13
        assert all(in_any_window(t, PROBING.network_rate, PROBING.network_burst) for t in networks.values())
        assert all(in_any_window(t, PROBING.target_rate, PROBING.target_burst) for t in targets.values())
    crowded = sorted(
        at for at, origin, t, _ in day.probes if origin == "fra-1" and t.address.startswith("198")
    )
    assert not in_any_window(
        crowded, PROBING.network_rate * 0.7, 1
    )  # the cap was reached: it was it that held


def test_every_target_is_probed_by_each_method_in_each_round(day):
    starts = [at for at in undisturbed(day) if not HANGS_AT - INTERVAL < at < HANGS_AT + INTERVAL]
    counts = Counter()
    for at, origin, target, method in day.probes:
        counts[round(at // INTERVAL), origin, target.address, method] += 1
    for start in starts:
        for key in itertools.product(ORIGINS, TARGETS, METHODS):
            if key[1] != DEAD:
                assert counts[(round(start / INTERVAL), *key)] == 1, (start, key)


def test_a_dead_target_is_tried_ever_more_rarely_and_comes_back(day):
    rounds = sorted({
        int(at // INTERVAL) for at, _, t, _ in day.probes if t.address == DEAD and at < SUSPENDED_AT - INTERVAL
    })  # fmt: skip
    first, last = (round(hour * HOUR / INTERVAL) for hour in DEAD_HOURS)
    assert [n for n in rounds if n < first] == list(range(first))
    while_dead = [n for n in rounds if first <= n < last]
    gaps = [b - a for a, b in itertools.pairwise(while_dead)]
    assert gaps[:2] == [1, 1]
    assert gaps[2:] == sorted(gaps[2:])
    assert 3 <= len(gaps[2:]) <= 6
    back = next(n for n in rounds if n >= last)
    assert [n for n in rounds if n > back][:20] == list(range(back + 1, back + 21))


def kolmogorov(values, cdf):
    """The Kolmogorov-Smirnov distance of the values from a distribution."""
    ordered = sorted(values)
    size = len(ordered)
    return max(max(cdf(v) - n / size, (n + 1) / size - cdf(v)) for n, v in enumerate(ordered))


def offsets(day, origin):
    """Round -> offsets of the origin's probes outside the crowded network, where caps hardly ever hold one back."""
    found = defaultdict(list)
    starts = {round(at / INTERVAL) for at in undisturbed(day)}
    for at, whose, target, _ in day.probes:
        if whose == origin and round(at // INTERVAL) in starts and target.address.startswith("203."):
            found[round(at // INTERVAL)].append(at % INTERVAL)
    return found


@pytest.mark.parametrize("origin", ORIGINS)
def test_probes_are_a_poisson_process(day, origin):
    found = offsets(day, origin)
    times = [at for row in found.values() for at in row]
    assert len(times) > 6000
    assert kolmogorov(times, lambda t: min(1.0, t / day.span)) < 0.03
    # Gaps between neighbours are exponential, but that the round's end cuts the longest off.
    gaps = [b - a for row in found.values() for a, b in itertools.pairwise(sorted(row))]
    number = statistics.mean(len(row) for row in found.values())
    assert kolmogorov(gaps, lambda g: 1 - max(0.0, 1 - g / day.span) ** number) < 0.03
    # Index of dispersion of the counts in ten seconds: 1 for a Poisson process, 0 for a comb, above for bursts.
    width = 10.0
    counts = [
        sum(1 for at in row if k * width <= at < (k + 1) * width)
        for row in found.values()
        for k in range(1, int(day.span / width) - 1)
    ]
    assert 0.85 < statistics.variance(counts) / statistics.mean(counts) < 1.1


def test_origins_are_not_in_step(day):
    rows = []
    starts = sorted({round(at / INTERVAL) for at in undisturbed(day)})
    for origin in ORIGINS:
        found = offsets(day, origin)
        counts = Counter((number, int(at)) for number, row in found.items() for at in row)
        rows.append([counts[n, second] for n in starts for second in range(int(day.span))])
    for one, two in itertools.combinations(rows, 2):
        assert abs(statistics.correlation(one, two)) < 0.02
    together = [sum(counts) for counts in zip(*rows, strict=True)]
    assert statistics.variance(together) / statistics.mean(together) < 1.1


def test_no_round_is_like_the_one_before(day):
    found = offsets(day, "fra-1")
    orders = {
        number: tuple(
            t.address for at, o, t, _ in day.probes if o == "fra-1" and round(at // INTERVAL) == number
        )
        for number in list(found)[:10]
    }
    assert len(set(orders.values())) == 10
    early, late = list(found.values())[:70], list(found.values())[-70:]
    means = [statistics.mean(at for row in part for at in row) for part in (early, late)]
    assert abs(means[0] - means[1]) < 6.0  # no drift within the round either: three standard errors
