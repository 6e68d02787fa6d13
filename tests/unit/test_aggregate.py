"""Samples to aggregates and to the first simple estimates: exact quantiles, in whatever order the samples come."""

import math
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from isochrone.estimation import aggregate as aggregate_module
from isochrone.estimation import quantiles
from isochrone.estimation.aggregate import Aggregates, Aggregator, TooManyGroupsError, aggregate
from isochrone.estimation.estimate import estimate
from isochrone.estimation.places import Places
from isochrone.estimation.quantiles import pack, summarise
from isochrone.estimation.samples import SampleColumns
from isochrone.estimation.table import LEVELS
from isochrone.model import Origin, Sample
from isochrone.settings import Estimation
from isochrone_edge.latency_map import letters

NOW = 1_790_000_000.0
FRA = Origin(id="fra", host="fra.example.net", latitude=50.11, longitude=8.68)
NYC = Origin(id="nyc", host="nyc.example.net", latitude=40.71, longitude=-74.01)
ORIGINS = (FRA, NYC)
MANY = settings(max_examples=100, deadline=None)


def columns(*rows, origins=ORIGINS):
    """Columns of (asn, country, origin id, rtt_ms) and, if given, a dict of the other fields and `age`."""
    samples = []
    for asn, country, origin, rtt, *more in rows:
        extra = dict(more[0]) if more else {}
        samples.append(Sample(NOW - extra.pop("age", 0), origin, asn, country, rtt, **extra))
    found, rejects = SampleColumns.from_samples(samples, [o.id for o in origins], now=NOW)
    assert rejects.total == 0
    return found


def equal(a, b):
    """Whether two aggregates are the same to the last bit."""
    return all(
        np.array_equal(x, y, equal_nan=x.dtype.kind == "f") if isinstance(x, np.ndarray) else x == y
        for x, y in ((getattr(a, f.name), getattr(b, f.name)) for f in fields(Aggregates))
    )


def naive_quantile(values, weights, p):
    """The smallest value at which the weights up to it reach p of the total, in whole numbers throughout."""
    total, upto = sum(weights), 0
    need = max(1, math.ceil(p * total * (1 - 1e-12)))
    for value, weight in sorted(zip(values, weights, strict=True)):
        upto += weight
        if upto >= need:
            return value
    raise AssertionError


GROUPED = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 60_000_000), st.integers(0, 3)), max_size=60)


@MANY
@given(GROUPED, st.floats(0.01, 0.99), st.booleans())
def test_quantiles_against_a_naive_reference(rows, q, small_slices):
    weights = np.ones(quantiles.STEPS, np.int32)
    weights[:4] = [32768, 11000, 70, 1]
    group, value, step = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantiles, "_SLICE", 5 if small_slices else 1 << 21)
        summary = summarise(pack(group, value / 1000, step), q, weights)
    assert summary.group.tolist() == sorted({row[0] for row in rows})
    for at, number in enumerate(summary.group):
        mine = [(v, int(weights[s])) for g, v, s in rows if g == number]
        values, masses = zip(*mine, strict=True)
        assert summary.samples[at] == len(mine)
        assert summary.value_ms[at] == np.float32(naive_quantile(values, masses, q) * 0.001)
        half = math.sqrt(q * (1 - q) / (sum(masses) ** 2 / sum(m * m for m in masses)))
        low, high = (
            naive_quantile(values, masses, max(0, q - half)),
            naive_quantile(values, masses, min(1, q + half)),
        )
        wanted = values[0] if len(mine) == 1 else (high - low) / 2
        assert summary.spread_ms[at] == pytest.approx(wanted * 0.001, rel=1e-6)


def test_quantiles_against_numpy():
    random = np.random.default_rng(3)
    values = np.round(random.lognormal(3, 1, 5000), 3)
    weights = np.array([1000, 500, 250, 125], np.int32)
    steps = random.integers(0, 4, 5000)
    table = np.ones(quantiles.STEPS, np.int32)
    table[:4] = weights
    for q in (0.1, 0.25, 0.5, 0.9):
        wanted = np.quantile(values, q, method="inverted_cdf", weights=weights[steps])
        assert summarise(pack(np.zeros(5000, int), values, steps), q, table).value_ms[0] == np.float32(wanted)


def test_the_spread_is_one_standard_error():
    """Of 2,000 groups whose true quantile is known, the spread must hold about 68 of 100."""
    random = np.random.default_rng(4)
    truth = np.quantile(random.lognormal(3, 0.5, 1_000_000), 0.25)
    group = np.repeat(np.arange(2000), 40)
    summary = summarise(pack(group, random.lognormal(3, 0.5, len(group))), 0.25)
    held = np.abs(summary.value_ms - truth) <= summary.spread_ms
    assert 0.58 < held.mean() < 0.80


