"""Which of several near origins a session belongs to."""

import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone_edge.bands import hashed, score, unit
from isochrone_edge.steer import Origin, Plan

WEIGHTS = st.dictionaries(st.sampled_from("abcdefg"), st.floats(0.05, 50), min_size=1)
SESSIONS = [f"session {n}" for n in range(300)]


def owner(session, weights):
    return max(weights, key=lambda name: score(hashed(session), hashed(name), weights[name]))


@given(WEIGHTS, st.sampled_from("abcdefg"), st.floats(1.01, 20))
def test_more_weight_only_ever_gains_sessions(weights, name, factor):
    weights.setdefault(name, 1.0)
    heavier = {**weights, name: weights[name] * factor}
    for session in SESSIONS[:60]:
        before, after = owner(session, weights), owner(session, heavier)
        assert after in (before, name)


@given(WEIGHTS, st.sampled_from("abcdefg"))
def test_an_origin_that_goes_moves_only_its_own_sessions(weights, name):
    left = {n: w for n, w in weights.items() if n != name}
    for session in SESSIONS[:60] if left else ():
        if owner(session, weights) != name:
            assert owner(session, left) == owner(session, weights)


def test_shares_are_the_weights():
    weights = {"a": 1.0, "b": 2.0, "c": 5.0}
    counts = collections.Counter(owner(f"s{n}", weights) for n in range(8000))
    for name, weight in weights.items():
        assert counts[name] / 8000 == pytest.approx(weight / 8, abs=0.02)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_unit_is_within_its_bounds(session, salt):
    assert 0 < unit(session, salt) < 1


def test_hashes_are_the_same_for_ever():
    """Isolates of two versions must agree, and so must two runs."""
    assert hashed("eu-1") == 0x26D74AEACDFE20B3
    assert unit(1, 2) == pytest.approx(0.1134503420571546)


@given(st.text(max_size=20), st.integers(1, 5))
def test_a_plan_for_a_session_keeps_all_origins_and_the_order_beyond_the_band(session, band):
    origins = tuple(
        Origin(name, f"{name}.test", weight=1.0 + n, salt=hashed(name)) for n, name in enumerate("abcde")
    )
    plan = Plan(origins, "asn:measured", 1, "v", band)
    ours = plan.for_session(session)
    assert sorted(ours.origins) == sorted(origins)
    assert ours.origins[band:] == origins[band:]
    assert ours == plan.for_session(session)
