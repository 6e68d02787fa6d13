"""Does a name's HTTPS record say what Alt-Svc says? (RFC 9460.) Pure: what its names lead to is passed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from isochrone.model import Finding
    from isochrone.verification.dns_promise import Bounds, Promise
    from isochrone.verification.dns_svcb import Binding

ALIAS_LIMIT = 8  # AliasMode records that are followed (RFC 9460 section 3 asks for a limit)
DEFAULT_PORT = 443


@dataclass(frozen=True, slots=True)
class Found:
    """What lies at one name: its HTTPS records and its addresses."""

    bindings: tuple[Binding, ...] = ()
    addresses: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Services:
    """The end of a chain of AliasMode records: ServiceMode records and the name that owns them."""

    owner: str
    bindings: tuple[Binding, ...]
    findings: tuple[Finding, ...] = ()
    dead: bool = False  # the chain leads nowhere, which `findings` say


def targets(owner: str, bindings: Sequence[Binding]) -> set[str]:
    """Other names that these records lead to."""
    return {binding.target for binding in bindings if binding.target not in {".", owner}}


def follow(promise: Promise, owner: str, at: Mapping[str, Found], bounds: Bounds) -> Services:
    """From the records of `owner` (after CNAMEs) along AliasMode records to the ones that count."""
    findings: list[Finding] = []
    seen = [owner]
    while True:
        here = at.get(seen[-1], Found())
        aliases = [binding for binding in here.bindings if binding.alias]
        if not aliases:
            return Services(seen[-1], here.bindings, tuple(findings))
        if len(aliases) < len(here.bindings):
            findings.append(promise.found("https_alias_mixed", _shown(seen[-1], here.bindings)))
        alias = aliases[0]
        findings += [
            promise.found(problem.kind, f"{problem.evidence}: {alias}") for problem in alias.problems
        ]
        trail = " -> ".join([*seen, alias.target])
        there = at.get(alias.target)
        dead = ""
        if alias.target == ".":
            dead, trail = "https_alias_none", _shown(seen[-1], [alias])
        elif bounds.balancer([alias.target]):
            dead = "balancer"
        elif alias.target in seen or len(seen) > ALIAS_LIMIT:
            dead = "https_alias_loop"
        elif there is None:
            dead, trail = "not_checked", f"{trail}, which nobody could be asked for"
        elif not there.bindings and not there.addresses:
            dead = "https_alias_dangling"
        if dead:
            findings.append(promise.found(dead, trail))
            return Services(seen[-1], (), tuple(findings), dead=True)
        seen.append(alias.target)


def https_findings(promise: Promise, services: Services, at: Mapping[str, Found]) -> list[Finding]:
    """Well-formed, and in agreement with Alt-Svc and with the addresses?"""
    findings = list(services.findings)
    if services.dead:
        return findings
    records = services.bindings
    if not records and promise.authority is not None and services.owner == promise.name:
        return [*findings, promise.found("https_missing", f"{promise.name} has no HTTPS record")]
    for binding in records:
        findings += [
            promise.found(problem.kind, f"{problem.evidence}: {binding}") for problem in binding.problems
        ]
    good = [binding for binding in records if not binding.problems]
    if promise.authority is None:
        offering = good
    else:
        offering = [binding for binding in good if b"h3" in binding.protocols]
        if not offering and len(good) == len(records):
            findings.append(
                promise.found("https_no_h3", _shown(services.owner, good) or "no ServiceMode record")
            )
    for binding in offering:
        findings += _endpoint_findings(promise, services.owner, binding, at)
    return findings


def _endpoint_findings(
    promise: Promise, owner: str, binding: Binding, at: Mapping[str, Found]
) -> list[Finding]:
    findings = []
    target = binding.owner_or_target(owner)
    addresses = at.get(target, Found()).addresses
    right = promise.expected or at.get(promise.name, Found()).addresses
    elsewhere = False
    if promise.authority is not None:
        host, port = promise.authority
        offered = DEFAULT_PORT if binding.port is None else binding.port
        if offered != port:
            findings.append(
                promise.found("https_port", f"{binding}: port {offered}, where Alt-Svc promises {port}")
            )
        elsewhere = target != host and not (addresses and addresses <= right)
        if elsewhere:
            where = ", ".join(sorted(addresses)) or "no address"
            findings.append(
                promise.found("https_target", f"{binding}: {target} ({where}), where Alt-Svc promises {host}")
            )
    stale = [hint for hint in binding.hints if hint not in addresses | right]
    if stale and not elsewhere:
        where = ", ".join(sorted(addresses)) or "no address"
        findings.append(
            promise.found("https_hints", f"{binding}: {', '.join(stale)}, but {target} has {where}")
        )
    return findings


def _shown(owner: str, bindings: Sequence[Binding]) -> str:
    return "; ".join(f"{owner}. IN HTTPS {binding}" for binding in bindings)
