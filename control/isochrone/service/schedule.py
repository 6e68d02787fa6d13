"""The recurring jobs as APScheduler runs them: one run of each at a time, missed runs made up for once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from apscheduler.events import (
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_MISSED,
    JobExecutionEvent,
    JobSubmissionEvent,
)
from apscheduler.schedulers.asyncio import AsyncIOScheduler

LATE_SECONDS = 60  # a run may begin so late; one later is left out, and counted
Work = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Recurring:
    """A job and how often it is done."""

    name: str
    seconds: float
    work: Work
    first: float = 0.0  # seconds until the first run


def scheduler_of(
    recurring: Iterable[Recurring], *, run: Callable[[Work], Awaitable[None]], skipped: Callable[[str], None]
) -> AsyncIOScheduler:
    """A scheduler, not started.

    Args:
        recurring: the jobs.
        run: what runs a job's work, e.g. so that its task is known.
        skipped: told a job's name when its time came while it was still under way.
    """
    scheduler = AsyncIOScheduler(timezone="UTC", job_defaults={"max_instances": 1, "coalesce": True})

    def on_skipped(event: JobSubmissionEvent | JobExecutionEvent) -> None:
        skipped(event.job_id)

    scheduler.add_listener(on_skipped, EVENT_JOB_MAX_INSTANCES | EVENT_JOB_MISSED)
    for job in recurring:
        add(scheduler, job, run=run, first=job.first)
    return scheduler


def add(
    scheduler: AsyncIOScheduler, job: Recurring, *, run: Callable[[Work], Awaitable[None]], first: float
) -> None:
    """Add a job whose first run is in `first` seconds; it takes the place of one with its name."""
    scheduler.add_job(
        run,
        "interval",
        args=(job.work,),
        seconds=job.seconds,
        id=job.name,
        misfire_grace_time=max(LATE_SECONDS, int(job.seconds)),
        next_run_time=datetime.now(UTC) + timedelta(seconds=first),
        replace_existing=True,
    )
