"""The model as a whole: what is planted is found again, what is missing is inferred, what is wrong does no harm."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.estimation.aggregate import aggregate
from isochrone.estimation.estimate import estimate, estimate_again
from isochrone.estimation.samples import SampleColumns
from isochrone.estimation.table import LEVELS
from isochrone.mapping.build import build_map
from isochrone.model import Origin
from isochrone.settings import Estimation, Steering
from isochrone_edge.latency_map import Facts, LatencyMap, letters

NOW = 1_800_000_000.0
ORIGINS = tuple(
    Origin(id=name, host=f"{name}.example.net", latitude=lat, longitude=lon)
    for name, lat, lon in (
        ("fra", 50.1, 8.7), ("lon", 51.5, -0.1), ("iad", 39.0, -77.5), ("pdx", 45.5, -122.7),
        ("sin", 1.3, 103.8), ("nrt", 35.7, 139.7), ("gru", -23.5, -46.6), ("syd", -33.9, 151.2),
    )
)  # fmt: skip
CITIES = (
    ("DE", 52.5, 13.4), ("DE", 48.1, 11.6), ("FR", 48.9, 2.4), ("GB", 53.5, -2.2), ("PL", 52.2, 21.0), ("ES", 40.4, -3.7),
    ("US", 40.7, -74.0), ("US", 41.9, -87.6), ("US", 32.8, -96.8), ("US", 37.8, -122.4), ("BR", -22.9, -43.2),
    ("JP", 34.7, 135.5), ("KR", 37.6, 127.0), ("ID", -6.2, 106.8), ("IN", 19.1, 72.9), ("AU", -37.8, 145.0),
)  # fmt: skip
FIGURE = np.arange(len(ORIGINS))


def km(latitude, longitude):
    phi, lam = np.radians(latitude), np.radians(longitude)
    here = np.array([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)])
    lat, lon = np.radians([o.latitude for o in ORIGINS]), np.radians([o.longitude for o in ORIGINS])
    there = np.array([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)])
    return 6371 * np.arccos(np.clip(here @ there, -1, 1))


def columns(rows):
    """Rows of (asn, country, origin index, ms[, latitude, longitude])."""
    n = len(rows)
    place = np.array([row[4:6] if len(row) > 4 else (np.nan, np.nan) for row in rows], np.float32).reshape(
        n, 2
    )
    return SampleColumns(
        origins=tuple(origin.id for origin in ORIGINS),
        timestamp=np.full(n, NOW - 60),
        origin=np.array([row[2] for row in rows], np.uint16),
        asn=np.array([row[0] for row in rows], np.uint32),
        country=np.array([letters(row[1]) or 0 for row in rows], np.uint16),
        colo=np.zeros(n, np.uint16),
        continent=np.zeros(n, np.uint16),
        rtt_ms=np.array([row[3] for row in rows], np.float32),
        latitude=place[:, 0],
        longitude=place[:, 1],
    )


def planted(networks=120, gaps=0.0, seed=1, samples=4):
    """Samples of networks around cities, and the round-trip times that they come from: {asn: (m,) ms}."""
    random, rows, truth = np.random.default_rng(seed), [], {}
    for asn in range(1, networks + 1):
        country, lat, lon = CITIES[asn % len(CITIES)]
        lat, lon = lat + random.normal(0, 0.3), lon + random.normal(0, 0.3)
        truth[asn] = (4 + km(lat, lon) * 0.0155 * random.lognormal(0, 0.05, len(ORIGINS))) * random.lognormal(
            0, 0.05
        )
        measured = random.random(len(ORIGINS)) >= gaps
        measured[random.integers(len(ORIGINS))] = True
        for origin in np.flatnonzero(measured):
            rows += [
                (asn, country, origin, truth[asn][origin] + noise, lat, lon)
                for noise in random.exponential(0.3, samples)
            ]
    return rows, truth


def table_of(rows, **more):
    return estimate(aggregate(columns(rows), ORIGINS, Estimation(), NOW), ORIGINS, Estimation(), **more)


def map_of(table):
    return LatencyMap(build_map(table, ORIGINS, settings=Steering(), now=NOW).data)


def row_of(table, level, key=0):
    at = np.flatnonzero((table.level == LEVELS.index(level)) & (table.key == key))
    assert len(at) == 1
    return int(at[0])


def first(live, **facts):
    return live.candidates(live.find(Facts(**facts))[1])[0].origin


def test_what_is_planted_is_found():
    rows, truth = planted()
    table = table_of(rows)
    for asn, rtt in truth.items():
        at = row_of(table, "asn", asn)
        assert table.rtt_ms[at] == pytest.approx(rtt, abs=1.5)
        assert (table.samples[at] == 4).all()


def test_gaps_are_inferred_and_marked():
    rows, truth = planted(gaps=0.4)
    table = table_of(rows)
    errors = []
    for asn, rtt in truth.items():
        at = row_of(table, "asn", asn)
        inferred = table.samples[at] == 0
        assert np.isfinite(table.rtt_ms[at]).all()
        errors += (np.abs(table.rtt_ms[at] - rtt) / (rtt + 20))[inferred].tolist()
        assert (table.spread_ms[at][inferred] > 0).all()
    assert len(errors) > 200
    assert np.median(errors) < 0.06
    assert np.quantile(errors, 0.95) < 0.25


def test_inferred_is_believed_less_than_measured():
    rows, _ = planted(gaps=0.4)
    table = table_of(rows)
    networks = table.level == LEVELS.index("asn")
    spread, measured = table.spread_ms[networks], table.samples[networks] > 0
    assert np.median(spread[~measured]) > 3 * np.median(spread[measured])


def test_unseen_places_are_served_by_the_squares_around_those_that_were_seen():
    live = map_of(table_of(planted()[0]))
    for country, lat, lon, nearest in (
        ("DE", 51.0, 7.0, "fra"),
        ("US", 38.0, -78.5, "iad"),
        ("JP", 35.2, 136.9, "nrt"),
    ):
        assert live.find(Facts(asn=99_999, country=country, latitude=lat, longitude=lon))[0] in {
            "grid",
            "country_grid",
        }
        assert first(live, asn=99_999, country=country, latitude=lat, longitude=lon) == nearest


def test_a_network_in_the_wrong_place_is_moved_and_keeps_its_figures():
    rows, _ = planted()
    rtt = 4 + km(50.1, 8.7) * 0.016
    lost = [(900, "AU", origin, rtt[origin], -33.8, 151.0) for origin in FIGURE for _ in range(4)]
    table = table_of(rows + lost)
    at = row_of(table, "asn", 900)
    assert table.counts["places_moved"] == 1
    assert table.counts["faster_than_light"] == 0
    assert table.rtt_ms[at].argmin() == 0
    assert table.rtt_ms[at] == pytest.approx(rtt, abs=2)
    assert first(map_of(table), asn=901, country="AU", latitude=-33.8, longitude=151.0) == "syd"


def test_one_impossible_origin_is_set_aside_and_inferred():
    rows, truth = planted()
    wrong = [row for row in rows if not (row[0] == 5 and row[2] == 7)]
    place = next(row[4:6] for row in rows if row[0] == 5)
    wrong += [(5, "ES", 7, 1.0, *place) for _ in range(4)]
    table = table_of(wrong)
    at = row_of(table, "asn", 5)
    assert table.counts["faster_than_light"] == 4
    assert table.samples[at, 7] == 0
    assert table.rtt_ms[at, 7] == pytest.approx(truth[5][7], rel=0.25)


def test_anycast_teaches_its_neighbours_nothing():
    rows, _ = planted()
    near_all = [
        (800 + n, "DE", origin, 3.0, 52.5, 13.4) for n in range(20) for origin in FIGURE for _ in range(4)
    ]
    quiet, loud = table_of(rows), table_of(rows + near_all)
    default = row_of(quiet, "default"), row_of(loud, "default")
    assert loud.rtt_ms[default[1]] == pytest.approx(quiet.rtt_ms[default[0]], rel=0.1)
    berlin = {"country": "DE", "latitude": 52.5, "longitude": 13.4}
    assert first(map_of(loud), asn=77_777, **berlin) == first(map_of(quiet), asn=77_777, **berlin)


def test_a_network_of_many_cities_is_no_network_that_is_near_everything():
    rows, _ = planted()
    wide = [
        (700, country, origin, 3 + km(lat, lon)[origin] * 0.016, lat, lon)
        for country, lat, lon in CITIES for origin in FIGURE for _ in range(2)
    ]  # fmt: skip
    live = map_of(table_of(rows + wide))
    for country, lat, lon, nearest in (
        ("DE", 50.1, 9.0, "fra"),
        ("JP", 35.0, 136.0, "nrt"),
        ("AU", -37.8, 145.0, "syd"),
    ):
        assert first(live, asn=700, country=country, latitude=lat, longitude=lon) == nearest
        assert first(live, asn=700, country=country) == nearest


def test_one_network_and_one_origin():
    table = table_of([(3320, "DE", 0, 12.0, 52.5, 13.4)] * 3)
    assert np.isfinite(table.rtt_ms).all()
    assert table.rtt_ms[row_of(table, "asn", 3320), 0] == pytest.approx(12.0, abs=1)
    assert first(map_of(table), asn=3320) == "fra"


def test_one_origin_in_all():
    origins = ORIGINS[:1]
    rows = [(asn, "DE", 0, 10.0 + asn, 52.5, 13.4) for asn in range(1, 9) for _ in range(3)]
    samples = columns(rows)
    samples = SampleColumns(
        origins=("fra",), **{n: getattr(samples, n) for n in SampleColumns.__slots__ if n != "origins"}
    )
    table = estimate(aggregate(samples, origins, Estimation(), NOW), origins, Estimation())
    assert table.rtt_ms.shape[1] == 1
    assert np.isfinite(table.rtt_ms).all()


def test_without_any_coordinates_countries_and_networks_decide():
    rows, truth = planted()
    live = map_of(table_of([row[:4] for row in rows]))
    for asn, rtt in truth.items():
        chosen = [origin.id for origin in ORIGINS].index(first(live, asn=asn))
        assert rtt[chosen] - rtt.min() < 1.5
    assert first(live, asn=88_888, country="DE") == "fra"
    assert first(live, asn=88_888, country="JP") == "nrt"


def test_without_coordinates_countries_or_colos():
    rows, truth = planted()
    table = table_of([(row[0], "", *row[2:4]) for row in rows])
    assert np.isfinite(table.rtt_ms).all()
    assert table.rtt_ms[row_of(table, "asn", 5)] == pytest.approx(truth[5], abs=2)


def test_thousands_of_networks_that_nobody_can_place():
    rows, _ = planted(networks=4000, gaps=0.5, samples=1)
    table = table_of([(row[0], "ZZ" if row[0] % 2 else "", *row[2:4]) for row in rows])
    assert np.isfinite(table.rtt_ms).all()


def test_too_few_samples_make_no_cell_of_their_own():
    table = table_of([*planted()[0], (555, "DE", 0, 9.0, 52.5, 13.4)])
    assert not ((table.level == LEVELS.index("asn")) & (table.key == 555)).any()


def test_nothing_at_all_gives_a_default_of_nothing():
    table = table_of([])
    assert len(table.level) == 1
    assert np.isnan(table.rtt_ms).all()


def test_old_figures_are_leaned_on_less():
    rows, _ = planted()
    odd = [row for row in rows if row[0] != 5]
    odd += [
        (row[0], row[1], row[2], row[3] + (25 if row[2] == 0 else 0), *row[4:]) for row in rows if row[0] == 5
    ]
    fresh, stale = table_of(odd), table_of(odd, horizon_seconds=5 * 365 * 86_400)
    at = row_of(fresh, "asn", 5), row_of(stale, "asn", 5)
    assert stale.rtt_ms[at[1], 0] < fresh.rtt_ms[at[0], 0] - 0.5
    assert (stale.spread_ms[at[1]] > fresh.spread_ms[at[0]]).all()


def test_the_order_of_samples_does_not_matter():
    rows, _ = planted(networks=40)
    turned = [rows[i] for i in np.random.default_rng(3).permutation(len(rows))]
    one, other = table_of(rows), table_of(turned)
    assert np.array_equal(one.key, other.key)
    assert np.allclose(one.rtt_ms, other.rtt_ms, atol=1e-3)
    assert np.array_equal(one.samples, other.samples)


def test_a_second_time_only_what_changed_is_made_anew():
    rows, _ = planted()
    before = aggregate(columns(rows), ORIGINS, Estimation(), NOW)
    table, standing = estimate_again(None, before, ORIGINS, Estimation())
    again, _ = estimate_again(standing, before, ORIGINS, Estimation())
    assert np.array_equal(table.rtt_ms, again.rtt_ms)
    slower = [
        (row[0], row[1], row[2], row[3] + (40 if row[0] == 7 and row[2] == 2 else 0), *row[4:])
        for row in rows
    ]
    slower += [(950, "DE", origin, 30.0 + 9 * origin, 48.1, 11.6) for origin in FIGURE]
    after = aggregate(columns(slower), ORIGINS, Estimation(), NOW)
    quick, _ = estimate_again(standing, after, ORIGINS, Estimation())
    whole = estimate(after, ORIGINS, Estimation())
    for asn in (7, 950):
        one, other = row_of(quick, "asn", asn), row_of(whole, "asn", asn)
        assert quick.rtt_ms[one] == pytest.approx(whole.rtt_ms[other], abs=1.0)
    assert quick.rtt_ms[row_of(quick, "asn", 8)] == pytest.approx(table.rtt_ms[row_of(table, "asn", 8)])


ROWS = st.lists(
    st.tuples(
        st.integers(1, 6),
        st.sampled_from(["DE", "US", "", "ZZ"]),
        st.integers(0, len(ORIGINS) - 1),
        st.floats(0.01, 60_000),
        st.one_of(st.just(float("nan")), st.floats(-90, 90)),
        st.floats(-180, 180),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=20, deadline=None)
@given(ROWS)
def test_whatever_the_samples_every_estimate_is_a_number(rows):
    rows = [row if row[4] == row[4] else row[:4] for row in rows]
    counted = aggregate(columns(rows), ORIGINS, Estimation(), NOW)
    one = estimate(counted, ORIGINS, Estimation())
    if counted.counts["used"]:
        assert np.isfinite(one.rtt_ms).all()
        assert np.isfinite(one.spread_ms).all()
        assert (one.rtt_ms >= 0).all()
        assert (one.spread_ms >= 0).all()
        LatencyMap(build_map(one, ORIGINS, settings=Steering(), now=NOW).data)
    other = estimate(counted, ORIGINS, Estimation())
    assert np.array_equal(one.rtt_ms, other.rtt_ms, equal_nan=True)
    assert np.array_equal(one.key, other.key)
