"""What a client may use instead of asking DNS itself: addresses and HTTPS parameters of each origin, and until when. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING

from isochrone.model import Severity
from isochrone.verification.dns_faults import is_broken

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from isochrone.model import Finding
    from isochrone.verification.dns_answer import Answer
    from isochrone.verification.dns_https import Services
    from isochrone.verification.dns_promise import Promise


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpsParams:
    """One HTTPS record that clients may use."""

    priority: int
    target: str
    alpn: tuple[str, ...]
    port: int
    ipv4hint: tuple[str, ...] = ()
    ipv6hint: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEntry:
    """One origin's name, resolved ahead. Not `proved`: ask DNS yourself, and `why` says what is wrong."""

    origin: str
    name: str
    authority: str = ""  # what Alt-Svc promises, host:port, when the name is its
    proved: bool  # by DNS
    addresses: tuple[str, ...] = ()  # IPv6 first, as RFC 6724 has it
    ttl: int = 0  # seconds from `checked_at`
    checked_at: float = 0.0  # Unix time
    valid_until: float = 0.0  # Unix time
    https: tuple[HttpsParams, ...] = ()  # by priority
    why: tuple[str, ...] = field(default=())  # ids of the findings that speak against it


def entry(
    promise: Promise,
    agreed: Mapping[str, Answer],
    services: Services | None,
    findings: Sequence[Finding],
    *,
    now: float,
) -> PlanEntry:
    """The plan for one name, from what all servers agree on."""
    authority = "" if promise.authority is None else "{}:{}".format(*promise.authority)
    broken = tuple(sorted({f.check for f in findings if f.severity is Severity.ERROR and is_broken(f)}))
    answers = [answer for answer in agreed.values() if answer.value and answer.ttl is not None]
    addresses = {address for answer in agreed.values() for address in answer.addresses}
    if broken or not addresses:
        return PlanEntry(
            origin=promise.origin,
            name=promise.name,
            authority=authority,
            proved=False,
            checked_at=now,
            why=broken,
        )
    ttl = min(answer.ttl or 0 for answer in answers)
    records = (
        () if services is None else tuple(b for b in services.bindings if not b.problems and not b.alias)
    )
    return PlanEntry(
        origin=promise.origin,
        name=promise.name,
        authority=authority,
        proved=True,
        addresses=tuple(sorted(addresses, key=lambda a: (-ip_address(a).version, ip_address(a).packed))),
        ttl=ttl,
        checked_at=now,
        valid_until=now + ttl,
        https=tuple(
            HttpsParams(
                priority=binding.priority,
                target=binding.owner_or_target("" if services is None else services.owner),
                alpn=tuple(name.decode("ascii", "backslashreplace") for name in binding.protocols),
                port=443 if binding.port is None else binding.port,
                ipv4hint=binding.ipv4hint,
                ipv6hint=binding.ipv6hint,
            )
            for binding in records
        ),
    )
