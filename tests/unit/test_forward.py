"""One request along its candidates: tries, deadline, breaker."""

from hypothesis import given
from hypothesis import strategies as st

from isochrone_edge.breaker import EJECT_LIMIT, EJECT_SECONDS, FAILURES, Breaker
from isochrone_edge.forward import Limits, Unreachable, forward
from isochrone_edge.steer import Origin

ORIGINS = tuple(Origin(name, f"{name}.test") for name in "abcd")


class World:
    """A clock, and origins that take their time and then answer or fail."""

    def __init__(self, **behaviour):
        self.now, self.behaviour, self.sent = 100.0, behaviour, []

    def clock(self):
        return self.now

    async def send(self, origin, seconds):
        self.sent.append(origin.id)
        takes, what = self.behaviour.get(origin.id, (0.01, "ok"))
        if takes > seconds:
            self.now += seconds
            raise TimeoutError
        self.now += takes
        if what == "refused":
            raise Unreachable("refused")
        return (what, f"answer {what}") if isinstance(what, int) else (200, what)

    async def run(self, breaker=None, repeatable=True, **limits):
        return await forward(
            ORIGINS,
            self.send,
            repeatable=lambda sent: repeatable,
            breaker=breaker or Breaker(),
            clock=self.clock,
            limits=Limits(**limits),
        )


async def test_the_first_answers():
    world = World()
    done = await world.run()
    assert (done.response, done.origin.id, done.tries, world.sent) == ("ok", "a", 1, ["a"])


async def test_goes_on_to_the_next():
    done = await World(a=(0.01, "refused"), b=(0.01, "refused")).run()
    assert (done.origin.id, done.tries) == ("c", 3)


async def test_what_may_not_be_repeated_is_sent_once():
    world = World(a=(0.01, "refused"))
    done = await world.run(repeatable=False)
    assert (done.response, done.status, world.sent) == (None, 502, ["a"])


async def test_all_refused_is_502_and_all_hung_is_504_within_the_budget():
    refused = await World(**dict.fromkeys("abcd", (0.01, "refused"))).run()
    assert (refused.status, refused.tries) == (502, 4)
    world = World(**dict.fromkeys("abcd", (9.0, "ok")))
    hung = await world.run(budget=2.5, each_try=2.0)
    assert (hung.status, hung.tries) == (504, 2)
    assert world.now - 100.0 == 2.5


async def test_the_breaker_spares_later_requests_the_dead_origin():
    breaker, world = Breaker(), World(a=(0.01, "refused"))
    for _ in range(FAILURES):
        await world.run(breaker)
    world.sent.clear()
    done = await world.run(breaker)
    assert (done.origin.id, world.sent) == ("b", ["b"])


def test_a_request_that_would_not_go_there_first_does_not_spend_the_trial():
    breaker = Breaker()
    for _ in range(FAILURES):
        breaker.failed("b", 0.0)
    assert breaker.order("abcd", EJECT_SECONDS) == list("acdb")
    assert breaker.order("bacd", EJECT_SECONDS) == list("bacd")


def test_one_trial_brings_an_origin_back_and_failing_it_doubles_the_pause():
    breaker = Breaker()
    for _ in range(FAILURES):
        breaker.failed("a", 0.0)
    assert breaker.order("abcd", 1.0) == list("bcda")
    assert breaker.order("abcd", EJECT_SECONDS) == list("abcd")  # the trial
    assert breaker.order("abcd", EJECT_SECONDS) == list("bcda")  # only one
    breaker.failed("a", EJECT_SECONDS)
    assert breaker.ejected(EJECT_SECONDS) == {"a": 2 * EJECT_SECONDS}
    breaker.succeeded("a")
    assert breaker.order("abcd", EJECT_SECONDS) == list("abcd")
    assert not breaker.any_ejected()


@given(st.lists(st.tuples(st.sampled_from("abcdefg"), st.booleans(), st.floats(0, 100)), max_size=200))
def test_order_is_always_a_permutation_and_never_puts_more_than_half_back(events):
    breaker, now = Breaker(), 0.0
    for name, good, wait in events:
        now += wait
        breaker.succeeded(name) if good else breaker.failed(name, now)
        order = breaker.order("abcdefg", now)
        assert sorted(order) == list("abcdefg")
        assert order[:4] == sorted(order[:4])  # at least four of seven keep their rank among themselves
        assert all(seconds <= EJECT_LIMIT for seconds in breaker.ejected(now).values())
