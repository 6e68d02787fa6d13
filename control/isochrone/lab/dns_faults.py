"""What can be wrong with a DNS server, as behaviours that change its answers. They compose: each takes what the one before left."""

from __future__ import annotations

import asyncio
import ipaddress
import struct
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.rrset

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container


@dataclass(frozen=True, slots=True)
class Request:
    """One question as it arrived."""

    query: dns.message.Message
    transport: str  # udp, tcp, tls or https

    @property
    def rdtype(self) -> str:
        """Type of record asked for."""
        return dns.rdatatype.to_text(self.query.question[0].rdtype)

    @property
    def name(self) -> str:
        """Name asked for, lower case, without the last dot."""
        return self.query.question[0].name.to_text(omit_final_dot=True).lower()

    @property
    def subnet(self) -> str:
        """The client's network by EDNS client subnet; empty when there is none."""
        for option in self.query.options:
            if isinstance(option, dns.edns.ECSOption):
                return f"{option.address}/{option.srclen}"
        return ""


if TYPE_CHECKING:
    Fault = Callable[[Request, dns.message.Message], Awaitable[dns.message.Message | bytes | None]]


class _Everything:
    """Contains all."""

    def __contains__(self, item: object) -> bool:
        return True


ALL = _Everything()


def code(name: str, *, rdtypes: Container[str] = ALL, text: str = "") -> Fault:
    """An error code (SERVFAIL, REFUSED, ...), with an extended error when there is a text."""

    async def fault(request: Request, response: dns.message.Message) -> dns.message.Message:
        if request.rdtype in rdtypes:
            response = dns.message.make_response(request.query)
            response.set_rcode(dns.rcode.from_text(name))
            if text:
                response.use_edns(0, options=[dns.edns.EDEOption(dns.edns.EDECode.DNSSEC_BOGUS, text)])
        return response

    return fault


def lame(*, refer: str = "") -> Fault:
    """No authority; with `refer`, a referral to the servers of that zone."""

    async def fault(_request: Request, response: dns.message.Message) -> dns.message.Message:
        response.flags &= ~dns.flags.AA
        if refer:
            response.answer.clear()
            response.authority[:] = [dns.rrset.from_text(f"{refer}.", 300, "IN", "NS", f"ns.{refer}.")]
        return response

    return fault


def without_flag(flag: dns.flags.Flag) -> Fault:
    """A flag that should be set is not."""

    async def fault(_request: Request, response: dns.message.Message) -> dns.message.Message:
        response.flags &= ~flag
        return response

    return fault


def drop(*, transports: Container[str] = ALL, rdtypes: Container[str] = ALL) -> Fault:
    """No answer."""

    async def fault(request: Request, response: dns.message.Message) -> dns.message.Message | None:
        return None if request.transport in transports and request.rdtype in rdtypes else response

    return fault


def truncate() -> Fault:
    """Over UDP nothing but the bit that says: ask by TCP."""

    async def fault(request: Request, response: dns.message.Message) -> dns.message.Message:
        if request.transport == "udp":
            response.answer.clear()
            response.flags |= dns.flags.TC
        return response

    return fault


def slow(seconds: float) -> Fault:
    """Late answers."""

    async def fault(_request: Request, response: dns.message.Message) -> dns.message.Message:
        await asyncio.sleep(seconds)
        return response

    return fault


def wrong_id() -> Fault:
    """The answer to a question that nobody asked."""

    async def fault(_request: Request, response: dns.message.Message) -> dns.message.Message:
        response.id ^= 0x5555
        return response

    return fault


def wrong_question(name: str) -> Fault:
    """The right id, but another name."""

    async def fault(_request: Request, response: dns.message.Message) -> bytes:
        wire = response.to_wire()
        other = dns.message.make_query(name, "A", id=response.id).to_wire()
        return wire[:4] + struct.pack("!HHHH", 1, 0, 0, 0) + other[12:]

    return fault


