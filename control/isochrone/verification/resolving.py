"""How the name of an endpoint becomes addresses: by the DNS servers of the configuration, by the system where it names none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from isochrone.probing.prober import ProberTrouble, is_address
from isochrone.probing.prober import resolve as by_system
from isochrone.verification.dns_answer import Question
from isochrone.verification.dns_ask import Asker, tls_context
from isochrone.verification.dns_find import ask_first

if TYPE_CHECKING:
    from isochrone.settings import Dns


class Resolve(Protocol):
    """All addresses of a host name; an address is its own. Raises ProberTrouble when there are none."""

    async def __call__(self, host: str, *, timeout: float) -> tuple[str, ...]:
        """Within `timeout` seconds."""


def resolver_of(dns: Dns) -> Resolve:
    """The servers that `verify dns` asks, so that both speak of the same name.

    Raises:
        TrustStoreError: `dns.trust_store` can't be used.
    """
    servers = dns.resolvers or dns.authoritative
    if not servers:
        return by_system
    tls = tls_context(dns.trust_store)

    async def by_servers(host: str, *, timeout: float) -> tuple[str, ...]:
        if is_address(host):
            return (host,)
        async with Asker(tls, timeout=min(timeout, dns.timeout_seconds)) as asker:
            questions = (Question(host, kind) for kind in ("AAAA", "A"))
            answers = await asyncio.gather(*(ask_first(asker, servers, question) for question in questions))
        found = tuple(
            address for answer in answers if answer is not None for address in sorted(answer.addresses)
        )
        if not found:
            raise ProberTrouble(f"DNS: none of the configured servers has an address of {host}")
        return found

    return by_servers
