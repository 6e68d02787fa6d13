"""The Worker as it is deployed, in real workerd, before real origins."""

import asyncio
import hashlib
import io
import json
from contextlib import AsyncExitStack

import aiohttp
import pytest
from aiohttp import web

from isochrone.lab.local_edge import EdgeOrigin, LocalEdge
from isochrone_edge.latency_map import LatencyMap, letters
from isochrone_edge.latency_map_writer import Colour, encode

pytestmark = pytest.mark.edge

NAMESPACE = "0123456789abcdef0123456789abcdef"
SECRET = "s3cret"
HOSTS = {
    "near": "near.origins.test",
    "far": "far.origins.test",
    "dead": "dead.origins.test",
    "hung": "hung.origins.test",
}


class RealOrigin:
    """An aiohttp server that tells what reached it."""

    def __init__(self, name):
        self.name = name
        self.seen = []

    async def __aenter__(self):
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/sse", self.sse)
        app.router.add_route("*", "/{path:.*}", self.answer)
        self.runner = web.AppRunner(app, access_log=None)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.port = self.runner.addresses[0][1]
        return self

    async def __aexit__(self, *_):
        await self.runner.cleanup()

    async def answer(self, request):
        self.seen.append(request)
        if request.path == "/missing":
            return web.Response(status=404, text="no")
        if request.path == "/redirect":
            return web.Response(status=302, headers={"location": "https://elsewhere.test/"})
        body = await request.read()
        reply = {
            "region": self.name,
            "method": request.method,
            "target": request.raw_path,
            "headers": {k.lower(): v for k, v in request.headers.items()},
            "sha256": hashlib.sha256(body).hexdigest(),
            "length": len(body),
        }
        response = web.json_response(reply, headers={"Alt-Svc": 'h3=":1"; ma=99999'})
        response.set_cookie("a", "1")
        response.set_cookie("b", "2")
        return response

    async def sse(self, request):
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for number in range(3):
            await response.write(f"data: {number}\n\n".encode())
            await asyncio.sleep(0.05)
        return response


async def hang(reader, writer):
    try:
        await reader.read()
    finally:
        writer.close()


def make_map(built_at=1000.0, *, first="near", promised=("near",)):
    names = list(HOSTS)
    origins = [
        {
            "id": name,
            "host": host,
            "state": "up",
            "alt_svc": {"authority": f"{host}:8443", "ma": 120} if name in promised else None,
        }
        for name, host in HOSTS.items()
    ]
    rank = {name: index for index, name in enumerate(names)}
    order = [rank[first], *(rank[n] for n in names if n != first)]
    palette = [
        Colour(tuple((o, 5.0 + i, 20) for i, o in enumerate(order))),
        Colour(((rank["far"], 1.0, 5), (rank["near"], 2.0, 5))),
        Colour(((rank["dead"], 1.0, 5), (rank["far"], 2.0, 5))),
        Colour(((rank["hung"], 1.0, 5), (rank["far"], 2.0, 5))),
    ]
    cells = {"asn": {3320: 0, 666: 2, 667: 3}, "country": {letters("FR"): 1}}
    return encode(built_at=built_at, origins=origins, palette=palette, default=1, cells=cells)


class Site:
    """The edge, its KV and its clients."""

    def __init__(self, edge, session, origins):
        self.edge, self.session, self.origins = edge, session, origins

    async def put(self, key, value):
        url = f"{self.edge.kv_api}/storage/kv/namespaces/{NAMESPACE}/values/{key.replace('/', '%2F')}"
        data = aiohttp.FormData()
        data.add_field("value", value if isinstance(value, bytes) else value.encode(), filename="value")
        data.add_field("metadata", "{}")
        async with self.session.put(aiohttp.client.URL(url, encoded=True), data=data) as response:
            assert response.status == 200, await response.text()

    async def publish(self, data):
        version = LatencyMap(data).version
        await self.put(f"map/{version}", data)
        manifest = {"version": version, "key": f"map/{version}", "sha256": hashlib.sha256(data).hexdigest()}
        await self.put("map/current", json.dumps(manifest))
        return version

    async def status(self):
        async with self.session.get(
            self.edge.url + "/.isochrone/status", headers={"authorization": f"Bearer {SECRET}"}
        ) as response:
            return await response.json()

    async def until_version(self, version):
        for _ in range(100):
            await self.get("/")
            if (await self.status())["map"] == version:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"the edge never took {version}: {await self.status()} {self.edge.log_lines()}")

    async def get(self, path, cf=None, method="GET", **kwargs):
        headers = dict(kwargs.pop("headers", {}))
        if cf is not None:
            headers["MF-CF-Blob"] = json.dumps(cf)
        url = aiohttp.client.URL(self.edge.url + path, encoded=True)
        async with self.session.request(
            method, url, headers=headers, allow_redirects=False, **kwargs
        ) as response:
            body = await response.read()
            return response, body


