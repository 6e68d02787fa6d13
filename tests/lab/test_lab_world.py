"""The world's data keeps its promises, and what is damaged is refused."""

import json
import math
from collections import Counter
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.lab.world import WorldError, load_world, parse_world

TEXT = (files("isochrone.lab") / "data" / "mesh_2023.json").read_text(encoding="utf-8")


def nearest_by_geography(world, client):
    def angle(origin):
        a, b = math.radians(client.latitude), math.radians(origin.latitude)
        along = math.radians(client.longitude - origin.longitude)
        return math.acos(min(1.0, math.sin(a) * math.sin(b) + math.cos(a) * math.cos(b) * math.cos(along)))

    return min(world.origins, key=angle).id


def test_data_is_what_the_demo_needs():
    world = load_world()
    assert len(world.origins) == 16
    assert len(world.clients) == 30
    assert len({c.country for c in world.clients}) >= 16
    assert {c.continent for c in world.clients} == {"AF", "AS", "EU", "NA", "OC", "SA"}
    assert len({world.best(c.asn) for c in world.clients}) >= 12
    margins = [sorted(row)[1] - min(row) for row in world.rtt_ms]
    assert sum(margin >= 3 for margin in margins) >= 25
    misled = [c for c in world.clients if world.regret(c.asn, nearest_by_geography(world, c)) >= 3]
    assert len(misled) >= 5
    assert all(len(c.colo) == 3 and c.colo.isupper() for c in world.clients)
    assert len(TEXT) < 60_000
    attribution = (files("isochrone.lab") / "data" / "ATTRIBUTION.md").read_text(encoding="utf-8")
    assert "RIPE NCC / RIPE Atlas" in attribution


def test_addresses_tell_everybody_apart():
    world = load_world()
    addresses = [o.agent_address for o in world.origins] + [o.service_address for o in world.origins]
    addresses += [o.direct_address for o in world.origins] + [c.address for c in world.clients]
    assert max(Counter(addresses).values()) == 1
    assert all(address.startswith("127.") for address in addresses)


@given(st.integers(1, 16), st.integers(1, 30))
def test_subsets_keep_addresses_and_times(origins, clients):
    whole = load_world()
    part = whole.subset(origins=origins, clients=clients)
    assert part.origins == whole.origins[:origins]
    assert part.clients == whole.clients[:clients]
    for client in part.clients:
        ranking = part.ranking(client.asn)
        rtts = [part.true_rtt(client.asn, origin) for origin in ranking]
        assert rtts == sorted(rtts)
        assert part.best(client.asn) == ranking[0]
        assert part.regret(client.asn, ranking[0]) == 0
        assert all(whole.true_rtt(client.asn, o) == part.true_rtt(client.asn, o) for o in ranking)


def test_the_demo_s_smallest_world_still_spreads():
    part = load_world().subset(origins=14, clients=24)
    assert len({part.best(c.asn) for c in part.clients}) >= 12
    assert len({c.country for c in part.clients}) >= 12


@pytest.mark.parametrize("count", [0, -1, 17, 1000])
def test_impossible_subsets_are_refused(count):
    with pytest.raises(WorldError, match="origins asked for"):
        load_world().subset(origins=count)


def test_unknown_ends_are_key_errors():
    world = load_world()
    for ask in (
        lambda: world.best(1),
        lambda: world.true_rtt(world.clients[0].asn, "x"),
        lambda: world.origin("x"),
    ):
        with pytest.raises(KeyError):
            ask()


def damaged(change):
    document = json.loads(TEXT)
    change(document)
    return json.dumps(document)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d: d.pop("clients"), "damaged"),
        (lambda d: d["clients"].clear(), "at least one"),
        (lambda d: d["clients"][0]["rtt_ms"].pop(), "one round-trip time"),
        (lambda d: d["clients"][0]["rtt_ms"].__setitem__(0, -1), "between 0 and 10000"),
        (lambda d: d["clients"][0]["rtt_ms"].__setitem__(0, math.nan), "between 0 and 10000"),
        (lambda d: d["clients"][0].__setitem__("asn", d["clients"][1]["asn"]), "one ASN"),
        (lambda d: d["origins"][0].__setitem__("id", d["origins"][1]["id"]), "one id"),
        (lambda d: d["origins"][0].__setitem__("latitude", "north"), "damaged"),
        (lambda d: d["origins"].__setitem__(0, None), "damaged"),
    ],
)
def test_damaged_worlds_are_refused(change, problem):
    with pytest.raises(WorldError, match=problem):
        parse_world(damaged(change))


@given(st.text() | st.integers(0, len(TEXT)).map(lambda cut: TEXT[:cut]))
def test_any_other_text_is_a_world_error_or_a_world(text):
    try:
        parse_world(text)
    except WorldError:
        return
    assert json.loads(text) == json.loads(TEXT)
