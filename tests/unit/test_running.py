"""A window that is kept up to date says what one that is begun anew would say."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.estimation.aggregate import aggregate
from isochrone.estimation.running import Running
from isochrone.estimation.samples import SampleColumns
from isochrone.model import Origin
from isochrone.settings import Estimation

NOW = 1_800_000_000.0
ORIGINS = (
    Origin(id="fra", host="fra.example.net", latitude=50.1, longitude=8.7),
    Origin(id="nyc", host="nyc.example.net", latitude=40.7, longitude=-74.0),
)


def columns(rows, now):
    """Rows of (asn, origin, ms, age)."""
    n = len(rows)
    return SampleColumns(
        origins=("fra", "nyc"),
        timestamp=np.array([now - row[3] for row in rows], float),
        origin=np.array([row[1] for row in rows], np.uint16),
        asn=np.array([row[0] for row in rows], np.uint32),
        country=np.full(n, 482, np.uint16),
        colo=np.zeros(n, np.uint16),
        continent=np.zeros(n, np.uint16),
        rtt_ms=np.array([row[2] for row in rows], np.float32),
        latitude=np.full(n, np.nan, np.float32),
        longitude=np.full(n, np.nan, np.float32),
    )


ROWS = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 1), st.floats(1, 300), st.floats(0, 80_000)), max_size=30
)


@settings(deadline=None)
@given(ROWS, ROWS, ROWS, st.sampled_from([0.0, 300.0, 5000.0]))
def test_as_if_begun_anew(first, second, third, later):
    # Weights all alike, so that the steps in which ages are kept can't tip a quantile.
    running = Running(ORIGINS, Estimation(), NOW, half_life_seconds=1e12)
    running.add(columns(first, NOW))
    running.aggregates()
    running.add(columns(second, NOW))
    running.advance(NOW + later)
    running.add(columns(third, NOW + later))
    found = running.aggregates()
    touched = {(row[0], row[1]) for row in third}
    parts = [columns(first, NOW), columns(second, NOW), columns(third, NOW + later)]
    anew = aggregate(parts, ORIGINS, Estimation(), NOW + later, half_life_seconds=1e12)
    rows = {(a, o): i for i, (a, o) in enumerate(zip(anew.asn.tolist(), anew.origin.tolist(), strict=True))}
    for at, key in enumerate(zip(found.asn.tolist(), found.origin.tolist(), strict=True)):
        if key in touched or not later:
            i = rows[key]
            assert abs(int(found.samples[at]) - int(anew.samples[i])) <= (1 if later else 0)
            if found.samples[at] == anew.samples[i]:
                assert found.rtt_ms[at] == anew.rtt_ms[i]
                assert found.spread_ms[at] == anew.spread_ms[i]


def test_new_samples_of_a_touched_group_push_old_ones_out_of_the_window():
    running = Running(ORIGINS, Estimation(window_seconds=3600), NOW)
    running.add(columns([(1, 0, 10.0, 0), (1, 0, 10.0, 3000), (2, 0, 20.0, 0)], NOW))
    assert running.aggregates().samples.tolist() == [2, 1]
    running.advance(NOW + 1800)
    running.add(columns([(1, 0, 30.0, 0)], NOW + 1800))
    assert running.aggregates().samples.tolist() == [2, 1]
    running.advance(NOW + 1800)
    assert running.aggregates().samples.tolist() == [2, 1]


def test_time_does_not_go_back():
    running = Running(ORIGINS, Estimation(), NOW)
    with pytest.raises(ValueError, match="can't go back"):
        running.advance(NOW - 1)


def test_samples_of_other_origins_are_refused():
    running = Running(ORIGINS, Estimation(), NOW)
    with pytest.raises(ValueError, match="other origins"):
        running.add(replace(columns([], NOW), origins=("fra",)))