@pytest.fixture
async def site():
    async with AsyncExitStack() as stack:
        origins = {name: await stack.enter_async_context(RealOrigin(name)) for name in ("near", "far")}
        hung = await asyncio.start_server(hang, "127.0.0.1", 0)
        stack.push_async_callback(hung.wait_closed)
        stack.callback(hung.close)
        places = {
            HOSTS["near"]: EdgeOrigin(address=f"127.0.0.1:{origins['near'].port}", tls=False),
            HOSTS["far"]: EdgeOrigin(address=f"127.0.0.1:{origins['far'].port}", tls=False),
            HOSTS["dead"]: EdgeOrigin(address="127.0.0.1:1", tls=False),
            HOSTS["hung"]: EdgeOrigin(address=f"127.0.0.1:{hung.sockets[0].getsockname()[1]}", tls=False),
        }
        built_in = [{"id": name, "host": HOSTS[name]} for name in ("far", "near")]
        edge = await stack.enter_async_context(
            LocalEdge(
                vars={
                    "ORIGINS": json.dumps(built_in),
                    "MAP_REFRESH_SECONDS": "0.05",
                    "TRY_MS": "400",
                    "BUDGET_MS": "1500",
                },
                secrets={"ISOCHRONE_SECRET": SECRET},
                kv_namespaces={"LATENCY_MAP": NAMESPACE},
                origins=places,
            )
        )
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield Site(edge, session, origins)


