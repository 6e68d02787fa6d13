"""Checks of affinity endpoints and of the origins themselves, and what they earn: what a map may offer, and who is up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from isochrone.model import Finding, Origin, Outcome, Severity, Standing
from isochrone.service.doubt import LoopLag, Verdict, judged
from isochrone.verification.http3 import verdict
from isochrone.verification.standing import step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isochrone.settings import Verification
    from isochrone.store.sqlite import Store
    from isochrone.verification.health import HealthCheck, HealthChecker
    from isochrone.verification.http3 import EndpointChecker

log = logging.getLogger(__name__)

STAGGER_SECONDS = 0.03  # between the beginnings of checks
HEALTH = "health"  # the name under which an origin's own standing is kept, beside those of its endpoints
#: findings of an endpoint that did not answer, in contrast to one that answered wrongly
SILENT = frozenset({"http3.unreachable", "http3.no_answer"})
Key = tuple[str, str]  # origin, endpoint's authority or HEALTH

Check = Callable[[], Awaitable[tuple[Key, Verdict]]]


class Verifying:
    """Holds the standings; a restart takes them up from the store."""

    def __init__(
        self,
        origins: Sequence[Origin],
        endpoints: EndpointChecker,
        health: HealthChecker,
        store: Store,
        settings: Verification,
        clock: Callable[[], float],
    ) -> None:
        self.origins = origins
        self.standings: dict[Key, Standing] = {}
        self.findings: dict[Key, tuple[Finding, ...]] = {}  # of the last check of each
        self.doubted: dict[str, int] = {}  # rounds in which silence was taken for our own fault
        self._last_doubt = ""
        # Handshakes of all origins in one instant would make this process late, and the probes beside them wrong.
        self._stagger = min(STAGGER_SECONDS, settings.interval_seconds / 2 / max(1, len(origins)))
        self._endpoints = endpoints
        self._health = health
        self._store = store
        self._settings = settings
        self._clock = clock

    @property
    def deadline(self) -> float:
        """Seconds: a check resolves, connects and asks, each bounded by the timeout."""
        return 3 * self._settings.timeout_seconds + len(self.origins) * self._stagger + 10.0

    def recall(self) -> None:
        """Take up the standings of the last run, for what is still configured. Raises StoreError."""
        known = self.wanted()
        self.standings = {key: standing for key, standing in self._store.standings().items() if key in known}

    def wanted(self) -> set[Key]:
        """All that is checked."""
        keys = {(origin.id, HEALTH) for origin in self.origins}
        return keys | {(origin.id, origin.alt_svc.authority) for origin in self.origins if origin.alt_svc}

    async def health_round(self) -> bool:
        """Check whether the origins are up. Returns whether a promise or a state changed.

        Raises:
            StoreError: standings could not be kept.
        """

        async def check(origin: Origin) -> tuple[Key, Verdict]:
            result = await self._health.check(origin)
            self.findings[origin.id, HEALTH] = _health_findings(result)
            return (origin.id, HEALTH), Verdict(result.outcome, result.detail.startswith("no answer"))

        return await self._round("health", [partial(check, origin) for origin in self.origins])

    async def endpoint_round(self) -> bool:
        """Check all affinity endpoints by HTTP/3. Returns whether a promise or a state changed.

        Raises:
            StoreError: standings could not be kept.
        """

        async def check(origin: Origin, authority: str) -> tuple[Key, Verdict]:
            results = await self._endpoints.check(origin, now=self._clock())
            found = self.findings[origin.id, authority] = tuple(
                f for result in results for f in result.findings
            )
            errors = [finding.check for finding in found if finding.severity is Severity.ERROR]
            return (origin.id, authority), Verdict(verdict(results), SILENT.issuperset(errors))

        wanted = [(origin, origin.alt_svc.authority) for origin in self.origins if origin.alt_svc]
        return await self._round("http3", [partial(check, *each) for each in wanted])

    async def _round(self, name: str, checks: Sequence[Check]) -> bool:
        async with LoopLag() as lag:
            verdicts = dict(
                await asyncio.gather(*(_after(i * self._stagger, check) for i, check in enumerate(checks)))
            )
        outcomes, why = judged(
            verdicts, lag_seconds=lag.seconds, timeout_seconds=self._settings.timeout_seconds
        )
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
        await asyncio.to_thread(self._store.save_standings, changed)
        return self.promises() != before

    def state(self, origin: Origin) -> str:
        """up, draining or down. What was never checked is up: unknown must not take anything away."""
        standing = self.standings.get((origin.id, HEALTH), Standing())
        doubted = standing.proved or standing.failed >= self._settings.fall
        if doubted and not standing.offered:
            return "down"
        return "draining" if origin.draining else "up"

    def offered(self, origin: Origin) -> bool:
        """Whether a map may offer the origin's endpoint: proved, and the origin is not down or leaving."""
        if origin.alt_svc is None:
            return False
        standing = self.standings.get((origin.id, origin.alt_svc.authority), Standing())
        return standing.offered and self.state(origin) == "up"

    def promises(self) -> tuple[tuple[str, str, bool], ...]:
        """What a map says of each origin: a change of it is published at once."""
        return tuple((origin.id, self.state(origin), self.offered(origin)) for origin in self.origins)

    def _tell(self, key: Key, standing: Standing) -> None:
        origin, endpoint = key
        what = f"origin {origin}" if endpoint == HEALTH else f"endpoint {endpoint} of {origin}"
        if standing.offered:
            log.info("%s passed its checks: %s", what, "up" if endpoint == HEALTH else "offered")
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
            "down" if endpoint == HEALTH else "withdrawn",
        )


async def _after(seconds: float, check: Check) -> tuple[Key, Verdict]:
    await asyncio.sleep(seconds)
    return await check()


def _health_findings(check: HealthCheck) -> tuple[Finding, ...]:
    if check.outcome is Outcome.OK:
        return ()
    ours = check.outcome is Outcome.PROBER_FAILED
    return (
        Finding(
            check="health.not_checked" if ours else "health.failed",
            subject=check.origin,
            severity=Severity.WARNING if ours else Severity.ERROR,
            evidence=check.detail,
            advice="look at this controller's own network"
            if ours
            else "look at the origin: the edge would fail to reach it too",
        ),
    )
