"""Estimates become a map: states, promises, calm, overrides, size."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pytest

from isochrone.estimation.table import LEVELS, EstimateTable
from isochrone.mapping.build import MAX_BYTES, EndpointState, NothingToBuildError, build_map
from isochrone.mapping.calm import HOLD_SECONDS, SECTION
from isochrone.mapping.override import Override, UnknownOriginError, overrides_of
from isochrone.model import AltSvcEndpoint, Level, Origin
from isochrone.settings import OverrideSettings, SettingsError, Steering, load
from isochrone_edge.latency_map import Facts, LatencyMap, letters

NOW = 1_800_000_000.0
NAN = float("nan")
NAMES = ("fra", "iad", "sin")
ORIGINS = tuple(
    Origin(
        id=n,
        host=f"{n}.example.com",
        latitude=1.0,
        longitude=2.0,
        alt_svc=AltSvcEndpoint(f"{n}.example.com:443", 300),
    )
    for n in NAMES
)
PAIR = 3320 << 16 | letters("US")
CELLS = {
    ("asn", 701): (95.0, 8.0, 220.0),
    ("asn", 3320): (10.0, 95.0, 160.0),
    ("asn_country", PAIR): (90.0, 12.0, 230.0),
    ("country", letters("DE")): (30.0, 96.0, 161.0),
    ("continent", letters("AS")): (170.0, 230.0, 4.0),
    ("default", 0): (60.0, 70.0, 120.0),
}


def table(cells=None, *, names=NAMES, spread=0.1, samples=20):
    cells = CELLS if cells is None else cells
    rtt_ms = np.array(list(cells.values()), np.float32)
    return EstimateTable(
        origins=names,
        level=np.array([LEVELS.index(level) for level, _ in cells], np.uint8),
        key=np.array([key for _, key in cells], np.uint64),
        rtt_ms=rtt_ms,
        samples=np.where(np.isnan(rtt_ms), 0, samples).astype(np.int32),
        spread_ms=np.where(np.isnan(rtt_ms), np.nan, spread).astype(np.float32),
    )


def build(
    cells=None,
    *,
    origins=ORIGINS,
    previous=None,
    now=NOW,
    states=None,
    overrides=(),
    settings=None,
    **changes,
):
    built = build_map(
        cells if isinstance(cells, EstimateTable) else table(cells, **changes),
        origins,
        settings=settings or Steering(),
        previous=previous,
        now=now,
        endpoint_states=states,
        overrides=overrides,
    )
    return LatencyMap(built.data), built.report


def first(live, **facts):
    level, colour = live.find(Facts(**facts))
    return level, live.candidates(colour)[0].origin


def ids(live, **facts):
    return [c.origin for c in live.candidates(live.find(Facts(**facts))[1])]


def override(level, key, origin="sin", expires=NOW + 60):
    return Override(level=Level(level), key=key, origin=origin, reason="test", expires=expires)


def test_a_client_gets_its_cell_and_the_candidates_in_order():
    live, report = build()
    assert ids(live, asn=701) == ["iad", "fra", "sin"]
    assert ids(live, asn=3320, country="US") == ["iad", "fra", "sin"]
    assert ids(live, asn=3320, country="DE") == ["fra", "iad", "sin"]
    assert first(live, asn=1, country="DE") == ("country", "fra")
    assert first(live, continent="AS") == ("continent", "sin")
    assert first(live) == ("default", "fra")
    assert live.candidates(live.find(Facts(asn=701))[1])[0] == ("iad", 8.0, 20)
    assert report.cells == {"asn_country": 1, "asn": 2, "country": 1, "continent": 1, "default": 1}
    assert (report.bytes, report.colours, report.version) == (live.size, live.colours, live.version)
    assert live.built_at == NOW
    assert report.as_dict()["tolerance"] == live.meta["tolerance"]


def test_built_again_it_has_the_same_content():
    live, report = build()
    assert not report.unchanged
    again, report = build(previous=live, now=NOW + 300)
    assert report.unchanged
    assert report.kept == 6
    assert again.content == live.content
    assert again.version != live.version
    shuffled = dict(reversed(CELLS.items()))
    assert build(shuffled)[0].content == live.content


def test_small_changes_within_the_tolerance_change_nothing():
    live, _ = build()
    moved = {cell: tuple(r + 1.5 for r in row) for cell, row in CELLS.items()}
    assert build(moved, previous=live)[1].unchanged
    assert build(moved)[0].content != live.content


def test_origins_are_told_with_state_and_only_proved_promises():
    origins = (*ORIGINS[:2], replace(ORIGINS[2], draining=True))
    states = {
        "fra": EndpointState(proved=True),
        "iad": EndpointState(up=False, proved=True),
        "sin": EndpointState(proved=True),
    }
    live, _ = build(origins=origins, states=states)
    assert [origin["state"] for origin in live.origins] == ["up", "down", "draining"]
    assert [origin.get("alt_svc") for origin in live.origins] == [
        {"authority": "fra.example.com:443", "ma": 300},
        None,
        None,
    ]
    assert live.origins[0] | {"alt_svc": None} == {
        "id": "fra", "host": "fra.example.com", "weight": 1.0, "latitude": 1.0, "longitude": 2.0, "state": "up", "alt_svc": None,
    }  # fmt: skip
    assert ids(live, asn=701) == ["fra", "sin", "iad"]


def test_an_outage_moves_its_cells_at_once_and_its_end_moves_them_back():
    live, _ = build()
    down, report = build(previous=live, states={"iad": EndpointState(up=False)}, now=NOW + 10)
    assert first(down, asn=701) == ("asn", "fra")
    assert report.changed == 2
    assert SECTION not in down.sections  # nobody's flapping
    back, report = build(previous=down, now=NOW + 20)
    assert first(back, asn=701) == ("asn", "iad")
    assert report.changed == 2


def test_origins_need_not_be_those_of_the_table():
    origins = (ORIGINS[2], replace(ORIGINS[0], id="new"), ORIGINS[1])
    live, _ = build(origins=origins)
    assert ids(live, asn=701) == ["iad", "sin"]  # nothing is known of "new"
    assert [o["id"] for o in live.origins] == ["sin", "new", "iad"]
    old, _ = build()
    live, report = build(origins=origins, previous=old)
    assert first(live, asn=3320) == ("asn", "iad")
    assert report.held == 0


def test_a_small_gain_is_not_worth_a_change():
    live, _ = build()
    closer = {**CELLS, ("asn", 701): (7.0, 8.0, 220.0)}
    held, report = build(closer, previous=live)
    assert ids(held, asn=701) == ["iad", "fra", "sin"]
    assert (report.held, report.changed) == (1, 0)
    assert held.reason(*held.find(Facts(asn=701))) == "asn:held"
    _, report = build(closer, previous=held)
    assert report.unchanged
    assert report.held == 1
    assert ids(build(closer)[0], asn=701) == ["fra", "iad", "sin"]


def test_a_change_is_remembered_in_the_map_and_holds_the_next():
    live, _ = build()
    better = {**CELLS, ("asn", 701): (3.0, 8.0, 220.0)}
    changed, report = build(better, previous=live, now=NOW)
    assert (first(changed, asn=701), report.changed) == (("asn", "fra"), 1)
    assert len(changed.sections[SECTION]) == 16
    held, report = build(previous=changed, now=NOW + HOLD_SECONDS - 1)
    assert (first(held, asn=701), report.held) == (("asn", "fra"), 1)
    after, report = build(previous=held, now=NOW + HOLD_SECONDS)
    assert (first(after, asn=701), report.changed) == (("asn", "iad"), 1)
    held, report = build(better, previous=after, now=NOW + HOLD_SECONDS + 2 * HOLD_SECONDS - 1)
    assert report.held == 1
    # The memory is no part of the content, so that forgetting publishes nothing.
    later, report = build(previous=after, now=NOW + 200_000)
    assert report.unchanged
    assert SECTION not in later.sections


def test_noise_can_be_larger_than_the_threshold():
    live, _ = build()
    better = {**CELLS, ("asn", 701): (3.0, 8.0, 220.0)}
    assert build(better, previous=live, spread=4.0)[1].held == 1


def test_a_cell_whose_origins_are_all_away_is_left_to_coarser_ones():
    cells = {**CELLS, ("asn", 9): (NAN, 5.0, NAN), ("asn", 10): (NAN, NAN, NAN)}
    live, report = build(cells, states={"iad": EndpointState(up=False)})
    assert first(live, asn=9) == first(live, asn=10) == ("default", "fra")
    assert report.dropped == 2
    live, report = build(cells, states={n: EndpointState(up=False) for n in NAMES})
    assert first(live, asn=9) == ("asn", "iad")  # nobody is up: then as measured
    assert report.dropped == 1


def test_inferred_first_choices_say_so():
    live, _ = build(samples=0)
    assert live.reason(*live.find(Facts(asn=701))) == "asn:inferred"


def test_an_override_holds_for_its_cell_and_an_asns_for_its_finer_cells_until_it_expires():
    overrides = (
        override("asn", 3320),
        override("asn_country", 701 << 16 | letters("US"), "fra"),
        override("colo", letters("NRT")),
    )
    live, report = build(overrides=overrides)
    assert first(live, asn=3320) == ("asn", "sin")
    assert first(live, asn=3320, country="US") == ("asn_country", "sin")
    assert first(live, asn=701) == ("asn", "iad")
    assert first(live, asn=701, country="US") == ("asn_country", "fra")
    assert first(live, colo="NRT") == ("colo", "sin")
    assert ids(live, asn=3320) == ["sin", "fra", "iad"]
    assert live.reason(*live.find(Facts(asn=3320))) == "asn:override"
    assert [applied.status for applied in report.overrides] == ["applied"] * 3
    # A cell that had no estimates borrows them, as inferred: of its ASN, its country or the default.
    assert live.candidates(live.find(Facts(asn=701, country="US"))[1]) == [
        ("fra", 95.0, 0),
        ("iad", 8.0, 0),
        ("sin", 220.0, 0),
    ]
    after, report = build(overrides=overrides, previous=live, now=NOW + 60)
    assert [applied.status for applied in report.overrides] == ["expired"] * 3
    assert after.content == build()[0].content  # at once, and without a trace


def test_a_finer_override_wins_over_its_asns():
    overrides = (override("asn_country", PAIR, "fra"), override("asn", 3320))
    live, _ = build(overrides=overrides)
    assert first(live, asn=3320, country="US") == ("asn_country", "fra")
    assert first(live, asn=3320) == ("asn", "sin")


def test_an_override_to_an_origin_that_is_not_up_is_suspended():
    live, report = build(overrides=(override("asn", 3320),), states={"sin": EndpointState(up=False)})
    assert first(live, asn=3320) == ("asn", "fra")
    assert report.as_dict()["overrides"][0]["status"] == "suspended"


def test_of_two_overrides_of_one_cell_the_last_that_can_holds_and_the_other_says_so():
    both = (override("asn", 3320, "iad"), override("colo", letters("FRA")), override("asn", 3320, "sin"))
    live, report = build(overrides=both)
    assert first(live, asn=3320) == ("asn", "sin")
    assert [applied.status for applied in report.overrides] == ["superseded", "applied", "applied"]
    live, report = build(overrides=both, states={"sin": EndpointState(up=False)})
    assert first(live, asn=3320) == ("asn", "iad")
    assert [applied.status for applied in report.overrides] == ["applied", "suspended", "suspended"]
    over = (override("asn", 3320, "iad"), override("asn", 3320, "sin", NOW - 1))
    assert [applied.status for applied in build(overrides=over)[1].overrides] == ["applied", "expired"]


def test_an_override_to_an_unknown_origin_is_an_error_unless_it_expired():
    with pytest.raises(
        UnknownOriginError, match="names the origin 'xyz', which is not there; known are fra, iad, sin"
    ):
        build(overrides=(override("asn", 1, "xyz"),))
    with pytest.raises(UnknownOriginError, match=r"^the override of asn_country 3320 US \("):
        build(overrides=(override("asn_country", PAIR, "xyz"),))
    with pytest.raises(UnknownOriginError, match=r"^the override of colo NRT \("):
        build(overrides=(override("colo", letters("NRT"), "xyz"),))
    assert build(overrides=(override("asn", 1, "xyz", NOW - 1),))[1].overrides[0].status == "expired"


def test_an_override_needs_no_estimate_of_its_origin():
    cells = {("asn", 1): (10.0, NAN, NAN), ("default", 0): (60.0, 70.0, NAN)}
    live, _ = build(cells, overrides=(override("asn", 1, "iad"), override("asn", 2, "sin")))
    assert live.candidates(live.find(Facts(asn=1))[1])[0] == ("iad", 70.0, 0)
    assert ids(live, asn=2) == ["sin", "fra", "iad"]


@pytest.mark.parametrize(
    ("cells", "error", "why"),
    [
        ({("default", 0): (NAN, NAN, NAN)}, NothingToBuildError, "no origin has an estimate"),
        ({("asn", 1): (1.0, 2.0, 3.0)}, ValueError, "no default cell"),
        ({("asn", 2**32): (1.0, 2.0, 3.0), ("default", 0): (1.0, 2.0, 3.0)}, ValueError, "can't hold"),
        (
            {("colo", 2**60): (1.0, 2.0, 3.0), ("default", 0): (1.0, 2.0, 3.0)},
            ValueError,
            "larger than any cell's",
        ),
    ],
)
def test_what_is_no_map_is_an_error(cells, error, why):
    with pytest.raises(error, match=why):
        build(cells)


def test_a_cell_that_is_there_twice_is_an_error():
    twice = table()
    twice = replace(twice, key=np.where(twice.key == 701, 3320, twice.key))
    with pytest.raises(ValueError, match="twice"):
        build(twice)


def test_the_whole_internet_fits():
    rng = np.random.default_rng(4)
    n, m = 92_000, 36
    base = rng.uniform(5, 250, (600, m))
    rtt_ms = (
        base[rng.integers(0, 600, n + 1)] * (1 + rng.normal(0, 0.05, (n + 1, m)))
        + rng.gamma(1, 3, (n + 1, 1))
        + 1
    )
    names = tuple(f"o{i}" for i in range(m))
    big = EstimateTable(
        origins=names,
        level=np.array([1] * n + [LEVELS.index("default")], np.uint8),
        key=np.array([*np.sort(rng.choice(400_000, n, replace=False)), 0], np.uint64),
        rtt_ms=rtt_ms.astype(np.float32),
        samples=rng.integers(1, 900, (n + 1, m)).astype(np.int32),
        spread_ms=np.full((n + 1, m), 0.5, np.float32),
    )
    origins = [Origin(id=name, host=f"{name}.example.com", latitude=0, longitude=0) for name in names]
    live, report = build(big, origins=origins)
    assert report.bytes <= MAX_BYTES
    assert report.tolerance["factor_first"] == 1
    for row in rng.integers(0, n, 500):
        assert first(live, asn=int(big.key[row])) == ("asn", names[int(np.argmin(big.rtt_ms[row]))])
    _, report = build(big, origins=origins, previous=live, now=NOW + 300)
    assert report.unchanged
    assert report.kept == n + 1


CONFIG = """
site = "www.example.com"
[[origins]]
id = "fra"
host = "fra.example.com"
latitude = 50
longitude = 8
[[overrides]]
asn = 3320
country = "US"
origin = "fra"
reason = "a cable is cut"
expires = 2027-01-31
[[overrides]]
{second}
"""


def test_overrides_from_the_configuration(tmp_path):
    path = tmp_path / "isochrone.toml"
    path.write_text(
        CONFIG.format(
            second='colo = "NRT"\norigin = "fra"\nreason = "x"\nexpires = 2027-01-31T12:00:00+02:00'
        )
    )
    given = overrides_of(load(path, {}).overrides)
    assert [(o.level, o.key) for o in given] == [("asn_country", PAIR), ("colo", letters("NRT"))]
    assert given[0].expires == datetime(2027, 2, 1, tzinfo=UTC).timestamp()  # through that day
    assert given[1].expires == datetime(2027, 1, 31, 10, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ('origin = "fra"\nreason = "x"\nexpires = 2027-01-31', "overrides[1]: nothing names no cell"),
        (
            'asn = 1\ncolo = "NRT"\norigin = "fra"\nreason = "x"\nexpires = 2027-01-31',
            "asn and colo names no cell",
        ),
        ('asn = 1\norigin = "fra"\nexpires = 2027-01-31', "overrides[1].reason: missing"),
        ('asn = 1\norigin = "fra"\nreason = "x"', "overrides[1].expires: missing"),
        (
            'asn = 1\norigin = "fra"\nreason = "x"\nexpires = "2027-01-31"',
            "overrides[1].expires: '2027-01-31' is not a date",
        ),
        (
            'asn = 1\norigin = "frb"\nreason = "x"\nexpires = 2027-01-31',
            "there is no origin 'frb'; did you mean 'fra'?",
        ),
        ('asm = 1\norigin = "fra"\nreason = "x"\nexpires = 2027-01-31', "did you mean 'asn'?"),
    ],
)
def test_bad_overrides_are_told(tmp_path, second, why):
    path = tmp_path / "isochrone.toml"
    path.write_text(CONFIG.format(second=second))
    with pytest.raises(SettingsError) as caught:
        load(path, {})
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("expires", "then"),
    [
        (date(2027, 1, 1), datetime(2027, 1, 2, tzinfo=UTC)),
        (datetime(2027, 1, 1, 3), datetime(2027, 1, 1, 3, tzinfo=UTC)),  # noqa: DTZ001  as TOML's local date-time
        (datetime(2027, 1, 1, 3, tzinfo=timezone(timedelta(hours=3))), datetime(2027, 1, 1, tzinfo=UTC)),
    ],
)
def test_expiry(expires, then):
    entry = OverrideSettings.model_validate({"asn": 1, "origin": "fra", "reason": "x", "expires": expires})
    assert entry.expires == then.timestamp()
