"""A user inside one client network: follows an Alt-Svc field by a real HTTP/3 connection of the reference client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aioquic.h3.connection import H3_ALPN

from isochrone.client import http3
from isochrone.client.alt_svc import Alternative, parse_alt_svc
from isochrone.client.errors import (
    CertificateRefusedError,
    ClientError,
    HandshakeRefusedError,
    NoAlternativeError,
    UnreachableError,
    UnresolvedError,
)
from isochrone.client.exchange import Request
from isochrone.verification.certificates import TrustStore

if TYPE_CHECKING:
    from pathlib import Path

    from isochrone.lab.relay_flow import Address

Hosts = Mapping[str, str | Sequence[str]]


@dataclass(frozen=True, slots=True)
class Http3Answer:
    """What came back. `handshake_ms`: first datagram to end of handshake; `request_ms`: from there to the last byte."""

    status: int
    protocol: str  # the negotiated ALPN id
    handshake_ms: float
    request_ms: float
    headers: tuple[tuple[str, str], ...]
    body: bytes
    alternative: Alternative
    address: Address

    @property
    def region(self) -> str:
        """The x-isochrone-region field, empty when absent."""
        return dict(self.headers).get("x-isochrone-region", "")


def choose(alt_svc: str, public_host: str) -> Alternative:
    """The first HTTP/3 alternative of a field value; raises `NoAlternativeError` or `AltSvcError`."""
    for alternative in parse_alt_svc(alt_svc):
        if alternative.protocol in H3_ALPN:
            return alternative
    raise NoAlternativeError(public_host, f"no h3 alternative in Alt-Svc {alt_svc!r}")


async def request_http3(
    address: Address,
    request: Request,
    *,
    alternative: Alternative,
    server_name: str,
    trust: TrustStore,
    source_address: str,
    deadline: float,
) -> Http3Answer:
    """One connection to `address`, one request. Raises `ClientError`."""
    loop = asyncio.get_running_loop()
    connection = await http3.connect(
        *address,
        authority=f"{alternative.host or server_name}:{alternative.port}",
        server_name=server_name,
        trust=trust,
        source_address=source_address,
        deadline=deadline,
        alpn=alternative.protocol,
    )
    try:
        shaken = loop.time()
        answer = await connection.ask(request, deadline)
        return Http3Answer(
            status=answer.status,
            protocol=connection.protocol,
            handshake_ms=connection.phases["connect"] + connection.phases["tls"],
            request_ms=(loop.time() - shaken) * 1e3,
            headers=answer.headers,
            body=answer.body,
            alternative=alternative,
            address=address,
        )
    finally:
        connection.close()


async def follow_alt_svc(
    alt_svc: str,
    *,
    public_host: str,
    hosts: Hosts,
    ca_pem: Path,
    source_address: str,
    path: str = "/",
    headers: Sequence[tuple[str, str]] = (),
    timeout_s: float = 5.0,
) -> Http3Answer:
    """Requests `https://<public_host><path>` from the alternative that `alt_svc` names.

    `hosts` maps names to IPv4 addresses; several are tried in turn until a handshake is good. `timeout_s` bounds the
    whole. Raises `AltSvcError` when the field value is malformed, else `ClientError` (the last address's).
    """
    alternative = choose(alt_svc, public_host)
    host = alternative.host or public_host
    authority = f"{host}:{alternative.port}"
    known = hosts.get(host, ())
    addresses = [known] if isinstance(known, str) else list(known)
    request = Request(
        authority=public_host, path=path, headers=(("alt-used", authority), *headers)
    )  # RFC 7838 section 5
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    problem: ClientError = UnresolvedError(authority, f"no address is known for {host}")
    trust = TrustStore(ca_pem)
    for at, address in enumerate(addresses):
        now = loop.time()
        try:
            return await request_http3(
                (address, alternative.port),
                request,
                alternative=alternative,
                server_name=public_host,
                trust=trust,
                source_address=source_address,
                deadline=now + (end - now) / (len(addresses) - at),
            )
        except (UnreachableError, HandshakeRefusedError, CertificateRefusedError) as error:
            problem = error
    raise problem
