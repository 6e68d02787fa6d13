from __future__ import annotations

import asyncio
import time
from collections import Counter

from isochrone.model import Outcome
from isochrone.service.doubt import LoopLag, Verdict, ask, judged

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


async def each(**checks):
    """Outcomes of checks that were asked of a controller, and how often each was."""
    asked = Counter()

    def counted(name, check):
        async def run():
            asked[name] += 1
            return await check()

        return run

    _, outcomes, why = await ask(
        {name: counted(name, check) for name, check in checks.items()}, stagger=0.01, timeout_seconds=2.0
    )
    return outcomes, bool(why), dict(asked)


async def silent():
    await asyncio.sleep(0.05)
    return Verdict(FAILED, silent=True)


async def busy():
    """A check that holds the loop up for longer than a quarter of the timeout."""
    await asyncio.sleep(0.02)
    time.sleep(0.6)  # noqa: ASYNC251  what is being tried
    return Verdict(OK)


async def busy_and_silent():
    await busy()
    return Verdict(FAILED, silent=True)


async def good():
    return Verdict(OK)


async def refused():
    return Verdict(FAILED)


async def test_silence_that_may_be_ours_is_asked_again_alone():
    assert await each(a=silent, b=busy, c=refused) == (
        {"a": FAILED, "b": OK, "c": FAILED}, False, {"a": 2, "b": 1, "c": 1},
    )  # fmt: skip


async def test_silence_that_stays_ours_is_held_against_nobody():
    assert await each(a=busy_and_silent, b=good) == ({"a": OURS, "b": OK}, True, {"a": 3, "b": 1})


async def test_silence_everywhere_is_not_asked_again():
    assert await each(a=silent, b=silent) == ({"a": OURS, "b": OURS}, True, {"a": 1, "b": 1})
    assert await each(a=silent, b=good) == ({"a": FAILED, "b": OK}, False, {"a": 1, "b": 1})
