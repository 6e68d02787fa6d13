"""A DNS server to ask, and how the configuration writes one down. Pure.

- `192.0.2.1`, `192.0.2.1:5300`, `[2001:db8::1]:53`: by UDP, and by TCP when an answer is truncated
- `udp://192.0.2.1`, `tcp://192.0.2.1:53`: by that transport
- `tls://dns.example@192.0.2.1:853`: DNS over TLS (RFC 7858); the certificate is for dns.example
- `https://dns.example@192.0.2.1/dns-query`: DNS over HTTPS (RFC 8484); without an address the name is resolved
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace
from enum import StrEnum

from isochrone.checks import host_name, is_port

DOH_PATH = "/dns-query"


class Transport(StrEnum):
    """How a question travels; the values are the URL schemes of the configuration."""

    UDP = "udp"
    TCP = "tcp"
    TLS = "tls"
    HTTPS = "https"


_PORTS = {Transport.UDP: 53, Transport.TCP: 53, Transport.TLS: 853, Transport.HTTPS: 443}


@dataclass(frozen=True, slots=True)
class NameServer:
    """One place and one way to ask."""

    address: str  # IP address; empty: `host` must be resolved first
    port: int
    transport: Transport = Transport.UDP
    host: str = ""  # what the certificate must be for; empty: the address itself
    path: str = DOH_PATH
    authoritative: bool = False  # it must answer from its own zone; else it must resolve
    plain: bool = False  # written without a scheme: any of UDP and TCP will do

    def __str__(self) -> str:
        place = f"[{self.address}]" if ":" in self.address else self.address
        name = f"{self.host}@" if self.host and place else self.host
        port = "" if self.port == _PORTS[self.transport] else f":{self.port}"
        path = self.path if self.transport is Transport.HTTPS else ""
        return f"{self.transport.value}://{name}{place}{port}{path}"

    def by(self, transport: Transport) -> NameServer:
        """The same server, asked in another way."""
        return replace(self, transport=transport)


def parse(text: str, *, authoritative: bool = False) -> NameServer:
    """The server that `text` names.

    Raises:
        ValueError: it names none; one sentence.
    """
    scheme, colon, rest = text.strip().partition("://")
    if not colon:
        scheme, rest = "udp", text.strip()
    try:
        transport = Transport(scheme.lower())
    except ValueError:
        raise ValueError(
            f"{text!r}: {scheme!r} is not a way to ask DNS; use udp, tcp, tls or https"
        ) from None
    rest, slash, path = rest.partition("/")
    if slash and transport is not Transport.HTTPS:
        raise ValueError(f"{text!r}: a path belongs to https:// only")
    name, at, place = rest.rpartition("@")
    host, port = _place(place, text)
    try:
        address = str(ipaddress.ip_address(host))
    except ValueError:
        if transport is not Transport.HTTPS or at or not host:
            raise ValueError(
                f"{text!r}: {host!r} is not an IP address; write {scheme}://{'name@' if at else ''}ADDRESS"
            ) from None
        name, address = host, ""
    return NameServer(
        address=address,
        port=port or _PORTS[transport],
        transport=transport,
        host=host_name(name) if name else "",
        path=f"/{path}" if slash else DOH_PATH,
        authoritative=authoritative,
        plain=not colon,
    )


def _place(place: str, text: str) -> tuple[str, int | None]:
    if place.startswith("["):
        host, closing, tail = place[1:].partition("]")
        if not closing or (tail and not tail.startswith(":")):
            raise ValueError(f"{text!r}: an IPv6 address with a port is written [ADDRESS]:PORT")
        port = tail[1:]
    elif place.count(":") == 1:
        host, _, port = place.partition(":")
    else:  # an IPv6 address without brackets has no port
        host, port, tail = place, "", ""
    if (port or place.endswith(":")) and not is_port(port):
        raise ValueError(f"{text!r}: {port!r} is not a port (1 to 65535)")
    return host, int(port) if port else None
