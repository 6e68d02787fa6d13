"""Zones of the lab's DNS server: read from text, signed, looked up. No sockets."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dns.dnssec
import dns.dnssectypes
import dns.flags
import dns.message
import dns.name
import dns.node
import dns.rcode
import dns.rdataclass
import dns.rdataset
import dns.rdatatype
import dns.rrset
import dns.zone
from cryptography.hazmat.primitives.asymmetric import ec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dns.rdtypes.ANY.DNSKEY import DNSKEY
    from dns.rdtypes.ANY.DS import DS

_DAY = 86_400
_CHASE = 16


@dataclass(frozen=True, slots=True)
class ZoneKey:
    """One key that signs a whole zone (ECDSAP256SHA256)."""

    private: ec.EllipticCurvePrivateKey
    public: DNSKEY

    @classmethod
    def make(cls) -> ZoneKey:
        """A new key."""
        private = ec.generate_private_key(ec.SECP256R1())
        algorithm = dns.dnssectypes.Algorithm.ECDSAP256SHA256
        return cls(private, dns.dnssec.make_dnskey(private.public_key(), algorithm, flags=257))

    def ds(self, zone: str) -> DS:
        """What the parent, or a trust anchor, says of it."""
        return dns.dnssec.make_ds(dns.name.from_text(zone), self.public, "SHA256")


def read_zone(origin: str, text: str) -> dns.zone.Zone:
    """A zone in zone file format; SOA and NS records are added where `text` has none."""
    head = ""
    if " SOA " not in text:
        head += f"@ 300 IN SOA ns.{origin}. hostmaster.{origin}. 1 3600 600 86400 60\n"
    if "@ " not in text or " NS " not in text:
        head += "@ 300 IN NS ns\n"
    return dns.zone.from_text(head + text, origin=origin, relativize=False, check_origin=False)


def sign(
    zone: dns.zone.Zone,
    key: ZoneKey,
    *,
    begin: float | None = None,
    end: float | None = None,
    publish: ZoneKey | None = None,
) -> None:
    """Sign all records, valid from `begin` to `end` (Unix seconds): a day ago and in thirty days unless told otherwise.

    With `publish`, another key than the one that signed is shown: all signatures are bogus.
    """
    now = time.time()
    dns.dnssec.sign_zone(
        zone,
        keys=[(key.private, key.public)],
        inception=int(now - _DAY if begin is None else begin),
        expiration=int(now + 30 * _DAY if end is None else end),
    )
    if publish is not None:
        origin = zone.origin
        assert origin is not None  # noqa: S101  for the type checker: every zone here has one
        zone.replace_rdataset(origin, dns.rdataset.from_rdata(300, publish.public))


def answer(
    zones: Sequence[dns.zone.Zone], query: dns.message.Message, *, resolver: bool
) -> dns.message.Message:
    """What a server with these zones answers: with authority, or as a resolver that knows nothing but them."""
    response = dns.message.make_response(query, recursion_available=resolver, our_payload=1232)
    question = query.question[0]
    name, rdtype = question.name, question.rdtype
    signed = bool(query.ednsflags & dns.flags.DO)
    zone = _zone_of(zones, name, rdtype)
    if zone is None:
        response.set_rcode(dns.rcode.NXDOMAIN if resolver else dns.rcode.REFUSED)
        return response
    if not resolver:
        response.flags |= dns.flags.AA
    for _ in range(_CHASE):
        node = zone.get_node(name)
        alias = None if node is None else node.get_rdataset(dns.rdataclass.IN, dns.rdatatype.CNAME)
        found = None if node is None else node.get_rdataset(dns.rdataclass.IN, rdtype)
        if found is not None or alias is None or rdtype == dns.rdatatype.CNAME:
            break
        _add(response.answer, name, node, alias, signed=signed)
        name = alias[0].target
        above = _zone_of(zones, name, rdtype)
        if above is None:
            return response
        zone = above
    if found is not None:
        _add(response.answer, name, node, found, signed=signed)
        return response
    _negative(response, zone, name, node, signed=signed)
    return response


def _negative(
    response: dns.message.Message,
    zone: dns.zone.Zone,
    name: dns.name.Name,
    node: dns.node.Node | None,
    *,
    signed: bool,
) -> None:
    # An empty non-terminal exists, though it has no records (RFC 8020).
    if node is None and not any(other.is_subdomain(name) for other in zone.nodes):
        response.set_rcode(dns.rcode.NXDOMAIN)
    origin = zone.origin
    apex = None if origin is None else zone.get_node(origin)
    soa = None if apex is None else apex.get_rdataset(dns.rdataclass.IN, dns.rdatatype.SOA)
    if origin is not None and soa is not None:
        _add(response.authority, origin, apex, soa, signed=signed)


def _zone_of(
    zones: Sequence[dns.zone.Zone], name: dns.name.Name, rdtype: dns.rdatatype.RdataType
) -> dns.zone.Zone | None:
    """The nearest zone; a DS record belongs to the one above the name (RFC 4035 section 3.1.4.1)."""
    best = None
    for zone in zones:
        origin = zone.origin
        if origin is None or not name.is_subdomain(origin):
            continue
        if rdtype == dns.rdatatype.DS and name == origin:
            continue
        if best is None or best.origin is None or len(origin) > len(best.origin):
            best = zone
    return best


def _add(
    section: list[dns.rrset.RRset],
    name: dns.name.Name,
    node: dns.node.Node | None,
    rdataset: dns.rdataset.Rdataset,
    *,
    signed: bool,
) -> None:
    section.append(dns.rrset.from_rdata_list(name, rdataset.ttl, list(rdataset)))
    signatures = None
    if node is not None and signed:
        signatures = node.get_rdataset(dns.rdataclass.IN, dns.rdatatype.RRSIG, rdataset.rdtype)
    if signatures is not None:
        section.append(dns.rrset.from_rdata_list(name, signatures.ttl, list(signatures)))
