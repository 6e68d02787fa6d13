"""Rise and fall: what moves a promise and what must not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.model import Outcome, Standing
from isochrone.verification.standing import step, worst

OK, FAILED, PROBER = Outcome.OK, Outcome.TARGET_FAILED, Outcome.PROBER_FAILED
OUTCOMES = st.lists(st.sampled_from([OK, FAILED, PROBER]), max_size=60)
LIMITS = st.integers(1, 8)


def run(outcomes, *, rise=5, fall=3, start=None):
    standing, seen = start or Standing(), []
    for now, outcome in enumerate(outcomes, 1):
        standing = step(standing, outcome, now=float(now), rise=rise, fall=fall)
        seen.append(standing)
    return seen


def offered(outcomes, **limits):
    return [standing.offered for standing in run(outcomes, **limits)]


def test_the_first_good_check_is_enough_for_what_was_never_proved():
    assert offered([PROBER, FAILED, FAILED, FAILED, FAILED, OK]) == [False] * 5 + [True]


def test_withdrawn_after_three_failures_in_a_row():
    assert offered([OK, FAILED, FAILED, OK, FAILED, FAILED, FAILED]) == [True] * 6 + [False]


def test_offered_again_after_five_good_ones_in_a_row():
    down = [OK, FAILED, FAILED, FAILED]
    assert offered([*down, OK, OK, OK, OK])[-1] is False
    assert offered([*down, OK, OK, OK, OK, OK])[-1] is True
    assert offered([*down, OK, OK, OK, OK, FAILED, OK, OK, OK, OK])[-1] is False


def test_times_of_change():
    seen = run([OK, OK, FAILED, FAILED, FAILED, PROBER])
    assert [s.changed_at for s in seen] == [1, 1, 1, 1, 5, 5]
    assert seen[-1].checked_at == 5


@given(OUTCOMES, LIMITS, LIMITS)
def test_the_prober_s_own_trouble_changes_nothing(outcomes, rise, fall):
    heard = [outcome for outcome in outcomes if outcome is not PROBER]
    last = run(outcomes, rise=rise, fall=fall)[-1:] or [Standing()]
    same = run(heard, rise=rise, fall=fall)[-1:] or [Standing()]
    assert (last[0].offered, last[0].proved, last[0].good, last[0].failed) == (
        same[0].offered, same[0].proved, same[0].good, same[0].failed,
    )  # fmt: skip


@given(OUTCOMES, LIMITS, LIMITS)
def test_it_changes_only_for_a_reason(outcomes, rise, fall):
    before = Standing()
    for after, outcome in zip(run(outcomes, rise=rise, fall=fall), outcomes, strict=True):
        if after.offered and not before.offered:
            assert outcome is OK
            assert after.good >= rise or not before.proved
        if before.offered and not after.offered:
            assert outcome is FAILED
            assert after.failed == fall
        assert after.good == 0 or after.failed == 0
        assert after.proved or not after.offered
        assert after.offered or after.good < rise
        before = after


@given(OUTCOMES, LIMITS, LIMITS)
def test_rows_of_rise_and_fall_decide_whatever_came_before(outcomes, rise, fall):
    assert offered([*outcomes, *[OK] * rise], rise=rise, fall=fall)[-1] is True
    assert offered([*outcomes, *[FAILED] * fall], rise=rise, fall=fall)[-1] is False


@given(OUTCOMES, LIMITS, LIMITS, st.integers(0, 60))
def test_it_goes_on_where_a_restart_left_it(outcomes, rise, fall, cut):
    whole = run(outcomes, rise=rise, fall=fall)[-1:] or [Standing()]
    first = (run(outcomes[:cut], rise=rise, fall=fall)[-1:] or [Standing()])[0]
    rest = run(outcomes[cut:], rise=rise, fall=fall, start=first)[-1:] or [first]
    assert (rest[0].offered, rest[0].good, rest[0].failed) == (
        whole[0].offered,
        whole[0].good,
        whole[0].failed,
    )


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [([OK, OK], OK), ([OK, FAILED, PROBER], FAILED), ([OK, PROBER], OK), ([PROBER], PROBER), ([], PROBER)],
)
def test_several_checks_of_one_thing(outcomes, expected):
    assert worst(outcomes) is expected
