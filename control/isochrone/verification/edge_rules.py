"""What a client saw of the site -> findings. Pure: what was seen and the time are passed in.

What the edge says of itself (its decision, its status) is held against what arrives. A fault that explains others stands alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from isochrone.client.alt_svc import AltSvcError, parse_alt_svc
from isochrone.model import Finding
from isochrone.verification.edge_faults import FAULTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from isochrone.client.alt_svc import Alternative
    from isochrone.client.names import Service
    from isochrone.settings import Settings

PROTOCOLS = ("http/1.1", "h2", "h3")
NO_MAP = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The site over one protocol. `error`: unresolved, unreachable, certificate, own or "" when it answered."""

    protocol: str  # ALPN id
    address: str = ""
    error: str = ""
    problem: str = ""  # the error in words
    status: int = 0
    region: str = ""  # by the origin's own word
    edge: Mapping[str, str] = field(default_factory=dict)  # Server-Timing: map, origin, colour, tries, reason
    alt_svc: str | None = None
    date: float | None = None  # Unix time, that of a cached answer made up to now
    at: float = 0.0  # this host's Unix time when the answer was there
    phases: Mapping[str, float] = field(default_factory=dict)  # milliseconds

    @property
    def through_worker(self) -> bool:
        """Whether the Worker has dealt with it."""
        return bool(self.edge.get("map") and self.edge.get("origin"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What the edge says of itself to whoever has the secret; None when it was not told."""

    opened: int = 0  # HTTP status of the decision endpoint; 0: not asked, or no answer
    decision: Mapping[str, Any] | None = None
    status: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What the control plane has made live. `problem`: why that can't be told."""

    version: str = ""
    built_at: float = 0.0  # Unix time
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that one round brought."""

    addresses: tuple[str, ...] = ()
    services: tuple[Service, ...] = ()  # the site's HTTPS records
    views: tuple[View, ...] = ()
    own: Own = field(default_factory=Own)
    published: Published | None = None  # None: no KV is configured


def judge(settings: Settings, seen: Seen, *, secret: bool, now: float) -> tuple[Finding, ...]:
    """Every finding. `secret`: whether there was one to open the edge's own endpoints with."""
    site = f"{settings.site}:{settings.edge.port}"
    answered = [view for view in seen.views if not view.error]
    if not answered:
        return (_unanswered(site, seen.views),)
    found = [*_https(site, settings.edge.port, seen, answered), *_skew(settings, site, answered)]
    found += [
        _found("status", f"{site} over {view.protocol}", f"status {view.status}")
        for view in answered
        if view.status >= 400
    ]
    if found and any(finding.check == "edge.status" for finding in found):
        return tuple(found)
    outside = [view for view in answered if not view.through_worker]
    if outside:
        over = ", ".join(view.protocol for view in outside)
        return (*found, _found("no_worker", site, f"no Server-Timing with map and origin over {over}"))
    if not secret:
        found.append(
            _found("no_secret", site, f"the environment variable {settings.edge.secret_env} is not set")
        )
    elif seen.own.decision is None:
        found.append(
            _found("closed", site, f"/.isochrone/decision answers with status {seen.own.opened or 'none'}")
        )
    found += _map(settings, site, seen, answered, now)
    for view in answered:
        found += _view(f"{site} over {view.protocol}", view, seen.own.decision)
    return tuple(found)


def _found(kind: str, subject: str, evidence: str, **details: str) -> Finding:
    fault = FAULTS[kind]
    return Finding(
        check=f"edge.{kind}", subject=subject, severity=fault.severity, evidence=evidence, advice=fault.advice,
        source=fault.source, details=details,
    )  # fmt: skip


def _unanswered(site: str, views: Sequence[View]) -> Finding:
    """No protocol got an answer: one finding, with TCP's own words."""
    first = next((view for view in views if view.protocol != "h3"), views[0])
    kinds = {view.error for view in views if view.protocol != "h3"} or {first.error}
    kind = "not_checked" if kinds == {"own"} else first.error if first.error != "own" else "unreachable"
    return _found(kind, site, first.problem)


def _https(site: str, port: int, seen: Seen, answered: Sequence[View]) -> Iterable[Finding]:
    """Does the HTTPS record agree with what answers, and where?"""
    spoken = {view.protocol for view in answered}
    asked = {view.protocol for view in seen.views}
    for protocol in sorted({p for service in seen.services for p in service.protocols}):
        if protocol in asked and protocol not in spoken:
            why = next(view.problem for view in seen.views if view.protocol == protocol)
            yield _found(
                "https_protocol", site, f"the record offers {protocol}, but: {why}", protocol=protocol
            )
    for service in seen.services:
        stray = sorted({*service.addresses, *service.hints} - set(seen.addresses))
        where = f"{service.host}:{service.port}"
        if service.port != port:
            yield _found("https_address", site, f"the record leads to port {service.port} ({where})")
        elif stray:
            yield _found(
                "https_address", site, f"the record leads to {', '.join(stray)} ({where}), the site is at {', '.join(seen.addresses)}"
            )  # fmt: skip


def _skew(settings: Settings, site: str, answered: Sequence[View]) -> Iterable[Finding]:
    """One finding, by the answer that tells least skew: a Date has whole seconds, and an answer takes time."""
    apart = [view.at - view.date for view in answered if view.date is not None]
    if apart and min(abs(seconds) for seconds in apart) > settings.edge.max_skew_seconds:
        least = min(apart, key=abs)
        behind = "behind" if least > 0 else "ahead of"
        yield _found("clock_skew", site, f"Date is {abs(least):.0f} s {behind} this host's clock")


def _map(
    settings: Settings, site: str, seen: Seen, answered: Sequence[View], now: float
) -> Iterable[Finding]:
    """Which map the edge uses, and how old it is."""
    status, published = seen.own.status or {}, seen.published
    if status.get("variables"):
        yield _found("variables", site, "; ".join(str(problem) for problem in status["variables"]))
    versions = {view.edge["map"] for view in answered}
    if published is not None and published.problem:
        yield _found("not_checked", site, f"KV: {published.problem}")
    if NO_MAP in versions:
        yield _found(
            "no_map", site, status.get("problem") or "Server-Timing says map none", published=published.version if published else ""
        )  # fmt: skip
        return
    if status.get("problem"):
        yield _found("kv_trouble", site, str(status["problem"]))
        return
    if published is None or published.problem or not published.version:
        return
    age = now - published.built_at
    others = sorted(versions - {published.version})
    if others and age > settings.edge.lag_seconds:
        yield _found(
            "old_map", site, f"the edge uses {', '.join(others)}; {published.version}, built {age:.0f} s ago, is published"
        )  # fmt: skip
    elif not others and age > 2 * settings.publishing.refresh_seconds:
        yield _found("stale_map", site, f"{published.version} was built {age:.0f} s ago")


def _view(subject: str, view: View, decision: Mapping[str, Any] | None) -> Iterable[Finding]:
    """One protocol's answer against the edge's decision."""
    origin = view.edge["origin"]
    if view.region and view.region != origin:
        yield _found("wrong_region", subject, f"the edge asked {origin}, {view.region} answers")
        return
    if decision is None or decision.get("map") != view.edge["map"]:
        return  # another isolate, which has another map: what it should do is not known
    candidates = list(decision["candidates"])
    tries = int(view.edge.get("tries", "1") or 1)
    may = [c["origin"] for c in candidates[: max(int(decision["band"]), tries, 1)]]
    if origin not in may or str(decision["colour"]) != view.edge.get("colour"):
        yield _found(
            "wrong_origin", subject, f"it says colour {decision['colour']} and {' or '.join(may)}, "
            f"the answer has colour {view.edge.get('colour', '?')} and comes by {origin}"
        )  # fmt: skip
        return
    promised = next(c["alt_svc"] for c in candidates if c["origin"] == origin)
    yield from _alt_svc(subject, promised, view.alt_svc)


def _alt_svc(subject: str, promised: str, arrived: str | None) -> Iterable[Finding]:
    """Is what arrives what the Worker sent? `ma` may be less: time goes by between the two."""
    if arrived is None:
        if promised:
            yield _found("alt_svc_removed", subject, f"the Worker sends {promised!r}, nothing arrives")
        return
    evidence = f"the Worker sends {promised or 'none'!r}, {arrived!r} arrives"
    if not promised:
        yield _found("alt_svc_added", subject, evidence)
        return
    ours = parse_alt_svc(promised)
    try:
        theirs = parse_alt_svc(arrived)
    except AltSvcError:
        yield _found("alt_svc_replaced", subject, f"{evidence}, which is no valid Alt-Svc")
        return
    if len(theirs) < len(ours) or not all(map(_same, ours, theirs)) or (not ours and theirs):
        yield _found("alt_svc_replaced", subject, evidence)
    elif len(theirs) > len(ours):
        yield _found("alt_svc_added", subject, evidence)


def _same(ours: Alternative, theirs: Alternative) -> bool:
    return (ours.protocol, ours.host.lower(), ours.port, ours.persist) == (
        theirs.protocol, theirs.host.lower(), theirs.port, theirs.persist,
    ) and theirs.max_age <= ours.max_age  # fmt: skip
