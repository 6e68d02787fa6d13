"""Jobs with a deadline: whatever one does, the next comes. What became of each is kept for `/status` and `/metrics`."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Record:
    """What became of one job. Times are Unix seconds, 0 for never."""

    runs: int = 0
    failures: int = 0  # ended by an error
    deadlines: int = 0  # ended by its deadline
    skipped: int = 0  # not begun because the run before was still under way
    running_since: float = 0.0
    last_success: float = 0.0
    last_seconds: float = 0.0
    problem: str = ""  # why the last run was no success

    def document(self, now: float) -> dict[str, Any]:
        """For `/status`."""
        age = now - self.last_success if self.last_success else None
        return asdict(self) | {"success_age_seconds": None if age is None else round(age, 3)}


class Jobs:
    """Runs jobs by name, each under a deadline, never letting an error out."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.records: dict[str, Record] = {}
        self._clock = clock

    def skipped(self, name: str) -> None:
        """Its time came while the run before was still under way."""
        self.records.setdefault(name, Record()).skipped += 1

    async def run(
        self,
        name: str,
        deadline: float,
        work: Callable[[], Awaitable[object]],
        *,
        expected: tuple[type[Exception], ...] = (),
    ) -> Exception | None:
        """Run once, ended after `deadline` seconds. None when it was a success, else what ended it.

        Errors in `expected` explain themselves in their sentence; any other one is a fault of ours and told with its place.
        """
        record = self.records.setdefault(name, Record())
        record.runs += 1
        record.running_since = self._clock()
        begun = time.monotonic()
        try:
            async with asyncio.timeout(deadline) as scope:
                await work()
        except TimeoutError as error:
            if scope.expired():
                record.deadlines += 1
                record.problem = f"did not end within {deadline:.0f} s and was stopped"
            else:
                record.failures += 1
                record.problem = f"timeout: {error}"
            log.error("%s %s", name, record.problem)  # noqa: TRY400  the sentence says it
            return error
        except expected as error:
            record.failures += 1
            record.problem = one_line(str(error))
            log.warning("%s: %s", name, record.problem)
            return error
        except Exception as error:  # a job's fault must not end the schedule
            record.failures += 1
            record.problem = one_line(f"{type(error).__name__}: {error}")
            log.exception("%s failed: %s", name, record.problem)
            return error
        finally:
            record.running_since = 0.0
            record.last_seconds = round(time.monotonic() - begun, 3)
        record.last_success = self._clock()
        record.problem = ""
        return None


def one_line(text: str, limit: int = 300) -> str:
    """Text that stays on one line of a log."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
