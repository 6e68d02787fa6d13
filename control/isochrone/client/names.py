"""Pre-resolution: every address of a host, of both families, and its HTTPS records (RFC 9460) with their hints."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import dns.exception

from isochrone.checks import host_name
from isochrone.client.cache import normal
from isochrone.client.race import interleaved
from isochrone.probing.prober import ProberTrouble, is_address
from isochrone.probing.prober import resolve as ask_system
from isochrone.verification.dns_answer import Question
from isochrone.verification.dns_ask import Asker
from isochrone.verification.dns_find import ask_first, system_resolvers

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from isochrone.nameserver import NameServer
    from isochrone.verification.dns_svcb import Binding

DEFAULT_PORT = 443
ALIAS_LIMIT = 8  # AliasMode records that are followed (RFC 9460 section 3 asks for a limit)
RECORD_SECONDS = 0.5  # for the HTTPS record once an address is known
ANY_HOST = "*"
KNOWN = frozenset({b"h3", b"h2", b"http/1.1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One HTTPS record that this client can use: where, and by which protocols."""

    host: str
    port: int
    protocols: tuple[str, ...]  # ALPN ids
    addresses: tuple[str, ...]  # of `host`, else the record's hints
    hints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What is known of a host. `by`: `literal`, `given` (an override), `configured`, `dns` or `system`; "" when nothing is."""

    host: str
    addresses: tuple[str, ...]  # IPv6 and IPv4 in turn
    services: tuple[Service, ...] = ()  # by priority
    by: str = ""
    problem: str = ""  # why there is no address

    def at(self, port: int, protocols: Collection[str]) -> tuple[str, ...]:
        """Where to connect: the host's addresses, else those that its HTTPS records have for this port and protocol."""
        return self.addresses or interleaved(
            address
            for service in self.services
            if service.port == port and not set(protocols).isdisjoint(service.protocols)
            for address in service.addresses
        )


@dataclass(slots=True)
class Names:
    """How hosts become addresses. Remembers nothing: DNS servers do.

    Attributes:
        given: (host or `*`, port) -> addresses that take the place of DNS.
        configured: host -> addresses that the configuration gives.
        servers: whom to ask; the system's when there are none.
        tls: for servers asked by TLS or HTTPS.
        timeout: seconds for a question.
    """

    given: Mapping[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)
    configured: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    servers: Sequence[NameServer] = ()
    tls: ssl.SSLContext | None = None
    timeout: float = 3.0

    async def resolve(self, host: str, port: int, deadline: float) -> Resolved:
        """The host's addresses, and its HTTPS records for this port; by `deadline` (the loop's time). Never raises."""
        host = normal(host)
        bare = host.removeprefix("[").removesuffix("]")
        if is_address(bare):
            return Resolved(host=host, addresses=(bare,), by="literal")
        override = self.given.get((host, port)) or self.given.get((ANY_HOST, port))
        if override:
            return Resolved(host=host, addresses=interleaved(override), by="given")
        if self.configured.get(host):
            return Resolved(host=host, addresses=interleaved(self.configured[host]), by="configured")
        try:
            host_name(host)
        except ValueError as error:
            return Resolved(host=host, addresses=(), problem=str(error))
        left = max(0.1, deadline - asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(left):
                found = await self._ask_dns(host, port, min(self.timeout, left))
        except TimeoutError:
            found = Resolved(
                host=host, addresses=(), problem=f"DNS gave no answer for {host} within {left:.1f} s"
            )
        if found.addresses or found.services or self.servers:
            return found
        with contextlib.suppress(ProberTrouble):  # names that only this system knows, as those in /etc/hosts
            addresses = await ask_system(host, timeout=min(self.timeout, left))
            return Resolved(host=host, addresses=interleaved(addresses), by="system")
        return found

    async def _ask_dns(self, host: str, port: int, timeout: float) -> Resolved:
        servers = self.servers or system_resolvers()
        tls = self.tls or ssl.create_default_context()
        async with Asker(tls, timeout=timeout) as asker:

            async def addresses_of(name: str) -> tuple[str, ...]:
                answers = await asyncio.gather(
                    *(ask_first(asker, servers, Question(name, kind)) for kind in ("AAAA", "A"))
                )
                return interleaved(a for answer in answers if answer for a in sorted(answer.addresses))

            async def services_of() -> list[tuple[str, Binding]]:
                """The ServiceMode records at the end of the chain of aliases, with the name that owns them."""
                name = host if port == DEFAULT_PORT else f"_{port}._https.{host}"
                for _ in range(ALIAS_LIMIT):
                    try:
                        answer = await ask_first(asker, servers, Question(name, "HTTPS"))
                    except dns.exception.DNSException:  # with the port before it the name is too long for DNS
                        return []
                    if answer is None:
                        return []
                    alias = next((binding for binding in answer.bindings if binding.alias), None)
                    if alias is None:
                        return [(answer.end, binding) for binding in answer.bindings if not binding.problems]
                    if alias.target == ".":
                        return []
                    name = alias.target
                return []

            async def usable(owner: str, binding: Binding) -> Service | None:
                target = binding.owner_or_target(owner)
                if target.startswith("_"):  # "." of a port's own record means the host (RFC 9460 section 9.1)
                    target = host
                protocols = tuple(p.decode() for p in binding.protocols if p in KNOWN)
                at = (own if target == host else await addresses_of(target)) or interleaved(binding.hints)
                if not protocols or not at:
                    return None
                return Service(
                    host=target,
                    port=binding.port or port,
                    protocols=protocols,
                    addresses=at,
                    hints=binding.hints,
                )

            asking = asyncio.ensure_future(services_of())
            try:
                own = await addresses_of(host)
                # Some resolvers drop questions for HTTPS records: who has an address does not wait long for them.
                await asyncio.wait({asking}, timeout=RECORD_SECONDS if own else None)
                records = asking.result() if asking.done() else []
            finally:
                asking.cancel()
            services = [await usable(owner, binding) for owner, binding in records]
        good = tuple(service for service in services if service is not None)
        problem = "" if own or good else f"no address of {host} was found in DNS"
        if not servers:
            problem = "this host has no DNS server to ask"
        return Resolved(
            host=host, addresses=own, services=good, by="dns" if own or good else "", problem=problem
        )


def parse_resolve(text: str) -> tuple[tuple[str, int], tuple[str, ...]]:
    """`HOST:PORT:ADDRESS[,ADDRESS...]` as curl's --resolve has it; `*` is any host. Raises ValueError, one sentence."""
    host, _, rest = text.removeprefix("+").partition(":")
    port, _, addresses = rest.partition(":")
    listed = tuple(address.removeprefix("[").removesuffix("]") for address in addresses.split(","))
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65_536):
        raise ValueError(f"{text!r} is not HOST:PORT:ADDRESS[,ADDRESS...]")
    for address in listed:
        if not is_address(address) or "%" in address:
            raise ValueError(f"{text!r}: {address!r} is not an IP address")
    return (normal(host), int(port)), listed
