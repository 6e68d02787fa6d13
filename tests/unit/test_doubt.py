from __future__ import annotations

import asyncio
import time

from isochrone.model import Outcome
from isochrone.service.doubt import LoopLag, Verdict, judged

OK, FAILED, OURS = Outcome.OK, Outcome.TARGET_FAILED, Outcome.PROBER_FAILED


def judge(*verdicts, lag=0.0):
    outcomes, why = judged(dict(enumerate(verdicts)), lag_seconds=lag, timeout_seconds=1.0)
    return list(outcomes.values()), bool(why)


def test_one_silent_origin_among_others_has_failed():
    assert judge(Verdict(OK), Verdict(FAILED, silent=True)) == ([OK, FAILED], False)


def test_silence_everywhere_at_once_is_ours():
    assert judge(Verdict(FAILED, silent=True), Verdict(FAILED, silent=True)) == ([OURS, OURS], True)


def test_an_only_origin_that_is_silent_has_failed():
    assert judge(Verdict(FAILED, silent=True)) == ([FAILED], False)


def test_wrong_answers_count_however_many_give_them():
    assert judge(Verdict(FAILED), Verdict(FAILED)) == ([FAILED, FAILED], False)
    assert judge(Verdict(FAILED), Verdict(FAILED, silent=True)) == ([FAILED, FAILED], False)


def test_silence_while_this_process_was_late_is_ours_and_answers_still_count():
    verdicts = (Verdict(OK), Verdict(FAILED, silent=True), Verdict(FAILED))
    assert judge(*verdicts, lag=0.3) == ([OK, OURS, FAILED], True)
    assert judge(*verdicts, lag=0.2) == ([OK, FAILED, FAILED], False)
    assert judge(Verdict(OK), lag=5.0) == ([OK], False)


def test_nothing_checked_is_nothing_doubted():
    assert judge() == ([], False)


async def test_a_blocked_loop_is_measured():
    async with LoopLag() as lag:
        await asyncio.sleep(0.03)
        time.sleep(0.2)  # noqa: ASYNC251  what is being measured
        await asyncio.sleep(0.03)
    assert 0.1 < lag.seconds < 5


async def test_a_loop_that_is_blocked_to_the_end_is_measured_too():
    async with LoopLag() as lag:
        await asyncio.sleep(0.05)
        time.sleep(0.2)  # noqa: ASYNC251  what is being measured
    assert 0.1 < lag.seconds < 5
