"""The demo's world before real clients: all its origins, the local edge with a map that has a network for each, and a front.

A client is given the front's address only. Which region it belongs to is said by the front, as Cloudflare says it to a Worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp
import curl_cffi

from isochrone.client.cache_file import CacheFile
from isochrone.client.fetch import Client
from isochrone.client.names import Names
from isochrone.client.tcp import tls_context
from isochrone.client.url import Url
from isochrone.lab.front import EdgeApp, Front
from isochrone.lab.internet import SmallInternet
from isochrone.lab.local_edge import EdgeOrigin, LocalEdge
from isochrone.lab.world import load_world
from isochrone.publishing import manifest
from isochrone.verification.certificates import TrustStore
from isochrone_edge.latency_map import LatencyMap
from isochrone_edge.latency_map_writer import Colour, encode

if TYPE_CHECKING:
    from isochrone.lab.authority import Certificate

NAMESPACE = "15c40000000000000000000000000000"
SECRET = "s3cret"
FIRST_ASN = 64_512
WAIT = 30.0  # seconds
IDLE = 3.0  # seconds, after which a region ends an idle connection: until then a browser keeps it whatever `ma` says


@dataclass
class Lab:
    """Everything running. `asn(origin)` is the network whose clients belong to an origin."""

    net: SmallInternet
    edge: LocalEdge
    front: Front
    certificate: Certificate
    session: aiohttp.ClientSession
    ids: list = field(default_factory=list)
    version: str = ""

    @property
    def url(self):
        return f"https://{self.net.public_host}:{self.front.port}"

    def asn(self, origin):
        return FIRST_ASN + self.ids.index(origin)

    def client_of(self, origin):
        """From now on the front's clients are of the network that belongs to `origin`."""
        self.front.app.cf = {"asn": self.asn(origin), "country": "DE"}

    async def publish(self, *, max_age=3600, built_at=None, withdrawn=(), endpoints=True, swapped=False):
        """A map in which each network's first choice is its own origin; returns when the edge uses it."""
        places = list(self.net.origins.values())
        hosts = [o.authority for o in (reversed(places) if swapped else places)]
        origins = [
            {"id": o.id, "host": host, "state": "up", "weight": 1.0}
            | ({"alt_svc": {"authority": o.authority, "ma": max_age}} if endpoints and o.id not in withdrawn else {})
            | ({"alt_svc": "clear"} if o.id in withdrawn else {})
            for o, host in zip(places, hosts, strict=True)
        ]  # fmt: skip
        count = len(origins)
        palette = [
            Colour(tuple(((first + n) % count, 5.0 + n, 20) for n in range(min(count, 4)))) for first in range(count)
        ]  # fmt: skip
        cells = {"asn": {FIRST_ASN + n: n for n in range(count)}}
        data = encode(
            built_at=built_at or time.time(), origins=origins, palette=palette, default=0, cells=cells
        )
        self.version = LatencyMap(data).version
        await self.put(f"map/{self.version}", data)
        await self.put("map/current", manifest.encode(manifest.describe(data)))
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            if await self.live() == self.version:
                return
        raise AssertionError(f"the edge never took {self.version}: {self.edge.log_lines()[-5:]}")

    async def live(self):
        async with self.session.get(self.edge.url + "/healthz") as answer:  # a look at KV goes with a request
            await answer.read()
        headers = {"authorization": f"Bearer {SECRET}"}
        async with self.session.get(self.edge.url + "/.isochrone/status", headers=headers) as answer:
            return (await answer.json())["map"]

    async def put(self, key, value, namespace=NAMESPACE):
        url = f"{self.edge.kv_api}/storage/kv/namespaces/{namespace}/values/{key.replace('/', '%2F')}"
        data = aiohttp.FormData()
        data.add_field("value", value, filename="value")
        data.add_field("metadata", "{}")
        async with self.session.put(aiohttp.client.URL(url, encoded=True), data=data) as response:
            assert response.status == 200, await response.text()


@contextlib.asynccontextmanager
async def a_lab(origins=None):
    """`origins`: how many of the world's; None: all."""
    world = load_world()
    world = world.subset(origins=origins or len(world.origins), clients=1)
    async with contextlib.AsyncExitStack() as stack:
        net = await stack.enter_async_context(SmallInternet(world, idle_s=IDLE))
        ca = net.ca_pem.read_text(encoding="ascii")
        places = list(net.origins.values())
        edge = await stack.enter_async_context(
            LocalEdge(
                vars={
                    "ORIGINS": json.dumps([{"id": o.id, "host": o.authority} for o in places]),
                    "MAP_REFRESH_SECONDS": "0.1",
                },
                secrets={"ISOCHRONE_SECRET": SECRET},
                kv_namespaces={"LATENCY_MAP": NAMESPACE},
                origins={
                    o.authority: EdgeOrigin(
                        address=f"{o.https[0]}:{o.https[1]}", tls=True, ca=ca, certificate_host=o.host
                    )
                    for o in places
                },
            )
        )
        session = await stack.enter_async_context(aiohttp.ClientSession())
        certificate = net.authority.issue("front", net.public_host)
        app = await stack.enter_async_context(EdgeApp(edge.url))
        front = await stack.enter_async_context(Front(app, certificate))
        yield Lab(net, edge, front, certificate, session, list(net.origins))


