"""When failed checks say more about this controller than about what it checked. Policy is pure; `LoopLag` measures.

Silence everywhere at once, or silence while this process could not keep up, is more likely ours than everybody's: it demotes
nobody. A refusal, a wrong certificate or a bad status is an answer, and counts however many give it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeVar

from isochrone.model import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

Key = TypeVar("Key", bound=Hashable)

LAG_SHARE = 0.25  # of the timeout: an event loop this late makes timeouts its own
EVERYBODY = 2  # from so many checks on, "all of them" means something
RECHECKS = 2  # of what a round could not tell from this process's own trouble
_TICK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check came to, and whether its failure was mere silence."""

    outcome: Outcome
    silent: bool = False


def judged(
    verdicts: Mapping[Key, Verdict], *, lag_seconds: float, timeout_seconds: float
) -> tuple[dict[Key, Outcome], str]:
    """The outcomes of one round, and why silence was not held against anybody ("" when it was).

    Args:
        verdicts: one for each thing checked, at about the same time.
        lag_seconds: how late this process's event loop was at worst meanwhile.
        timeout_seconds: of a check.
    """
    silent = [
        key
        for key, verdict in verdicts.items()
        if verdict.outcome is Outcome.TARGET_FAILED and verdict.silent
    ]
    why = ""
    if silent and lag_seconds > LAG_SHARE * timeout_seconds:
        why = f"this process was late by {lag_seconds * 1000:.0f} ms"
    elif len(silent) == len(verdicts) and len(silent) >= EVERYBODY:
        why = f"all {len(silent)} were silent at once"
    outcomes = {key: verdict.outcome for key, verdict in verdicts.items()}
    if why:
        outcomes |= dict.fromkeys(silent, Outcome.PROBER_FAILED)
    return outcomes, why


Check = Callable[[], Awaitable[Verdict]]
#: verdicts, the outcomes that they are held to be, and why silence was not held against anybody
Judged = tuple[dict[Key, Verdict], dict[Key, Outcome], str]


async def ask(checks: Mapping[Key, Check], *, stagger: float, timeout_seconds: float) -> Judged[Key]:
    """Make all checks, their beginnings `stagger` seconds apart.

    Those that say more about this process than about what was checked are made again, beside fewer others.
    """
    verdicts: dict[Key, Verdict] = {}
    outcomes: dict[Key, Outcome] = {}
    why, asked = "", list(checks)
    for _ in range(1 + RECHECKS):
        async with LoopLag() as lag:
            found = await asyncio.gather(*(_after(i * stagger, checks[key]) for i, key in enumerate(asked)))
        verdicts |= zip(asked, found, strict=True)
        outcomes, why = judged(verdicts, lag_seconds=lag.seconds, timeout_seconds=timeout_seconds)
        asked = [key for key, outcome in outcomes.items() if outcome is Outcome.PROBER_FAILED]
        if not asked or len(asked) == len(checks) >= EVERYBODY:
            break
    return verdicts, outcomes, why


async def _after(seconds: float, check: Check) -> Verdict:
    await asyncio.sleep(seconds)
    return await check()


class LoopLag:
    """How late the event loop was at worst while the block lasted, in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._due = math.inf  # when the watch should wake up next
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._note()  # the block may end before the watch gets its turn
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _watch(self) -> None:
        while True:
            self._due = asyncio.get_running_loop().time() + _TICK_SECONDS
            await asyncio.sleep(_TICK_SECONDS)
            self._note()

    def _note(self) -> None:
        self.seconds = max(self.seconds, asyncio.get_running_loop().time() - self._due)
