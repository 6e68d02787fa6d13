"""The daemon's rounds of `verify edge`: the last one for `/status`, all of them for the history. Nothing is withdrawn by them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from isochrone.model import Outcome
from isochrone.store.findings import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from isochrone.store.sqlite import Store
    from isochrone.verification.edge import EdgeCheck, EdgeChecker

log = logging.getLogger(__name__)

EDGE = "edge"
SITE = ""  # in the history's column for origins: it is about none of them
REQUESTS = 30  # of a round, at most: three tries of three pages and four looks at the edge's own endpoints, and what DNS takes


class EdgeWatch:
    """Checks the site and keeps what was found."""

    def __init__(
        self, checker: EdgeChecker, store: Store, clock: Callable[[], float], *, timeout: float
    ) -> None:
        self.last: EdgeCheck | None = None
        self.deadline = REQUESTS * timeout  # seconds
        self._checker = checker
        self._store = store
        self._clock = clock
        self._told: frozenset[str] = frozenset()
        self._open = True  # findings of an earlier run may be

    async def round(self) -> None:
        """One check. Raises StoreError when it can't be kept."""
        check = self.last = await self._checker.check(now=self._clock())
        kinds = frozenset(finding.check for finding in check.findings)
        for finding in check.findings:
            if finding.check not in self._told:
                log.warning("%s: %s: %s", finding.check, finding.subject, finding.evidence)
        if self._told and not kinds:
            log.info("the edge is found well again")
        self._told = kinds
        if check.findings or self._open:
            heard = {SITE} if check.outcome is not Outcome.PROBER_FAILED else set()
            self._open = await asyncio.to_thread(
                record, self._store, EDGE, {SITE: check.findings}, heard, now=self._clock()
            )

    def document(self) -> dict[str, Any] | None:
        """The last check; None before the first."""
        return None if self.last is None else self.last.document()
