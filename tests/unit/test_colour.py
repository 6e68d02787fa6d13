"""Who shares a colour: never another first choice, never round-trip times beyond the tolerance."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.mapping.cells import Cells
from isochrone.mapping.colour import colour
from isochrone.mapping.partition import Tolerance
from isochrone.mapping.rank import NONE, rank
from isochrone_edge.latency_map import HELD, INFERRED, RTT_UNIT_MS

TOLERANCE = Tolerance(2.0, 0.05)
UP = np.zeros(4, np.uint8)


def cells_of(rtt_ms, *, samples=None, flags=None, states=None, width=6):
    rtt_ms = np.asarray(rtt_ms, np.float32)
    n, m = rtt_ms.shape
    states = np.zeros(m, np.uint8) if states is None else np.asarray(states, np.uint8)
    samples = np.where(np.isnan(rtt_ms), 0, 9) if samples is None else np.asarray(samples)
    flags = np.zeros(n, np.uint8) if flags is None else np.asarray(flags, np.uint8)
    order = rank(rtt_ms, states, max_candidates=width)
    return Cells(rtt_ms, samples.astype(np.int32), order, flags, states)


def entries(coloured):
    """Each cell's colour as [(origin, rtt_ms, samples), ...] and flags."""
    palette = coloured.palette
    rows = []
    for number in coloured.colour:
        kept = [
            (int(o), round(float(u) * RTT_UNIT_MS, 2), int(s))
            for o, u, s in zip(
                palette.order[number], palette.units[number], palette.samples[number], strict=True
            )
            if o >= 0
        ]
        rows.append((kept, int(palette.flags[number])))
    return rows


def check(cells, coloured):
    """What has to hold for every cell."""
    loose = coloured.looseness
    for row, (candidates, flags) in enumerate(entries(coloured)):
        assert candidates[0][0] == cells.order[row, 0]
        assert flags == cells.flags[row]
        assert len({origin for origin, _, _ in candidates}) == len(candidates)
        for place, (origin, rtt_ms, samples) in enumerate(candidates):
            true = float(cells.rtt_ms[row, origin])
            factor = loose.first if place == 0 else loose.others
            allowed = factor * max(loose.tolerance.ms, loose.tolerance.share * true)
            assert abs(rtt_ms - true) <= allowed + 0.5 * RTT_UNIT_MS + 1e-3
            assert samples <= cells.samples[row, origin]
        if loose.exact:
            assert [origin for origin, _, _ in candidates] == [
                o for o in cells.order[row].tolist() if o != NONE
            ]
        beyond = [rtt_ms for origin, rtt_ms, _ in candidates[1:] if cells.states[origin] == 0]
        assert beyond == sorted(beyond)


tables = (
    st.integers(2, 6)
    .flatmap(
        lambda m: st.lists(
            st.lists(st.one_of(st.just(float("nan")), st.floats(0.5, 400, width=32)), min_size=m, max_size=m),
            min_size=1,
            max_size=40,
        )
    )
    .map(
        lambda rows: np.array(
            [row for row in rows if not np.all(np.isnan(row))] or [[1.0] * len(rows[0])], np.float32
        )
    )
)


@settings(max_examples=100, deadline=None)
@given(tables, st.sampled_from([3, 8, 1000]), st.integers(1, 6), st.randoms(use_true_random=False), st.data())
def test_every_cell_keeps_its_first_choice_and_its_times_within_the_tolerance(
    rtt_ms, budget, width, rng, data
):
    n, m = rtt_ms.shape
    flags = np.array([rng.choice((0, 0, 0, HELD, INFERRED)) for _ in range(n)], np.uint8)
    states = data.draw(st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=m, max_size=m))
    cells = cells_of(rtt_ms, flags=flags, states=states, width=width)
    coloured = colour(cells, TOLERANCE, budget)
    check(cells, coloured)
    # In another order, with itself as the map before: the same palette, the same colours.
    shuffled = list(range(n))
    rng.shuffle(shuffled)
    again = colour(cells.take(np.array(shuffled)), TOLERANCE, budget)
    assert entries(again) == [entries(coloured)[row] for row in shuffled]
    assert np.array_equal(again.palette.units, coloured.palette.units)
    kept = colour(cells, TOLERANCE, budget, (coloured.palette, coloured.colour))
    assert entries(kept) == entries(coloured)
    if coloured.looseness.exact:
        assert kept.kept == n
    assert len(coloured.palette) <= max(
        budget, len(np.unique(np.column_stack([cells.order[:, 0], flags]), axis=0))
    )


