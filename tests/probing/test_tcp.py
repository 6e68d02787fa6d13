"""TCP handshakes over loopback."""

from __future__ import annotations

import asyncio
import resource
import socket
import time

import psutil
import pytest
from probing_support import closed_port, hang_up, probe, tcp_server

from isochrone.model import Outcome, Target
from isochrone.probing.manners import Manners
from isochrone.probing.prober import TargetTrouble
from isochrone.probing.tcp import TcpProber
from isochrone.probing.tcp_socket import Handshake, sample


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_handshake(host):
    async with tcp_server(hang_up, host) as port:
        result = await probe(TcpProber(), host, port)
    assert (result.outcome, result.detail) == (Outcome.OK, "")
    assert result.phases == {"connect": result.rtt_ms}
    assert 0 < result.rtt_ms < 100


async def test_a_name_is_a_phase_of_its_own():
    async with tcp_server(hang_up) as port:
        result = await probe(TcpProber(), "localhost", port)
    assert next(iter(result.phases)) == "dns"


async def test_a_reset_is_no_sample_but_its_time_is_shown():
    result = await probe(TcpProber(), port=closed_port(socket.SOCK_STREAM))
    assert (result.outcome, result.rtt_ms) == (Outcome.TARGET_FAILED, None)
    assert "RST" in result.detail
    assert 0 <= result.phases["refused"] < 1000


@pytest.fixture
def full_backlog():
    """A port whose queue is full: the kernel drops further SYNs, as a dead target would."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        port = server.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        time.sleep(0.05)
        yield port
        for filler in fillers:
            filler.close()


async def test_silence_is_the_target_s(full_backlog):
    result = await probe(TcpProber(), port=full_backlog, timeout=0.2)
    assert (result.outcome, result.detail) == (Outcome.TARGET_FAILED, "no answer within 0.2 s")


async def test_our_own_lateness_is_not_the_target_s_failure(full_backlog):
    task = asyncio.create_task(probe(TcpProber(), port=full_backlog, timeout=0.1))
    await asyncio.sleep(0)
    time.sleep(0.4)  # noqa: ASYNC251
    result = await task
    assert result.outcome is Outcome.PROBER_FAILED
    assert "event loop was late" in result.detail


async def test_a_busy_event_loop_does_not_lengthen_the_round_trip():
    with socket.create_server(("127.0.0.1", 0)) as server:
        task = asyncio.create_task(probe(TcpProber(), port=server.getsockname()[1], timeout=0.1))
        await asyncio.sleep(0)
        time.sleep(0.4)  # noqa: ASYNC251  the deadline passes too
        result = await task
    assert result.outcome is Outcome.OK
    assert result.rtt_ms < 100


async def test_a_wrong_source_address_is_the_prober_s():
    result = await probe(TcpProber(), source_address="192.0.2.1")
    assert (result.outcome, "source address" in result.detail) == (Outcome.PROBER_FAILED, True)


async def test_no_socket_left_is_the_prober_s():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        result = await probe(TcpProber())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (result.outcome, result.detail) == (Outcome.PROBER_FAILED, "no socket is left in this process")


async def test_a_batch(full_backlog):
    process = psutil.Process()
    before = process.num_fds()
    with socket.create_server(("0.0.0.0", 0), backlog=4096) as server:
        port = server.getsockname()[1]
        good = [Target(f"127.0.{n // 250}.{n % 250 + 1}", port, 1) for n in range(1500)]
        others = [
            Target("127.0.0.1", closed_port(socket.SOCK_STREAM), 1), Target("127.0.0.1", full_backlog, 1),
            Target("www.example.com", 443, 1), Target("10.0.0.1", 443, 1),
        ]  # fmt: skip
        prober = TcpProber(gate=Manners(["10.0.0.0/8"], lab=True))
        results = await prober.run_batch(good + others, timeout=0.5)
    assert {result.outcome for result in results[:1500]} == {Outcome.OK}, {r.detail for r in results[:1500]}
    assert [result.address for result in results] == [target.address for target in good + others]
    assert [result.outcome.value for result in results[1500:]] == ["target_failed"] * 2 + [
        "prober_failed"
    ] * 2
    assert "refused" in results[1500].phases
    assert process.num_fds() == before
    assert await prober.run_batch([], timeout=1) == []


async def test_a_batch_with_few_files_goes_on():
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as server:
        chosen = [Target("127.0.0.1", server.getsockname()[1], 1)] * 300
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds() + 12, hard))
        try:
            results = await TcpProber().run_batch(chosen, timeout=2)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert {result.outcome for result in results} == {Outcome.OK}, {r.detail for r in results}


async def test_a_batch_keeps_to_its_rate():
    with socket.create_server(("127.0.0.1", 0)) as server:
        chosen = [Target("127.0.0.1", server.getsockname()[1], 1)] * 31
        begun = time.monotonic()
        await TcpProber().run_batch(chosen, timeout=1, rate=100)
    assert time.monotonic() - begun >= 0.3


@pytest.mark.parametrize("made", [Handshake(0.05, 1), Handshake(1.0128, 0), Handshake(None, 0)])
def test_a_time_that_may_hold_a_repeated_packet_is_no_sample(made):
    with pytest.raises(TargetTrouble, match="packets were lost"):
        sample(made, 1.02)


def test_the_kernels_time_is_the_sample_where_there_is_one():
    assert sample(Handshake(0.9, 0), 1.3) == pytest.approx(900)
    assert sample(Handshake(None, 0), 0.25) == pytest.approx(250)
