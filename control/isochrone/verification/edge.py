"""Is the site, as a client sees it, what the control plane and the edge say it is? Over HTTP/1.1, HTTP/2 and HTTP/3."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import time
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from isochrone.client.errors import CertificateRefusedError, ClientError, UnresolvedError
from isochrone.client.fetch import Client, Fetched
from isochrone.client.names import Names
from isochrone.client.tcp import tls_context
from isochrone.client.url import Url
from isochrone.model import Finding, Outcome, Severity
from isochrone.publishing.kv import Kv
from isochrone.publishing.kv_errors import KvError
from isochrone.publishing.manifest import MANIFEST_KEY, ManifestError, parse
from isochrone.verification.certificates import TrustStore, TrustStoreError
from isochrone.verification.dns_ask import tls_context as dns_context
from isochrone.verification.edge_rules import PROTOCOLS, Own, Published, Seen, View, judge

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from isochrone.settings import Settings

TRIES = 3  # rounds until one map has answered throughout
PAUSE = 0.5  # seconds between them
_FRESH = (("cache-control", "no-cache"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeCheck:
    """What one round showed."""

    site: str  # host:port
    outcome: Outcome
    findings: tuple[Finding, ...]
    seen: Seen

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        own, published = self.seen.own, self.seen.published
        decision = own.decision or {}
        first: dict[str, Any] = next(iter(decision.get("candidates", ())), {})
        return {
            "site": self.site,
            "outcome": self.outcome.value,
            "addresses": list(self.seen.addresses),
            "views": [
                {
                    "protocol": view.protocol, "address": view.address or None, "problem": view.problem or None,
                    "status": view.status or None, "region": view.region or None, "edge": dict(view.edge),
                    "alt_svc": view.alt_svc, "skew_s": None if view.date is None else round(view.at - view.date, 1),
                    "phases_ms": {name: round(ms, 3) for name, ms in view.phases.items()},
                }
                for view in self.seen.views
            ],
            "decision": {
                "map": decision.get("map"), "colour": decision.get("colour"), "origin": first.get("origin"),
                "alt_svc": first.get("alt_svc"), "reason": decision.get("reason"),
            } if decision else None,
            "map": {
                "edge": own.status.get("map"), "age_s": own.status.get("age_s"),
            } if own.status else None,
            "published": {"version": published.version or None, "built_at": published.built_at or None}
            if published else None,
            "findings": [
                {
                    "check": f.check, "subject": f.subject, "severity": f.severity.value, "evidence": f.evidence,
                    "advice": f.advice, "source": f.source, "details": f.details,
                }
                for f in self.findings
            ],
        }  # fmt: skip


class EdgeChecker:
    """Checks the site that the settings name. Raises TrustStoreError from its constructor."""

    def __init__(self, settings: Settings, environ: Mapping[str, str] = os.environ) -> None:
        self._settings = settings
        self._environ = environ
        edge, store = settings.edge, settings.verification.trust_store
        cacert = None if store is None else str(store)
        try:
            tls_context(cacert, ("h2",))
        except (OSError, ssl.SSLError):
            raise TrustStoreError(f"{cacert}: holds no certificates in PEM form") from None
        self._names = Names(
            configured={settings.site: edge.addresses} if edge.addresses else {},
            servers=settings.dns.resolvers,
            tls=dns_context(settings.dns.trust_store),
            timeout=settings.dns.timeout_seconds,
        )
        self._client = Client(
            names=self._names,
            trust=TrustStore(store),
            context=lambda alpn: tls_context(cacert, alpn),
            region_header=settings.verification.region_header.lower(),
            timeout=edge.timeout_seconds,
        )

    async def check(self, *, now: float) -> EdgeCheck:
        """One round; never raises for what the network does."""
        secret = self._environ.get(self._settings.edge.secret_env, "")
        seen = await self._look(secret)
        findings = judge(self._settings, seen, secret=bool(secret), now=now)
        outcome = Outcome.OK
        if any(f.severity is Severity.ERROR for f in findings):
            outcome = Outcome.TARGET_FAILED
        elif any(f.check == "edge.not_checked" for f in findings):
            outcome = Outcome.PROBER_FAILED
        site = f"{self._settings.site}:{self._settings.edge.port}"
        return EdgeCheck(site=site, outcome=outcome, findings=findings, seen=seen)

    async def _look(self, secret: str) -> Seen:
        settings, edge = self._settings, self._settings.edge
        loop = asyncio.get_running_loop()
        found = await self._names.resolve(settings.site, edge.port, loop.time() + edge.timeout_seconds)
        if edge.addresses and settings.dns.resolvers:  # the record is still DNS's to tell
            asked = Names(servers=self._names.servers, tls=self._names.tls, timeout=self._names.timeout)
            record = await asked.resolve(settings.site, edge.port, loop.time() + edge.timeout_seconds)
            services = record.services
        else:
            services = found.services
        if not found.addresses:
            nothing = View(protocol="", error="unresolved", problem=found.problem)
            return Seen(views=(nothing,))
        client = replace(self._client, names=Names(given={(settings.site, edge.port): found.addresses}))
        published = await self._published()
        for left in reversed(range(TRIES)):
            before = await self._own(client, secret)
            views = await self._views(client)
            after = await self._own(client, secret) if secret else before
            maps = {view.edge.get("map") for view in views if not view.error}
            maps |= {own.decision.get("map") for own in (before, after) if own.decision}
            if len(maps) <= 1 or not left:
                break
            await asyncio.sleep(PAUSE)  # a new map is on its way
        return Seen(addresses=found.addresses, services=services, views=views, own=after, published=published)

    async def _views(self, client: Client) -> tuple[View, ...]:
        url = self._url(self._settings.verification.path)
        return tuple([_view(p, await client.fetch(url, allowed=(p,), headers=_FRESH)) for p in PROTOCOLS])

    async def _own(self, client: Client, secret: str) -> Own:
        if not secret:
            return Own()
        told: list[tuple[int, dict[str, Any] | None]] = []
        for name in ("decision", "status"):
            fetched = await client.fetch(
                self._url(f"/.isochrone/{name}"),
                allowed=("h2", "http/1.1"),
                headers=(("authorization", f"Bearer {secret}"), *_FRESH),
            )
            response = fetched.response
            body = _object(response.body) if response is not None and response.status == 200 else None
            told.append((response.status if response else 0, body))
        (opened, decision), (_, status) = told
        good = decision is not None and {"map", "colour", "band", "candidates"} <= decision.keys()
        return Own(opened=opened, decision=decision if good else None, status=status)

    async def _published(self) -> Published | None:
        if self._settings.kv is None:
            return None
        bound = self._settings.edge.timeout_seconds
        try:
            async with asyncio.timeout(bound), Kv.of(self._settings.kv) as kv:
                raw = await kv.get(MANIFEST_KEY)
            manifest = parse(raw) if raw is not None else None
        except (KvError, ManifestError) as error:
            return Published(problem=str(error))
        except TimeoutError:
            return Published(problem=f"it gave no answer within {bound:g} s")
        return Published(version=manifest.version, built_at=manifest.built_at) if manifest else Published()

    def _url(self, path: str) -> Url:
        return Url(self._settings.site, self._settings.edge.port, path)


def _view(protocol: str, done: Fetched) -> View:
    response = done.response
    if response is None:
        errors = [attempt.error for attempt in done.attempts if attempt.error is not None]
        return View(protocol=protocol, error=_kind(errors), problem="; ".join(map(str, errors)))
    return View(
        protocol=protocol, address=done.address, status=response.status, region=done.region, edge=done.edge,
        alt_svc=done.alt_svc, date=_date(response.get("date"), response.get("age")), at=time.time(), phases=done.phases,
    )  # fmt: skip


def _kind(errors: Sequence[ClientError]) -> str:
    last = errors[-1]
    if isinstance(last, CertificateRefusedError):
        return "certificate"
    if isinstance(last, UnresolvedError):
        return "unresolved"
    return "own" if last.own else "unreachable"


def _date(text: str | None, age: str | None) -> float | None:
    """Unix time of a Date field, with the time for which a cache has held the answer; None without one."""
    try:
        made = parsedate_to_datetime(text or "").timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
    held = int(age[:9]) if age is not None and age.isascii() and age.isdigit() else 0
    return made + held


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(body)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
