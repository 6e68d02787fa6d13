"""What the configuration says of regional names: which there are, what each must lead to, and what is still good. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from isochrone.verification.dns_faults import found
from isochrone.verification.http3 import split_authority

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from isochrone.model import Finding
    from isochrone.nameserver import NameServer
    from isochrone.settings import Settings

#: Names under these choose a region by themselves, or hide which one it is.
BALANCERS = (
    "cloudflare.net", "trafficmanager.net", "azurefd.net", "azureedge.net", "awsglobalaccelerator.com",
    "cloudfront.net", "akadns.net", "akamai.net", "akamaiedge.net", "edgekey.net", "edgesuite.net", "fastly.net", "fastlylb.net",
    "edgecastcdn.net", "cedexis.net", "b-cdn.net", "incapdns.net", "impervadns.net",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What one regional name is said to be."""

    origin: str  # its id
    name: str
    authority: tuple[str, int] | None = None  # host and port that Alt-Svc promises, when this is their name
    expected: frozenset[str] = frozenset()  # addresses; empty: not said
    others: Mapping[str, str] = field(default_factory=dict, hash=False)  # addresses of other origins -> id
    asn: int | None = None
    country: str = ""

    @property
    def subject(self) -> str:
        """What its findings are about."""
        return f"{self.origin} {self.name}"

    def found(self, kind: str, evidence: str, server: NameServer | None = None) -> Finding:
        """A finding about this name, or about one server for this name."""
        at = {} if server is None else {"server": str(server)}
        subject = self.subject if server is None else f"{self.subject} at {server}"
        return found(kind, subject, evidence, origin=self.origin, name=self.name, **at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What is still good."""

    ttl_min: int
    ttl_max: int
    slow_ms: float
    balancers: tuple[str, ...] = BALANCERS

    def balancer(self, names: Iterable[str]) -> str:
        """The first of `names` that lies in a load balancer; empty when none does."""
        return next((n for n in names if any(n == b or n.endswith(f".{b}") for b in self.balancers)), "")


def promises(settings: Settings) -> tuple[Promise, ...]:
    """One promise for each name of each origin: its host, and its affinity endpoint's where that is another."""
    made = []
    for origin in settings.origins:
        host, _ = split_authority(origin.host)
        authority = split_authority(origin.alt_svc) if origin.alt_svc and settings.alt_svc.enabled else None
        others = {
            address: other.id
            for other in settings.origins
            if other.id != origin.id
            for address in other.addresses
        }
        names = dict.fromkeys([host, *([authority[0]] if authority else [])])
        made += [
            Promise(
                origin=origin.id,
                name=name.lower(),
                authority=authority if authority and authority[0] == name else None,
                expected=frozenset(origin.addresses),
                others={a: o for a, o in others.items() if a not in origin.addresses},
                asn=origin.asn,
                country=origin.country,
            )
            for name in names
        ]
    return tuple(made)
