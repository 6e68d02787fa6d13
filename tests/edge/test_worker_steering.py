"""Which origin, with which promise: maps, bands, sessions, draining, canary, Alt-Svc, the edge's own endpoints."""

import asyncio
import collections
import json
import time

import pytest
import pytest_asyncio
from edge_support import SECRET, a_site, make_map, status, websocket

from isochrone_edge.latency_map import LatencyMap

pytestmark = [pytest.mark.edge, pytest.mark.asyncio(loop_scope="module")]
NAMES = ("a", "b", "c", "d")
PROVED = {"alt_svc": {"authority": "a.origins.test:8443", "ma": 300}}
PIN = 'h3="a.origins.test:8443"; ma=300; persist=1'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def edge():
    async with a_site(*NAMES, BAND_MS="1.5", SESSION="cookie:sid") as site:
        yield site


@pytest.fixture
def site(edge):
    edge.reset()
    return edge


async def region(site, session=None, **kwargs):
    headers = {
        **kwargs.pop("headers", {}),
        **({"cookie": f"x=y; sid={session}"} if session is not None else {}),
    }
    response, body = await site.get(headers=headers, **kwargs)
    return json.loads(body)["region"], response


async def spread(site, count=60, **kwargs):
    return {n: (await region(site, n, **kwargs))[0] for n in range(count)}


async def test_near_candidates_share_sessions_by_weight_and_sessions_stick(site):
    # a and b are 1 ms apart, c and d farther away than the band.
    await site.publish(make_map(NAMES, built_at=1, rtt_ms=[5, 6, 7, 9], a={"weight": 3.0}))
    first = await spread(site)
    assert set(first.values()) == {"a", "b"}
    counts = collections.Counter(first.values())
    assert 34 <= counts["a"] <= 55  # 45 of 60 by weight
    assert await spread(site) == first
    _, response = await region(site, 1)
    assert 'reason;desc="default:measured:band"' in response.headers["server-timing"]
    # A change of weights moves only the share it must: from a to b, nobody the other way.
    await site.publish(make_map(NAMES, built_at=2, rtt_ms=[5, 6, 7, 9], a={"weight": 1.0}))
    second = await spread(site)
    moved = [n for n in first if first[n] != second[n]]
    assert moved
    assert {(first[n], second[n]) for n in moved} == {("a", "b")}
    # The map may say how wide the band is; weight 0 takes no sessions.
    await site.publish(
        make_map(NAMES, built_at=3, rtt_ms=[5, 6, 7, 9], notes={"band_ms": 3}, b={"weight": 0})
    )
    assert set((await spread(site)).values()) == {"a", "c"}
    await site.publish(make_map(NAMES, built_at=4, rtt_ms=[5, 6, 7, 9], notes={"band_ms": 0}))
    assert set((await spread(site, 20)).values()) == {"a"}


async def test_without_a_session_key_the_clients_address_is_taken(site):
    await site.publish(make_map(NAMES, built_at=5, rtt_ms=[5, 6, 7, 9]))
    seen = {}
    for n in range(30):
        seen[n] = (await region(site, headers={"cf-connecting-ip": f"192.0.2.{n}"}))[0]
    assert set(seen.values()) == {"a", "b"}
    for n in range(30):
        assert (await region(site, headers={"cf-connecting-ip": f"192.0.2.{n}"}))[0] == seen[n]


async def test_draining_origins_take_no_sessions_and_their_promise_is_withdrawn(site):
    await site.publish(make_map(NAMES, built_at=6, rtt_ms=[5, 6, 7, 9], a=PROVED))
    owners = await spread(site)
    assert (await region(site, next(n for n in owners if owners[n] == "a")))[1].headers["alt-svc"] == PIN
    await site.publish(make_map(NAMES, built_at=7, rtt_ms=[5, 6, 7, 9], a={"state": "draining"}))
    after = await spread(site)
    assert set(after.values()) == {"b", "c"}  # the band begins at b now
    # Whoever may still be pinned to it hears so, whichever origin answers.
    assert (await region(site))[1].headers["alt-svc"] == "clear"
    for origin in (site.b, site.c, site.d):
        origin.answer = status(503)
    name, response = await region(site)
    assert (name, response.headers["alt-svc"]) == ("a", "clear")