async def test_the_whole_of_it(site):
    # No map at all: the built-in order, no promise.
    response, body = await site.get("/", {"asn": 3320, "country": "DE"})
    assert json.loads(body)["region"] == "far"
    assert "alt-svc" not in response.headers
    assert 'reason;desc="no_map:built_in"' in response.headers["server-timing"]

    # A map: the cell decides, the proved endpoint is promised in place of the origin's own field.
    version = await site.publish(make_map())
    await site.until_version(version)
    response, body = await site.get("/a/%2e%2E/b%20c?x=%C3%A4&y=1&&", {"asn": 3320, "country": "DE"})
    reply = json.loads(body)
    assert reply["region"] == "near"
    assert reply["target"] == "/b%20c?x=%C3%A4&y=1&&"
    assert response.headers.getall("alt-svc") == ['h3="near.origins.test:8443"; ma=120; persist=1']
    assert response.headers.getall("set-cookie") == ["a=1; Path=/", "b=2; Path=/"]
    assert f'map;desc="{version}"' in response.headers["server-timing"]
    assert 'reason;desc="asn:measured"' in response.headers["server-timing"]
    assert reply["headers"]["host"] == HOSTS["near"]
    assert reply["headers"]["x-isochrone-origin"] == "near"
    assert reply["headers"]["x-isochrone-map"] == version
    assert reply["headers"]["x-isochrone-colour"] == "0"
    assert len(reply["headers"]["traceparent"].split("-")) == 4

    # Facts may be missing, partly or wholly; an endpoint that is not proved is not promised.
    for cf in (None, {}, {"country": "FR"}, {"asn": "3320"}, {"asn": 0, "latitude": "x"}):
        response, body = await site.get("/", cf)
        assert json.loads(body)["region"] == "far"
        assert "alt-svc" not in response.headers

    # Bodies pass in both directions, and what clients may not say is replaced.
    payload = bytes(range(256)) * 8192
    headers = {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01", "x-isochrone-origin": "forged"}
    _, body = await site.get("/echo", {"asn": 3320}, "POST", data=io.BytesIO(payload), headers=headers)
    reply = json.loads(body)
    assert (reply["method"], reply["length"]) == ("POST", len(payload))
    assert reply["sha256"] == hashlib.sha256(payload).hexdigest()
    assert reply["headers"]["x-isochrone-origin"] == "near"
    assert reply["headers"]["traceparent"][:36] == headers["traceparent"][:36]
    _, body = await site.get("/sse", {"asn": 3320})
    assert body == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
    response, _ = await site.get("/missing", {"asn": 3320})
    assert response.status == 404
    response, _ = await site.get("/redirect", {"asn": 3320})
    assert (response.status, response.headers["location"]) == (302, "https://elsewhere.test/")
    response, body = await site.get("/", {"asn": 3320}, "HEAD")
    assert (response.status, body) == (200, b"")


async def test_goes_on_to_the_next_candidate(site):
    await site.until_version(await site.publish(make_map()))
    for asn in (666, 667):  # its first candidate refuses; its first candidate never answers
        response, body = await site.get("/", {"asn": asn})
        assert json.loads(body)["region"] == "far", asn
        assert 'tries;desc="2"' in response.headers["server-timing"]
        assert "alt-svc" not in response.headers
    # A body may have been sent already: such a request is not repeated.
    response, body = await site.get("/", {"asn": 666}, "POST", data=b"x")
    assert response.status == 502
    assert response.headers["content-type"] == "application/problem+json"
    told = json.loads(body)
    assert len(told.pop("trace_id")) == 32
    assert told == {"type": "about:blank", "title": "The service can't be reached", "status": 502}
    # The breaker knows after a few failures, and later requests are spared the dead origin.
    for _ in range(6):
        response, _ = await site.get("/", {"asn": 666})
    assert 'tries;desc="1"' in response.headers["server-timing"]
    assert (await site.status())["ejected"].keys() == {"dead"}


async def test_a_new_map_replaces_the_old_and_a_bad_one_does_not(site):
    good = await site.publish(make_map())
    await site.until_version(good)
    newer = make_map(2000.0, first="far")
    version = LatencyMap(newer).version
    for damaged in (newer[:-3], newer[:50] + bytes([newer[50] ^ 4]) + newer[51:]):
        await site.put(f"map/{version}", damaged)
        await site.put(
            "map/current",
            json.dumps(
                {"version": version, "key": f"map/{version}", "sha256": hashlib.sha256(newer).hexdigest()}
            ),
        )
        before = (await site.status())["snapshot"]["damaged"]
        for _ in range(100):
            _, body = await site.get("/", {"asn": 3320})
            assert json.loads(body)["region"] == "near"
            status = await site.status()
            if status["snapshot"]["damaged"] > before:
                break
            await asyncio.sleep(0.05)
        assert status["snapshot"]["damaged"] > before
        assert status["map"] == good
        assert "SHA-256" in status["problem"]
    await site.until_version(await site.publish(newer))
    _, body = await site.get("/", {"asn": 3320})
    assert json.loads(body)["region"] == "far"


async def test_own_endpoints_are_closed_without_the_secret(site):
    await site.until_version(await site.publish(make_map()))
    for headers in (
        {},
        {"authorization": "Bearer "},
        {"authorization": "Bearer s3cre"},
        {"authorization": "s3cret"},
    ):
        for path in ("/.isochrone/status", "/.isochrone/decision?asn=3320", "/.isochrone/", "/.isochrone/x"):
            response, body = await site.get(path, headers=headers)
            assert (response.status, body) == (404, b"Not Found")
    headers = {"authorization": f"Bearer {SECRET}"}
    _, body = await site.get("/.isochrone/decision?asn=3320&country=DE", headers=headers)
    decision = json.loads(body)
    assert decision["reason"] == "asn:measured"
    assert [c["origin"] for c in decision["candidates"]] == ["near", "far", "dead", "hung"]
    response, _ = await site.get("/.isochrone/other", headers=headers)
    assert response.status == 404
