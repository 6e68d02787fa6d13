"""When a second origin is asked, and how often at most."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone_edge.breaker import Breaker
from isochrone_edge.forward import Hedging, Limits, Unreachable, forward
from isochrone_edge.hedge import BURST, MIN_SAMPLES, TokenBucket, Usual
from isochrone_edge.steer import Origin

ORIGINS = tuple(Origin(name, f"{name}.test") for name in "abc")


@given(st.lists(st.booleans(), max_size=2000))
def test_no_more_than_a_twentieth(wants):
    bucket, taken = TokenBucket(), 0
    for number, want in enumerate(wants, 1):
        bucket.earn()
        taken += want and bucket.take()
        assert taken <= 0.05 * number
    assert bucket.taken == taken


def test_what_is_saved_up_is_limited():
    bucket = TokenBucket()
    for _ in range(100_000):
        bucket.earn()
    assert sum(bucket.take() for _ in range(100)) == BURST


def test_the_p95_is_found_and_followed():
    rng, usual = random.Random(5), Usual()
    for _ in range(MIN_SAMPLES - 1):
        usual.add("a", 0.1)
    assert usual.p95("a") is None
    for scale in (0.1, 0.4, 0.1):
        for _ in range(4000):
            usual.add("a", rng.expovariate(1 / scale))
        assert usual.p95("a") == pytest.approx(3.0 * scale, rel=0.35)


class World:
    def __init__(self, **behaviour):
        self.behaviour, self.sent, self.cancelled = behaviour, [], []

    async def send(self, origin, seconds):
        self.sent.append(origin.id)
        try:
            delay, what = self.behaviour.get(origin.id, (0, 200))
            await asyncio.sleep(delay)
        except asyncio.CancelledError:
            self.cancelled.append(origin.id)
            raise
        if what == "refused":
            raise Unreachable
        return what, origin.id

    async def run(self, *, repeatable=True, known=True, tokens=5):
        usual, bucket = Usual(), TokenBucket()
        for _ in range(MIN_SAMPLES if known else 0):
            usual.add("a", 0.02)
        for _ in range(tokens * 20):
            bucket.earn()
        return await forward(
            ORIGINS,
            self.send,
            repeatable=lambda sent: repeatable,
            breaker=Breaker(),
            clock=asyncio.get_running_loop().time,
            limits=Limits(),
            hedging=Hedging(bucket, usual),
        )


async def test_the_second_wins_and_the_first_is_let_go():
    world = World(a=(5, 200))
    done = await world.run()
    assert (done.response, done.origin.id, done.tries, done.hedged) == ("b", "b", 2, True)
    await asyncio.sleep(0.01)
    assert world.cancelled == ["a"]


async def test_the_first_may_still_win():
    world = World(a=(0.06, 200), b=(5, 200))
    done = await world.run()
    assert (done.response, done.origin.id, done.tries, done.hedged) == ("a", "a", 2, True)
    await asyncio.sleep(0.01)
    assert world.cancelled == ["b"]


async def test_a_failure_of_one_waits_for_the_other_and_of_both_goes_on():
    done = await World(a=(0.05, "refused"), b=(0.1, 200)).run()
    assert (done.response, done.origin.id) == ("b", "b")
    done = await World(a=(0.05, "refused"), b=(0.03, "refused")).run()
    assert (done.response, done.origin.id) == ("c", "c")


@pytest.mark.parametrize("why", [{"repeatable": False}, {"known": False}, {"tokens": 0}])
async def test_no_hedge_without_leave(why):
    world = World(a=(0.08, 200))
    done = await world.run(**why)
    assert (done.response, world.sent, done.hedged) == ("a", ["a"], False)


async def test_each_try_is_measured_from_its_own_start():
    usual = Usual()
    await both((5, 200), (0.05, 200), usual=usual, first=1.0)  # b is asked after a's usual second
    assert 0.04 < usual._estimate["b"] < 0.9
    usual = Usual()
    await both((0.3, "refused"), (0.01, 200), usual=usual, first=5.0)  # b after a has failed
    assert usual._estimate["b"] < 0.25


async def both(a, b, *, shortened=False, usual=None, first=0.01):
    usual, bucket, breaker = usual or Usual(), TokenBucket(share=1), Breaker()
    for _ in range(MIN_SAMPLES):
        usual.add("a", first)
    done = await forward(
        ORIGINS[:2],
        World(a=a, b=b).send,
        repeatable=lambda sent: True,
        breaker=breaker,
        clock=asyncio.get_running_loop().time,
        limits=Limits(retry_statuses=frozenset({503}), shortened=shortened),
        hedging=Hedging(bucket, usual),
    )
    return done, {name for name in "ab" if breaker.troubled(name)}


async def test_a_bad_answer_of_the_second_does_not_win():
    done, troubled = await both((0.1, 200), (0.01, 503))
    assert (done.status, done.origin.id, done.tries, troubled) == (200, "a", 2, {"b"})
    done, troubled = await both((0.05, 503), (0.1, "refused"))
    # a stands clear: nobody has answered better.
    assert (done.status, done.origin.id, done.tries, troubled) == (503, "a", 2, {"b"})


async def test_each_is_blamed_for_its_own_failure():
    done, troubled = await both((0.05, "refused"), (0.1, "refused"))
    assert (done.status, done.tries, troubled) == (502, 2, {"a", "b"})
