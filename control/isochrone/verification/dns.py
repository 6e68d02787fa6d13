"""Do the regional names resolve where they say, from everywhere? Each is asked at its authoritative servers and at resolvers.

Pinning a client to a region takes the load balancer out of the way. That is right only while every server, over every transport and
for every client's network, gives the region's own addresses: `check_all` asks them all and says exactly what is wrong.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import dns.name
import dns.rrset

from isochrone.model import Finding, Outcome, Target
from isochrone.nameserver import NameServer, Transport
from isochrone.probing.databases import Annotator
from isochrone.verification import dns_anchor, dns_find, dns_sec
from isochrone.verification.dns_answer import Answer, Question
from isochrone.verification.dns_ask import Asker, tls_context
from isochrone.verification.dns_faults import is_broken
from isochrone.verification.dns_https import Found, Services, follow, https_findings
from isochrone.verification.dns_plan import PlanEntry, entry
from isochrone.verification.dns_promise import BALANCERS, Bounds, promises
from isochrone.verification.dns_rules import address_findings, agree, chain_findings, ttl_findings, usable
from isochrone.verification.dns_server_rules import server_findings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from isochrone.settings import Settings
    from isochrone.verification.dns_promise import Promise
    from isochrone.verification.dns_rules import Locate

CONCURRENCY = 16  # names checked at once
_MUTE = frozenset(
    {"silent", "unreachable", "not_checked", "tls", "certificate"}
)  # troubles in which nobody spoke


@dataclass(frozen=True, slots=True, kw_only=True)
class DnsCheck:
    """What one round showed of one regional name.

    `outcome` is for rise and fall: target_failed when clients are led astray, prober_failed when nothing could be asked. The trouble
    of one server among others that answer is in `findings` only. `silent` says of a failure that servers which did not speak had a
    part in it: where this process was late itself, that proves nothing.
    """

    origin: str  # its id
    name: str
    outcome: Outcome
    findings: tuple[Finding, ...]
    plan: PlanEntry
    answers: int = 0  # how many were had
    seconds: float = 0.0
    silent: bool = False


@dataclass(slots=True)
class _Round:
    asker: Asker
    finder: dns_find.Finder
    locate: Locate | None
    now: float
    #: parts of DNSSEC chains, (zone, type) -> answer section, shared by all names of the round
    chain: dict[tuple[dns.name.Name, str], tuple[dns.rrset.RRset, ...]] = field(default_factory=dict)


class DnsChecker:
    """Checks the regional names of `settings`. Holds no connection between rounds.

    Raises from its constructor: TrustStoreError, dns_anchor.TrustAnchorError, probing.databases.TargetsError, for files that can't be used.
    """

    def __init__(self, settings: Settings, *, port: int = dns_find.DNS_PORT) -> None:
        self._dns = settings.dns
        self._annotator = Annotator(settings.probing.asn_database, settings.probing.country_database)
        self._port = port  # where authoritative servers listen that are found by NS records
        self._tls = tls_context(self._dns.trust_store)
        self._anchors = (
            {} if self._dns.trust_anchor is None else dns_anchor.load_anchors(self._dns.trust_anchor)
        )
        self._bounds = Bounds(
            ttl_min=self._dns.ttl_min_seconds,
            ttl_max=self._dns.ttl_max_seconds,
            slow_ms=self._dns.slow_ms,
            balancers=BALANCERS + self._dns.balancer_suffixes,
        )
        resolvers = self._dns.resolvers
        if not resolvers and not self._dns.authoritative:
            resolvers = dns_find.system_resolvers()
        self._resolvers = resolvers
        self.promises = promises(settings)

    @property
    def deadline(self) -> float:
        """Seconds that one name may take: finding servers, asking, following and proving, each bounded by the timeout."""
        return 12 * self._dns.timeout_seconds + 10.0

    @property
    def timeout_seconds(self) -> float:
        """Of one question."""
        return self._dns.timeout_seconds

    @property
    def round_deadline(self) -> float:
        """Seconds that one round may take, at most `CONCURRENCY` names at once."""
        return self.deadline * max(1, math.ceil(len(self.promises) / CONCURRENCY)) + 5.0

    async def check_all(self, *, now: float, concurrency: int = CONCURRENCY) -> tuple[DnsCheck, ...]:
        """One round over all names, at most `concurrency` at once. `now` is the Unix time by which signatures are judged.

        Never raises for anything the network does.
        """
        gate = asyncio.Semaphore(concurrency)
        await asyncio.to_thread(self._annotator.refresh, time.time())

        def locate(address: str) -> tuple[int, str]:
            target = self._annotator(Target(address, 443, 0))
            return target.asn, target.country

        async def one(round_: _Round, promise: Promise) -> DnsCheck:
            async with gate:
                return await self._bounded(round_, promise)

        async with Asker(self._tls, timeout=self._dns.timeout_seconds) as asker:
            finder = dns_find.Finder(asker, self._resolvers, self._port)
            round_ = _Round(asker, finder, locate if self._annotator.states() else None, now)
            return tuple(await asyncio.gather(*(one(round_, promise) for promise in self.promises)))

    async def _bounded(self, round_: _Round, promise: Promise) -> DnsCheck:
        begin = time.monotonic()
        try:
            async with asyncio.timeout(self.deadline):
                check = await self._check(round_, promise)
        except TimeoutError:
            late = promise.found("not_checked", f"the check did not end within {self.deadline:g} s")
            plan = entry(promise, {}, None, [late], now=round_.now)
            return DnsCheck(
                origin=promise.origin, name=promise.name, outcome=Outcome.PROBER_FAILED, findings=(late,), plan=plan,
                seconds=time.monotonic() - begin,
            )  # fmt: skip
        return check

    async def _check(self, round_: _Round, promise: Promise) -> DnsCheck:
        begin = time.monotonic()
        findings: list[Finding] = []
        own = self._dns.authoritative or await round_.finder.authorities(promise.name)
        if not own:
            findings.append(promise.found("no_authority", f"no resolver gives NS records for {promise.name}"))
        answers = await self._ask_all(round_, promise, dns_find.both_ways(own), self._resolvers)
        findings += server_findings(promise, answers, self._bounds)
        findings += chain_findings(promise, answers, self._bounds)
        good = usable(answers, self._bounds)
        agreed: dict[str, Answer] = {}
        for rdtype in dns_find.TYPES:
            taken = agree(promise, [answer for answer in good if answer.question.rdtype == rdtype])
            findings += taken.findings
            if taken.answer is not None:
                agreed[rdtype] = taken.answer
        findings += address_findings(promise, agreed, round_.locate)
        findings += ttl_findings(promise, good, self._bounds)
        services = None
        # A name that does not exist, or has no addresses, has been told: that it has no HTTPS record is not news.
        https = agreed.get("HTTPS")
        there = any(answer.addresses for answer in agreed.values())
        if https is not None and https.rcode == "NOERROR" and (there or https.bindings):
            services, more = await self._https(round_, promise, agreed, [*self._resolvers, *own])
            findings += more
        findings += await self._dnssec(round_, promise, good, own)
        told = tuple(dict.fromkeys(_key(finding) for finding in findings))
        unique = {_key(finding): finding for finding in reversed(findings)}
        result = tuple(unique[key] for key in told)
        outcome = _outcome(result, answers, agreed)
        mute = not any(is_broken(finding) for finding in result) and any(a.trouble in _MUTE for a in answers)
        return DnsCheck(
            origin=promise.origin, name=promise.name, outcome=outcome, findings=result,
            silent=outcome is Outcome.TARGET_FAILED and mute, plan=entry(promise, agreed, services, result, now=round_.now), answers=sum(not a.trouble for a in answers),
            seconds=time.monotonic() - begin,
        )  # fmt: skip

    async def _ask_all(
        self, round_: _Round, promise: Promise, own: Sequence[NameServer], resolvers: Sequence[NameServer]
    ) -> list[Answer]:
        asked: list[tuple[NameServer, Question]] = []
        for server in (*own, *resolvers):
            if server.plain and server.transport is Transport.TCP:
                asked.append((server, Question(promise.name, "A")))  # does TCP work at all?
                continue
            asked += [(server, Question(promise.name, rdtype)) for rdtype in dns_find.TYPES]
            asked += [(server, Question(promise.name, rdtype)) for rdtype in ("A", "AAAA")]  # does it rotate?
            asked += [
                (server, Question(promise.name, rdtype, subnet))
                for subnet in self._dns.client_subnets
                for rdtype in dns_find.TYPES
            ]
        return list(await asyncio.gather(*(round_.asker.ask(*each) for each in asked)))

    async def _https(
        self, round_: _Round, promise: Promise, agreed: dict[str, Answer], servers: Iterable[NameServer]
    ) -> tuple[Services, list[Finding]]:
        https = agreed["HTTPS"]
        addresses = frozenset[str]().union(*(a.addresses for t, a in agreed.items() if t != "HTTPS"))
        at = {promise.name: Found((), addresses)} | {https.end: Found(https.bindings, addresses)}
        order = [https.server, *servers]
        await dns_find.look_up_targets(round_.asker, order, https.end, at, self._bounds)
        services = follow(promise, https.end, at, self._bounds)
        return services, https_findings(promise, services, at)

    async def _dnssec(
        self, round_: _Round, promise: Promise, answers: Sequence[Answer], own: Sequence[NameServer]
    ) -> list[Finding]:
        name = dns.name.from_text(promise.name)
        needed = dns_anchor.wanted(name, self._anchors, dns_sec.signers(answers))

        await dns_find.look_up_chain(round_.asker, needed, own, self._resolvers, round_.chain)
        return dns_sec.Validator(self._anchors, round_.chain, round_.now).findings(promise, answers)


def _outcome(findings: Sequence[Finding], answers: Sequence[Answer], agreed: dict[str, Answer]) -> Outcome:
    if any(is_broken(finding) for finding in findings):
        return Outcome.TARGET_FAILED
    if "A" in agreed or "AAAA" in agreed:
        return Outcome.OK
    # Where nobody spoke at all, this host's own network is as likely to be the reason.
    heard = any(answer.trouble not in _MUTE for answer in answers)
    return Outcome.TARGET_FAILED if heard else Outcome.PROBER_FAILED


def _key(finding: Finding) -> tuple[str, str, str]:
    return finding.check, finding.subject, finding.evidence
