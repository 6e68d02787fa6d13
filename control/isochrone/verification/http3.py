"""Does an affinity endpoint keep the promise that Alt-Svc makes? Proved by a real HTTP/3 connection.

A client that follows `Alt-Svc: h3="fra.example.com:443"` connects there but asks for the public host: the endpoint must show
a certificate for the public host (RFC 7838 section 2.1), speak h3, and answer for the public authority. It must also be the
region that it is offered for, which it says in a header field.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aioquic.quic.configuration import QuicConfiguration

from isochrone.model import Finding, Outcome, Severity
from isochrone.probing.prober import ProberTrouble, own_fault, resolve
from isochrone.probing.quic import INITIAL_RTT, LATE_BOUND
from isochrone.probing.quic_link import LinkClosed, QuicLink
from isochrone.verification.certificates import TrustStore
from isochrone.verification.http3_exchange import Exchange
from isochrone.verification.http3_faults import FAULTS
from isochrone.verification.standing import worst

if TYPE_CHECKING:
    from collections.abc import Iterable

    from isochrone.model import Origin
    from isochrone.settings import Verification

_NO_APPLICATION_PROTOCOL = 0x178  # CRYPTO_ERROR with TLS alert 120, RFC 9001 section 8.1
_VERSION_REASON = "Could not find a common protocol version"  # aioquic's words; it has no code for it


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointCheck:
    """What one connection to one address of an endpoint showed."""

    origin: str  # its id
    authority: str  # what Alt-Svc promises, host:port
    address: str  # the IP address connected to; empty when there was none
    outcome: Outcome
    handshake_ms: float | None  # first packet to completed handshake; None when it did not complete
    findings: tuple[Finding, ...]


def verdict(checks: Iterable[EndpointCheck]) -> Outcome:
    """One outcome for all addresses of an endpoint: clients may meet any of them."""
    return worst(check.outcome for check in checks)


class _Fault(Exception):
    def __init__(self, kind: str, evidence: str) -> None:
        self.kind, self.evidence = kind, evidence
        super().__init__(evidence)


class EndpointChecker:
    """Checks affinity endpoints for the public host `site`.

    Raises TrustStoreError from its constructor when settings.trust_store can't be used.
    """

    def __init__(self, site: str, settings: Verification) -> None:
        self._site = site
        self._settings = settings
        self._trust = TrustStore(settings.trust_store)
        self._configuration = QuicConfiguration(
            is_client=True,
            alpn_protocols=["h3"],
            server_name=site,
            verify_mode=ssl.CERT_NONE,  # judged by TrustStore, which finds all faults, before anything is sent
            initial_rtt=INITIAL_RTT,
        )

    async def check(self, origin: Origin, *, now: float) -> tuple[EndpointCheck, ...]:
        """One check for each address of the origin's endpoint, at once; none when it has no endpoint.

        `now` is the Unix time at which certificates are judged. Bounded by settings.timeout_seconds for the
        resolution and again for each connection. Never raises for what the network does.
        """
        if origin.alt_svc is None:
            return ()
        authority = origin.alt_svc.authority
        host, port = split_authority(authority)
        try:
            addresses = origin.addresses or await resolve(host, timeout=self._settings.timeout_seconds)
        except ProberTrouble as trouble:
            unresolved = self._finding("unresolved", str(trouble), f"{origin.id} {authority}")
            return (self._result(origin.id, authority, "", Outcome.PROBER_FAILED, (unresolved,)),)
        return tuple(
            await asyncio.gather(
                *(self._check_address(origin.id, authority, address, port, now) for address in addresses)
            )
        )

    async def _check_address(
        self, origin: str, authority: str, address: str, port: int, now: float
    ) -> EndpointCheck:
        subject = f"{origin} {f'[{address}]' if ':' in address else address}:{port}"
        found: list[Finding] = []
        outcome, link = Outcome.OK, None
        try:
            exchange = Exchange()
            link = exchange.link = QuicLink(self._configuration, address, port, on_event=exchange.on_event)
            await self._converse(exchange, origin, now, found, subject)
        except _Fault as fault:
            outcome = Outcome.TARGET_FAILED
            found.append(self._finding(fault.kind, fault.evidence, subject))
        except ProberTrouble as trouble:
            outcome = Outcome.PROBER_FAILED
            found.append(self._finding("not_checked", str(trouble), subject))
        except OSError as error:
            outcome = Outcome.PROBER_FAILED
            found.append(self._finding("not_checked", own_fault(error), subject))
        finally:
            if link is not None:
                link.close()
        if any(finding.severity is Severity.ERROR for finding in found):
            outcome = Outcome.TARGET_FAILED
        return self._result(origin, authority, address, outcome, tuple(found), link)

    async def _converse(
        self, exchange: Exchange, origin: str, now: float, found: list[Finding], subject: str
    ) -> None:
        """Handshake, certificate, request, region; raises _Fault or ProberTrouble where it can't go on."""
        link, timeout = exchange.link, self._settings.timeout_seconds
        deadline = asyncio.get_running_loop().time() + timeout
        link.start()
        try:
            await link.until(lambda: link.completed is not None, deadline)
        except TimeoutError:
            _raise_if_late(link)
            if link.first_received is None:
                raise _Fault("unreachable", f"no answer to QUIC within {timeout:g} s") from None
            raise _Fault("handshake", f"the QUIC handshake did not complete within {timeout:g} s") from None
        except LinkClosed as closed:
            raise _handshake_fault(closed) from None
        faults = self._trust.faults(link.peer_certificates(), self._site, now=now)
        found.extend(self._finding(f"certificate_{fault.kind}", fault.evidence, subject) for fault in faults)
        if any(finding.severity is Severity.ERROR for finding in found):
            return  # no client would ask anything of it
        exchange.ask(self._site, self._settings.path)
        try:
            await link.until(lambda: exchange.status is not None or exchange.reset is not None, deadline)
        except TimeoutError:
            _raise_if_late(link)
            raise _Fault(
                "no_answer", f"connected, but no answer to GET {self._settings.path} within {timeout:g} s"
            ) from None
        except LinkClosed as closed:
            raise _Fault(
                "closed", f"the server closed the connection instead of answering: {_code(closed)}"
            ) from None
        if exchange.reset is not None:
            raise _Fault("reset", f"the server reset the request: error 0x{exchange.reset:x}")
        self._judge_answer(exchange, origin)

    def _judge_answer(self, exchange: Exchange, origin: str) -> None:
        if exchange.status is None or not exchange.status.startswith("2"):
            raise _Fault(
                "status",
                f"GET https://{self._site}{self._settings.path} was answered with status {exchange.status}",
            )
        name = self._settings.region_header.lower()
        region = exchange.headers.get(name)
        if region is None:
            raise _Fault("no_region", f"the answer has no {name} header field")
        if region != origin:
            raise _Fault("wrong_region", f"the answer comes from {region!r}, not from {origin!r}")

    def _finding(self, kind: str, evidence: str, subject: str) -> Finding:
        fault = FAULTS[kind]
        advice = fault.advice.format(
            site=self._site, path=self._settings.path, header=self._settings.region_header
        )
        return Finding(
            check=f"http3.{kind}",
            subject=subject,
            severity=fault.severity,
            evidence=evidence,
            advice=advice,
            source=fault.source,
        )

    @staticmethod
    def _result(
        origin: str,
        authority: str,
        address: str,
        outcome: Outcome,
        findings: tuple[Finding, ...],
        link: QuicLink | None = None,
    ) -> EndpointCheck:
        handshake_ms = None
        if link is not None and link.completed is not None and link.first_sent is not None:
            handshake_ms = (link.completed - link.first_sent) * 1000
        return EndpointCheck(
            origin=origin,
            authority=authority,
            address=address,
            outcome=outcome,
            handshake_ms=handshake_ms,
            findings=findings,
        )


def split_authority(authority: str) -> tuple[str, int]:
    """Host and port of host[:port]; 443 when there is none."""
    host, colon, port = authority.rpartition(":")
    return (host.strip("[]"), int(port)) if colon and port.isdigit() else (authority, 443)


def _raise_if_late(link: QuicLink) -> None:
    if link.late > LATE_BOUND:
        raise ProberTrouble(f"this verifier's event loop was late by {link.late * 1000:.0f} ms") from None


def _handshake_fault(closed: LinkClosed) -> _Fault:
    if closed.error_code is None:
        return _Fault("unreachable", str(closed))
    if closed.error_code == _NO_APPLICATION_PROTOCOL:
        return _Fault("alpn", "the server does not speak h3 (TLS alert no_application_protocol)")
    if str(closed).startswith(_VERSION_REASON):
        return _Fault("version", "the server speaks no QUIC version that clients do (1 or 2)")
    return _Fault("handshake", f"the handshake failed: {_code(closed)}")


def _code(closed: LinkClosed) -> str:
    words = str(closed) or "no reason given"
    return words if closed.error_code is None else f"error 0x{closed.error_code:x} ({words})"
