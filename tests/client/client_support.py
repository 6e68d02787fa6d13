"""A site and its regions as real servers on loopback, over HTTP/1.1, HTTP/2 and HTTP/3; and a client for them."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field

from isochrone.client.cache_file import CacheFile
from isochrone.client.fetch import Client
from isochrone.client.names import Names
from isochrone.client.tcp import tls_context
from isochrone.client.url import Url
from isochrone.lab.app import AppResponse
from isochrone.lab.authority import Authority
from isochrone.lab.front import Front
from isochrone.verification.certificates import TrustStore

SITE, REGIONS = "www.example.test", ("eu", "us")


@dataclass
class RegionServer:
    """Answers with its name; `alt_svc` and `status` are set by tests, `seen` is what it was asked."""

    region: str
    alt_svc: list[str] = field(default_factory=list)
    status: int = 200
    body: bytes | None = None
    extra: list = field(default_factory=list)
    seen: list = field(default_factory=list)

    async def answer(self, request):
        headers = dict(request.headers)
        self.seen.append((request.http, request.host, headers.get("alt-used")))
        body = await self._body(request)
        fields = [("x-isochrone-region", self.region), ("content-length", str(len(body))), *self.extra]
        return AppResponse(self.status, [*fields, *(("alt-svc", value) for value in self.alt_svc)], body)

    async def _body(self, request):
        sent = b"".join([chunk async for chunk in request.body])
        return self.body if self.body is not None else sent or json.dumps({"path": request.target}).encode()


@dataclass
class World:
    """The site at 127.0.0.1 and its regions at 127.0.0.2 and on, each with a port of its own."""

    authority: Authority
    fronts: dict
    apps: dict
    cache: CacheFile

    @property
    def url(self):
        return Url.parse(f"https://{SITE}:{self.fronts['site'].port}/a?b=c")

    def pin(self, region, rest="; ma=60; persist=1"):
        return f'h3="{region}.example.test:{self.fronts[region].port}"{rest}'

    def resolve(self):
        names = {"site": SITE, **{region: f"{region}.example.test" for region in REGIONS}}
        return {(names[key], front.port): (front.address,) for key, front in self.fronts.items()}

    def client(self, **given):
        store = str(self.authority.ca_pem)
        options = {
            "names": Names(given=self.resolve()),
            "trust": TrustStore(self.authority.ca_pem),
            "context": lambda alpn: tls_context(store, alpn),
            "cache": self.cache,
            "timeout": 20.0,
        }
        return Client(**{**options, **given})

    def options(self):
        """The same for the command line."""
        told = [
            f"--resolve={host}:{port}:{','.join(addresses)}"
            for (host, port), addresses in self.resolve().items()
        ]
        return [
            *told,
            f"--cacert={self.authority.ca_pem}",
            f"--alt-svc={self.cache.path}",
            "--json",
            "--timeout=20",
        ]

    async def stop(self, region):
        await self.stacks.pop(region).aclose()


@contextlib.asynccontextmanager
async def a_world(folder, **site):
    authority = Authority(folder / "ca")
    apps = {key: RegionServer("edge" if key == "site" else key) for key in ("site", *REGIONS)}
    async with contextlib.AsyncExitStack() as stack:
        world = World(authority, {}, apps, CacheFile(folder / "alt-svc.txt"))
        world.stacks = {}
        for number, (key, app) in enumerate(apps.items(), 1):
            certificate = authority.issue(key, SITE, f"{key}.example.test")
            options = site if key == "site" else {}
            world.stacks[key] = own = contextlib.AsyncExitStack()
            stack.push_async_exit(own)
            world.fronts[key] = await own.enter_async_context(
                Front(app, certificate, address=f"127.0.0.{number}", **options)
            )
        yield world
