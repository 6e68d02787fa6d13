"""Whose turn a thorough check is, and what it means for the cheap ones."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from isochrone.model import AltSvcEndpoint, Finding, Origin, Outcome, Severity
from isochrone.service.deepening import Deepening, due
from isochrone.settings import Verification
from isochrone.verification.http3 import EndpointCheck

IDS = [f"o-{n}" for n in range(12)]


@given(
    last=st.dictionaries(st.sampled_from(IDS), st.floats(0, 1000)),
    broken=st.sets(st.sampled_from(IDS)),
    now=st.floats(0, 2000),
    share=st.integers(0, 12),
)
def test_whose_turn_it_is(last, broken, now, share):
    turn = due(IDS, last, broken, now=now, interval=300, share=share)
    assert len(turn) == len(set(turn))
    assert broken <= set(turn)
    others = [origin for origin in turn if origin not in broken]
    assert len(others) <= share
    assert all(origin not in last or now - last[origin] >= 300 for origin in others)
    # Nobody who has waited longer is passed over.
    left = [origin for origin in IDS if origin not in turn]
    if len(others) == share:
        longest = max((last.get(origin, -1) for origin in others), default=-1)
        assert all(last.get(origin, -1) >= longest for origin in left)
    else:
        assert all(now - last[origin] < 300 for origin in left)


class Checker:
    """Gives what is put into it."""

    def __init__(self):
        self.next, self.asked = (), []

    def deadline(self, *, deep):
        return 10.0 + deep

    async def check(self, origin, *, now, deep):
        assert deep
        self.asked.append((origin.id, now))
        return self.next


def finding(kind, severity=Severity.ERROR):
    return Finding(
        check=f"http3.{kind}", subject="o-0 127.0.0.1:443", severity=severity, evidence="e", advice="a"
    )


def result(outcome, *findings, deep=True):
    return (
        EndpointCheck(
            origin="o-0", authority="o", address="127.0.0.1", outcome=outcome, deep=deep, findings=findings
        ),
    )


async def test_what_a_thorough_check_finds_holds_until_the_next_one():
    checker, times = Checker(), iter(range(0, 100_000, 30))
    origin = Origin(id="o-0", host="o", latitude=0, longitude=0, alt_svc=AltSvcEndpoint("o:443", 300))
    deep = Deepening([origin], checker, Verification(), lambda: next(times))
    assert (deep.pace, deep.deadline) == (300, 21)
    for _ in range(9):
        await deep.round()
    assert not checker.asked  # at the start there is other work to do
    assert deep.outcome("o-0", Outcome.OK) is Outcome.OK

    checker.next = result(Outcome.TARGET_FAILED, alternates := finding("region_alternates"))
    await deep.round()
    assert checker.asked
    assert deep.outcome("o-0", Outcome.OK) is Outcome.TARGET_FAILED
    assert deep.outcome("o-0", Outcome.PROBER_FAILED) is Outcome.PROBER_FAILED
    assert deep.beside("o-0", []) == (alternates,)
    assert deep.beside("o-0", [alternates]) == (alternates,)
    assert deep.beside("o-0", [finding("unreachable")]) == (finding("unreachable"),)

    # What was not thorough, because it failed before, and what this host could not check, change nothing.
    for nothing in (
        result(Outcome.TARGET_FAILED, finding("unreachable"), deep=False),
        result(Outcome.PROBER_FAILED, deep=False),
    ):
        checker.next = nothing
        await deep.round()
        assert deep.broken == {"o-0"}
        assert deep.beside("o-0", []) == (alternates,)

    checker.next = result(Outcome.OK, warning := finding("migration", Severity.WARNING))
    asked = len(checker.asked)
    await deep.round()
    assert len(checker.asked) == asked + 1  # the broken one was checked at once
    assert not deep.broken
    assert deep.outcome("o-0", Outcome.OK) is Outcome.OK
    assert deep.beside("o-0", []) == (warning,)
    await deep.round()
    assert len(checker.asked) == asked + 1  # a good one is left alone until the interval has passed


@given(
    count=st.integers(1, 40),
    every=st.floats(1, 60),
    deep_every=st.floats(60, 600),
    missed=st.sets(st.integers(0, 300), max_size=60),
)
@example(count=1, every=2.0, deep_every=61.0, missed=set())
async def test_turns_are_evenly_spread(count, every, deep_every, missed):
    checker, now = Checker(), [0.0]
    origins = [
        Origin(id=f"o-{n}", host="o", latitude=0, longitude=0, alt_svc=AltSvcEndpoint("o:443", 300))
        for n in range(count)
    ]
    settings = Verification(interval_seconds=every, deep_interval_seconds=deep_every)
    deep = Deepening(origins, checker, settings, lambda: now[0])
    most = every / deep.pace + 1  # a round's share
    for number in range(300):
        now[0] += every
        if number not in missed:
            before = len(checker.asked)
            await deep.round()
            assert len(checker.asked) - before <= most
    elapsed = now[0]
    assert len(checker.asked) <= elapsed / deep.pace + 1
    if not missed and elapsed > 3 * deep_every:
        assert len(checker.asked) >= elapsed / (deep.pace + every) - count - 1
        assert {origin for origin, _ in checker.asked} == {origin.id for origin in origins}
