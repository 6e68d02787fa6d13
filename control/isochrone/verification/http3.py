"""Does an affinity endpoint keep the promise that Alt-Svc makes? Proved by real HTTP/3 connections.

A client that follows `Alt-Svc: h3="fra.example.com:443"` connects there but asks for the public host: the endpoint must show
a certificate for the public host (RFC 7838 section 2.1), speak h3, and answer for the public authority. It must also be the
region that it is offered for, which it says in a header field or in its health document.

The cheap check is one connection to each address. The thorough one makes several in a row, resumes one, moves one to another
port, and measures handshakes of HTTP/1.1, HTTP/2 and HTTP/3 side by side.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from isochrone.model import Finding, Outcome, Severity, Target
from isochrone.probing.prober import ProberTrouble, own_fault
from isochrone.probing.prober import resolve as by_system
from isochrone.probing.tcp import TcpProber
from isochrone.verification.certificates import TrustStore
from isochrone.verification.http3_deep import Depth, judge, look_deeper
from isochrone.verification.http3_families import by_family
from isochrone.verification.http3_faults import FAULTS
from isochrone.verification.http3_session import Dialler, Trouble
from isochrone.verification.http3_visit import Visitor
from isochrone.verification.standing import worst

if TYPE_CHECKING:
    from collections.abc import Iterable

    from isochrone.model import Origin
    from isochrone.settings import Verification
    from isochrone.verification.http3_timing import Timing
    from isochrone.verification.resolving import Resolve

DEEP_AT_ONCE = 8  # addresses that are checked thoroughly at the same time: more would blur the times
DEEP_TIMEOUTS = 8  # a thorough check ends after so many timeouts
TCP_SECONDS = 2.0  # whether TCP answers where UDP does not is known by then


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointCheck:
    """What the check of one address of an endpoint showed."""

    origin: str  # its id
    authority: str  # what Alt-Svc promises, host:port
    address: str  # the IP address connected to; empty when there was none
    outcome: Outcome
    handshake_ms: float | None = None  # first packet to completed handshake; None when it did not complete
    findings: tuple[Finding, ...] = ()
    version: str = ""  # of QUIC: 1, 2
    retry: bool = False  # the server validated our address by Retry
    transport: dict[str, int | bool] = field(
        default_factory=dict
    )  # its transport parameters, RFC 9000 section 18.2
    deep: bool = False  # the thorough check; what follows is its
    regions: tuple[str, ...] = ()  # who answered connections in a row
    resumed: bool | None = None  # None: not tried
    early_data: bool | None = None  # 0-RTT; None: not offered
    migrated: bool | None = None  # survived another port; None: not tried
    timings: dict[str, Timing | None] = field(default_factory=dict)  # h1, h2, h3


def verdict(checks: Iterable[EndpointCheck]) -> Outcome:
    """One outcome for all addresses of an endpoint: clients may meet any of them."""
    return worst(check.outcome for check in checks)


class EndpointChecker:
    """Checks affinity endpoints for the public host `site`.

    Raises TrustStoreError from its constructor when settings.trust_store can't be used.
    """

    def __init__(self, site: str, settings: Verification, resolve: Resolve = by_system) -> None:
        self._site = site
        self._resolve = resolve
        self._settings = settings
        self._dialler = Dialler(site, settings, TrustStore(settings.trust_store))
        self._tcp = TcpProber()
        self._gate = asyncio.Semaphore(DEEP_AT_ONCE)

    def deadline(self, *, deep: bool) -> float:
        """Seconds by which a check of one address has ended, resolution included."""
        return (3 + (DEEP_TIMEOUTS if deep else 0)) * self._settings.timeout_seconds + TCP_SECONDS

    async def check(self, origin: Origin, *, now: float, deep: bool = False) -> tuple[EndpointCheck, ...]:
        """One check for each address of the origin's endpoint, at once; none when it has no endpoint.

        `now` is the Unix time at which certificates are judged. Each step is bounded by settings.timeout_seconds. Never
        raises for what the network does.
        """
        if origin.alt_svc is None:
            return ()
        authority = origin.alt_svc.authority
        host, port = split_authority(authority)
        try:
            addresses = origin.addresses or await self._resolve(host, timeout=self._settings.timeout_seconds)
        except ProberTrouble as trouble:
            subject = f"{origin.id} {authority}"
            unresolved = self._finding(Trouble("unresolved", str(trouble)), subject, origin.id, authority)
            return (
                EndpointCheck(
                    origin=origin.id,
                    authority=authority,
                    address="",
                    outcome=Outcome.PROBER_FAILED,
                    findings=(unresolved,),
                ),
            )
        seen = await asyncio.gather(
            *(
                self._look(origin.id, Visitor(self._dialler, host, port, address, now), deep=deep)
                for address in addresses
            )
        )
        told = by_family({look.address: look.troubles for look in seen})
        return tuple(self._result(origin.id, authority, port, look, told[look.address]) for look in seen)

    async def _look(self, origin: str, visitor: Visitor, *, deep: bool) -> _Look:
        look = _Look(visitor.address)
        try:
            visit = await visitor.visit()
            look.depth.visits.append(visit)
            look.troubles += visit.troubles
            if visit.failed is not None:
                await self._ask_tcp(look, visitor.port)
            elif deep and not visit.fatal:
                await self._deeper(visitor, look)
        except ProberTrouble as trouble:
            look.prober = True
            look.troubles.append(Trouble("not_checked", str(trouble)))
        except OSError as error:
            look.prober = True
            look.troubles.append(Trouble("not_checked", own_fault(error)))
        regions = set(look.depth.regions)
        if len(regions) == 1 and regions != {origin}:
            found = f"the answer comes from {regions.pop()!r}, not from {origin!r}"
            look.troubles.append(Trouble("wrong_region", found))
        return look

    async def _deeper(self, visitor: Visitor, look: _Look) -> None:
        seconds = DEEP_TIMEOUTS * self._settings.timeout_seconds
        look.deep = True
        async with self._gate:
            try:
                async with asyncio.timeout(seconds):
                    await look_deeper(visitor, look.depth, connections=self._settings.connections)
            except TimeoutError:
                look.troubles.append(
                    Trouble("not_checked", f"the thorough check did not end within {seconds:g} s")
                )
        look.troubles += judge(look.depth, slow_ms=self._settings.slow_ms)

    async def _ask_tcp(self, look: _Look, port: int) -> None:
        """Where UDP is not answered: is it only UDP?"""
        for place, trouble in enumerate(look.troubles):
            if trouble.kind in {"unreachable", "port_closed"}:
                timeout = min(TCP_SECONDS, self._settings.timeout_seconds)
                tcp = await self._tcp.run_once(Target(look.address, port, 0), timeout=timeout)
                if tcp.outcome is Outcome.OK:
                    look.troubles[place] = Trouble(
                        "udp_blocked", f"{trouble.evidence}; TCP connects to the same port"
                    )

    def _finding(
        self, trouble: Trouble, subject: str, origin: str, authority: str, address: str = ""
    ) -> Finding:
        fault = FAULTS[trouble.kind]
        advice = fault.advice.format(
            site=self._site,
            path=self._settings.path,
            header=self._settings.region_header,
            member=repr(self._settings.region_member),
        )
        return Finding(
            check=f"http3.{trouble.kind}",
            subject=subject,
            severity=fault.severity,
            evidence=trouble.evidence,
            advice=advice,
            source=fault.source,
            details={"origin": origin, "authority": authority, "address": address} | trouble.details,
        )

    def _result(
        self, origin: str, authority: str, port: int, look: _Look, troubles: list[Trouble]
    ) -> EndpointCheck:
        address, depth = look.address, look.depth
        subject = f"{origin} {f'[{address}]' if ':' in address else address}:{port}"
        findings = tuple(self._finding(trouble, subject, origin, authority, address) for trouble in troubles)
        outcome = Outcome.PROBER_FAILED if look.prober and not depth.visits else Outcome.OK
        if any(finding.severity is Severity.ERROR for finding in findings):
            outcome = Outcome.TARGET_FAILED
        first = depth.visits[0] if depth.visits else None
        return EndpointCheck(
            origin=origin,
            authority=authority,
            address=address,
            outcome=outcome,
            handshake_ms=None if first is None else first.handshake_ms,
            findings=findings,
            version="" if first is None else first.version,
            retry=first is not None and first.retried,
            transport={} if first is None else first.declared,
            deep=look.deep,
            regions=tuple(depth.regions),
            resumed=depth.resumed,
            early_data=depth.early,
            migrated=next((v.migrated for v in depth.visits if v.migrated is not None), None),
            timings=depth.timings if look.deep else {},
        )


@dataclass(slots=True)
class _Look:
    """What was seen of one address."""

    address: str
    troubles: list[Trouble] = field(default_factory=list)
    depth: Depth = field(default_factory=lambda: Depth([]))
    deep: bool = False
    prober: bool = False  # this host's own trouble kept it from being checked


def split_authority(authority: str) -> tuple[str, int]:
    """Host and port of host[:port]; 443 when there is none."""
    host, colon, port = authority.rpartition(":")
    return (host.strip("[]"), int(port)) if colon and port.isdigit() else (authority, 443)
