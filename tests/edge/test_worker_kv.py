"""When KV breaks off, fails or never answers: clients see nothing of it, and the next map is taken as soon as there is one."""

import asyncio
import time

import pytest
from edge_support import a_site, hang, make_map

from isochrone.lab.kv_gate import KVGate

pytestmark = [pytest.mark.edge, pytest.mark.asyncio(loop_scope="module")]
GONE = ["reset", "failing", "hung"]


async def region(site):
    response, body = await site.get()
    assert response.status == 200, body
    return response.headers["server-timing"].partition('origin;desc="')[2].partition('"')[0]


@pytest.mark.parametrize("way", GONE)
async def test_kv_that_is_gone_changes_nothing_and_the_next_map_is_taken(way):
    async with KVGate() as gate, a_site("a", "b", gate=gate) as site:
        version = await site.publish(make_map(["b", "a"], built_at=50))
        gate.way = way
        before = (await site.status())["snapshot"]
        while gate.asked[way] < 3:
            assert await region(site) == "b"
            await asyncio.sleep(0.01)
        told = await site.status()
        assert told["map"] == version
        assert told["age_s"] > 0
        if way != "hung":
            assert told["snapshot"]["unreachable"] >= before["unreachable"] + 2
            assert told["problem"].startswith("KV not reachable: ")
        assert {k: v for k, v in told["snapshot"].items() if k in ("missing", "damaged", "loads")} == {
            k: before[k] for k in ("missing", "damaged", "loads")
        }
        gate.way = "open"
        await site.publish(make_map(["a", "b"], built_at=60))
        assert await region(site) == "a"


@pytest.mark.parametrize("way", GONE)
async def test_an_isolate_that_starts_without_kv_goes_by_its_own_origins(way):
    async with KVGate(way) as gate, a_site("a", "b", gate=gate, COLD_MAP_WAIT_MS="1000") as site:
        began = time.monotonic()
        assert await region(site) == "a"
        waited = time.monotonic() - began
        assert gate.asked[way] == 1
        if way == "hung":
            assert waited >= 1
        began = time.monotonic()
        for _ in range(20):  # only the first one waits
            assert await region(site) == "a"
        assert time.monotonic() - began < 20
        gate.way = "open"
        await site.publish(make_map(["b", "a"]))
        assert await region(site) == "b"


async def test_what_the_wait_for_the_map_takes_is_gone_from_the_budget():
    limits = {"BUDGET_MS": "1500", "TRY_MS": "1500", "COLD_MAP_WAIT_MS": "9000"}
    async with KVGate("hung") as gate, a_site("a", gate=gate, **limits) as site:
        site.a.answer = hang
        began = time.monotonic()
        response, _ = await site.get()
        assert response.status == 504
        assert time.monotonic() - began < 2.2
        assert len(site.a.seen) == 1


async def test_a_manifest_nested_too_deep_is_damaged():
    async with a_site("a", "b") as site:
        version = await site.publish(make_map(["b", "a"]))
        before = (await site.status())["snapshot"]["damaged"]
        await site.put("map/current", "[" * 10_000)
        while (await site.status())["snapshot"]["damaged"] == before:
            assert await region(site) == "b"
        assert (await site.status())["map"] == version
        await site.publish(make_map(["a", "b"], built_at=2000))
        assert await region(site) == "a"
