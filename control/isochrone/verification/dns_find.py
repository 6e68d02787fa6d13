"""Whom to ask, and what beside the names themselves.

Authoritative servers are those that the configuration names, else found by walking up to the NS records; beside the names, what
HTTPS records lead to and the DNSSEC keys from the trust anchor down are asked for.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import dns.name
import dns.rdatatype
import dns.resolver
import dns.rrset

from isochrone.nameserver import NameServer, Transport
from isochrone.verification.dns_answer import Answer, Question, name_text
from isochrone.verification.dns_https import ALIAS_LIMIT, Found, targets

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from isochrone.verification.dns_ask import Asker
    from isochrone.verification.dns_promise import Bounds

DNS_PORT = 53
TYPES = ("A", "AAAA", "HTTPS")


@dataclass(slots=True)
class Finder:
    """Finds authoritative servers by asking `resolvers`; what was found once in a round is not asked again."""

    asker: Asker
    resolvers: Sequence[NameServer]
    port: int = DNS_PORT  # a lab's servers may listen elsewhere
    _zones: dict[str, tuple[NameServer, ...]] = field(default_factory=dict)

    async def authorities(self, name: str) -> tuple[NameServer, ...]:
        """The servers of the zone that `name` is in, each address once; none when they can't be found."""
        labels = name.split(".")
        for start in range(len(labels)):
            zone = ".".join(labels[start:])
            if zone not in self._zones:
                answer = await ask_first(self.asker, self.resolvers, Question(zone, "NS"))
                if answer is None:
                    return ()
                self._zones[zone] = await self._servers(zone, answer)
            if self._zones[zone]:
                return self._zones[zone]
        return ()

    async def _servers(self, zone: str, answer: Answer) -> tuple[NameServer, ...]:
        hosts = [
            name_text(rdata.target)
            for rrset in answer.rrsets
            if rrset.rdtype == dns.rdatatype.NS and name_text(rrset.name) == zone
            for rdata in rrset
        ]
        addresses: list[str] = []
        for host in sorted(set(hosts)):
            for rdtype in ("A", "AAAA"):
                found = await ask_first(self.asker, self.resolvers, Question(host, rdtype))
                addresses += sorted(found.addresses) if found else []
        return tuple(
            NameServer(address, self.port, authoritative=True, plain=True)
            for address in dict.fromkeys(addresses)
            if _reachable(address)
        )


async def ask_first(
    asker: Asker, servers: Iterable[NameServer], question: Question, *, checking_disabled: bool = False
) -> Answer | None:
    """The first answer without trouble; None when there is none."""
    for server in servers:
        answer = await asker.ask(server, question, checking_disabled=checking_disabled)
        if not answer.trouble:
            return answer
    return None


async def look_up_targets(
    asker: Asker, servers: Sequence[NameServer], owner: str, at: dict[str, Found], bounds: Bounds
) -> None:
    """Complete `at`, which has the records of `owner`, by what lies at the names that they lead to, and so on.

    A name for which nobody could be asked stays out. Load balancers are told as such and not followed.
    """
    new = targets(owner, at[owner].bindings)
    for _ in range(ALIAS_LIMIT + 1):
        new = {name for name in new if name not in at and not bounds.balancer([name])}
        for name in sorted(new):
            said = [await ask_first(asker, servers, Question(name, rdtype)) for rdtype in TYPES]
            heard = [answer for answer in said if answer is not None]
            if heard:
                at[name] = Found(
                    tuple(binding for answer in heard for binding in answer.bindings),
                    frozenset[str]().union(*(answer.addresses for answer in heard)),
                )
        new = {target for name in new if name in at for target in targets(name, at[name].bindings)}


async def look_up_chain(
    asker: Asker,
    needed: Iterable[tuple[dns.name.Name, str]],
    own: Sequence[NameServer],
    resolvers: Sequence[NameServer],
    into: dict[tuple[dns.name.Name, str], tuple[dns.rrset.RRset, ...]],
) -> None:
    """Parts of a DNSSEC chain that are not in `into` yet: (zone, type) -> answer section, empty when there is none.

    What nobody could be asked for stays out: unknown is no fault.
    """

    async def fetch(zone: dns.name.Name, rdtype: str) -> None:
        order = [*resolvers, *own] if rdtype == "DS" else [*own, *resolvers]
        question = Question(name_text(zone), rdtype)
        for server in order:
            answer = await asker.ask(server, question, checking_disabled=not server.authoritative)
            # A zone's DS record is its parent's to tell: the zone's own server denies it with authority.
            own_denial = rdtype == "DS" and not answer.rrsets and answer.soa == question.name
            if not answer.trouble and not own_denial:
                into[zone, rdtype] = answer.rrsets
                return

    await asyncio.gather(*(fetch(*each) for each in needed if each not in into))


def both_ways(servers: Iterable[NameServer]) -> list[NameServer]:
    """Servers written without a transport are asked by UDP and by TCP: both are required (RFC 7766 section 5)."""
    asked = []
    for server in servers:
        asked.append(server)
        if server.plain and server.authoritative:
            asked.append(server.by(Transport.TCP))
    return asked


def system_resolvers() -> tuple[NameServer, ...]:
    """Those of this host; none when it has none."""
    try:
        addresses = dns.resolver.Resolver(configure=True).nameservers
    except (dns.resolver.NoResolverConfiguration, OSError):
        return ()
    return tuple(NameServer(str(address), DNS_PORT, plain=True) for address in addresses)


def _reachable(address: str) -> bool:
    """Whether this host has a route to the family at all; nothing is sent. Most servers have no IPv6 and need not be told each time."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, DNS_PORT))
    except OSError:
        return ":" not in address
    return True
