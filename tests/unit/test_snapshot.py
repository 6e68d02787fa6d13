"""The isolate's map: loaded, kept, and never replaced by something bad."""

import asyncio
import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone_edge.latency_map import LatencyMap, MapError
from isochrone_edge.latency_map_writer import Colour, encode
from isochrone_edge.snapshot import Snapshot


def make(built_at):
    return encode(
        built_at=built_at,
        origins=[{"id": "a", "host": "a.test"}],
        palette=[Colour(((0, built_at / 1e3, 1),))],
        default=0,
        cells={},
    )


class Values(dict):
    """KV with its values in memory; an exception in place of a value is raised."""

    reads = 0

    async def text(self, key):
        return self._get(key)

    async def data(self, key):
        return self._get(key)

    def _get(self, key):
        self.reads += 1
        value = self.get(key)
        if isinstance(value, Exception):
            raise value
        return value

    def publish(self, data):
        version = LatencyMap(data).version
        self["map/" + version] = data
        self["map/current"] = json.dumps(
            {"version": version, "key": "map/" + version, "sha256": hashlib.sha256(data).hexdigest()}
        )
        return version


async def test_loads_then_looks_only_at_the_manifest():
    kv, snapshot = Values(), Snapshot()
    version = kv.publish(make(1000))
    await snapshot.refresh(kv, 0)
    assert snapshot.map.version == version
    kv.reads = 0
    await snapshot.refresh(kv, 60)
    assert (kv.reads, snapshot.counters["loads"]) == (1, 1)


async def test_whatever_is_wrong_keeps_the_last_good_map():
    kv, snapshot = Values(), Snapshot()
    good = kv.publish(make(1000))
    await snapshot.refresh(kv, 0)
    bad_version = kv.publish(make(2000))
    manifest, data = kv["map/current"], kv["map/" + bad_version]
    for key, value, counter in (
        ("map/" + bad_version, data[:-1], "damaged"),
        ("map/" + bad_version, bytes([data[0] ^ 1]) + data[1:], "damaged"),
        ("map/" + bad_version, None, "missing"),
        ("map/current", "{", "damaged"),
        ("map/current", "[" * 50_000, "damaged"),
        ("map/current", "[]", "damaged"),
        ("map/current", "null", "damaged"),
        ("map/current", '{"version": "x"}', "damaged"),
        ("map/current", json.dumps({**json.loads(manifest), "version": "x"}), "damaged"),
        ("map/current", None, "missing"),
        ("map/current", OSError("gone"), "unreachable"),
    ):
        kv["map/current"], kv["map/" + bad_version] = manifest, data
        kv[key] = value
        before = snapshot.counters[counter]
        await snapshot.refresh(kv, 60)
        assert snapshot.map.version == good
        assert snapshot.counters[counter] == before + 1, (key, value)
        assert snapshot.problem
    kv["map/current"], kv["map/" + bad_version] = manifest, data
    await snapshot.refresh(kv, 60)
    assert (snapshot.map.version, snapshot.problem) == (bad_version, "")


async def test_one_request_an_interval_refreshes():
    snapshot = Snapshot(60)
    assert snapshot.claim(0)
    assert not snapshot.claim(0)
    await snapshot.refresh(Values(), 0)
    assert not snapshot.claim(53.9)
    assert snapshot.claim(66.1)
    assert not snapshot.claim(66.1)
    assert snapshot.claim(66.1 + 30)  # the one that claimed was killed: another may


@pytest.mark.parametrize(("seconds", "least", "most"), [(60, 54, 66), (30, 30, 33), (0.05, 0.05, 0.055)])
async def test_looks_are_spread_and_never_more_often_than_kv_is_fresh(seconds, least, most):
    waits = []
    for _ in range(300):
        snapshot = Snapshot(seconds)
        await snapshot.refresh(Values(), 1000.0)
        waits.append(snapshot.next_look - 1000.0)
    assert least - 1e-6 <= min(waits) < max(waits) <= most + 1e-6


async def test_kv_gone_for_hours_keeps_the_last_good_map():
    kv, snapshot = Values(), Snapshot(60)
    version = kv.publish(make(1000))
    await snapshot.refresh(kv, 0)
    kv["map/current"] = OSError("no KV")
    now = looks = 0
    while now < 6 * 3600:
        now = snapshot.next_look
        assert snapshot.claim(now)
        await snapshot.refresh(kv, now)
        looks += 1
        assert snapshot.map.version == version
    assert 6 * 3600 / 66 <= looks <= 6 * 3600 / 54 + 1
    assert snapshot.counters["unreachable"] == looks


class Slow(Values):
    """Each read ends when it is told to, with what was there when it began."""

    def __init__(self):
        self.held = []

    async def text(self, key):
        return await self._hold(key)

    async def data(self, key):
        return await self._hold(key) if key in self.canaries else self._get(key)

    canaries = ()

    async def _hold(self, key):
        value, told = self._get(key), asyncio.Event()
        self.held.append(told)
        await told.wait()
        return value


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


@given(st.permutations(range(4)))
async def test_no_look_takes_back_what_a_later_one_has_brought(order):
    kv, snapshot, looks, versions = Slow(), Snapshot(), [], []
    for number in range(4):
        versions.append(kv.publish(make(1000 + number)))
        looks.append(asyncio.create_task(snapshot.refresh(kv, number)))
        await settle()
    for place, number in enumerate(order):
        kv.held[number].set()
        await looks[number]
        newest = max(order[: place + 1])
        assert (snapshot.map.version, snapshot.looked_at) == (versions[newest], newest)


async def test_nor_does_a_late_canary():
    kv, snapshot = Slow(), Snapshot()
    kv.publish(make(1000))
    entry = json.loads(kv["map/current"])
    data = make(2000)
    version = LatencyMap(data).version
    canary = {"version": version, "key": "map/" + version, "sha256": hashlib.sha256(data).hexdigest()}
    kv["map/" + version] = data
    kv.canaries = ("map/" + version,)
    kv["map/current"] = json.dumps({**entry, "canary": {**canary, "share": 0.5}})
    first = asyncio.create_task(snapshot.refresh(kv, 0))
    await settle()
    kv.held[0].set()
    await settle()
    assert len(kv.held) == 2
    kv["map/current"] = json.dumps(entry)  # the canary is taken away meanwhile
    second = asyncio.create_task(snapshot.refresh(kv, 60))
    await settle()
    kv.held[2].set()
    await second
    kv.held[1].set()
    await first
    assert (snapshot.canary, snapshot.canary_share) == (None, 0.0)


async def test_a_canary_s_share_that_is_no_number_is_told_as_the_canary_s():
    kv, snapshot = Values(), Snapshot()
    version = kv.publish(make(1000))
    kv["map/current"] = json.dumps(json.loads(kv["map/current"]) | {"canary": {"share": "much"}})
    await snapshot.refresh(kv, 0)
    assert (snapshot.map.version, snapshot.canary) == (version, None)
    assert snapshot.problem.startswith("canary refused")


def test_a_map_nested_too_deep_is_refused():
    deep = json.loads("[" * 100 + "]" * 100)
    with pytest.raises(MapError, match="more than 32 deep"):
        LatencyMap(
            encode(
                built_at=1,
                origins=[{"id": "a", "host": "a.test"}],
                palette=[Colour(((0, 1, 1),))],
                default=0,
                cells={},
                notes={"x": deep},
            )
        )
