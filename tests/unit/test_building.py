"""The daemon's builds: maps of a window that moves on say what one that is begun anew would say."""

import random

import pytest

from isochrone.mapping.build import NothingToBuildError
from isochrone.model import Outcome, Sample
from isochrone.service.building import Builder
from isochrone.settings import Settings
from isochrone.store.retention import forget
from isochrone.store.sqlite import Store
from isochrone_edge.latency_map import Facts

NOW = 1_800_000_000.0
PLACES = {"fra": (50.1, 8.7), "nyc": (40.7, -74.0), "sin": (1.35, 103.8)}
SETTINGS = Settings.model_validate(
    {
        "site": "www.example.com",
        "origins": [
            {"id": name, "host": f"{name}.example.net", "latitude": place[0], "longitude": place[1]}
            for name, place in PLACES.items()
        ],
    }
)
ORIGINS = SETTINGS.model_origins()


def batch(rng, asns, at, **first):
    """Ten samples from each origin for each network; `first` says how far the network is from an origin, ms."""
    return [
        Sample(
            timestamp=at - rng.random(), origin=origin, asn=asn, country="DE", colo="FRA", continent="EU",
            method="quic", outcome=Outcome.OK, rtt_ms=first.get(origin, 150.0) + rng.random(),
            latitude=50.0, longitude=8.0,
        )
        for asn in asns
        for origin in PLACES
        for _ in range(10)
    ]  # fmt: skip


def build(builder, now):
    return builder.build(endpoints={}, previous=None, now=now)


def chosen(built, asns):
    """The first choice of each network."""
    live = built.map
    return [live.candidates(live.find(Facts(asn=asn))[1])[0].origin for asn in asns]


def measured(built, asn):
    """The round-trip time to its first candidate, ms."""
    live = built.map
    return live.candidates(live.find(Facts(asn=asn))[1])[0].rtt_ms


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "store.db") as opened:
        yield opened


def test_going_on_is_as_good_as_beginning_anew(store):
    rng, asns = random.Random(1), range(100, 140)
    kept = Builder(store, SETTINGS, ORIGINS, keep_from=1)
    store.add_samples(batch(rng, asns, NOW, fra=10.0))
    build(kept, NOW)
    changes = ({"fra": 10.0, "nyc": 140.0}, {"fra": 10.0, "sin": 170.0}, {"fra": 5.0})
    for turn, change in enumerate(changes, 1):
        now = NOW + turn * 300
        store.add_samples(batch(rng, range(100, 103), now, **change))
        going_on, anew = build(kept, now), build(Builder(store, SETTINGS, ORIGINS), now)
        assert chosen(going_on, asns) == chosen(anew, asns)
        assert measured(going_on, 101) == pytest.approx(measured(anew, 101), abs=0.5)
        assert going_on.samples == anew.samples
    assert measured(going_on, 100) < 8 < 10 < measured(going_on, 139)


def test_many_samples_are_not_read_again(store):
    rng = random.Random(2)
    store.add_samples(batch(rng, [1, 2], NOW, fra=10.0))
    kept = Builder(store, SETTINGS, ORIGINS, keep_from=1)
    few = Builder(store, SETTINGS, ORIGINS)
    build(kept, NOW)
    build(few, NOW)
    forget(store, NOW + 1)
    store.add_samples(batch(rng, [2], NOW + 300, nyc=90.0))
    assert build(few, NOW + 300).samples == 30
    assert build(kept, NOW + 300).samples == 90
    begun_anew = build(kept, NOW + SETTINGS.estimation.window_seconds / 4)
    assert begun_anew.samples == 30


def test_samples_that_come_late_are_taken_and_each_once(store):
    rng = random.Random(3)
    kept = Builder(store, SETTINGS, ORIGINS, keep_from=1)
    store.add_samples(batch(rng, [1], NOW))
    assert build(kept, NOW).samples == 30
    store.add_samples(batch(rng, [1], NOW - 5000))  # an agent was cut off
    assert build(kept, NOW + 10).samples == 60
    assert build(kept, NOW + 20).samples == 60


def test_nothing_to_build_is_told_and_what_comes_then_is_built(store):
    kept = Builder(store, SETTINGS, ORIGINS, keep_from=1)
    with pytest.raises(NothingToBuildError, match="no target has answered"):
        build(kept, NOW)
    store.add_samples(batch(random.Random(4), [7], NOW))
    assert build(kept, NOW).samples == 30


def test_a_clock_that_goes_back_begins_anew(store):
    kept = Builder(store, SETTINGS, ORIGINS, keep_from=1)
    store.add_samples(batch(random.Random(5), [7], NOW))
    build(kept, NOW)
    assert build(kept, NOW - 60).samples == 30
