"""A user inside one client network: follows an Alt-Svc field by a real HTTP/3 connection.

The server name is the *public* host whatever the alternative's host is, and its certificate must be valid for it
(RFC 7838 section 2.1): that is what makes a pinned client safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aioquic.h3.connection import H3_ALPN

from isochrone.lab.alternative import Alternative, AltSvcError, parse_alt_svc
from isochrone.lab.h3client import (
    CertificateRefusedError,
    ClientError,
    HandshakeRefusedError,
    NoAlternativeError,
    RequestFailedError,
    UnreachableError,
    UnresolvedError,
    request_http3,
)

if TYPE_CHECKING:
    from pathlib import Path

    from isochrone.lab.relay_flow import Address

__all__ = [
    "AltSvcError",
    "Alternative",
    "AlternativeResponse",
    "CertificateRefusedError",
    "ClientError",
    "HandshakeRefusedError",
    "NoAlternativeError",
    "RequestFailedError",
    "UnreachableError",
    "UnresolvedError",
    "choose",
    "follow_alt_svc",
]

Hosts = Mapping[str, str | Sequence[str]]


@dataclass(frozen=True, slots=True)
class AlternativeResponse:
    """What came back. `handshake_ms` runs from the first datagram to the end of the handshake."""

    region: str  # the x-isochrone-region field, empty when absent
    status: int
    protocol: str  # the negotiated ALPN id
    alternative: Alternative
    address: Address
    handshake_ms: float
    request_ms: float
    headers: tuple[tuple[str, str], ...]
    body: bytes


def choose(alt_svc: str, public_host: str) -> Alternative:
    """The first HTTP/3 alternative of a field value; raises `NoAlternativeError` or `AltSvcError`."""
    for alternative in parse_alt_svc(alt_svc):
        if alternative.protocol in H3_ALPN:
            return alternative
    raise NoAlternativeError(public_host, f"no h3 alternative in Alt-Svc {alt_svc!r}")


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
) -> AlternativeResponse:
    """Requests `https://<public_host><path>` from the alternative that `alt_svc` names.

    `hosts` maps names to IPv4 addresses; several are tried in turn until a handshake is good. `timeout_s` bounds the
    whole. Raises `AltSvcError` when the field value is malformed, else `ClientError` (the last address's).
    """
    alternative = choose(alt_svc, public_host)
    host = alternative.host or public_host
    authority = f"{host}:{alternative.port}"
    known = hosts.get(host, ())
    addresses = [known] if isinstance(known, str) else list(known)
    fields = [
        (b":method", b"GET"),
        (b":scheme", b"https"),
        (b":authority", public_host.encode()),
        (b":path", path.encode()),
        (b"alt-used", authority.encode()),  # RFC 7838 section 5
        *((name.lower().encode(), value.encode()) for name, value in headers),
    ]
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    problem: ClientError = UnresolvedError(authority, f"no address is known for {host}")
    for at, address in enumerate(addresses):
        now = loop.time()
        try:
            answer = await request_http3(
                (address, alternative.port),
                authority=authority,
                server_name=public_host,
                headers=fields,
                ca_pem=ca_pem,
                source_address=source_address,
                deadline=now + (end - now) / (len(addresses) - at),
                alpn=alternative.protocol,
            )
        except (UnreachableError, HandshakeRefusedError, CertificateRefusedError) as error:
            problem = error
            continue
        return AlternativeResponse(
            region=dict(answer.headers).get("x-isochrone-region", ""),
            status=answer.status,
            protocol=answer.protocol,
            alternative=alternative,
            address=(address, alternative.port),
            handshake_ms=answer.handshake_ms,
            request_ms=answer.request_ms,
            headers=answer.headers,
            body=answer.body,
        )
    raise problem
