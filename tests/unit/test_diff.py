"""What moves between two maps."""

import pytest

from isochrone.mapping.diff import diff_maps, moved_share, same_content
from isochrone_edge.latency_map import LatencyMap, letters
from isochrone_edge.latency_map_writer import Colour, encode

NAMES = ("fra", "iad", "sin")


def make(
    asns,
    *,
    states=("up", "up", "up"),
    names=NAMES,
    at=1.8e9,
    default=0,
    alt_svc=None,
    rtt_ms=10.0,
    cells=None,
):
    """`asns`: ASN -> name of its first choice."""
    origins = [{"id": n, "host": f"{n}.example.com", "state": s} for n, s in zip(names, states, strict=True)]
    if alt_svc:
        origins[0]["alt_svc"] = {"authority": alt_svc, "ma": 300}
    palette = [Colour(((index, rtt_ms, 9),)) for index in range(len(names))]
    tables = {"asn": {asn: names.index(name) for asn, name in asns.items()}} | (cells or {})
    return LatencyMap(encode(built_at=at, origins=origins, palette=palette, default=default, cells=tables))


def test_nothing_moves_between_equal_maps():
    old, new = make({1: "fra", 2: "iad"}), make({1: "fra", 2: "iad"}, at=1.9e9)
    assert same_content(old, new)
    assert moved_share(old, new) == 0
    diff = diff_maps(old, new)
    assert diff.as_dict()["levels"]["asn"] == {"cells": 2, "added": 0, "removed": 0, "moved": 0}
    assert diff.rtt_drift_ms == {"mean": 0.0, "p50": 0.0, "p99": 0.0, "max": 0.0}


def test_each_asn_counts_alike_or_by_its_users():
    old = make({1: "fra", 2: "iad", 3: "sin", 4: "sin"})
    new = make({1: "iad", 2: "iad", 3: "sin", 4: "sin"})
    assert not same_content(old, new)
    assert moved_share(old, new) == 0.25
    assert moved_share(old, new, {1: 900, 2: 50, 3: 50}) == 0.9
    assert moved_share(old, new, {77: 5}) == 0.25  # weights of other networks say nothing
    assert diff_maps(old, new).levels["asn"].moved == 1


def test_a_removed_network_moves_to_the_default_and_a_new_one_does_not_count():
    old, new = make({1: "fra", 2: "iad"}), make({1: "fra", 3: "sin"})
    diff = diff_maps(old, new)
    assert (diff.levels["asn"].added, diff.levels["asn"].removed, diff.levels["asn"].moved) == (1, 1, 0)
    assert diff.moved_share == 0.5
    assert moved_share(make({1: "fra"}), make({1: "fra", 2: "iad", 3: "sin"})) == 0


def test_moves_that_an_outage_explains_are_told_apart():
    up = make({1: "fra", 2: "iad", 3: "sin"})
    down = make({1: "iad", 2: "iad", 3: "sin"}, states=("down", "up", "up"))
    assert moved_share(up, down) == 0
    assert moved_share(up, down, forced=True) == pytest.approx(1 / 3)
    assert moved_share(down, up) == 0  # and back
    other = make({1: "iad", 2: "sin", 3: "sin"}, states=("down", "up", "up"))
    assert moved_share(up, other) == pytest.approx(1 / 3)
    assert diff_maps(up, down).origins_changed == {"fra": {"state": ("up", "down")}}


def test_a_removed_origin_explains_moves_and_a_new_one_does_not():
    old, new = (
        make({1: "fra", 2: "iad"}),
        make({1: "iad", 2: "iad"}, names=("iad", "sin"), states=("up", "up")),
    )
    assert diff_maps(old, new).origins_removed == ("fra",)
    assert moved_share(old, new) == 0
    assert diff_maps(new, old).origins_added == ("fra",)
    assert moved_share(new, old) == 0.5


def test_numbers_of_origins_may_differ():
    old, new = make({1: "fra", 2: "sin"}), make({1: "fra", 2: "sin"}, names=NAMES[::-1], default=2)
    assert moved_share(old, new, forced=True) == 0
    assert not same_content(old, new)


def test_a_map_without_networks_is_compared_cell_by_cell():
    de, us = letters("DE"), letters("US")
    old, new = make({}, cells={"country": {de: 0, us: 1}}), make({}, cells={"country": {de: 2, us: 1}})
    assert moved_share(old, new) == pytest.approx(1 / 3)  # with the default
    assert diff_maps(old, new).levels["country"].moved == 1


def test_drift_and_promises_are_told():
    diff = diff_maps(make({1: "fra"}), make({1: "fra"}, rtt_ms=12.5, alt_svc="fra.example.com:443")).as_dict()
    assert diff["rtt_drift_ms"] == {"mean": 2.5, "p50": 2.5, "p99": 2.5, "max": 2.5}
    assert diff["origins"]["changed"] == {
        "fra": {"alt_svc": {"old": None, "new": {"authority": "fra.example.com:443", "ma": 300}}}
    }
