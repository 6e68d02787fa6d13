"""What one DNS server said to one question: a packet read into plain values, and what is wrong with it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import dns.edns
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset
import dns.wire

from isochrone.verification.dns_svcb import Binding, read_binding

if TYPE_CHECKING:
    from isochrone.nameserver import NameServer

_ADDRESS = (dns.rdatatype.A, dns.rdatatype.AAAA)
_CHAIN_LIMIT = 16  # CNAMEs followed in one answer; resolvers give up at about as many


class BadPacket(Exception):
    """No DNS message, or none that answers the question."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. `subnet` is the client's network (RFC 7871), empty for none."""

    name: str  # absolute, without the last dot, lower case
    rdtype: str  # A, AAAA, HTTPS, ...
    subnet: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.rdtype}" + (f" for clients in {self.subnet}" if self.subnet else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of one question to one server."""

    server: NameServer
    question: Question
    trouble: str = ""  # the kind of finding (dns_faults.py), empty when there is a usable answer
    detail: str = ""  # the trouble in words
    rcode: str = "NOERROR"
    chain: tuple[str, ...] = ()  # CNAME targets, in the order in which they are followed
    looped: bool = False  # the chain comes back to a name it has been at
    addresses: frozenset[str] = frozenset()
    bindings: tuple[Binding, ...] = ()  # HTTPS records
    ttl: int | None = (
        None  # seconds, the least of all records that lead to the answer; of the SOA when there are none
    )
    rtt_ms: float | None = None
    tcp_after_udp: bool = False  # the UDP answer was truncated
    rrsets: tuple[dns.rrset.RRset, ...] = field(default=(), repr=False)  # the answer section
    soa: str = ""  # the zone, where the answer is negative and says so

    @property
    def end(self) -> str:
        """The name that the chain of CNAMEs ends at."""
        return self.chain[-1] if self.chain else self.question.name

    @property
    def value(self) -> frozenset[object]:
        """What it says, to compare with others: order and time to live do not count."""
        if self.question.rdtype == "HTTPS":
            return frozenset(binding.wire for binding in self.bindings)
        return frozenset(self.addresses)

    def text(self) -> str:
        """The answer as evidence, in zone file format."""
        lines = [
            line
            for rrset in self.rrsets
            if rrset.rdtype not in {dns.rdatatype.RRSIG, dns.rdatatype.HTTPS}
            for line in rrset.to_text().splitlines()
        ]
        lines += [
            f"{self.end}. {self.ttl if self.ttl is not None else '?'} IN HTTPS {binding}"
            for binding in self.bindings
        ]
        return "; ".join(lines) or (self.rcode if self.rcode != "NOERROR" else "no such record")


def name_text(name: dns.name.Name) -> str:
    """A name as this package writes it: lower case, without the last dot; the root stays a dot."""
    return name.to_text(omit_final_dot=True).lower() or "."


def parse(wire: bytes, query: dns.message.Message) -> dns.message.Message:
    """The message in `wire`, if it answers `query`. Records that can't be read are left out: the caller looks at HTTPS itself.

    Raises:
        BadPacket: with `mismatch` in args[0] when it answers something else, `malformed` when it is no message.
    """
    try:
        message = dns.message.from_wire(wire, continue_on_error=True, ignore_trailing=True)
    except (dns.exception.DNSException, ValueError) as error:
        raise BadPacket("malformed", f"{len(wire)} bytes that are no DNS message ({error})") from None
    if message.id != query.id:
        raise BadPacket("mismatch", f"an answer with id {message.id}, where {query.id} was asked")
    if not message.flags & dns.flags.QR or message.opcode() is not dns.opcode.QUERY:
        raise BadPacket("mismatch", "a message that is no answer")
    # Servers that can't read a question may leave it out (RFC 9619): then only the code counts.
    if message.question != query.question and not (not message.question and message.rcode()):
        asked = message.question[0].to_text() if message.question else "nothing"
        raise BadPacket("mismatch", f"an answer to another question: {asked}")
    return message