def test_quantiles_on_all_processors(monkeypatch):
    random = np.random.default_rng(5)
    keys = pack(random.integers(0, 50, 5000), random.random(5000) * 100, random.integers(0, 1024, 5000))
    weights = random.integers(1, 32768, quantiles.STEPS).astype(np.int32)
    wanted = summarise(keys.copy(), 0.25, weights)
    monkeypatch.setattr(quantiles, "_SLICE", 64)
    for workers in (1, 2, 3):
        monkeypatch.setattr(quantiles, "_WORKERS", workers)
        assert all(
            np.array_equal(a, b) for a, b in zip(summarise(keys.copy(), 0.25, weights), wanted, strict=True)
        )


def test_groups_and_their_figures():
    found = aggregate(
        columns(
            *((3320, "DE", "fra", rtt) for rtt in (9.0, 5.0, 7.0, 6.0, 8.0)),
            (3320, "DE", "nyc", 90.5),
            (3320, "FR", "fra", 15.0),
            (701, "US", "nyc", 4.0),
        ),
        ORIGINS,
        Estimation(),
        NOW,
    )
    assert found.origins == ("fra", "nyc")
    assert found.asn.tolist() == [701, 3320, 3320, 3320]
    assert found.country.tolist() == [letters(c) for c in ("US", "DE", "DE", "FR")]
    assert found.origin.tolist() == [1, 0, 1, 0]
    assert found.rtt_ms.tolist() == [4.0, 6.0, 90.5, 15.0]
    assert found.samples.tolist() == [1, 5, 1, 1]
    assert found.spread_ms.tolist() == [4.0, 1.0, 90.5, 15.0]  # (Q(0.44) - Q(0.06)) / 2 = (7 - 5) / 2
    assert found.pair.tolist() == [0, 1, 1, 2]
    assert found.pair_asn.tolist() == [701, 3320, 3320]
    assert found.counts == {"used": 8, "outside_window": 0, "faster_than_light": 0}


def test_recent_samples_weigh_more():
    old = [(1, "US", "nyc", 10.0, {"age": 86_000})] * 10
    new = [(1, "US", "nyc", 20.0)] * 4
    assert aggregate(columns(*old, *new), ORIGINS, Estimation(), NOW).rtt_ms.tolist() == [20.0]
    even = aggregate(columns(*old, *new), ORIGINS, Estimation(), NOW, half_life_seconds=1e9)
    assert even.rtt_ms.tolist() == [10.0]


def test_the_window_is_hard():
    rows = [(1, "US", "nyc", 10.0, {"age": age}) for age in (0, 3599, 3600, 3601, 90_000)]
    found = aggregate(columns(*rows), ORIGINS, Estimation(window_seconds=3600), NOW)
    assert found.samples.tolist() == [3]
    assert found.counts["outside_window"] == 2
    early = aggregate(columns((1, "US", "nyc", 10.0, {"age": -60})), ORIGINS, Estimation(), NOW)
    assert early.samples.tolist() == [1]  # an agent's clock is a little ahead


def test_faster_than_light_is_set_aside():
    new_york = {"latitude": 40.7, "longitude": -74.0}
    found = aggregate(
        columns(
            (1, "US", "fra", 55.0, new_york),  # 6,200 km: at least 62 ms in fibre
            (1, "US", "fra", 63.0, new_york),
            (1, "US", "nyc", 0.1, new_york),
            (1, "US", "fra", 1.0),  # nobody knows where
            (1, "US", "fra", 1.0, {"latitude": 50.9, "longitude": 8.7}),  # 88 km: within the slack
        ),
        ORIGINS,
        Estimation(),
        NOW,
    )
    assert found.counts == {"used": 4, "outside_window": 0, "faster_than_light": 1}
    assert found.samples.tolist() == [1, 1, 1, 1]  # in New York from both, elsewhere, nobody knows where


