"""A healthy world of DNS for tests: two origins, two authoritative servers, and a resolver over UDP, TCP, TLS and HTTPS."""

from __future__ import annotations

import contextlib
import struct
import time
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import TYPE_CHECKING

from isochrone.lab.dns_server import DnsServer
from isochrone.lab.dns_zone import read_zone
from isochrone.nameserver import Transport
from isochrone.settings import Settings
from isochrone.verification.dns import DnsChecker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ZONE = "example.test"
PORT = 8443
GOOD = """\
ns  300 IN A 127.0.0.1
fra 300 IN A 203.0.113.7
fra 300 IN AAAA 2001:db8::7
fra 300 IN HTTPS 1 . alpn="h3,h2" port=8443 ipv4hint=203.0.113.7 ipv6hint=2001:db8::7
ams 300 IN A 203.0.113.8
ams 300 IN AAAA 2001:db8::8
ams 300 IN HTTPS 1 . alpn="h3,h2" port=8443
"""
SUBNETS = ("198.51.100.0/24",)
ORIGINS = (
    {"id": "fra-1", "host": f"fra.{ZONE}", "latitude": 50.1, "longitude": 8.7, "alt_svc": f"fra.{ZONE}:{PORT}",
     "addresses": ["203.0.113.7", "2001:db8::7"]},
    {"id": "ams-1", "host": f"ams.{ZONE}", "latitude": 52.4, "longitude": 4.9, "alt_svc": f"ams.{ZONE}:{PORT}",
     "addresses": ["203.0.113.8", "2001:db8::8"]},
)  # fmt: skip


def zone_text(*changes):
    """The good zone with lines taken out (`-begin`) and put in."""
    lines = GOOD.splitlines()
    for change in changes:
        if change.startswith("-"):
            kept = [line for line in lines if not " ".join(line.split()).startswith(change[1:])]
            assert kept != lines, change
            lines = kept
        else:
            lines.append(change)
    return "\n".join(lines) + "\n"


def settings(*, origins=ORIGINS, probing=None, **dns):
    return Settings.model_validate(
        {"site": "www.example.test", "origins": list(origins), "dns": dns, "probing": probing or {}}
    )


@dataclass
class World:
    """The servers of one case; `checker()` asks them all."""

    first: DnsServer
    second: DnsServer
    resolver: DnsServer
    trust_store: str
    changes: dict = field(default_factory=dict)

    def servers(self):
        return {
            "authoritative": [self.first.at(), self.second.at()],
            "resolvers": [
                self.resolver.at(Transport.UDP),
                self.resolver.at(Transport.TCP),
                self.resolver.at(Transport.TLS, host="dns.test"),
                self.resolver.at(Transport.HTTPS, host="dns.test"),
            ],
        }

    def settings(self, **more):
        base = {"client_subnets": SUBNETS, "trust_store": self.trust_store} | self.servers()
        return settings(**(base | self.changes | more))

    def checker(self, **more):
        return DnsChecker(self.settings(**more))


@contextlib.asynccontextmanager
async def world(certificates, *, zones=None, second_zones=None, resolver_zones=None, first=(), second=(), resolver=(), tls=None, first_tcp=True, doh_status=200, **changes):  # fmt: skip
    """The three servers, with faults for each."""
    zones = zones or [read_zone(ZONE, GOOD)]
    context = tls or certificates.context("dns.test")
    async with (
        DnsServer(zones, faults=first, tcp=first_tcp) as one,
        DnsServer(second_zones or zones, faults=second) as two,
        DnsServer(
            resolver_zones or zones, faults=resolver, resolver=True, tls=context, doh_status=doh_status
        ) as three,
    ):
        yield World(one, two, three, str(certificates.ca_pem), changes)


async def findings(checker, *, now=None):
    checks = await checker.check_all(now=time.time() if now is None else now)
    return [finding for check in checks for finding in check.findings]


def ids(found):
    return {finding.check.removeprefix("dns.") for finding in found}


def write_mmdb(path, kind, entries):
    """A MaxMind database of a few networks: enough of the format to be read by the real reader."""
    nodes: list[list[int]] = [[-1, -1]]  # -1: nothing; below -1: data
    data, offsets = bytearray(), []
    for network, value in entries.items():
        offsets.append(len(data))
        data += _encode(value)
        net = ip_network(network)
        address = int(net.network_address)
        length = net.prefixlen + (96 if net.version == 4 else 0)
        bits = f"{address:0128b}"[:length]
        at = 0
        for bit in bits[:-1]:
            if nodes[at][int(bit)] < 0:
                nodes.append([-1, -1])
                nodes[at][int(bit)] = len(nodes) - 1
            at = nodes[at][int(bit)]
        nodes[at][int(bits[-1])] = -1 - len(offsets)
    count = len(nodes)
    tree = b"".join(
        struct.pack(">I", count if side == -1 else side if side >= 0 else count + 16 + offsets[-2 - side])
        for node in nodes
        for side in node
    )
    metadata = {
        "binary_format_major_version": Short(2), "binary_format_minor_version": Short(0), "build_epoch": Long(1_700_000_000), "database_type": kind,
        "description": {"en": "test"}, "ip_version": Short(6), "languages": ["en"], "node_count": count, "record_size": Short(32),
    }  # fmt: skip
    path.write_bytes(tree + b"\0" * 16 + bytes(data) + b"\xab\xcd\xefMaxMind.com" + _encode(metadata))
    return path


def _encode(value):
    if isinstance(value, dict):
        return bytes([0xE0 | len(value)]) + b"".join(_encode(k) + _encode(v) for k, v in value.items())
    if isinstance(value, list):
        return bytes([len(value), 4]) + b"".join(_encode(v) for v in value)
    if isinstance(value, str):
        raw = value.encode()
        size = bytes([0x40 | len(raw)]) if len(raw) < 29 else bytes([0x40 | 29, len(raw) - 29])
        return size + raw
    kind, size = next((k, s) for k, s, name in _INTEGERS if name == type(value).__name__)
    head = bytes([kind << 5 | size]) if kind < 8 else bytes([size, kind - 7])
    return head + value.to_bytes(size, "big")


class Short(int):
    """uint16, which the reader insists on for some fields."""


class Long(int):
    """uint64."""


_INTEGERS = ((6, 4, "int"), (5, 2, "Short"), (9, 8, "Long"))


#: arguments of world() that are faults of our own server
SERVERS_OWN = {"first", "second", "resolver", "resolver_zones", "tls", "doh_status", "first_tcp"}


@dataclass(frozen=True)
class Case:
    """One fault, injected for real, and the findings that it gives: these and no others."""

    name: str
    expect: frozenset[str]
    servers: Callable[..., dict]  # -> arguments of world()

    def __str__(self):
        return self.name

    @property
    def is_content(self):
        """Whether the fault is what zones hold, so that any server can serve it."""
        return not SERVERS_OWN & set(self.servers())


def case(name: str, expect: str | Sequence[str], **arguments) -> Case:
    return Case(name, frozenset([expect] if isinstance(expect, str) else expect), lambda: arguments)