def garbage() -> Fault:
    """Bytes that are no message."""

    async def fault(request: Request, _response: dns.message.Message) -> bytes:
        return struct.pack("!H", request.query.id) + b"\x84\x00\x00"

    return fault


def no_edns() -> Fault:
    """A server of the last century: FORMERR to questions with EDNS (RFC 6891 section 7)."""

    async def fault(request: Request, response: dns.message.Message) -> dns.message.Message:
        if request.query.edns < 0:
            return response
        bare = dns.message.make_query(request.query.question[0].name, request.rdtype, id=request.query.id)
        refusal = dns.message.make_response(bare)
        refusal.set_rcode(dns.rcode.FORMERR)
        return refusal

    return fault


def nxdomain(rdtype: str) -> Fault:
    """NXDOMAIN for one type of a name that has others."""

    async def fault(request: Request, response: dns.message.Message) -> dns.message.Message:
        if request.rdtype == rdtype:
            response.set_rcode(dns.rcode.NXDOMAIN)
            response.answer.clear()
        return response

    return fault


def alternate(rdtype: str, *values: str, ttl: int = 300) -> Fault:
    """Each answer to the same question is the next of `values`."""
    asked: Counter[tuple[str, str]] = Counter()

    async def fault(request: Request, response: dns.message.Message) -> dns.message.Message:
        if request.rdtype != rdtype:
            return response
        key = (request.name, request.subnet)
        asked[key] += 1
        return _instead(request, response, values[asked[key] % len(values)], ttl)

    return fault


def for_subnet(network: str, rdtype: str, value: str, *, ttl: int = 300) -> Fault:
    """Another answer for clients in one network."""
    inside = ipaddress.ip_network(network)

    async def fault(request: Request, response: dns.message.Message) -> dns.message.Message:
        subnet = request.subnet
        if request.rdtype != rdtype or not subnet or ipaddress.ip_network(subnet) != inside:
            return response
        return _instead(request, response, value, ttl)

    return fault


def raw_https(data: bytes, *, ttl: int = 300) -> Fault:
    """An HTTPS record of any bytes at all, as no zone file could hold it."""
    rdata = dns.rdata.GenericRdata(dns.rdataclass.IN, dns.rdatatype.HTTPS, data)

    async def fault(request: Request, response: dns.message.Message) -> dns.message.Message:
        if request.rdtype == "HTTPS":
            rrset = dns.rrset.RRset(request.query.question[0].name, dns.rdataclass.IN, dns.rdatatype.HTTPS)
            rrset.ttl = ttl
            rrset.items[rdata] = None
            response.answer[:] = [rrset]
            response.authority.clear()
        return response

    return fault


def spoilt_signatures(*, rdtype: str = "A") -> Fault:
    """Signatures whose last byte is not theirs."""

    async def fault(_request: Request, response: dns.message.Message) -> dns.message.Message:
        covered = dns.rdatatype.from_text(rdtype)
        for place, rrset in enumerate(response.answer):
            if rrset.rdtype == dns.rdatatype.RRSIG and rrset.covers == covered:
                spoilt = [r.replace(signature=r.signature[:-1] + bytes([r.signature[-1] ^ 1])) for r in rrset]
                response.answer[place] = dns.rrset.from_rdata_list(rrset.name, rrset.ttl, spoilt)
        return response

    return fault


def stripped_signatures() -> Fault:
    """Signed in the zone, unsigned on the way."""

    async def fault(_request: Request, response: dns.message.Message) -> dns.message.Message:
        response.answer[:] = [r for r in response.answer if r.rdtype != dns.rdatatype.RRSIG]
        return response

    return fault


def _instead(request: Request, response: dns.message.Message, value: str, ttl: int) -> dns.message.Message:
    response.answer[:] = [
        dns.rrset.from_text(request.query.question[0].name, ttl, "IN", request.rdtype, value)
    ]
    response.authority.clear()
    return response
