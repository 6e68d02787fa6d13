"""Asks DNS servers and says of each question what became of it. Never raises for anything the network does.

Asked as a resolver asks: with EDNS and DO, by UDP first and by TCP when the answer is truncated. Load on each server is bounded,
and a server that never answers is not waited for at every question.
"""

from __future__ import annotations

import asyncio
import copy
import ipaddress
import secrets
import ssl
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

import dns.edns
import dns.flags
import dns.message
import dns.rcode

from isochrone.nameserver import Transport
from isochrone.probing.prober import ProberTrouble
from isochrone.verification.certificates import TrustStoreError
from isochrone.verification.dns_answer import Answer, BadPacket, Question, parse, read
from isochrone.verification.dns_transport import Links, TransportFailed

if TYPE_CHECKING:
    from pathlib import Path

    from isochrone.nameserver import NameServer

PAYLOAD = 1232  # bytes: what passes nearly everywhere without fragments (DNS flag day 2020)
PER_SERVER = 8  # questions at once
HOPELESS = 3  # unanswered in a row, with none answered before: not waited for again in this round
_LATE = 0.5  # seconds; a timeout that this host's event loop overslept by so much proves nothing


@dataclass(slots=True)
class _Record:
    """What one server has shown in this round."""

    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PER_SERVER))
    answered: int = 0
    failed: int = 0
    last: TransportFailed | None = None


def tls_context(trust_store: Path | None) -> ssl.SSLContext:
    """How DNS over TLS and HTTPS servers are believed.

    Raises:
        TrustStoreError: the file can't be used.
    """
    try:
        return ssl.create_default_context(cafile=None if trust_store is None else str(trust_store))
    except (OSError, ssl.SSLError):
        raise TrustStoreError(f"{trust_store}: holds no certificates in PEM form") from None


class Asker:
    """One round of questions; an async context manager, so that no connection outlives it."""

    def __init__(self, tls: ssl.SSLContext, *, timeout: float) -> None:
        self._links = Links(tls)
        self._timeout = timeout
        self._records: dict[NameServer, _Record] = {}
        self._queries: dict[tuple[Question, int], tuple[dns.message.QueryMessage, bytes]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._links.close()

    async def ask(self, server: NameServer, question: Question, *, checking_disabled: bool = False) -> Answer:
        """What `server` says, within the timeout; by UDP, with TCP when the answer is truncated."""
        record = self._records.setdefault(server, _Record())
        async with record.gate:
            if record.last is not None and not record.answered and record.failed >= HOPELESS:
                return _trouble(server, question, record.last.kind, record.last.evidence)
            try:
                answer = await self._ask(server, question, checking_disabled)
            except TransportFailed as failed:
                record.failed, record.last = record.failed + 1, failed
                return _trouble(server, question, failed.kind, failed.evidence)
            except ProberTrouble as trouble:
                return _trouble(server, question, "not_checked", str(trouble))
            record.answered += 1
            return answer

    async def _ask(self, server: NameServer, question: Question, checking_disabled: bool) -> Answer:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        query, wire = self._query(server, question, checking_disabled)
        try:
            message, said = await self._message(server, query, wire, self._timeout)
            if message.rcode() == dns.rcode.FORMERR:
                return await self._without_edns(server, question)
            truncated = bool(message.flags & dns.flags.TC)
            if truncated and server.transport is Transport.UDP:
                left = max(self._timeout - (loop.time() - begin), self._timeout / 2)
                message, said = await self._by_tcp(server, query, wire, left)
        except BadPacket as bad:
            return _trouble(server, question, str(bad.args[0]), str(bad.args[1]))
        except TransportFailed as failed:
            late = loop.time() - begin - 2 * self._timeout
            if failed.kind == "silent" and late > _LATE:
                raise ProberTrouble(f"this host's event loop was late by {late:.1f} s") from None
            raise
        except _NoTcp as no_tcp:
            return _trouble(server, question, "truncated", str(no_tcp))
        answer = read(server, question, message, said)
        return replace(answer, rtt_ms=(loop.time() - begin) * 1000, tcp_after_udp=truncated)

    def _query(
        self, server: NameServer, question: Question, checking_disabled: bool
    ) -> tuple[dns.message.QueryMessage, bytes]:
        """The question and its wire format, which is made once: only the id differs from server to server."""
        flags = 0 if server.authoritative else int(dns.flags.RD)
        flags |= int(dns.flags.CD) if checking_disabled else 0
        if (question, flags) not in self._queries:
            made = _query(question, flags)
            self._queries[question, flags] = made, made.to_wire()
        template, wire = self._queries[question, flags]
        query = copy.copy(template)
        # By HTTPS the id is 0, so that caches share answers (RFC 8484 section 4.1).
        query.id = 0 if server.transport is Transport.HTTPS else secrets.randbits(16)
        return query, query.id.to_bytes(2, "big") + wire[2:]

    async def _message(
        self, server: NameServer, query: dns.message.QueryMessage, asked: bytes, timeout: float
    ) -> tuple[dns.message.Message, bytes]:
        parsed: dict[bytes, dns.message.Message] = {}

        def accept(wire: bytes) -> str:
            try:
                parsed[wire] = parse(wire, query)
            except BadPacket as bad:
                # What is no message at all will not get better by waiting; an answer to something else may be forged.
                return str(bad.args[1]) if bad.args[0] == "mismatch" else ""
            return ""

        wire = await self._links.exchange(server, asked, accept, timeout)
        return parsed.get(wire) or parse(wire, query), wire

    async def _by_tcp(
        self, server: NameServer, query: dns.message.QueryMessage, asked: bytes, timeout: float
    ) -> tuple[dns.message.Message, bytes]:
        try:
            return await self._message(server.by(Transport.TCP), query, asked, timeout)
        except TransportFailed as failed:
            raise _NoTcp(f"the UDP answer is truncated and by TCP: {failed.evidence}") from None

    async def _without_edns(self, server: NameServer, question: Question) -> Answer:
        """Whether the server answers when asked without EDNS: then that is what is wrong with it."""
        query = dns.message.make_query(question.name, question.rdtype)
        message, _ = await self._message(server, query, query.to_wire(), self._timeout)
        if message.rcode() == dns.rcode.FORMERR:
            return _trouble(server, question, "rcode", "FORMERR")
        return _trouble(server, question, "no_edns", "FORMERR to a question with EDNS, an answer without")


class _NoTcp(Exception):
    """Truncated, and no way to get the rest."""


def _query(question: Question, flags: int) -> dns.message.QueryMessage:
    options: list[dns.edns.Option] = []
    if question.subnet:
        network = ipaddress.ip_network(question.subnet)
        options.append(dns.edns.ECSOption(str(network.network_address), network.prefixlen))
    return dns.message.make_query(
        question.name,
        question.rdtype,
        use_edns=0,
        want_dnssec=True,
        payload=PAYLOAD,
        options=options,
        flags=flags,
        id=0,
    )


def _trouble(server: NameServer, question: Question, kind: str, detail: str) -> Answer:
    return Answer(server=server, question=question, trouble=kind, detail=detail)
