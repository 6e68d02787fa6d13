"""Everything at once: bodies, sessions, copies, hedges, a canary, maps that change, origins that fail, clients that leave."""

import asyncio
import collections
import hashlib
import json
import random
import time

import aiohttp
import pytest
from edge_support import a_site, make_map, status

pytestmark = [pytest.mark.edge, pytest.mark.asyncio(loop_scope="function")]
NAMES = ("a", "b", "c", "d")
SECONDS, CLIENTS = 6, 16


def an_origin(chance, posts, *, fails):
    """Tells of each request, late at times; or fails with it, in one of four ways, if it is one that does."""

    async def answer(request, reader, writer):
        if request.method == "POST":
            posts[request.get("x-id")] += 1
        drawn = chance.random() if fails else 0.07 + 0.91 * chance.random()
        copied = "/copy" in request.target
        told = {
            "target": request.target, "method": request.method, "sha256": request.sha256,
            "id": None if copied else request.get("x-id"), "cookie": None if copied else request.get("cookie"),
        }  # fmt: skip
        body = json.dumps(told | {"more": "x" * (20_000 if drawn > 0.9 else 0)}).encode()
        kept = b'cache-control: max-age=9\r\netag: "%b"\r\n' % request.target.encode() if copied else b""
        if drawn < 0.03:
            writer.transport.abort()
            raise ConnectionResetError
        if drawn < 0.06:
            writer.write(status(503))
            return
        await asyncio.sleep(1 if drawn < 0.07 else 0.05 * chance.random() if drawn < 0.2 else 0)
        cut = 50 if drawn > 0.98 and request.method != "HEAD" else 0
        head = b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n" % (kept, len(body) + cut)
        writer.write(head + (b"" if request.method == "HEAD" else body))
        if cut:
            await writer.drain()
            raise ConnectionResetError

    return answer


async def new_maps(site, chance):
    for number in range(1000):
        told = {
            name: {
                "state": chance.choice(["up", "up", "up", "draining", "down"]),
                "weight": chance.choice([0, 1, 2]),
                "alt_svc": {"authority": f"{name}.origins.test:443", "ma": 60},
            }
            for name in NAMES
        }
        orders, notes = [chance.sample(NAMES, 4) for _ in range(4)], {"band_ms": chance.choice([0, 2, 10])}
        data = make_map(NAMES, built_at=1000.0 + number, orders=orders, notes=notes, **told)
        canary = make_map(NAMES, built_at=9000.0 + number, orders=[chance.sample(NAMES, 4)])
        entry = await site.write(data)
        if chance.random() < 0.5:
            entry["canary"] = {**await site.write(canary), "share": chance.choice([0, 0.3, 1])}
        if chance.random() < 0.1:
            entry["sha256"] = "0" * 64
        await site.put("map/current", json.dumps(entry))
        await asyncio.sleep(0.3)


async def one(site, chance, number, outcomes):
    """One request of a client, and its answer judged."""
    method = chance.choice(["GET"] * 6 + ["POST", "POST", "PUT", "HEAD"])
    copied = method == "GET" and chance.random() < 0.3
    path = f"/copy{chance.randrange(30)}" if copied else f"/own{number}"
    body = (
        chance.randbytes(chance.choice([0, 10, 1000, 17_000, 70_000])) if method in ("POST", "PUT") else b""
    )
    headers = {
        "x-id": str(number),
        "cookie": f"sid={number % 50}",
        "cf-connecting-ip": f"192.0.2.{number % 200}",
    }
    if chance.random() < 0.1:
        headers["x-canary"] = chance.choice("01")
    if copied and chance.random() < 0.1:
        headers["if-none-match"] = f'"{path}"'
    request = asyncio.ensure_future(
        site.get(path, {"asn": 100 + chance.randrange(5)}, method, headers=headers, data=body or None)
    )
    if chance.random() < 0.05:
        await asyncio.sleep(0.02 * chance.random())
        request.cancel()
    try:
        response, answer = await request
    except asyncio.CancelledError:
        outcomes["left"] += 1
        return
    except aiohttp.ClientPayloadError:
        outcomes["cut"] += 1
        return
    outcomes[response.status] += 1
    if method in ("GET", "HEAD"):
        assert response.status == 200 or (response.status == 304 and "if-none-match" in headers), (
            path,
            response.status,
            response.headers,
        )
    assert response.status in (200, 304, 502, 503, 504)
    if response.status == 200 and method != "HEAD":
        told = json.loads(answer)
        assert (told["target"], told["method"]) == (path, method)
        assert told["sha256"] == hashlib.sha256(body).hexdigest()
        if not copied:
            assert (told["id"], told["cookie"]) == (headers["x-id"], headers["cookie"])


@pytest.mark.parametrize("crossing", ["on", "off"])
async def test_nobody_gets_what_is_another_s_and_nothing_is_done_twice(crossing):
    chance, posts, outcomes = random.Random(5), collections.Counter(), collections.Counter()
    variables = {"HEDGE": "on", "CACHE_TTL_SECONDS": "60", "SESSION": "cookie:sid", "LOG_SHARE": "0.3"}
    async with a_site(*NAMES, CROSSING=crossing, BUDGET_MS="4000", TRY_MS="500", **variables) as site:
        for name, origin in site.origins.items():  # two that never fail: so no GET does
            origin.answer = an_origin(chance, posts, fails=name in "ab")
        numbers, end = iter(range(1_000_000)), time.monotonic() + SECONDS

        async def client():
            while time.monotonic() < end:
                await one(site, chance, next(numbers), outcomes)

        maps = asyncio.ensure_future(new_maps(site, chance))
        async with asyncio.TaskGroup() as clients:
            for _ in range(CLIENTS):
                clients.create_task(client())
        maps.cancel()
        assert posts
        assert set(posts.values()) == {1}
        told = await site.status()
        assert outcomes[200] > 100
        assert all(told["requests"][name] for name in ("cache_hits", "retried", "hedged", "cut")), told
        assert told["snapshot"]["loads"] > 1
        assert not [line for line in site.edge.log_lines() if "Traceback" in line or "edge:" in line]
