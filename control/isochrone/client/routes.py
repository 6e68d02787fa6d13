"""What a client tries, in which order: the pinned region, what the HTTPS record offers, the public host itself. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from isochrone.client.cache import Entry
    from isochrone.client.names import Service

H3 = "h3"
OVER_TCP = ("h2", "http/1.1")
PROTOCOLS = (H3, *OVER_TCP)


class Kind(StrEnum):
    """Why a place is tried."""

    ALTERNATIVE = "alternative"  # Alt-Svc leads there
    HTTPS_RECORD = "https_record"
    REGION = "region"  # the user names the region
    ORIGIN = "origin"  # the public host itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One place to try, by HTTP/3 or by TCP with what both sides speak of `protocols`."""

    kind: Kind
    protocols: tuple[str, ...]  # ALPN ids: h3 alone, or some of OVER_TCP in the order of preference
    host: str
    port: int
    entry: Entry | None = None  # that of Alt-Svc
    addresses: tuple[str, ...] = ()  # when they are known already

    @property
    def authority(self) -> str:
        """host:port."""
        return f"{self.host}:{self.port}"


def routes(
    host: str,
    port: int,
    *,
    allowed: Collection[str],
    pinned: Sequence[Entry] = (),
    services: Sequence[Service] = (),
) -> tuple[Route, ...]:
    """The places to try for an origin, best first; each once.

    What Alt-Svc pins comes first, then HTTP/3 where the HTTPS record offers it, last TCP. When only HTTP/3 is allowed and
    nobody offers it, the public host is asked for it all the same.
    """
    found = [
        Route(
            kind=Kind.ALTERNATIVE,
            protocols=(e.protocol,),
            host=e.alt_host,
            port=e.alt_port,
            entry=e,
        )
        for e in pinned
        if e.protocol in allowed
    ]
    if H3 in allowed:
        found += [
            Route(kind=Kind.HTTPS_RECORD, protocols=(H3,), host=s.host, port=s.port, addresses=s.addresses)
            for s in services
            if H3 in s.protocols
        ]
    tcp = tuple(p for p in OVER_TCP if p in allowed)
    if tcp:
        found.append(Route(kind=Kind.ORIGIN, protocols=tcp, host=host, port=port))
    elif not any(route.protocols == (H3,) for route in found):
        found.append(Route(kind=Kind.ORIGIN, protocols=(H3,), host=host, port=port))
    seen: set[tuple[tuple[str, ...], str]] = set()
    return tuple(
        route
        for route in found
        if (key := (route.protocols, route.authority)) not in seen and not seen.add(key)  # type: ignore[func-returns-value]
    )


def region_routes(
    host: str, port: int, endpoint: tuple[str, int] | None, *, allowed: Collection[str]
) -> tuple[Route, ...]:
    """The places of one region: its affinity endpoint by HTTP/3 if it has one, its own host by TCP."""
    found = []
    if H3 in allowed:
        h3_host, h3_port = endpoint or (host, port)
        found.append(Route(kind=Kind.REGION, protocols=(H3,), host=h3_host, port=h3_port))
    tcp = tuple(p for p in OVER_TCP if p in allowed)
    if tcp:
        found.append(Route(kind=Kind.REGION, protocols=tcp, host=host, port=port))
    return tuple(found)