def test_a_table_of_holes_still_fits():
    rng = np.random.default_rng(11)
    rtt_ms = clustered(5000, 16, rng)
    rtt_ms[rng.random(rtt_ms.shape) < 0.6] = np.nan
    cells = cells_of(rtt_ms[~np.all(np.isnan(rtt_ms), axis=1)])
    coloured = colour(cells, TOLERANCE, 500)
    assert 300 < len(coloured.palette) <= 500
    check(cells, coloured)
    assert entries(colour(cells, TOLERANCE, 500, (coloured.palette, coloured.colour))) == entries(coloured)


def clustered(n, m, rng, noise=0.05, centres=40):
    base = rng.uniform(5, 250, (centres, m))
    rows = base[rng.integers(0, centres, n)]
    return (rows * (1 + rng.normal(0, noise, (n, m))) + rng.gamma(1, 3, (n, 1)) + 1).astype(np.float32)


@pytest.mark.parametrize("budget", [200, 600, 1500])
def test_a_large_table_fits_its_budget_and_the_tolerance_rises_for_it(budget):
    cells = cells_of(clustered(6000, 20, np.random.default_rng(7)))
    coloured = colour(cells, TOLERANCE, budget)
    assert len(coloured.palette) <= budget
    assert len(coloured.palette) > budget * 0.6
    assert not coloured.looseness.exact
    check(cells, coloured)


def test_a_smaller_budget_needs_a_larger_tolerance():
    cells = cells_of(clustered(4000, 16, np.random.default_rng(8)))
    factors = [colour(cells, TOLERANCE, budget).looseness.others for budget in (200, 500, 2000, 100_000)]
    assert factors == sorted(factors, reverse=True)
    assert factors[-1] == 1
    assert colour(cells, TOLERANCE, 100_000).looseness.exact


def test_merged_cells_still_get_nearly_as_good_candidates_as_their_own():
    cells = cells_of(clustered(4000, 20, np.random.default_rng(9)), width=4)
    coloured = colour(cells, TOLERANCE, 400)
    units = cells.rtt_ms
    for row, (candidates, _) in enumerate(entries(coloured)):
        own_last = float(units[row, cells.order[row, -1]])
        listed_last = max(float(units[row, origin]) for origin, _, _ in candidates[1:])
        assert listed_last <= own_last + 4 * coloured.looseness.others * max(2.0, 0.05 * listed_last) + 0.1


def test_cells_alike_share_and_others_do_not():
    rows = [[10.0, 50.0, 90.0], [10.5, 51.0, 91.0], [10.5, 51.0, 130.0], [51.0, 10.5, 91.0]]
    coloured = colour(cells_of(rows), TOLERANCE, 100)
    assert coloured.colour[0] == coloured.colour[1]
    assert len(set(coloured.colour.tolist())) == 3


def test_the_tolerance_never_changes_who_is_first_and_keeps_the_order_of_a_small_map():
    rows = [[10.0, 10.1, 10.2], [10.1, 10.0, 10.2], [10.0, 10.2, 10.1]]
    assert [
        [origin for origin, _, _ in candidates]
        for candidates, _ in entries(colour(cells_of(rows), TOLERANCE, 100))
    ] == [
        [0, 1, 2],
        [1, 0, 2],
        [0, 2, 1],
    ]


def test_the_time_of_a_colour_is_that_of_most_members():
    rows = [[10.0], [10.02], [10.04], [12.0]]
    assert entries(colour(cells_of(rows), TOLERANCE, 100))[0][0] == [(0, 10.02, 9)]
    rows = [[10.0], [10.0], [10.0], [13.8]]
    ((_, rtt_ms, _),) = entries(colour(cells_of(rows), TOLERANCE, 100))[0][0]
    assert 11.8 <= rtt_ms <= 12.0


def test_samples_of_a_colour_are_the_fewest_of_its_members():
    coloured = colour(cells_of([[10.0, 30.0], [10.0, 30.0]], samples=[[7, 0], [5, 9]]), TOLERANCE, 100)
    assert entries(coloured)[0][0] == [(0, 10.0, 5), (1, 30.0, 0)]


