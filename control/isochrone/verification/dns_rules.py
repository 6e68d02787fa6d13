"""What answers must be: pure checks of one regional name's answers -> findings.

One cause gives one finding: an answer that is left out of one check because another has told it already is not told twice.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from isochrone.nameserver import NameServer, Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from isochrone.model import Finding
    from isochrone.verification.dns_answer import Answer
    from isochrone.verification.dns_promise import Bounds, Promise

    Locate = Callable[[str], tuple[int, str]]  # address -> ASN (0: unknown), country (empty: unknown)


@dataclass(frozen=True, slots=True)
class Agreed:
    """What the servers say of one type of record, taken together. `answer` stands for them; None when nobody said anything."""

    answer: Answer | None
    findings: tuple[Finding, ...] = ()


def chain_findings(promise: Promise, answers: Sequence[Answer], bounds: Bounds) -> list[Finding]:
    """CNAMEs that go where they must not: one finding for each kind."""
    findings: dict[str, Finding] = {}
    for answer in answers:
        if answer.looped:
            findings.setdefault("cname_loop", promise.found("cname_loop", _said(answer)))
        elif led := bounds.balancer(answer.chain):
            findings.setdefault("balancer", promise.found("balancer", f"{led}: {_said(answer)}"))
    return list(findings.values())


def usable(answers: Iterable[Answer], bounds: Bounds) -> list[Answer]:
    """The answers whose content counts: no trouble, and no chain that is told by itself or ends outside of the zone."""
    return [
        answer
        for answer in answers
        if not answer.trouble
        and not answer.looped
        and not bounds.balancer(answer.chain)
        # An authoritative server need not know where a CNAME leads; resolvers do.
        and not (answer.server.authoritative and answer.chain and not answer.value and not answer.soa)
    ]


def agree(promise: Promise, answers: Sequence[Answer]) -> Agreed:
    """One answer out of all usable ones to one type of question, and who differs from it."""
    findings: list[Finding] = []
    by_server: dict[NameServer, list[Answer]] = defaultdict(list)
    for answer in answers:
        # A server that is asked by UDP and TCP because nobody chose is one server.
        server = answer.server.by(Transport.UDP) if answer.server.plain else answer.server
        by_server[server].append(answer)
    spoken: list[Answer] = []  # one for each server
    for server, said in by_server.items():
        plain = [answer for answer in said if not answer.question.subnet] or said
        spoken.append(next((a for a in plain if _expected(promise, a)), plain[0]))
        by_question: dict[str, list[Answer]] = defaultdict(list)
        for answer in said:
            by_question[answer.question.subnet].append(answer)
        changing = next((same for same in by_question.values() if len({a.value for a in same}) > 1), None)
        if changing is not None:
            one, other = changing[0], next(a for a in changing if a.value != changing[0].value)
            findings.append(promise.found("unstable", f"first {one.text()}, then {other.text()}", server))
        elif len({answer.value for answer in said}) > 1:
            other = next(answer for answer in said if answer.value != plain[0].value)
            findings.append(
                promise.found(
                    "subnet_steered",
                    f"{plain[0].text()}, but for clients in {other.question.subnet}: {other.text()}",
                    server,
                )
            )
    if not spoken:
        return Agreed(None)
    reference = _reference(promise, spoken)
    differing = [answer for answer in spoken if answer.value != reference.value]
    findings.extend(
        promise.found(
            "servers_disagree",
            f"{answer.question.rdtype}: {answer.text()}, but {reference.server} says {reference.text()}",
            answer.server,
        )
        for answer in differing
    )
    return Agreed(reference, tuple(findings))


def address_findings(promise: Promise, agreed: Mapping[str, Answer], locate: Locate | None) -> list[Finding]:
    """Are the agreed addresses the origin's, all of them and nothing else, and where they should be?"""
    places = {rdtype: answer for rdtype, answer in agreed.items() if rdtype != "HTTPS"}
    if not places:
        return []
    got = frozenset[str]().union(*(answer.addresses for answer in places.values()))
    said = "; ".join(answer.text() for answer in places.values() if answer.addresses) or "no such record"
    absent = [answer for answer in agreed.values() if answer.rcode == "NXDOMAIN"]
    if not got:
        if set(places) != {"A", "AAAA"} and not absent:
            return []  # the other family was not seen
        kind = "nxdomain" if absent else "no_address"
        return [promise.found(kind, _said((absent or list(places.values()))[0]))]
    findings = []
    if absent:
        findings.append(
            promise.found("nxdomain_mixed", f"NXDOMAIN for {absent[0].question.rdtype}, but {said}")
        )
    seen = [rdtype for rdtype, answer in places.items() if answer not in absent]
    expected = frozenset(a for a in promise.expected if ("AAAA" if ":" in a else "A") in seen)
    extra, missing = got - promise.expected, expected - got
    if not promise.expected:
        pass
    elif extra:
        foreign = sorted(address for address in extra if address in promise.others)
        kind = "other_region" if foreign else "extra_address" if got & promise.expected else "wrong_address"
        whose = "".join(f"; {address} is {promise.others[address]}'s" for address in foreign)
        findings.append(
            promise.found(kind, f"{said}; expected is {', '.join(sorted(promise.expected))}{whose}")
        )
    elif missing:
        findings.append(promise.found("missing_address", f"{', '.join(sorted(missing))} is not in {said}"))
    findings += _place_findings(promise, got & promise.expected if promise.expected else got, locate)
    return findings


def _place_findings(promise: Promise, addresses: frozenset[str], locate: Locate | None) -> list[Finding]:
    if locate is None:
        return []
    findings = []
    for address in sorted(addresses):
        asn, country = locate(address)
        if promise.asn and asn and asn != promise.asn:
            findings.append(promise.found("wrong_asn", f"{address} lies in AS{asn}, not in AS{promise.asn}"))
        if promise.country and country and country != promise.country:
            findings.append(
                promise.found("wrong_country", f"{address} lies in {country}, not in {promise.country}")
            )
    return findings


def ttl_findings(promise: Promise, answers: Sequence[Answer], bounds: Bounds) -> list[Finding]:
    """Times to live out of bounds. What a resolver shows has run down: only its length can be too great."""
    positive = [answer for answer in answers if answer.value and answer.ttl is not None]
    own = [answer for answer in positive if answer.server.authoritative]
    findings = []
    low = min(own, key=lambda answer: answer.ttl or 0, default=None)
    if low is not None and (low.ttl or 0) < bounds.ttl_min:
        findings.append(promise.found("ttl_low", f"{low.ttl} s, below {bounds.ttl_min} s: {low.text()}"))
    high = max(own or positive, key=lambda answer: answer.ttl or 0, default=None)
    if high is not None and (high.ttl or 0) > bounds.ttl_max:
        findings.append(promise.found("ttl_high", f"{high.ttl} s, above {bounds.ttl_max} s: {high.text()}"))
    return findings


def _expected(promise: Promise, answer: Answer) -> bool:
    return bool(answer.addresses) and answer.addresses <= promise.expected


def _reference(promise: Promise, spoken: Sequence[Answer]) -> Answer:
    """Whom to believe: who says what is expected, else what most authoritative servers say, else most resolvers."""
    votes = Counter(answer.value for answer in spoken)
    return max(
        spoken,
        key=lambda answer: (_expected(promise, answer), answer.server.authoritative, votes[answer.value]),
    )


def _said(answer: Answer) -> str:
    return f"{answer.server} answers {answer.question} with {answer.text()}"
