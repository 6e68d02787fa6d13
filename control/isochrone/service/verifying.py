"""Checks of origins, their names and their affinity endpoints, and what they earn: what a map may offer, and who is up.

Each kind of check has its own rate and its own standings. An endpoint is offered only while HTTP/3 has proved it and DNS does not
speak against it.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from isochrone.model import Finding, Origin, Outcome, Severity, Standing
from isochrone.service.deepening import Deepening
from isochrone.service.doubt import RECHECKS, Check, Judged, LoopLag, Verdict, ask, judged
from isochrone.store.findings import end_others, record
from isochrone.verification.http3 import verdict
from isochrone.verification.standing import step, worst

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from isochrone.settings import Verification
    from isochrone.store.sqlite import Store
    from isochrone.verification.dns import DnsCheck, DnsChecker
    from isochrone.verification.health import HealthChecker
    from isochrone.verification.http3 import EndpointChecker

log = logging.getLogger(__name__)

STAGGER_SECONDS = 0.03  # between the beginnings of checks
#: the names under which standings of an origin itself and of its names are kept, beside those of endpoints
HEALTH, DNS = "health", "dns"
HTTP3 = "http3"
#: findings of an endpoint that did not answer, in contrast to one that answered wrongly
SILENT = frozenset(
    f"http3.{kind}"
    for kind in (
        "unreachable",
        "udp_blocked",
        "ipv6_unreachable",
        "ipv4_unreachable",
        "address_unreachable",
        "mute",
        "no_answer",
    )
)
Key = tuple[str, str]  # origin, endpoint's authority or HEALTH or DNS


class Verifying:
    """Holds the standings; a restart takes them up from the store."""

    def __init__(
        self,
        origins: Sequence[Origin],
        endpoints: EndpointChecker,
        health: HealthChecker,
        names: DnsChecker | None,
        store: Store,
        settings: Verification,
        clock: Callable[[], float],
    ) -> None:
        self.origins = origins
        self.standings: dict[Key, Standing] = {}
        self.findings: dict[Key, tuple[Finding, ...]] = {}  # of the last check of each
        self.doubted: dict[str, int] = {}  # rounds in which silence was taken for our own fault
        self._last_doubt = ""
        self._open: set[str] = set()  # kinds of check that have open findings in the store
        # Handshakes of all origins in one instant would make this process late, and the probes beside them wrong.
        self._stagger = min(STAGGER_SECONDS, settings.interval_seconds / 2 / max(1, len(origins)))
        self._endpoints = endpoints
        self.deep = Deepening(origins, endpoints, settings, clock)
        self._health = health
        self.names = names  # None: DNS is not checked
        self.resolved: tuple[DnsCheck, ...] = ()  # the last DNS round
        self.resolved_at = 0.0  # Unix time of it, 0 before the first
        self._store = store
        self._settings = settings
        self._clock = clock

    @property
    def deadline(self) -> float:
        """Seconds: a check resolves, connects and asks, each bounded by the timeout."""
        return (1 + RECHECKS) * (
            3 * self._settings.timeout_seconds + len(self.origins) * self._stagger
        ) + 10.0

    def recall(self, others: Collection[tuple[str, str]] = ()) -> None:
        """Take up the standings and open findings of the last run, for what is still configured. Raises StoreError.

        `others` are (job, origin) whose findings somebody else keeps.
        """
        known = self.wanted()
        jobs = {(e if e in {HEALTH, DNS} else HTTP3, o) for o, e in known}
        self._open = end_others(self._store, jobs | set(others), now=self._clock())
        self.standings = {key: standing for key, standing in self._store.standings().items() if key in known}

    def wanted(self) -> set[Key]:
        """All that is checked."""
        keys = {(origin.id, HEALTH) for origin in self.origins}
        if self.names is not None:
            keys |= {(origin.id, DNS) for origin in self.origins}
        return keys | {(origin.id, origin.alt_svc.authority) for origin in self.origins if origin.alt_svc}

    def doubtful(self, name: str) -> set[Key]:
        """Of one kind of check, what stands and failed the last time."""
        kind = {HEALTH: {HEALTH}, DNS: {DNS}}.get(name)
        return {
            (origin, what)
            for (origin, what), standing in self.standings.items()
            if standing.offered and standing.failed and (what in kind if kind else what not in {HEALTH, DNS})
        }

    async def health_round(self, only: Collection[Key] | None = None) -> bool:
        """Check whether the origins are up, all or only some. Returns whether a promise or a state changed.

        Raises:
            StoreError: standings could not be kept.
        """

        async def check(origin: Origin) -> Verdict:
            result = await self._health.check(origin)
            self.findings[origin.id, HEALTH] = result.findings()
            return Verdict(result.outcome, result.silent)

        checks = {(origin.id, HEALTH): partial(check, origin) for origin in self.origins}
        return await self._round(HEALTH, await self._each(checks, only))

    async def endpoint_round(self, only: Collection[Key] | None = None) -> bool:
        """Check affinity endpoints by HTTP/3, all or only some. Returns whether a promise or a state changed.

        Raises:
            StoreError: standings could not be kept.
        """

        async def check(origin: Origin, authority: str) -> Verdict:
            results = await self._endpoints.check(origin, now=self._clock())
            cheap = [f for result in results for f in result.findings]
            found = self.findings[origin.id, authority] = self.deep.beside(origin.id, cheap)
            errors = [finding.check for finding in found if finding.severity is Severity.ERROR]
            outcome = self.deep.outcome(origin.id, verdict(results))
            return Verdict(outcome, SILENT.issuperset(errors))

        wanted = [(origin, origin.alt_svc.authority) for origin in self.origins if origin.alt_svc]
        checks = {(origin.id, authority): partial(check, origin, authority) for origin, authority in wanted}
        return await self._round(HTTP3, await self._each(checks, only))

    async def dns_round(self) -> bool:
        """Ask for all regional names, at their servers and at resolvers. Returns whether a promise or a state changed.

        Raises:
            StoreError: standings could not be kept.
        """
        names = self.names
        if names is None:
            return False

        async with LoopLag() as lag:
            now = self._clock()
            checks = await names.check_all(now=now)
        self.resolved, self.resolved_at = self._resolved(checks, now), now
        verdicts: dict[Key, Verdict] = {}
        for origin in self.origins:
            own = [check for check in checks if check.origin == origin.id]
            self.findings[origin.id, DNS] = tuple(f for check in own for f in check.findings)
            failed = [check for check in own if check.outcome is Outcome.TARGET_FAILED]
            verdicts[origin.id, DNS] = Verdict(
                worst(check.outcome for check in own), all(check.silent for check in failed)
            )
        found = judged(verdicts, lag_seconds=lag.seconds, timeout_seconds=names.timeout_seconds)
        return await self._round(DNS, (verdicts, *found))

    def _resolved(self, checks: Sequence[DnsCheck], now: float) -> tuple[DnsCheck, ...]:
        """What could not be asked keeps the plan of the round before, for as long as that was valid."""
        before = {(old.origin, old.name): old.plan for old in self.resolved if old.plan.valid_until > now}
        return tuple(
            replace(check, plan=before.get((check.origin, check.name), check.plan))
            if check.outcome is Outcome.PROBER_FAILED
            else check
            for check in checks
        )

    async def _each(self, checks: Mapping[Key, Check], only: Collection[Key] | None) -> Judged[Key]:
        wanted = checks if only is None else {key: check for key, check in checks.items() if key in only}
        return await ask(wanted, stagger=self._stagger, timeout_seconds=self._settings.timeout_seconds)

    async def _round(self, name: str, found: Judged[Key]) -> bool:
        verdicts, outcomes, why = found
        self.doubted[name] = self.doubted.get(name, 0) + bool(why)
        if why and why != self._last_doubt:
            log.warning("%s checks: silence is not held against anybody: %s", name, why)
        self._last_doubt = why
        before, now = self.promises(), self._clock()
        changed: dict[Key, Standing] = {}
        for key, outcome in outcomes.items():
            old = self.standings.get(key, Standing())
            changed[key] = step(old, outcome, now=now, rise=self._settings.rise, fall=self._settings.fall)
            if changed[key].offered != old.offered:
                self._tell(key, changed[key])
        self.standings |= changed
        # A round that is not held against anybody is no part of the history either.
        seen = {
            o: self.findings.get((o, e), ()) for (o, e), v in verdicts.items() if outcomes[o, e] is v.outcome
        }
        heard = {o for (o, _), outcome in outcomes.items() if outcome is not Outcome.PROBER_FAILED}
        await asyncio.to_thread(self._save, name, changed, seen, heard)
        return self.promises() != before

    def _save(
        self, name: str, standings: dict[Key, Standing], seen: dict[str, tuple[Finding, ...]], heard: set[str]
    ) -> None:
        self._store.save_standings(standings)
        if name in self._open or any(seen.values()):
            still = record(self._store, name, seen, heard, now=self._clock())
            self._open = self._open | {name} if still else self._open - {name}

    def state(self, origin: Origin) -> str:
        """up, draining or down. What was never checked is up: unknown must not take anything away."""
        standing = self.standings.get((origin.id, HEALTH), Standing())
        doubted = standing.proved or standing.failed >= self._settings.fall
        if doubted and not standing.offered:
            return "down"
        return "draining" if origin.draining else "up"

    def offered(self, origin: Origin) -> bool:
        """Whether a map may offer the origin's endpoint: proved, its names not astray, the origin not down or leaving."""
        return self._endpoint(origin).offered and self._names_stand(origin) and self.state(origin) == "up"

    def withdrawn(self, origin: Origin) -> bool:
        """Whether clients may be pinned to the origin's endpoint though it is not offered any more."""
        return self._endpoint(origin).proved and not self.offered(origin)

    def _endpoint(self, origin: Origin) -> Standing:
        if origin.alt_svc is None:
            return Standing()
        return self.standings.get((origin.id, origin.alt_svc.authority), Standing())

    def _names_stand(self, origin: Origin) -> bool:
        """Not checked, or not to be checked from here, speaks against nobody; a name that was never good is not promised."""
        standing = self.standings.get((origin.id, DNS), Standing())
        return standing.offered or not (standing.proved or standing.failed)

    def promises(self) -> tuple[tuple[str, str, bool], ...]:
        """What a map says of each origin: a change of it is published at once."""
        return tuple((origin.id, self.state(origin), self.offered(origin)) for origin in self.origins)

    def _tell(self, key: Key, standing: Standing) -> None:
        origin, endpoint = key
        what = {HEALTH: f"origin {origin}", DNS: f"the names of {origin}"}.get(
            endpoint, f"endpoint {endpoint} of {origin}"
        )
        good, bad = {HEALTH: ("up", "down"), DNS: ("good", "its endpoint is withdrawn")}.get(
            endpoint, ("offered", "withdrawn")
        )
        if standing.offered:
            log.info("checks of %s passed: %s", what, good)
            return
        why = next(
            (f.evidence for f in self.findings.get(key, ()) if f.severity is Severity.ERROR),
            "no reason known",
        )
        log.warning(
            "%s failed %d checks in a row (%s): %s",
            what,
            standing.failed,
            why,
            bad,
        )