def test_flags_are_never_mixed():
    coloured = colour(cells_of([[10.0, 30.0]] * 3, flags=[0, HELD, INFERRED]), TOLERANCE, 100)
    assert len(set(coloured.colour.tolist())) == 3


def test_no_tolerance_means_only_equal_cells_share():
    coloured = colour(cells_of([[10.0, 30.0], [10.0, 30.0], [10.02, 30.0]]), Tolerance(0, 0), 100)
    assert coloured.colour[0] == coloured.colour[1] != coloured.colour[2]
    assert entries(coloured)[2][0] == [(0, 10.02, 9), (1, 30.0, 9)]


def test_origins_that_are_not_up_come_last_and_unknown_ones_not_at_all():
    rows = [[10.0, 20.0, 30.0, float("nan")]]
    cells = cells_of(rows, states=[2, 1, 0, 0])
    assert [origin for origin, _, _ in entries(colour(cells, TOLERANCE, 100))[0][0]] == [2, 1, 0]


def previous(rows, **changes):
    cells = cells_of(rows, **changes)
    coloured = colour(cells, TOLERANCE, 100)
    return coloured, (coloured.palette, coloured.colour)


def test_a_cell_within_the_tolerance_keeps_its_very_entry():
    before, known = previous([[10.0, 50.0, 90.0], [30.0, 50.0, 90.0]])
    after = colour(cells_of([[11.5, 48.5, 91.0], [30.0, 50.0, 90.0]]), TOLERANCE, 100, known)
    assert after.kept == 2
    assert entries(after) == entries(before)


@pytest.mark.parametrize(
    ("row", "samples", "why"),
    [
        ([12.5, 50.0, 90.0], [9, 9, 9], "the first has moved"),
        ([10.0, 50.0, 96.0], [9, 9, 9], "another has moved"),
        ([50.0, 10.0, 90.0], [9, 9, 9], "another is first"),
        ([10.0, 50.0, 90.0], [9, 9, 0], "what was measured is inferred now"),
        ([10.0, 50.0, 90.0], [4, 9, 9], "far fewer samples than the entry claims"),
        ([10.0, 50.0, float("nan")], [9, 9, 0], "one is not known any more"),
    ],
)
def test_a_cell_that_changed_gets_another_entry(row, samples, why):
    _, known = previous([[10.0, 50.0, 90.0]])
    cells = cells_of([row], samples=[samples])
    after = colour(cells, TOLERANCE, 100, known)
    assert after.kept == 0, why
    check(cells, after)


def test_a_new_candidate_that_is_better_is_not_left_out():
    _, known = previous([[10.0, 50.0, 90.0, 200.0]], width=2)
    after = colour(cells_of([[10.0, 50.0, 20.0, 200.0]], width=2), TOLERANCE, 100, known)
    assert [origin for origin, _, _ in entries(after)[0][0]] == [0, 2]


def test_a_held_entry_stays_and_a_new_hold_shows():
    _, known = previous([[10.0, 50.0]], flags=[HELD])
    assert entries(colour(cells_of([[10.0, 50.0]]), TOLERANCE, 100, known))[0][1] == HELD
    _, known = previous([[10.0, 50.0]])
    assert entries(colour(cells_of([[10.0, 50.0]], flags=[HELD]), TOLERANCE, 100, known))[0][1] == HELD


def test_rank_orders_by_state_then_time_then_place():
    nan = float("nan")
    rtt_ms = np.array([[3, 1, 1, nan], [nan, nan, nan, nan], [0, 5, 4, 3]], np.float32)
    assert rank(rtt_ms, UP, max_candidates=6).tolist() == [[1, 2, 0, NONE], [NONE] * 4, [0, 3, 2, 1]]
    assert rank(rtt_ms, UP, max_candidates=2).tolist() == [[1, 2], [NONE] * 2, [0, 3]]
    states = np.array([0, 2, 1, 0], np.uint8)
    assert rank(rtt_ms, states, max_candidates=3).tolist() == [[0, 2, 1], [NONE] * 3, [0, 3, 2]]
    first = np.array([0, NONE, 1], np.int16)
    assert rank(rtt_ms, UP, max_candidates=2, first=first).tolist() == [[0, 1], [NONE] * 2, [1, 0]]