@dataclass(frozen=True)
class Page:
    """What a client got: over which protocol (ALPN id), from which region, by which HTTP version the region was asked."""

    status: int
    protocol: str
    region: str
    asked_over: str  # "3": the region's own endpoint; "1.1": the edge asked it


class Chromium:
    """A fresh profile of Debian's Chromium; `browser` is shared."""

    name = "chromium"

    def __init__(self, lab, browser):
        self.lab, self.browser = lab, browser

    async def __aenter__(self):
        self.context = await self.browser.new_context()
        self.page = await self.context.new_page()
        return self

    async def __aexit__(self, *_):
        await self.context.close()

    async def get(self):
        answer = await self.page.goto(self.lab.url + "/page", timeout=WAIT * 1000)
        protocol = await self.page.evaluate("performance.getEntriesByType('navigation')[0].nextHopProtocol")
        headers = await answer.all_headers()
        told = json.loads(await answer.body()) if answer.status == 200 else {}
        return Page(answer.status, protocol, headers.get("x-isochrone-region", ""), told.get("http", ""))


def chromium_arguments(lab):
    """How it finds the lab, and how it comes to trust a private authority for QUIC too."""
    origins = lab.net.origins.values()
    hosts = [f"MAP {lab.net.public_host} {lab.front.address}"]
    hosts += [f"MAP {o.host} {o.https[0]}" for o in origins]
    keys = [c.spki_sha256() for c in (lab.certificate, *(o.certificate for o in origins))]
    return [
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
        f"--host-resolver-rules={', '.join(hosts)}",
        f"--ignore-certificate-errors-spki-list={','.join(keys)}",
        # A port that nobody uses: it lifts QUIC's demand for a publicly known root for this host, and forces nothing.
        f"--origin-to-force-quic-on={lab.net.public_host}:1",
    ]


class Cached:
    """A client of one request with an Alt-Svc cache file."""

    def __init__(self, lab, folder):
        self.lab, self.file = lab, folder / "alt-svc.txt"

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    def resolve(self):
        net = self.lab.net
        told = [(net.public_host, self.lab.front.port, self.lab.front.address)]
        return [*told, *((o.host, o.https[1], o.https[0]) for o in net.origins.values())]


class Curl(Cached):
    """libcurl with HTTP/3. When the alternative can't be reached libcurl gives up; its user asks again over HTTP/2."""

    name = "curl"

    async def get(self):
        try:
            return await asyncio.to_thread(self._get, curl_cffi.CurlHttpVersion.NONE)
        except curl_cffi.CurlError:
            return await asyncio.to_thread(self._get, curl_cffi.CurlHttpVersion.V2TLS)

    def _get(self, version):
        opt, body, head = curl_cffi.CurlOpt, io.BytesIO(), io.BytesIO()
        curl = curl_cffi.Curl()
        try:
            curl.setopt(opt.URL, (self.lab.url + "/page").encode())
            curl.setopt(opt.HTTP_VERSION, version)
            curl.setopt(opt.ALTSVC, str(self.file).encode())
            curl.setopt(opt.ALTSVC_CTRL, (1 << 3) | (1 << 4) | (1 << 5))  # HTTP/1.1, 2 and 3
            curl.setopt(opt.CAINFO, str(self.lab.net.ca_pem).encode())
            curl.setopt(opt.RESOLVE, [f"{h}:{p}:{a}" for h, p, a in self.resolve()])
            curl.setopt(opt.CONNECTTIMEOUT_MS, 2000)
            curl.setopt(opt.TIMEOUT_MS, int(WAIT * 1000))
            curl.setopt(opt.WRITEDATA, body)
            curl.setopt(opt.HEADERDATA, head)
            curl.perform()
            status = curl.getinfo(curl_cffi.CurlInfo.RESPONSE_CODE)
            spoken = curl.getinfo(curl_cffi.CurlInfo.HTTP_VERSION)
        finally:
            curl.close()  # writes the file
        lines = head.getvalue().decode().lower().splitlines()
        fields = dict(line.split(": ", 1) for line in lines if ": " in line)
        told = json.loads(body.getvalue()) if status == 200 else {}
        protocol = {2: "http/1.1", 3: "h2", 30: "h3"}[spoken]
        return Page(status, protocol, fields.get("x-isochrone-region", ""), told.get("http", ""))


class Fetch(Cached):
    """The reference client, without a process for each request."""

    name = "fetch"

    async def get(self):
        store = str(self.lab.net.ca_pem)
        client = Client(
            names=Names(given={(h, p): (a,) for h, p, a in self.resolve()}),
            trust=TrustStore(self.lab.net.ca_pem),
            context=lambda alpn: tls_context(store, alpn),
            cache=CacheFile(self.file),
            timeout=WAIT,
        )
        done = await client.fetch(Url.parse(self.lab.url + "/page"))
        assert done.response is not None, [a.problem for a in done.attempts]
        told = json.loads(done.response.body) if done.response.status == 200 else {}
        return Page(done.response.status, done.protocol, done.region, told.get("http", ""))