async def test_alt_svc_only_when_and_as_long_as_the_map_promises_it(site):
    await site.publish(make_map(NAMES, built_at=8, rtt_ms=[5, 9, 9, 9], a=PROVED))
    assert (await region(site))[1].headers.getall("alt-svc") == [PIN]
    for code, promised in (
        (200, True),
        (206, True),
        (304, True),
        (404, True),
        (421, False),
        (500, False),
        (599, False),
    ):
        site.a.answer = status(code, extra=b'alt-svc: h3=":1"; ma=9\r\n')
        response, _ = await site.get()
        assert response.headers.getall("alt-svc", []) == ([PIN] if promised else []), code
    site.a.answer = websocket
    async with site.session.ws_connect(site.edge.url) as socket:
        assert "alt-svc" not in socket._response.headers
    # The promise is that of the origin that answered: this one has none.
    site.a.answer = status(503)
    name, response = await region(site)
    assert (name, "alt-svc" in response.headers) == ("b", False)
    site.reset()
    # The map's own end is the promise's end.
    await site.publish(
        make_map(NAMES, built_at=9, rtt_ms=[5, 9, 9, 9], notes={"valid_until": time.time() + 60}, a=PROVED)
    )
    field = (await region(site))[1].headers["alt-svc"]
    assert 1 <= int(field.partition("ma=")[2].partition(";")[0]) <= 60
    await site.publish(
        make_map(NAMES, built_at=10, rtt_ms=[5, 9, 9, 9], notes={"valid_until": time.time() - 1}, a=PROVED)
    )
    assert "alt-svc" not in (await region(site))[1].headers
    # Withdrawn.
    await site.publish(make_map(NAMES, built_at=11, rtt_ms=[5, 9, 9, 9], a={"alt_svc": "clear"}))
    assert (await region(site))[1].headers["alt-svc"] == "clear"


async def test_alt_svc_can_be_turned_off_and_the_kill_switch_pulled():
    for value, expected in (("off", []), ("clear", ["clear"])):
        async with a_site("a", ALT_SVC=value) as site:
            site.a.answer = status(200, extra=b'alt-svc: h3=":1"; ma=9\r\n')
            response, _ = await site.get()
            assert response.headers.getall("alt-svc", []) == expected
            site.a.answer = None
            await site.publish(make_map(["a"], a=PROVED))
            response, _ = await site.get()
            assert response.headers.getall("alt-svc", []) == expected


async def test_a_canary_lives_beside_the_live_map(site):
    live = make_map(NAMES, built_at=12, rtt_ms=[5, 9, 9, 9])
    canary = make_map(["d", "a", "b", "c"], built_at=13)
    version = await site.publish(live, canary, 0.3)
    owners = await spread(site, 100)
    counts = collections.Counter(owners.values())
    assert 15 <= counts["d"] <= 45
    assert counts["a"] == 100 - counts["d"]
    assert await spread(site, 100) == owners
    name, response = await region(site, headers={"x-canary": "1"})
    assert name == "d"
    assert LatencyMap(canary).version in response.headers["server-timing"]
    name, response = await region(site, headers={"x-canary": "0"})
    assert name == "a"
    assert version in response.headers["server-timing"]
    assert (await site.status())["canary"] == {"map": LatencyMap(canary).version, "share": 0.3}
    decision = await site.own("decision?asn=1&canary=1")
    assert (decision["canary"], decision["candidates"][0]["origin"]) == (True, "d")
    # A larger share keeps those who were on it; a damaged canary costs nobody anything; an ended one is forgotten.
    await site.publish(live, canary, 0.6)
    assert all(name == "d" for n, name in (await spread(site, 100)).items() if owners[n] == "d")
    entry = await site.write(live)
    await site.put(
        "map/current",
        json.dumps({**entry, "canary": {"version": "x", "key": "map/x", "sha256": "0", "share": 1}}),
    )
    before = (await site.status())["snapshot"]["missing"]
    while (await site.status())["snapshot"]["missing"] == before:
        await site.get()
    assert (await site.status())["map"] == version
    await site.publish(live)
    assert set((await spread(site, 30)).values()) == {"a"}


async def troubles(site):
    counters = (await site.status())["snapshot"]
    return counters["missing"] + counters["damaged"]


