from __future__ import annotations

import asyncio
import logging

from isochrone.backoff import Backoff
from isochrone.service.jobs import Jobs
from isochrone.service.logs import LineFormatter
from isochrone.service.ownership import STALE_SECONDS, Ownership


class SentenceError(Exception):
    pass


async def test_a_hung_job_is_ended_by_its_deadline_and_counted(caplog):
    jobs = Jobs()
    ended = asyncio.Event()

    async def hang():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    error = await jobs.run("probe", 0.05, hang)
    assert isinstance(error, TimeoutError)
    assert ended.is_set()
    record = jobs.records["probe"]
    assert (record.runs, record.deadlines, record.failures, record.last_success) == (1, 1, 0, 0.0)
    assert record.running_since == 0.0
    assert "did not end" in caplog.text

    assert await jobs.run("probe", 1, _nothing) is None
    assert record.runs == 2
    assert record.problem == ""
    assert record.document(record.last_success + 5)["success_age_seconds"] == 5


async def _nothing():
    pass


async def test_an_expected_error_is_its_sentence_and_any_other_tells_its_place(caplog):
    jobs = Jobs(clock=lambda: 100.0)

    async def fail(error):
        raise error

    assert isinstance(
        await jobs.run("publish", 1, lambda: fail(SentenceError("no such thing")), expected=(SentenceError,)),
        SentenceError,
    )
    assert caplog.records[-1].levelno == logging.WARNING
    assert caplog.records[-1].exc_info is None
    await jobs.run("publish", 1, lambda: fail(KeyError("x\ny")), expected=(SentenceError,))
    line = LineFormatter().format(caplog.records[-1])
    assert "\n" not in line
    assert "ERROR jobs: publish failed: KeyError" in line
    assert "(at test_jobs.py:" in line
    await jobs.run("publish", 1, lambda: fail(TimeoutError("its own")))
    assert (jobs.records["publish"].failures, jobs.records["publish"].deadlines) == (3, 0)


async def test_being_cancelled_is_not_a_failure():
    jobs = Jobs()
    task = asyncio.create_task(jobs.run("probe", 10, asyncio.Event().wait))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert jobs.records["probe"].failures == 0


def test_pauses_grow_to_a_bound_with_jitter_and_respect_what_was_asked_for():
    longest, shortest = Backoff(chance=lambda: 1.0), Backoff(chance=lambda: 0.0)
    assert [longest.next() for _ in range(9)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert [shortest.next() for _ in range(3)] == [0.5, 1, 2]
    assert shortest.next(at_least=30) == 30
    longest.reset()
    assert longest.next() == 1
    endless = Backoff(failures=10_000)
    assert endless.next() <= 60


def test_a_crash_right_after_the_manifest_was_written_does_not_lose_the_map():
    before = Ownership().published("v1", None, 0.0)
    noted = Ownership.load(before.intends("v2").dump())
    assert "v2" in noted.own
    assert noted.saw("v2").live == "v2"
    assert noted.saw("v1") == noted  # the write never happened


def test_only_the_last_published_version_is_replaced_without_asking():
    now = Ownership().published("v1", None, 0.0).published("v2", "v1", 1000.0)
    assert set(now.own) == {"v2"}  # a rollback to v1 is somebody's wish, though v1 was ours once
    assert now.is_stale("v1", 1000.0 + STALE_SECONDS - 1)
    assert not now.is_stale("v1", 1000.0 + STALE_SECONDS + 1)
    assert not now.is_stale("v0", 1001.0)
    assert now.refuses("v3").saw("v3").live == "v3"
    assert now.adopts("theirs").own == {"theirs"}
    assert Ownership.load(None).own == set()


def test_a_map_is_provisional_until_more_samples_have_confirmed_it():
    first = Ownership().published("v1", None, 0.0, 3.0)
    assert first.confirmed(21.0).evidence == 21.0
    assert first.confirmed(21.0).confirmed(5.0).evidence == 21.0
    assert first.adopts("theirs").confirmed(5.0).evidence is None  # another's map is taken for settled
