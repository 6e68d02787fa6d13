"""One request along its candidates: tries, deadline, breaker."""

from hypothesis import given
from hypothesis import strategies as st

from isochrone_edge.breaker import CUT_WEIGHT, EJECT_LIMIT, EJECT_SECONDS, FAILURES, Breaker
from isochrone_edge.forward import Blameless, Limits, Unreachable, forward
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

    async def run(self, breaker=None, repeatable=True, asks_to_wait=None, **limits):
        return await forward(
            ORIGINS,
            self.send,
            repeatable=lambda sent: repeatable,
            breaker=breaker or Breaker(),
            clock=self.clock,
            limits=Limits(**limits),
            asks_to_wait=asks_to_wait,
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


async def test_no_more_tries_than_configured():
    world = World(**dict.fromkeys("abcd", (0.01, "refused")))
    done = await world.run(tries=2)
    assert (done.status, done.tries, world.sent) == (502, 2, ["a", "b"])


async def test_a_budget_that_is_gone_is_504_whatever_ended_the_last_try():
    world = World(a=(2.5, "refused"))
    done = await world.run(repeatable=False, budget=2.5, each_try=9.0)
    assert (done.status, done.reason, world.sent) == (504, "deadline", ["a"])


async def test_a_last_try_that_times_out_is_504_though_there_is_time_left():
    done = await World(**dict.fromkeys("abcd", (9.0, "ok"))).run(budget=60.0, each_try=2.0)
    assert (done.status, done.reason, done.tries) == (504, "timeout", 4)
    done = await World(a=(9.0, "ok")).run(budget=60.0, each_try=2.0, repeatable=False)
    assert (done.status, done.reason, done.tries) == (504, "timeout", 1)


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


async def test_what_may_not_be_repeated_is_never_the_trial():
    breaker, world = Breaker(), World()
    for _ in range(FAILURES):
        breaker.failed("a", world.now)
    world.now += EJECT_SECONDS
    await world.run(breaker, repeatable=False)
    await world.run(breaker)
    assert world.sent == ["b", "a"]


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


def test_ejections_double_up_to_the_limit():
    breaker, now, lengths = Breaker(), 0.0, []
    for _ in range(FAILURES - 1):
        breaker.failed("a", now)
    for _ in range(6):
        breaker.failed("a", now)  # after the first: the trial
        lengths.append(breaker.ejected(now)["a"])
        now += lengths[-1]
        assert breaker.order("ab", now) == ["a", "b"]
    assert lengths == [30, 60, 120, 240, 300, 300]


def test_of_many_that_have_failed_half_keep_their_place():
    breaker = Breaker()
    for name in "abcde":
        breaker.failed(name, 0.0, FAILURES)
    assert breaker.order("abcdefg", 1.0) == list("defgabc")


@given(st.lists(st.tuples(st.sampled_from("abcdefg"), st.booleans(), st.floats(0, 100)), max_size=200))
def test_order_is_always_a_permutation_and_never_puts_more_than_half_back(events):
    breaker, now = Breaker(), 0.0
    for name, good, wait in events:
        now += wait
        for _ in range(FAILURES):
            breaker.succeeded(name) if good else breaker.failed(name, now)
        order = breaker.order("abcdefg", now)
        assert sorted(order) == list("abcdefg")
        assert order[:4] == sorted(order[:4])  # at least four of seven keep their rank among themselves
        assert all(seconds <= EJECT_LIMIT for seconds in breaker.ejected(now).values())


async def test_statuses_that_count_as_failures_go_on_and_the_last_one_is_given_when_all_fail():
    done = await World(a=(0.01, 503)).run(retry_statuses=frozenset({503}))
    assert (done.response, done.origin.id, done.tries, done.reason) == ("ok", "b", 2, "status")
    done = await World(**dict.fromkeys("abcd", (0.01, 503))).run(retry_statuses=frozenset({503}))
    assert (done.status, done.origin.id, done.tries) == (503, "d", 4)
    done = await World(a=(0.01, 503)).run()
    assert (done.status, done.tries) == (503, 1)


async def test_a_status_counts_when_another_origin_answers_the_same_request_well():
    statuses = {"retry_statuses": frozenset({503})}
    breaker, everywhere = Breaker(), World(**dict.fromkeys("abcd", (0.01, 503)))
    for repeatable in (True, False):  # the request's own fault, or unknown
        await everywhere.run(breaker, repeatable=repeatable, **statuses)
    assert not any(breaker.troubled(name) for name in "abcd")
    waits = World(a=(0.01, 503))
    await waits.run(breaker, asks_to_wait=lambda response: True, **statuses)
    assert not breaker.troubled("a")
    for _ in range(FAILURES):
        await World(a=(0.01, 503)).run(breaker, **statuses)
    assert breaker.ejected(100.0).keys() == {"a"}


async def test_a_failure_of_the_clients_body_ends_the_request_and_blames_nobody():
    async def send(origin, seconds):
        raise Blameless(408)

    breaker, world = Breaker(), World()
    done = await forward(
        ORIGINS, send, repeatable=lambda sent: True, breaker=breaker, clock=world.clock, limits=Limits()
    )
    assert (done.response, done.origin, done.tries, done.status, done.reason) == (
        None,
        None,
        1,
        408,
        "client:body",
    )
    assert not breaker.troubled("a")


@given(st.lists(st.tuples(st.sampled_from("abcdefg"), st.integers(0, 3), st.floats(0, 100)), max_size=200))
def test_no_more_than_half_are_ever_ejected(events):
    breaker, now, names = Breaker(), 0.0, "abcdefg"
    breaker.among(names)
    for name, what, wait in events:
        now += wait
        if what == 0:
            breaker.succeeded(name, now)
        elif what == 1 and name > "d":
            names = names.replace(name, "") or "a"
            breaker.among(names)
        else:
            breaker.failed(name, now, CUT_WEIGHT)
        ejected, order = breaker.ejected(now), breaker.order(names, now, trial=False)
        assert len(ejected) <= len(names) // 2
        back = [name for name in names if name in ejected]
        assert [name for name in order if name in back] == back
        assert sorted(order) == sorted(names)
        if what == 1 and name > "d":
            assert ejected.keys() <= set(names)


def test_newer_evidence_takes_the_place_of_older():
    breaker = Breaker()
    breaker.among("abc")
    assert [breaker.failed(name, now, FAILURES) for now, name in enumerate("abc")] == [True, True, True]
    assert breaker.ejected(2.0).keys() == {"c"}
    assert breaker.order("abc", 2.0) == ["a", "b", "c"]
    assert breaker.failed("a", 3.0)  # it failed before: once is enough now
    assert breaker.ejected(3.0).keys() == {"a"}
    assert breaker.order("abc", 3.0) == ["b", "c", "a"]


async def test_what_was_never_sent_is_sent_elsewhere():
    for status in (521, 522, 523, 525, 526, 530):
        sent = []
        world = World(a=(0.01, status))
        done = await forward(
            ORIGINS, world.send, repeatable=lambda was_sent, sent=sent: sent.append(was_sent) or not was_sent,
            breaker=Breaker(), clock=world.clock, limits=Limits(),
        )  # fmt: skip
        assert (done.origin.id, sent) == ("b", [False]), status


async def test_the_budget_runs_from_when_the_request_came():
    world = World(**dict.fromkeys("abcd", (0.4, "refused")))
    done = await forward(
        ORIGINS, world.send, repeatable=lambda sent: True, breaker=Breaker(), clock=world.clock,
        limits=Limits(budget=1.0), began=world.now - 0.5,
    )  # fmt: skip
    assert (done.status, done.reason, done.tries) == (504, "deadline", 2)


async def test_what_went_before_the_first_try_is_not_the_origins_time():
    for first, seconds in ((None, 0.25), (ORIGINS[0], 1.25)):  # an origin that was asked already has had it
        world = World(a=(0.25, "ok"))
        done = await forward(
            ORIGINS, world.send, repeatable=lambda sent: True, breaker=Breaker(), clock=world.clock,
            limits=Limits(), began=99.0, first=first,
        )  # fmt: skip
        assert (done.response, done.seconds) == ("ok", seconds)


async def test_an_origin_that_was_asked_already_comes_first_whatever_the_breaker_says():
    breaker, world = Breaker(), World(b=(0.01, "refused"))
    for _ in range(FAILURES):
        breaker.failed("b", 100.0)
    done = await forward(
        ORIGINS, world.send, repeatable=lambda sent: True, breaker=breaker, clock=world.clock, limits=Limits(),
        first=ORIGINS[1],
    )  # fmt: skip
    assert (world.sent, done.origin.id, done.tries) == (["b", "a"], "a", 2)


def test_failures_of_requests_that_were_under_way_do_not_lengthen_an_ejection():
    breaker = Breaker()
    for _ in range(40):
        breaker.failed("a", 1.0)
    assert breaker.ejected(1.0) == {"a": EJECT_SECONDS}


def test_two_answers_cut_off_eject_and_heads_do_not_make_up_for_them():
    breaker = Breaker()
    for n in range(2):
        assert not breaker.ejected(float(n))
        breaker.succeeded("a", float(n))
        breaker.failed("a", float(n), CUT_WEIGHT)
    assert breaker.ejected(3.0).keys() == {"a"}
    other = Breaker()
    other.failed("a", 0.0, CUT_WEIGHT)
    other.succeeded("a", 1.0, whole=True)
    other.failed("a", 2.0, CUT_WEIGHT)
    assert not other.ejected(2.0)
    other.succeeded("a", 2.0 + EJECT_SECONDS)  # so long ago that a head will do
    assert other.calm("b")
    other.failed("a", 40.0, CUT_WEIGHT)
    assert not other.ejected(40.0)


def test_earlier_ejections_are_remembered_for_a_while():
    breaker = Breaker()
    for wait, length in ((0.0, EJECT_SECONDS), (10.0, 2 * EJECT_SECONDS), (EJECT_LIMIT + 1, EJECT_SECONDS)):
        now = 1000.0 + wait
        breaker.succeeded("a", now)
        breaker.succeeded("a", now + 0.1)
        for _ in range(FAILURES):
            breaker.failed("a", now + 1)
        assert breaker.ejected(now + 1) == {"a": length}
        breaker.succeeded("a", 1000.0)


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.sampled_from(["ok", "refused", 503, "hang"])), max_size=60
    )
)
async def test_nothing_goes_past_the_budget_and_every_request_ends_with_an_answer_or_a_reason(events):
    breaker, behaviour = Breaker(), {}
    for name, what in events:
        behaviour[name] = (9.0, "ok") if what == "hang" else (0.05, what)
        world = World(**behaviour)
        done = await world.run(breaker, budget=1.0, each_try=0.4, retry_statuses=frozenset({503}))
        assert world.now - 100.0 <= 1.0 + 1e-9
        assert (done.response is None) == (done.origin is None)
        assert done.status in (200, 502, 503, 504)
        assert done.tries <= 4


async def test_a_client_that_shortens_the_budget_makes_no_origin_look_bad():
    breaker = Breaker()
    for _ in range(2 * FAILURES):
        done = await World(a=(0.05, "ok")).run(breaker, budget=0.005, shortened=True)
        assert done.status == 504
    assert not breaker.troubled("a")
    await World(a=(0.05, "refused")).run(breaker, budget=1.0, shortened=True)
    assert breaker.troubled("a")  # a refusal is one, however short the budget
    await World(b=(9.0, "ok"), a=(0.01, "refused")).run(breaker, budget=2.3, each_try=2.0, shortened=True)
    assert breaker.troubled("b")  # it had a whole try
