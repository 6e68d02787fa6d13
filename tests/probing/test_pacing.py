"""Rates and times of probes, on a clock of our own."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.model import Target
from isochrone.probing.limiter import Buckets, Cap, Limiter, network_of
from isochrone.probing.pacing import Pacer, Wait

EPSILON = 1e-6


class TokenBucket:
    """The same cap, kept the other way: tokens that come with time."""

    def __init__(self, cap):
        self.cap, self.tokens, self.at = cap, float(cap.burst), None

    def take(self, now):
        if self.at is not None:
            self.tokens = min(self.cap.burst, self.tokens + (now - self.at) * self.cap.rate)
        self.at = now
        self.tokens -= 1
        assert self.tokens > -EPSILON, f"over the cap at {now}"


def targets(count, network_size=1):
    return [
        Target(f"203.{n // network_size // 256}.{n // network_size % 256}.{n % network_size + 1}", 443, 1)
        for n in range(count)
    ]


def run_round(pacer, now, late=lambda: 0.0):
    """[(when, target)] of a round, on a clock that jumps from event to event."""
    probed = []
    while (step := pacer.next(now)) is not None:
        if isinstance(step, Wait):
            assert step.until > now
            now = step.until + late()
        else:
            probed.append((now, step))
    return probed


caps = st.builds(Cap, st.floats(0.01, 1000), st.integers(1, 20))


@given(caps, st.lists(st.floats(0, 100), max_size=60))
def test_a_bucket_is_a_token_bucket(cap, gaps):
    buckets, reference, now = Buckets(cap), TokenBucket(cap), 1000.0
    for gap in gaps:
        now = buckets.ready_at("key", now + gap * gap / 100 / cap.rate)
        buckets.take("key", now)
        reference.take(now)


@given(caps)
def test_a_burst_passes_at_once_and_the_rest_does_not(cap):
    buckets = Buckets(cap)
    for _ in range(cap.burst):
        assert buckets.ready_at(1, 50.0) == pytest.approx(50.0)
        buckets.take(1, 50.0)
    assert buckets.ready_at(1, 50.0) == pytest.approx(50 + 1 / cap.rate)
    assert buckets.ready_at(2, 50.0) == 50.0


def test_full_buckets_take_no_memory():
    buckets = Buckets(Cap(1000))
    for number in range(100_000):
        buckets.take(number, number * 0.01)
    assert len(buckets) < 10_000


@pytest.mark.parametrize("cap", [(0, 1), (-1, 1), (1, 0), (float("nan"), 1)])
def test_a_cap_that_lets_nothing_through_is_refused(cap):
    with pytest.raises(ValueError, match="a cap needs"):
        Cap(*cap)


def test_networks():
    a, b, c = (Target(f"203.0.113.{n}", 443, asn) for n, asn in ((1, 7), (200, 8), (3, 7)))
    assert network_of(a) == network_of(b)
    assert network_of(a, "asn") == network_of(c, "asn") != network_of(b, "asn")
    assert network_of(Target("2001:db8:1:2::1", 1, 1)) == network_of(Target("2001:db8:1:ffff::1", 1, 1))
    assert network_of(Target("2001:db8:1::1", 1, 1)) != network_of(Target("2001:db8:2::1", 1, 1))
    assert network_of(Target("www.example.com", 1, 0), "asn") == "www.example.com"


@given(
    st.integers(0, 60), st.integers(1, 10), st.randoms(use_true_random=False), caps, caps, caps,
    st.floats(0, 5), st.integers(1, 3),
)  # fmt: skip
def test_caps_hold_however_late_the_scheduler_is(count, size, rng, agent, network, target, lateness, methods):
    limiter = Limiter(agent=agent, network=network, target=target)
    buckets = defaultdict(lambda: TokenBucket(network)), defaultdict(lambda: TokenBucket(target))
    whole, seen = TokenBucket(agent), Counter()
    chosen = targets(count, size) * methods
    for number in range(3):
        start = 100.0 * number
        pacer = Pacer(chosen, start=start, span=20.0, end=start + 90.0, limiter=limiter, rng=rng)
        probed = run_round(pacer, start, lambda: rng.random() * lateness)
        assert len(probed) + pacer.left == count * methods
        assert max(Counter(t.address for _, t in probed).values(), default=0) <= methods
        seen.update(t.address for _, t in probed)
        for now, t in probed:
            assert start <= now <= start + 90.0
            whole.take(now)
            buckets[0][network_of(t)].take(now)
            buckets[1][t.address].take(now)
    assert max(seen.values(), default=0) <= 3 * methods


def test_a_target_listed_twice_keeps_to_its_cap_behind_a_crowded_network():
    limiter = Limiter(network=Cap(1.0), target=Cap(0.1))
    pacer = Pacer(targets(8, 8) * 3, start=0, span=2, end=100, limiter=limiter, rng=random.Random(1))
    reference = defaultdict(lambda: TokenBucket(Cap(0.1)))
    probed = run_round(pacer, 0.0)
    for now, t in probed:
        reference[t.address].take(now)
    assert len(probed) == 24


def test_a_busy_network_holds_nobody_else_back():
    crowded, free = targets(500, 250)[:250], [Target(f"198.51.{n}.1", 443, 1) for n in range(100)]
    limiter = Limiter(network=Cap(1.0))
    pacer = Pacer(crowded + free, start=0, span=60, end=100, limiter=limiter, rng=random.Random(1))
    probed = run_round(pacer, 0.0)
    assert sum(t in free for _, t in probed) == len(free)
    assert max(at for at, t in probed if t in free) <= 60
    assert 95 <= sum(t in crowded for _, t in probed) <= 101
    assert pacer.left == 350 - len(probed)


def test_large_rounds_are_not_slow():
    """40,000 targets held back by all caps: no step looks at all the others."""
    chosen = targets(40_000, 200)
    limiter = Limiter(agent=Cap(500, 20), network=Cap(3, 5), target=Cap(1))
    pacer = Pacer(chosen, start=0, span=60, end=200, limiter=limiter, rng=random.Random(2))
    assert len(run_round(pacer, 0.0)) == 40_000
