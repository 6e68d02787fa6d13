"""A first choice changes only for a gain that is worth it, and more seldom the more often it changed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.mapping.calm import (
    HOLD_SECONDS,
    MAX_HOLD_SECONDS,
    MAX_REMEMBERED,
    MEMORY_SECONDS,
    Memory,
    hold_seconds,
    settle,
)
from isochrone.mapping.rank import NONE

NOW = 1_800_000_000.0
NAN = float("nan")


def decide(rtt_ms, previous, *, spread=0.0, usable=None, memory=None, now=NOW, threshold=2.0, cell=7):
    """One cell; gives (first, held, changed, memory)."""
    rtt = np.array([rtt_ms], np.float32)
    usable = np.ones(rtt.shape[1], bool) if usable is None else np.array(usable)
    settled = settle(
        cells=np.array([cell], np.uint64),
        best=np.array(
            [np.nanargmin(np.where(usable, rtt[0], np.where(np.isnan(rtt[0]), np.nan, 1e6 + rtt[0])))],
            np.int16,
        ),
        previous=np.array([previous], np.int16),
        rtt_ms=rtt,
        spread_ms=np.broadcast_to(np.float32(spread), rtt.shape),
        usable=usable,
        memory=memory or Memory(),
        threshold_ms=threshold,
        now=now,
    )
    return int(settled.first[0]), bool(settled.held[0]), bool(settled.changed[0]), settled.memory


@pytest.mark.parametrize(
    ("rtt_ms", "spread", "first", "held"),
    [
        ([10.0, 9.0], 0.0, 0, True),  # a gain of 1 ms
        ([10.0, 8.0], 0.0, 0, True),  # exactly the threshold
        ([10.0, 7.9], 0.0, 1, False),
        ([10.0, 7.0], 2.2, 0, True),  # noise of 2.2 and 2.2 is 3.1
        ([10.0, 6.5], 2.2, 1, False),
        ([10.0, 11.0], 0.0, 0, False),  # nothing to gain
        ([10.0, 7.0], NAN, 1, False),  # a spread that nobody knows is none
    ],
)
def test_a_change_needs_a_gain_above_the_threshold_and_above_the_noise(rtt_ms, spread, first, held):
    got_first, got_held, changed, memory = decide(rtt_ms, 0, spread=spread)
    assert (got_first, got_held, changed) == (first, held, first == 1)
    assert len(memory) == changed


def test_a_new_cell_takes_the_best_and_that_is_no_change():
    first, held, changed, memory = decide([10.0, 9.0], NONE)
    assert (first, held, changed, len(memory)) == (1, False, False, 0)


@pytest.mark.parametrize(
    ("rtt_ms", "usable"),
    [([10.0, 50.0], [False, True]), ([NAN, 50.0], [True, True])],
    ids=["its origin is not up", "nothing is known of it"],
)
def test_what_has_to_move_moves_at_once_and_is_not_counted(rtt_ms, usable):
    memory = Memory().after(np.array([7], np.uint64), np.array([9]), NOW - 1)
    first, held, changed, after = decide(rtt_ms, 0, usable=usable, memory=memory)
    assert (first, held, changed) == (1, False, True)
    assert after.records["changes"].tolist() == [9]


def test_between_two_that_are_not_up_the_ordinary_rule_holds():
    assert decide([10.0, 9.0], 0, usable=[False, False])[:2] == (0, True)


def test_each_change_holds_the_cell_longer_and_a_quiet_day_is_forgiven():
    memory, now, current, gaps = Memory(), NOW, 0, []
    for _ in range(8):
        want = [1.0, 50.0] if current else [50.0, 1.0]
        start = now
        while True:
            first, _, changed, memory = decide(want, current, memory=memory, now=now)
            if changed:
                break
            now += 60
        gaps.append(now - start)
        current = first
    assert gaps[0] == 0
    assert gaps[1:] == [min(MAX_HOLD_SECONDS, HOLD_SECONDS * 2**n) for n in range(7)]
    later = now + MEMORY_SECONDS
    assert decide([50.0, 1.0] if current == 0 else [1.0, 50.0], current, memory=memory, now=later)[3].records[
        "changes"
    ].tolist() == [1]


def test_a_clock_that_went_back_does_not_hold_for_ever():
    memory = Memory().after(np.array([7], np.uint64), np.array([1]), NOW)
    assert decide([50.0, 1.0], 0, memory=memory, now=NOW - 5000)[1]
    assert decide([50.0, 1.0], 0, memory=memory, now=NOW + HOLD_SECONDS)[2]


def test_memory_survives_its_bytes_and_forgets_what_is_none():
    memory = Memory().after(np.array([3, 9], np.uint64), np.array([2, 70_000]), NOW)
    again = Memory.read(memory.bytes())
    assert again.records.tolist() == memory.records.tolist() == [(3, int(NOW), 2, 0), (9, int(NOW), 65535, 0)]
    assert len(Memory.read(memory.bytes()[16:] + memory.bytes()[:16])) == 0  # not in order
    assert len(Memory.read(memory.bytes()[:-1])) == 1
    assert len(Memory.read(b"")) == 0
    changes, age = again.of(np.array([1, 3, 9], np.uint64), NOW + 60)
    assert changes.tolist() == [0, 2, 65535]
    assert age.tolist() == [np.inf, 60, 60]


def test_memory_keeps_the_most_restless_cells():
    cells = np.arange(MAX_REMEMBERED + 100, dtype=np.uint64)
    memory = Memory().after(cells, np.where(cells < 100, 1, 2), NOW)
    assert memory.records["cell"].tolist() == cells[100:].tolist()
    assert len(memory.after(np.zeros(0, np.uint64), np.zeros(0, np.int64), NOW + MEMORY_SECONDS)) == 0


def test_holding_grows_to_its_limit():
    assert hold_seconds(np.array([0, 1, 2, 3, 100])).tolist() == [0, 900, 1800, 3600, MAX_HOLD_SECONDS]


cell = st.tuples(
    st.integers(-1, 2), st.lists(st.floats(1, 100, width=32), min_size=3, max_size=3), st.floats(0, 5)
)


@given(st.lists(cell, min_size=1, max_size=30), st.floats(0, 5))
def test_a_choice_is_the_best_or_the_one_before_and_never_a_worse_change(cells, threshold):
    rtt_ms = np.array([row for _, row, _ in cells], np.float32)
    spread = np.array([[s] * 3 for _, _, s in cells], np.float32)
    previous = np.array([before for before, _, _ in cells], np.int16)
    best = np.argmin(rtt_ms, axis=1).astype(np.int16)
    settled = settle(
        cells=np.arange(len(cells), dtype=np.uint64), best=best, previous=previous, rtt_ms=rtt_ms, spread_ms=spread,
        usable=np.ones(3, bool), memory=Memory(), threshold_ms=threshold, now=NOW,
    )  # fmt: skip
    for row, first in enumerate(settled.first.tolist()):
        assert first in {int(best[row]), int(previous[row])} - {NONE}
        if settled.changed[row]:
            gain = rtt_ms[row, previous[row]] - rtt_ms[row, first]
            assert gain > threshold
            assert gain >= 1.4142 * spread[row, 0] * 0.999
        assert settled.held[row] == (first != best[row])