def https_rdata(wire: bytes) -> list[tuple[str, int, bytes]]:
    """Owner, TTL and raw data of all HTTPS records in the answer section, well-formed or not.

    dnspython drops a record that breaks RFC 9460; verification must say which rule it breaks.
    """
    found = []
    try:
        parser = dns.wire.Parser(wire)
        parser.seek(4)
        questions, answers = parser.get_struct("!HHxxxx")
        for _ in range(questions):
            parser.get_name(decompress=True)
            parser.get_struct("!HH")
        for _ in range(answers):
            owner = parser.get_name(decompress=True)
            rdtype, rdclass, ttl, length = parser.get_struct("!HHIH")
            data = parser.get_bytes(length)
            if (rdtype, rdclass) == (dns.rdatatype.HTTPS, dns.rdataclass.IN):
                found.append((name_text(owner), ttl, data))
    except dns.exception.DNSException:
        pass  # cut off: what came before counts
    return found


def read(server: NameServer, question: Question, message: dns.message.Message, wire: bytes) -> Answer:
    """The answer in a message that `parse` accepted and that is not truncated."""
    code = message.rcode()
    rcode = dns.rcode.to_text(code)
    if code not in {dns.rcode.NOERROR, dns.rcode.NXDOMAIN}:
        trouble = {dns.rcode.SERVFAIL: "servfail", dns.rcode.REFUSED: "refused"}.get(code, "rcode")
        return Answer(
            server=server, question=question, trouble=trouble, detail=rcode + _extended(message), rcode=rcode
        )
    if server.authoritative and not message.flags & dns.flags.AA:
        zones = sorted(
            {name_text(rrset.name) for rrset in message.authority if rrset.rdtype == dns.rdatatype.NS}
        )
        refers = f", but refers to the servers of {', '.join(zones)}" if zones else ""
        return Answer(
            server=server,
            question=question,
            trouble="lame",
            detail=f"it does not answer with authority (no AA bit){refers}",
            rcode=rcode,
        )
    if not server.authoritative and not message.flags & dns.flags.RA:
        return Answer(
            server=server,
            question=question,
            trouble="no_recursion",
            detail="it does not resolve for us (no RA bit)",
            rcode=rcode,
        )
    return _content(server, question, message, wire, rcode)


def _content(
    server: NameServer, question: Question, message: dns.message.Message, wire: bytes, rcode: str
) -> Answer:
    aliases = {
        name_text(rrset.name): (name_text(rrset[0].target), rrset.ttl)
        for rrset in message.answer
        if rrset.rdtype == dns.rdatatype.CNAME
    }
    chain: list[str] = []
    ttls: list[int] = []
    at, looped = question.name, False
    while at in aliases and not looped:
        at, ttl = aliases[at]
        looped = at == question.name or at in chain or len(chain) >= _CHAIN_LIMIT
        chain.append(at)
        ttls.append(ttl)
    addresses: set[str] = set()
    for rrset in message.answer:
        wanted = rrset.rdtype in _ADDRESS and dns.rdatatype.to_text(rrset.rdtype) == question.rdtype
        if wanted and name_text(rrset.name) == at:
            addresses |= {rdata.address for rdata in rrset}
            ttls.append(rrset.ttl)
    bindings: tuple[Binding, ...] = ()
    if question.rdtype == "HTTPS":
        raw = [(ttl, data) for owner, ttl, data in https_rdata(wire) if owner == at]
        bindings = tuple(sorted((read_binding(data) for _, data in raw), key=lambda b: (b.priority, b.wire)))
        ttls += [ttl for ttl, _ in raw]
    soa = next((rrset for rrset in message.authority if rrset.rdtype == dns.rdatatype.SOA), None)
    if not addresses and not bindings and soa is not None:
        ttls.append(min(soa.ttl, soa[0].minimum))  # RFC 2308 section 5
    return Answer(
        server=server,
        question=question,
        rcode=rcode,
        chain=tuple(chain),
        looped=looped,
        addresses=frozenset(addresses),
        bindings=bindings,
        ttl=min(ttls) if ttls else None,
        rrsets=tuple(message.answer),
        soa="" if soa is None else name_text(soa.name),
    )


def _extended(message: dns.message.Message) -> str:
    """What the server says of its reasons (RFC 8914)."""
    words = [
        f"extended error {int(option.code)}" + (f" ({option.text})" if option.text else "")
        for option in message.options
        if isinstance(option, dns.edns.EDEOption)
    ]
    return ", " + ", ".join(words) if words else ""