def test_places_of_networks():
    def at(latitude, longitude, colo, continent):
        return {"latitude": latitude, "longitude": longitude, "colo": colo, "continent": continent}

    found = aggregate(
        columns(
            (1, "US", "nyc", 30.0, at(40.0, -75.0, "EWR", "NA")),
            (1, "US", "nyc", 30.0, at(41.0, -76.0, "EWR", "NA")),
            (1, "US", "nyc", 30.0, at(29.123, -95.5, "IAH", "NA")),
            (2, "FJ", "nyc", 300.0, at(-17.5, 179.99, "", "OC")),
            (3, "", "nyc", 30.0),
            (4, "RU", "nyc", 300.0, at(90.0, -180.0, "DME", "")),
        ),
        ORIGINS,
        Estimation(),
        NOW,
    )
    assert found.pair_asn.tolist() == [1, 1, 2, 3, 4]  # AS1 in two squares of two degrees
    by_place = {
        (asn, None if np.isnan(latitude) else (round(float(latitude), 3), round(float(longitude), 2))): (colo, continent)
        for asn, latitude, longitude, colo, continent in zip(
            found.pair_asn.tolist(), found.pair_latitude, found.pair_longitude,
            found.pair_colo.tolist(), found.pair_continent.tolist(), strict=True,
        )
    }  # fmt: skip
    assert by_place == {
        (1, (40.0, -76.0)): (letters("EWR"), letters("NA")),
        (1, (29.12, -95.5)): (letters("IAH"), letters("NA")),
        (2, (-17.5, 179.99)): (0, letters("OC")),
        (3, None): (0, 0),
        (4, (90.0, -180.0)): (letters("DME"), 0),
    }


PLACED = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 3, 400_000]), st.sampled_from(["DE", "US", ""]), st.sampled_from(["fra", "nyc"]), st.floats(0.01, 500),
        st.fixed_dictionaries(
            {"age": st.sampled_from([0.0, 10.5, 4000.0, 86_399.0, 90_000.0]), "colo": st.sampled_from(["", "FRA", "EWR"]),
             "continent": st.sampled_from(["", "EU", "NA"]), "latitude": st.sampled_from([None, 50.0, 51.25, 40.0]),
             "longitude": st.sampled_from([None, 8.0, -74.0])}
        ),
    ),
    max_size=40,
)  # fmt: skip


@MANY
@given(PLACED, st.randoms(use_true_random=False), st.integers(1, 7))
def test_the_order_of_samples_changes_nothing(rows, random, size):
    wanted = aggregate(columns(*rows), ORIGINS, Estimation(), NOW)
    shuffled = list(rows)
    random.shuffle(shuffled)
    parts = [columns(*shuffled[i : i + size]) for i in range(0, len(shuffled), size)]
    assert equal(aggregate(parts, ORIGINS, Estimation(), NOW), wanted)