async def test_kv_is_looked_at_once_an_interval_and_its_loss_changes_nothing():
    async with a_site("a", "b", MAP_REFRESH_SECONDS="1") as site:
        version = await site.publish(make_map(["b", "a"]))
        before, began = (await site.status())["snapshot"]["looks"], time.monotonic()
        await asyncio.gather(*(site.get() for _ in range(200)))
        looks = (await site.status())["snapshot"]["looks"] - before
        assert looks <= 1 + (time.monotonic() - began) / 0.9
    async with a_site("a", "b") as site:
        version = await site.publish(make_map(["b", "a"], built_at=50))
        for value in (
            None,
            "{",
            b"\xff\xfe",
            json.dumps({"version": "x", "key": "map/gone", "sha256": "0"}),
            "[]",
            "",
        ):
            before = await troubles(site)
            if value is None:
                await site.delete("map/current")
            else:
                await site.put("map/current", value)
            for _ in range(100):
                name, _ = await region(site)
                assert name == "b"
                if await troubles(site) > before:
                    break
                await asyncio.sleep(0.03)
            else:
                raise AssertionError(value)
            told = await site.status()
            assert told["map"] == version
            assert told["problem"]
            assert told["age_s"] > 0


async def test_a_map_that_can_not_be_used_safely_is_refused_whole(site):
    version = await site.publish(make_map(NAMES, built_at=60))
    for bad in (
        {"host": "evil.test/x"},
        {"host": "evil.test@x"},
        {"host": "a b"},
        {"host": "1.2.3.999"},
        {"alt_svc": {"authority": 'x"; y', "ma": 1}},
    ):
        entry = await site.write(make_map(NAMES, built_at=61, a=bad))
        await site.put("map/current", json.dumps(entry))
        for _ in range(100):
            assert (await region(site))[0] in NAMES
            told = await site.status()
            if entry["version"] in told["problem"]:
                break
            await asyncio.sleep(0.03)
        assert entry["version"] in told["problem"]
        assert told["map"] == version


async def test_own_endpoints(site):
    version = await site.publish(make_map(NAMES, built_at=70, orders=[["c", "b"]], c=PROVED))
    decision = await site.own("decision?asn=101&country=DE&colo=FRA")
    assert (decision["map"], decision["reason"], decision["colour"]) == (version, "asn:measured:band", 1)
    assert [c["origin"] for c in decision["candidates"]] == ["c", "b", "a", "d"]
    assert decision["candidates"][0]["alt_svc"] == PIN
    assert decision["candidates"][0]["rtt_ms"] == 5
    told = await site.status()
    assert (told["map"], told["problem"], told["variables"]) == (version, "", [])
    assert told["requests"]["requests"] > 0
    assert abs(time.time() - 70 - told["age_s"]) < 60
    for path in ("status", "decision?asn=1", "", "x"):
        for headers in (
            {},
            {"authorization": "Bearer "},
            {"authorization": f"Basic {SECRET}"},
            {"authorization": f"Bearer {SECRET}x"},
            {"authorization": "Bearer é"},
        ):
            for method in ("GET", "POST", "HEAD"):
                response, body = await site.get("/.isochrone/" + path, headers=headers, method=method)
                assert (response.status, body) == (404, b"" if method == "HEAD" else b"Not Found")
    response, body = await site.get("/.isochrone/x", headers={"authorization": f"Bearer {SECRET}"})
    assert (response.status, body) == (404, b"Not Found")
    assert not [
        seen for origin in site.origins.values() for seen in origin.seen if "isochrone" in seen.target
    ]


async def test_without_a_secret_own_endpoints_are_closed_to_all(site):
    from isochrone_edge.own_endpoints import opens

    for given in ("", "Bearer ", "Bearer None"):
        assert not opens("", given)


async def test_variables_that_can_not_be_used_are_told_and_cost_nothing():
    async with a_site(
        "a", BUDGET_MS="soon", HEDGE="maybe", SESSION="sid", BAND_MS="-1", RETRY_STATUSES="200"
    ) as site:
        response, _ = await site.get()
        assert response.status == 200
        problems = " ".join((await site.status())["variables"])
        assert all(
            name in problems for name in ("BUDGET_MS", "HEDGE", "SESSION", "BAND_MS", "RETRY_STATUSES")
        )
