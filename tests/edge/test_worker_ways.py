"""The quick way and the long one bring the same to the origin and to the client, whatever fields a client sends."""

import asyncio
import random
import re
import shutil
from pathlib import Path

import pytest
from edge_support import OK, a_site, hang, make_map, reset, status

from isochrone_edge.latency_map import grid_key, letters
from isochrone_edge.latency_map_writer import Colour, encode

pytestmark = [pytest.mark.edge, pytest.mark.asyncio(loop_scope="module")]
WORKER = Path(__file__).parents[2] / "worker"
FIELDS = [
    ("Cookie", 'session=0123456789; a="b"'), ("Accept", "*/*"), ("Accept-Language", "de, en;q=0.5"), ("Range", "bytes=0-1"),
    ("CF-Connecting-IP", "192.0.2.1"), ("CF-Connecting-IP", "2001:db8::1"), ("X-Forwarded-For", "198.51.100.7"),
    ("X-Forwarded-For", "10.0.0.1, 192.0.2.1"), ("X-Forwarded-For", ""), ("X-Forwarded-Host", "forged"),
    ("X-Forwarded-Proto", "gopher"), ("Tracestate", "a=b"), ("__proto__", "x"), ("constructor", "y"), ("toString", "z"),
    ("X-Twice", "1"), ("X-Twice", "2"), ("Connection", "keep-alive"), ("X-Quote", 'a"b\\c'), ("X-Json", '{"via":"x"}'),
    ("X-Tab", "a\tb"), ("X-Empty", ""), ("X-Long", "x" * 4000), ("Authorization", "Basic YTpi"), ("If-None-Match", '"e"'),
    ("X-Isochrone-Origin", "forged"), ("Via", "1.0 fred"), ("Te", "trailers"), ("Keep-Alive", "timeout=5"),
    ("Proxy-Authorization", "x"), ("Connection", "X-Twice"),
]  # fmt: skip
TARGETS = ("/", "/a%2Fb/%C3%A9?x=1&x=%00&", "/?", "//two//slashes?a=/b/../c", "/a?q=" + "y" * 2000)
ANSWERS = (
    OK,
    b'HTTP/1.1 404 No\r\ncontent-length: 0\r\nalt-svc: h3=":1"\r\nset-cookie: a=1\r\nset-cookie: b=2\r\n\r\n',
    b"HTTP/1.1 302 Found\r\ncontent-length: 0\r\nlocation: /x\r\nserver-timing: db;dur=1\r\nconnection: x-gone\r\nx-gone: 1\r\n\r\n",
    b'HTTP/1.1 206 Part\r\ncontent-length: 1\r\ncontent-range: bytes 0-0/9\r\netag: "e"\r\n\r\nx',
)  # fmt: skip


def as_native(folder):
    """The Worker with the conversions that workerd's own Python runtime makes; the path of its main module."""
    shutil.copytree(WORKER, folder / "worker", ignore=shutil.ignore_patterns("__pycache__"))
    return Path(shutil.copy(Path(__file__).parent / "workers/native.py", folder / "worker"))


async def passed(site, method, target, cf, fields, answer):
    """What the origin saw, and what the client got, as far as both must be alike."""
    site.reset()
    site.a.answer = answer
    response, body = await site.get(target, cf, method, headers=fields)
    (seen,) = site.a.seen
    theirs = sorted((name, value) for name, value in seen.headers if name != "traceparent")
    (parent,) = seen.all("traceparent")
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-00", parent)
    told = sorted(
        (name.lower(), re.sub(r"dur=[\d.]+", "dur=N", value))
        for name, value in response.headers.items()
        if name.lower() != "date"
    )
    return seen.method, seen.target, theirs, response.status, told, body


async def test_both_ways_bring_the_same(tmp_path):
    """And so does the quick way where the runtime converts what comes in and goes back, as the native one does."""
    rng = random.Random(5)
    proved = {"alt_svc": {"authority": "a.origins.test:443", "ma": 60}}
    main = as_native(tmp_path)
    async with a_site("a") as quick, a_site("a", CROSSING="off") as long, a_site("a", main=main) as native:
        for site in (quick, long, native):
            await site.publish(make_map(["a"], a=proved))
        for number in range(80):
            request = (
                rng.choice(["GET", "GET", "HEAD"]),
                rng.choice(TARGETS),
                {"asn": 100, "country": "DE", "httpProtocol": "HTTP/3"} if number % 2 else None,
                [("Host", "www.example.test"), *rng.sample(FIELDS, rng.randrange(7))],
                rng.choice(ANSWERS),
            )
            brought = await passed(quick, *request)
            assert brought == await passed(long, *request), request
            assert brought == await passed(native, *request), request


@pytest.mark.parametrize("answer", [status(503), hang, reset], ids=["status", "hang", "reset"])
async def test_a_request_goes_on_where_the_quick_way_ends(tmp_path, answer):
    """What has gone back already is a promise: the long way keeps it."""
    async with a_site("a", "b", main=as_native(tmp_path), TRY_MS="300") as site:
        await site.publish(make_map(["a", "b"]))
        site.a.answer = answer
        response, _ = await site.get("/", {"asn": 100})
        assert response.status == 200
        assert 'origin;desc="b"' in response.headers["server-timing"]
        assert 'tries;desc="2"' in response.headers["server-timing"]


@pytest.mark.parametrize("crossing", ["on", "off"])
async def test_each_fact_leads_to_its_own_cell(crossing):
    """Each kind of cell has a colour of its own, and each colour an origin."""
    origins = [{"id": name, "host": f"{name}.origins.test"} for name in "abcdef"]
    palette = [Colour(((n, 5.0, 20),)) for n in range(6)]
    cells = {
        "asn": {64500: 1}, "grid": {grid_key(50.1, 8.7, 5): 2}, "colo": {letters("FRA"): 3}, "country": {letters("FR"): 4},
        "continent": {letters("SA"): 5},
    }  # fmt: skip
    async with a_site(*"abcdef", CROSSING=crossing) as site:
        await site.publish(
            encode(built_at=1, origins=origins, palette=palette, default=0, cells=cells, grid_step=5)
        )
        nowhere = {
            "asn": 1,
            "country": "XX",
            "colo": "XXX",
            "continent": "XX",
            "latitude": "-50",
            "longitude": "-120",
        }
        for facts, name in (
            ({}, "a"), ({"asn": 64500}, "b"), ({"latitude": "50.1", "longitude": "8.7"}, "c"), ({"colo": "FRA"}, "d"),
            ({"country": "FR"}, "e"), ({"continent": "SA"}, "f"),
        ):  # fmt: skip
            for method in ("GET", "POST"):
                response, _ = await site.get("/", {**nowhere, **facts}, method)
                assert f'origin;desc="{name}"' in response.headers["server-timing"], (facts, method)


async def test_an_answer_counts_although_its_origin_has_left_the_map():
    """It is slow, so that the long way must look at it, and a map without its origin came meanwhile."""
    async with a_site("a", "b", SLOW_MS="200") as site:
        await site.publish(make_map(["a", "b"]))
        there = asyncio.Event()

        async def late(request, reader, writer):
            if request.target == "/only-once":
                there.set()
                await asyncio.sleep(1.8)
            writer.write(OK)

        site.a.answer = late
        asked = asyncio.create_task(site.get("/only-once", {"asn": 100}))
        await there.wait()
        await site.publish(make_map(["b"]))
        assert not asked.done()
        response, _ = await asked
        assert response.status == 200
        assert 'origin;desc="a"' in response.headers["server-timing"]
        assert not any(seen.target == "/only-once" for seen in site.b.seen)