@MANY
@given(PLACED)
def test_places_against_a_naive_reference(rows):
    found = aggregate(columns(*rows), ORIGINS, Estimation(window_seconds=1e6), NOW)
    if found.counts["faster_than_light"]:
        return

    def square(latitude, longitude):
        if latitude is None or longitude is None or np.isnan(latitude) or np.isnan(longitude):
            return None
        return int((latitude + 90) // 2), int((longitude + 180) // 2)

    groups = {}
    for row in rows:
        key = row[0], letters(row[1]) or 0, square(row[4]["latitude"], row[4]["longitude"])
        groups.setdefault(key, []).append(row[4])
    seen = set()
    for at in range(len(found.pair_asn)):
        place = square(float(found.pair_latitude[at]), float(found.pair_longitude[at]))
        key = int(found.pair_asn[at]), int(found.pair_country[at]), place
        seen.add(key)
        mine = groups[key]
        for name, column in (("colo", found.pair_colo), ("continent", found.pair_continent)):
            codes = [letters(m[name]) for m in mine if m[name]]
            assert column[at] == (min(codes, key=lambda code: (-codes.count(code), code)) if codes else 0)
        for name, column in (("latitude", found.pair_latitude), ("longitude", found.pair_longitude)):
            values = sorted(m[name] for m in mine) if place is not None else []
            assert column[at] == values[(len(values) - 1) // 2] if values else np.isnan(column[at])
    assert seen == set(groups)


def test_pairs_that_share_a_slot_of_the_memo(monkeypatch):
    monkeypatch.setattr("isochrone.estimation.places._MEMO_BITS", 2)
    random = np.random.default_rng(6)
    places, seen = Places(), {}
    for _ in range(5):
        asn, country = (
            random.integers(1, 60, 200).astype(np.uint32),
            random.integers(0, 3, 200).astype(np.uint16),
        )
        nothing, nowhere = np.zeros(200, np.uint16), np.full(200, np.nan, np.float32)
        numbers = places.add(asn, country, nothing, nothing, nowhere, nowhere)
        for pair, number in zip(
            zip(asn.tolist(), country.tolist(), strict=True), numbers.tolist(), strict=True
        ):
            assert seen.setdefault(pair, number) == number
    table = places.finish()
    assert sorted(seen.values()) == list(range(len(seen)))
    assert list(zip(table.asn.tolist(), table.country.tolist(), strict=True)) == sorted(seen)
    assert all(table.asn[table.rank[number]] == asn for (asn, _), number in seen.items())


def test_absurdly_many_networks(monkeypatch):
    monkeypatch.setattr(aggregate_module, "GROUPS_MAX", 4)
    with pytest.raises(TooManyGroupsError):
        aggregate(columns(*((asn, "US", "nyc", 5.0) for asn in range(1, 5))), ORIGINS, Estimation(), NOW)


def test_columns_that_count_other_origins():
    with pytest.raises(ValueError, match="other origins"):
        Aggregator((NYC, FRA), Estimation(), NOW).add(columns((1, "US", "nyc", 5.0)))


def rows_of(table, level):
    """{key: (rtt of fra, rtt of nyc)} of one level."""
    chosen = np.flatnonzero(table.level == LEVELS.index(level))
    return {
        int(table.key[i]): tuple(None if np.isnan(x) else round(float(x), 3) for x in table.rtt_ms[i])
        for i in chosen
    }


def test_estimates_for_every_level():
    eu, na = {"colo": "FRA", "continent": "EU"}, {"colo": "EWR", "continent": "NA"}
    rows = [
        *[(10, "DE", "fra", 10.0, eu)] * 3,
        *[(10, "US", "fra", 90.0, na)] * 6,
        *[(20, "DE", "fra", 12.0, eu)] * 300,
        *[(30, "DE", "fra", 40.0, eu)] * 2,  # too few for a cell of its own
        *[(40, "", "nyc", 70.0)] * 3,
    ]
    table = estimate(aggregate(columns(*rows), ORIGINS, Estimation(), NOW), ORIGINS, Estimation())
    german, american = letters("DE"), letters("US")
    pairs, asns = rows_of(table, "asn_country"), rows_of(table, "asn")
    assert set(pairs) == {10 << 16 | german, 10 << 16 | american}
    assert set(asns) == {10, 20, 40}
    # What was measured often, without noise, is believed as it was.
    assert abs(pairs[10 << 16 | german][0] - 10.0) < 0.5
    assert abs(pairs[10 << 16 | american][0] - 90.0) < 0.5
    assert abs(asns[20][0] - 12.0) < 0.5
    assert abs(asns[40][1] - 70.0) < 0.5
    # Nothing is left unknown, and what was never measured says so.
    assert not np.isnan(table.rtt_ms).any()
    assert {"colo", "country", "continent", "grid", "default"} <= {
        LEVELS[n] for n in set(table.level.tolist())
    }
    own = table.samples[table.level == LEVELS.index("asn")]
    assert own.tolist() == [[9, 0], [300, 0], [0, 3]]
    country = table.level == LEVELS.index("country")
    assert table.samples[country & (table.key == german)].tolist() == [[305, 0]]
    assert table.samples[table.level == LEVELS.index("default")].tolist() == [[311, 3]]
    assert table.counts["used"] == len(rows)


def test_no_samples_leave_the_default_row():
    table = estimate(aggregate([], ORIGINS, Estimation(), NOW), ORIGINS, Estimation())
    assert rows_of(table, "default") == {0: (None, None)}
    assert len(table.level) == 1


@MANY
@given(PLACED, st.integers(1, 4))
@example(
    [(1, "DE", "fra", 0.5, {"age": 0.0, "latitude": 51.25, "longitude": 8.0})], 1
)  # nothing to learn from
def test_estimate_tables_are_whole(rows, least):
    chosen = Estimation(min_samples=least)
    table = estimate(aggregate(columns(*rows), ORIGINS, chosen, NOW), ORIGINS, chosen)
    n = len(table.level)
    assert table.rtt_ms.shape == table.samples.shape == table.spread_ms.shape == (n, 2)
    assert [str(x.dtype) for x in (table.level, table.key, table.rtt_ms, table.samples, table.spread_ms)] == [
        "uint8", "uint64", "float32", "int32", "float32",
    ]  # fmt: skip
    assert len(set(zip(table.level.tolist(), table.key.tolist(), strict=True))) == n
    assert (table.level == LEVELS.index("default")).sum() == 1
    assert not np.isnan(table.rtt_ms).any() or not table.counts["used"]
    assert np.array_equal(np.isnan(table.rtt_ms), np.isnan(table.spread_ms))
    assert (table.rtt_ms[~np.isnan(table.rtt_ms)] >= 0).all()
    own = np.isin(table.level, [LEVELS.index("asn"), LEVELS.index("asn_country")])
    assert (table.samples[own].sum(axis=1) >= least).all()
