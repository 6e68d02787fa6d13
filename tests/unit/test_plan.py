from __future__ import annotations

import zlib

import pytest

from isochrone.publishing.manifest import DamagedMapError, describe, encode, verified
from isochrone.publishing.plan import Action, Guards, Live, plan_publish, plan_rollback, same_routing
from isochrone_edge.latency_map import LatencyMap, MapError
from isochrone_edge.latency_map_writer import Colour
from isochrone_edge.latency_map_writer import encode as encode_map

NOW = 1_790_000_000.0
ASNS = (3320, 7018, 3215, 2856, 1136, 5089, 6830, 7922, 3356, 1299)


def a_map(built_at=NOW, *, moved=0, rtt_ms=10.0, states=("up", "up"), asns=ASNS, alt_svc=False):
    """Ten networks at fra; `moved` of them at iad."""
    origins = [
        {"id": name, "host": f"{name}.example.test", "weight": 1.0, "state": state}
        for name, state in zip(("fra", "iad"), states, strict=True)
    ]
    if alt_svc:
        origins[0]["alt_svc"] = {"authority": "fra.example.test:443", "ma": 300}
    palette = [
        Colour(((0, rtt_ms, 20), (1, rtt_ms + 80, 20))),
        Colour(((1, rtt_ms, 20), (0, rtt_ms + 80, 20))),
    ]
    cells = {"asn": {asn: int(number < moved) for number, asn in enumerate(asns)}}
    return encode_map(built_at=built_at, origins=origins, palette=palette, default=0, cells=cells)


def live_of(data, *, damage=""):
    manifest = describe(data)
    return Live(
        raw=encode(manifest), manifest=manifest, map=None if damage else LatencyMap(data), damage=damage
    )


def plan(new, live, *, now=NOW + 60, own=None, last_good=None, **guards):
    return plan_publish(new, live, now=now, guards=Guards(**guards), own=own, last_good=last_good)


def test_nothing_live_is_a_first_publish():
    made = plan(a_map(), Live(), own=())
    assert made.action is Action.FIRST
    assert made.writes
    assert made.document()["live"] is None


def test_the_same_content_is_nothing_until_it_is_old():
    live = live_of(a_map())
    made = plan(a_map(NOW + 60), live)
    assert (made.action, made.writes) == (Action.NOTHING, False)
    made = plan(a_map(NOW + 4000), live, now=NOW + 4000)
    assert (made.action, made.writes) == (Action.REFRESH, True)


def test_other_figures_alone_wait_for_the_refresh_when_a_daemon_publishes():
    live = live_of(a_map())
    assert plan(a_map(NOW + 60, rtt_ms=14), live, patient=True).action is Action.NOTHING
    assert plan(a_map(NOW + 4000, rtt_ms=14), live, now=NOW + 4000, patient=True).action is Action.REFRESH
    assert plan(a_map(NOW + 60, rtt_ms=14), live).action is Action.REPLACE


@pytest.mark.parametrize(
    "change",
    [
        {"moved": 1},
        {"states": ("up", "draining")},
        {"alt_svc": True},
        {"asns": ASNS[:9]},
        {"asns": (*ASNS, 15169)},
    ],
)
def test_whatever_changes_for_a_client_is_published_at_once(change):
    made = plan(a_map(NOW + 60, **change), live_of(a_map()), patient=True)
    assert made.action is Action.REPLACE
    assert not same_routing(LatencyMap(a_map()), LatencyMap(a_map(**change)))


def test_too_much_at_once_is_refused_unless_forced():
    live = live_of(a_map())
    made = plan(a_map(NOW + 60, moved=8), live)
    assert (made.action, made.writes) == (Action.REFUSED, False)
    assert made.moved > 0.3
    assert "--force" in made.reason
    assert plan(a_map(NOW + 60, moved=8), live, force=True).action is Action.REPLACE
    assert plan(a_map(NOW + 60, moved=8), live, max_moved_share=1.0).action is Action.REPLACE
    assert plan(a_map(NOW + 60, moved=8), live, provisional=True).action is Action.REPLACE
    assert plan(a_map(NOW + 60, moved=1), live).action is Action.REPLACE


def test_an_outage_moves_whom_it_must_and_so_does_its_end():
    up, down = a_map(), a_map(NOW + 60, moved=10, states=("down", "up"))
    made = plan(down, live_of(up))
    assert made.action is Action.REPLACE
    made = plan(a_map(NOW + 120), live_of(down))
    assert made.action is Action.REPLACE


def test_another_writers_map_is_left_alone():
    live = live_of(a_map())
    fresh = a_map(NOW + 60, moved=1)
    made = plan(fresh, live, own=("something-else",))
    assert made.action is Action.REFUSED
    assert made.moved is None
    assert "--take-over" in made.reason
    assert plan(fresh, live, own=()).action is Action.REFUSED
    assert plan(fresh, live, own=(), take_over=True).action is Action.REPLACE
    assert plan(fresh, live, own=(live.version,)).action is Action.REPLACE
    assert plan(fresh, live, own=None).action is Action.REPLACE  # a person


def test_damage_is_repaired_by_its_own_writer_within_the_guard():
    live = live_of(a_map(), damage="the map is cut short")
    known = LatencyMap(a_map())
    fresh = a_map(NOW + 60)
    assert plan(fresh, live, own=(live.version,), last_good=known).action is Action.REPAIR
    assert plan(fresh, live, own=(live.version,)).action is Action.REPAIR
    assert plan(fresh, live, own=("other",)).action is Action.REFUSED
    assert plan(a_map(NOW + 60, moved=8), live, own=(live.version,), last_good=known).action is Action.REFUSED
    unreadable = Live(raw=b"{", damage="not JSON")
    assert plan(fresh, unreadable, own=("mine",)).action is Action.REPAIR
    assert plan(fresh, unreadable, own=()).action is Action.REFUSED


def test_rolling_back_is_not_guarded():
    live = live_of(a_map(NOW + 60, moved=9))
    made = plan_rollback(a_map(), live)
    assert made.action is Action.ROLL_BACK
    assert made.moved > 0.3
    assert plan_rollback(a_map(NOW + 60, moved=9), live).action is Action.NOTHING
    assert plan_rollback(a_map(), Live()).action is Action.ROLL_BACK


def test_a_canary_stays_with_a_publish_and_ends_with_a_rollback():
    from dataclasses import replace

    live = live_of(a_map())
    with_canary = replace(live, manifest=replace(live.manifest, canary={"version": "x"}))
    assert plan(a_map(NOW + 60, moved=1), with_canary).manifest.canary == {"version": "x"}
    assert plan_rollback(a_map(NOW - 60, moved=1), with_canary).manifest.canary is None


def test_what_is_no_map_is_no_plan():
    with pytest.raises(MapError):
        plan(b"ISOMAP", Live())


def test_a_map_whose_cells_name_no_colour_is_neither_published_nor_taken_for_live():
    data = a_map()
    table = bytes(LatencyMap(data).sections[b"ASN "])
    odd = data.replace(table, table[:-2] + b"\x07\x00")
    odd = odd[:8] + zlib.crc32(odd[12:]).to_bytes(4, "little") + odd[12:]
    LatencyMap(odd)  # the edge can't tell at loading
    with pytest.raises(MapError, match="its asn cells name colour 7 of 2"):
        plan(odd, Live(), own=())
    with pytest.raises(MapError, match="its asn cells name colour 7 of 2"):
        plan_rollback(odd, Live())
    with pytest.raises(DamagedMapError, match="its asn cells name colour 7 of 2"):
        verified(describe(odd), odd)
