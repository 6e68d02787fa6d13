"""ICMP echo over loopback, by both kinds of socket where they are allowed."""

from __future__ import annotations

import asyncio
import resource
import socket
import time

import psutil
import pytest
from probing_support import probe

from isochrone.model import Outcome, Target
from isochrone.probing import icmp_burst, icmp_socket, mmsg
from isochrone.probing.icmp import IcmpProber
from isochrone.probing.manners import Manners
from isochrone.probing.prober import ProberTrouble


def allowed(raw):
    try:
        icmp_socket.open_icmp(4, raw=raw).socket.close()
    except ProberTrouble:
        return False
    return True


KINDS = [pytest.param(raw, id="raw" if raw else "datagram") for raw in (True, False) if allowed(raw)] or [
    pytest.param(None, marks=pytest.mark.skip(reason="this process may not send ICMP at all"))
]
each_kind = pytest.mark.parametrize("raw", KINDS)
each_version = pytest.mark.parametrize("address", ["127.0.0.1", "::1"])


@each_kind
@each_version
async def test_an_answer(raw, address):
    result = await probe(IcmpProber(raw=raw), address)
    assert (result.outcome, result.detail) == (Outcome.OK, "")
    assert 0 < result.rtt_ms < 100


@each_kind
@each_version
async def test_many_at_once_through_one_socket(raw, address):
    process = psutil.Process()
    before = process.num_fds()
    prober = IcmpProber(raw=raw)
    chosen = (
        [f"127.0.{n // 250}.{n % 250 + 1}" for n in range(500)] if ":" not in address else [address] * 500
    )
    tasks = [asyncio.create_task(probe(prober, one)) for one in chosen]
    await asyncio.sleep(0)
    assert process.num_fds() <= before + 1
    results = await asyncio.gather(*tasks)
    assert {result.outcome for result in results} == {Outcome.OK}
    assert [result.address for result in results] == chosen
    assert process.num_fds() == before


@each_kind
@each_version
async def test_a_batch(raw, address):
    chosen = (
        [f"127.0.{n // 250}.{n % 250 + 1}" for n in range(3000)] if ":" not in address else [address] * 3000
    )
    results = await IcmpProber(raw=raw).run_batch([Target(one, 443, 1) for one in chosen], timeout=2)
    assert [result.address for result in results] == chosen
    assert {result.outcome for result in results} == {Outcome.OK}, {result.detail for result in results}
    assert all(0 <= result.rtt_ms < 1000 for result in results)


@each_kind
async def test_a_batch_says_of_each_what_became_of_it(raw):
    chosen = ["127.0.0.1", "www.example.com", "::1", "127.0.0.2", "10.0.0.1", "not\0an address"]
    gate = Manners(["10.0.0.0/8"], lab=True)
    results = await IcmpProber(raw=raw, gate=gate).run_batch([Target(a, 1, 1) for a in chosen], timeout=1)
    assert [result.outcome.value for result in results] == [
        "ok",
        "prober_failed",
        "ok",
        "ok",
        "prober_failed",
        "prober_failed",
    ]
    assert "never_probe" in results[4].detail
    assert await IcmpProber(raw=raw).run_batch([], timeout=1) == []


@each_kind
async def test_a_batch_keeps_to_its_rate(raw):
    chosen = [Target("127.0.0.1", 1, 1)] * 51
    begun = time.monotonic()
    results = await IcmpProber(raw=raw).run_batch(chosen, timeout=1, rate=100)
    assert time.monotonic() - begun >= 0.5
    assert {result.outcome for result in results} == {Outcome.OK}


async def test_a_batch_without_batched_system_calls(monkeypatch):
    monkeypatch.setattr(mmsg, "AVAILABLE", False)
    results = await IcmpProber().run_batch(
        [Target("127.0.0.1", 1, 1), Target("::1", 1, 1)], timeout=1, rate=100
    )
    assert [result.outcome for result in results] == [Outcome.OK, Outcome.OK]


async def test_a_busy_event_loop_does_not_lengthen_the_round_trip():
    task = asyncio.create_task(probe(IcmpProber(), timeout=0.1))
    await asyncio.sleep(0)
    time.sleep(0.4)  # noqa: ASYNC251  the answer lies in the socket meanwhile, and the deadline passes
    result = await task
    assert result.outcome is Outcome.OK
    assert result.rtt_ms < 100


async def test_a_wrong_source_address_is_the_prober_s():
    result = await probe(IcmpProber(), source_address="192.0.2.1")
    batch = await IcmpProber().run_batch([Target("127.0.0.1", 1, 1)], source_address="192.0.2.1", timeout=1)
    for told in (result, *batch):
        assert told.outcome is Outcome.PROBER_FAILED
        assert "source address" in told.detail


async def test_the_source_address_is_used():
    assert (await probe(IcmpProber(), source_address="127.0.0.77")).outcome is Outcome.OK


async def test_no_socket_left_is_the_prober_s():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        result = await probe(IcmpProber())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (result.outcome, result.detail) == (Outcome.PROBER_FAILED, "no socket is left in this process")


async def test_who_may_not_send_is_told_what_to_do(monkeypatch):
    def forbidden(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(icmp_socket.socket, "socket", forbidden)
    result = await probe(IcmpProber())
    assert result.outcome is Outcome.PROBER_FAILED
    assert "ping_group_range" in result.detail


async def test_a_full_receive_buffer_is_the_prober_s(monkeypatch):
    """Answers that the kernel threw away on this host were not lost by anybody else."""
    real = icmp_burst.open_icmp

    def small(*arguments, **how):
        opened = real(*arguments, **how)
        opened.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        return opened

    monkeypatch.setattr(icmp_burst, "open_icmp", small)
    chosen = [Target(f"127.0.1.{n % 250 + 1}", 1, 1) for n in range(500)]
    results = await IcmpProber().run_batch(chosen, timeout=0.3)
    assert {result.outcome for result in results} <= {Outcome.OK, Outcome.PROBER_FAILED}
    assert any("buffer was full" in result.detail for result in results)


async def test_a_cancelled_probe_leaves_nothing_behind():
    process = psutil.Process()
    before = process.num_fds()
    task = asyncio.create_task(probe(IcmpProber()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert process.num_fds() == before


def test_one_prober_for_several_loops():
    prober = IcmpProber()
    assert [asyncio.run(probe(prober)).outcome for _ in range(2)] == [Outcome.OK] * 2
