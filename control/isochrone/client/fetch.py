"""The reference client: pre-resolve, follow what is pinned, fall back, remember; and say what happened.

Every connection asks for the public host, by its name in TLS and its authority in HTTP, wherever it leads: its certificate
must be valid for it (RFC 7838 section 2.1).
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from isochrone.client import http3, race, tcp
from isochrone.client.cache import Learnt
from isochrone.client.errors import (
    ClientError,
    HandshakeRefusedError,
    RequestFailedError,
    UnreachableError,
    UnresolvedError,
)
from isochrone.client.exchange import Request, Response
from isochrone.client.routes import H3, PROTOCOLS, Kind, Route, region_routes, routes

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from isochrone.client.cache import AltSvcCache, Entry
    from isochrone.client.cache_file import CacheFile
    from isochrone.client.exchange import Connection
    from isochrone.client.names import Names, Resolved
    from isochrone.client.url import Url
    from isochrone.verification.certificates import TrustStore

MISDIRECTED = 421  # RFC 9110 section 15.5.20: this connection is not for this host
HTTP3_SECONDS = 2.0  # for a handshake when something else is left to try
HTTP3_SHARE = 1 / 3  # of the whole, for the same
DNS_SHARE = 1 / 2
_DESCRIBED = re.compile(r'([a-z]+);desc="([^"]*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One region, named by the user: its own host, and its affinity endpoint when it has one."""

    id: str
    host: str
    port: int
    endpoint: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A route that was tried, and why it was given up; None when it answered."""

    route: Route
    error: ClientError | None = None

    @property
    def problem(self) -> str:
        """The error in words, "" for none."""
        return str(self.error) if self.error is not None else ""


@dataclass(slots=True, kw_only=True)
class Fetched:
    """What came of it. Times are milliseconds."""

    url: Url
    attempts: list[Attempt] = field(default_factory=list)
    response: Response | None = None
    protocol: str = ""  # ALPN id
    address: str = ""  # that answered
    resolved_by: str = ""
    region: str = ""  # that answered, by its own word
    phases: dict[str, float] = field(default_factory=dict)  # dns, connect, tls, first_byte, total
    alt_svc: str | None = None  # the field as received
    learnt: Learnt = Learnt.NOTHING

    @property
    def route(self) -> Route | None:
        """The one that answered."""
        return self.attempts[-1].route if self.response is not None else None

    @property
    def edge(self) -> dict[str, str]:
        """What the edge says of its decision (Server-Timing): colour, map, origin, tries, reason."""
        said = self.response.get("server-timing") if self.response else None
        return dict(_DESCRIBED.findall(said or ""))


@dataclass(slots=True, kw_only=True)
class Client:
    """A client with everything it needs; one for many fetches.

    Attributes:
        names: how hosts are resolved.
        trust: for HTTP/3.
        context: makes the TLS context of a TCP connection for some ALPN ids.
        cache: where Alt-Svc is kept; None keeps nothing.
        region_header: the field in which an origin names itself.
        timeout: seconds for a whole fetch.
        source_address: what connections are made from; None: the system's choice.
    """

    names: Names
    trust: TrustStore
    context: Callable[[Sequence[str]], ssl.SSLContext]
    cache: CacheFile | None = None
    region_header: str = "x-isochrone-region"
    timeout: float = 10.0
    source_address: str | None = None
    clock: Callable[[], float] = time.time

    async def fetch(
        self,
        url: Url,
        *,
        allowed: Sequence[str] = PROTOCOLS,
        region: Region | None = None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> Fetched:
        """One GET. Without an answer `response` is None and each attempt has its problem; raises CacheFileError only.

        With a region nothing else is tried, and the cache is neither asked nor changed.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        deadline = begun + self.timeout
        done = Fetched(url=url)
        pinned: tuple[Entry, ...] = ()
        public: Resolved | None = None
        if region is not None:
            wanted = region_routes(region.host, region.port, region.endpoint, allowed=allowed)
        else:
            if self.cache is not None:
                pinned = self.cache.read().find(url.host, url.port, now=self.clock(), protocols=allowed)
            if not pinned:  # what is pinned needs the public host's records only when it fails
                public = await self.names.resolve(url.host, url.port, begun + self.timeout * DNS_SHARE)
                done.phases["dns"] = (loop.time() - begun) * 1000
            wanted = routes(
                url.host, url.port, allowed=allowed, pinned=pinned, services=public.services if public else ()
            )
        for index, route in enumerate(wanted):
            last = index == len(wanted) - 1
            error = await self._try(done, route, public, tuple(headers), deadline, last=last)
            done.attempts.append(Attempt(route=route, error=error))
            if error is None:
                break
        if done.response is not None and region is None:
            self._remember(done)
        done.phases["total"] = (loop.time() - begun) * 1000
        return done

    async def _try(
        self,
        done: Fetched,
        route: Route,
        public: Resolved | None,
        headers: tuple[tuple[str, str], ...],
        deadline: float,
        *,
        last: bool,
    ) -> ClientError | None:
        """One route. Fills in `done`, or returns why it did not work."""
        loop = asyncio.get_running_loop()
        url, begun = done.url, loop.time()
        if begun >= deadline:
            return UnreachableError(route.authority, f"no time is left of the {self.timeout:g} s")
        try:
            addresses = route.addresses
            by = "dns"
            if not addresses:
                known = public if public is not None and public.host == route.host else None
                resolved = known or await self.names.resolve(
                    route.host, route.port, begun + (deadline - begun) * DNS_SHARE
                )
                addresses, by = resolved.at(route.port, route.protocols), resolved.by
                if known is None:
                    done.phases["dns"] = done.phases.get("dns", 0.0) + (loop.time() - begun) * 1000
                if not addresses:
                    raise UnresolvedError(
                        route.authority, resolved.problem or f"no address of {route.host} is known"
                    )
            connection = await self._connect(route, addresses, url, deadline, last=last)
            try:
                alternative = [("alt-used", route.authority)] if route.kind is Kind.ALTERNATIVE else []
                request = Request(
                    authority=url.authority, path=url.path, headers=(*alternative, *headers)
                )  # RFC 7838 section 5
                response = await connection.ask(request, deadline)
                if response.status == MISDIRECTED and not last:
                    raise RequestFailedError(
                        route.authority, f"it does not answer for {url.host} (status 421)"
                    )
            finally:
                connection.close()
        except ClientError as error:
            return error
        done.response, done.protocol, done.address = response, connection.protocol, connection.address
        done.resolved_by = by
        done.phases |= connection.phases
        done.region = response.get(self.region_header) or ""
        done.alt_svc = response.get("alt-svc")
        return None

    async def _connect(
        self, route: Route, addresses: Sequence[str], url: Url, deadline: float, *, last: bool
    ) -> Connection:
        """To whichever address answers first."""
        server_name = url.host.strip("[]")
        if route.protocols == (H3,):
            now = asyncio.get_running_loop().time()
            until = deadline if last else now + min(HTTP3_SECONDS, (deadline - now) * HTTP3_SHARE)

            async def by_quic(address: str) -> Connection:
                return await http3.connect(
                    address, route.port, authority=route.authority, server_name=server_name, trust=self.trust,
                    deadline=until, source_address=self.source_address,
                )  # fmt: skip

            return await race.race(addresses, by_quic, abandon=lambda lost: lost.close())
        context = self.context(route.protocols)

        async def by_tcp(address: str) -> Connection:
            opened = await tcp.connect(
                address, route.port, authority=route.authority, server_name=server_name, context=context,
                deadline=deadline, source_address=self.source_address,
            )  # fmt: skip
            if opened.protocol not in route.protocols:
                opened.close()
                raise HandshakeRefusedError(route.authority, f"it does not speak {route.protocols[0]}")
            return opened

        return await race.race(addresses, by_tcp, abandon=lambda lost: lost.close())

    def _remember(self, done: Fetched) -> None:
        """Take in Alt-Svc, from the origin itself or from an alternative that speaks for it.

        A pinned route that failed is forgotten first, now that another has shown that it is not our own network.
        """
        if self.cache is None or done.response is None:
            return
        failed = [a.route.entry for a in done.attempts if a.error and a.route.entry is not None]
        age = done.response.get("age") or "0"
        seconds = int(age[:9]) if age.isascii() and age.isdigit() else 0

        def change(cache: AltSvcCache) -> None:
            now = self.clock()
            for entry in failed:
                cache.forget(entry)
            done.learnt = cache.learn(
                done.url.host, done.url.port, done.alt_svc, told_by=done.protocol, now=now, age=seconds
            )
            cache.prune(now)

        self.cache.update(change)
