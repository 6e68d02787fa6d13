"""Version Negotiation from real and from strange servers on loopback."""

from __future__ import annotations

import asyncio
import socket
import time

import psutil
import pytest
from probing_support import closed_port, probe, quic_server, udp_answers

from isochrone.lab.packets.version_responder import answer
from isochrone.model import Outcome
from isochrone.probing.quic_vn import QuicVersionProber


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_aioquic_answers(certificate, host):
    async with quic_server(certificate, host) as port:
        result = await probe(QuicVersionProber(), host, port)
    assert (result.outcome, result.detail) == (Outcome.OK, "")
    assert 0 < result.rtt_ms < 500


async def test_each_probe_has_ids_and_a_version_of_its_own():
    seen = []

    def remember(data):
        seen.append(data[:23])
        return answer(data)

    async with udp_answers(remember) as port:
        for _ in range(5):
            assert (await probe(QuicVersionProber(), port=port)).outcome is Outcome.OK
    assert len(set(seen)) == 5


@pytest.mark.parametrize(
    "strange",
    [lambda data: b"hello", lambda data: data, lambda data: answer(data)[:-1], lambda data: answer(b"\xff" * 5 + data[5:])[:6] + b"x"],
    ids=["text", "echo", "cut", "other ids"],
)  # fmt: skip
async def test_what_is_no_version_negotiation_is_no_answer(strange):
    async with udp_answers(strange) as port:
        result = await probe(QuicVersionProber(), port=port, timeout=0.2)
    assert result.outcome is Outcome.TARGET_FAILED
    assert "not with Version Negotiation" in result.detail


async def test_silence_is_the_target_s():
    async with udp_answers(lambda data: None) as port:
        result = await probe(QuicVersionProber(), port=port, timeout=0.2)
    assert (result.outcome, result.detail) == (Outcome.TARGET_FAILED, "no answer within 0.2 s")


async def test_a_closed_port_is_known_at_once():
    result = await probe(QuicVersionProber(), port=closed_port(socket.SOCK_DGRAM), timeout=30)
    assert result.outcome is Outcome.TARGET_FAILED
    assert "closed" in result.detail


async def test_our_own_lateness_is_not_the_target_s_failure():
    async with udp_answers(lambda data: None) as port:
        task = asyncio.create_task(probe(QuicVersionProber(), port=port, timeout=0.1))
        await asyncio.sleep(0)
        time.sleep(0.4)  # noqa: ASYNC251
        result = await task
    assert result.outcome is Outcome.PROBER_FAILED


async def test_many_at_once_leave_nothing_behind():
    process = psutil.Process()
    async with udp_answers(answer) as port:
        before = process.num_fds()
        results = await asyncio.gather(
            *(probe(QuicVersionProber(), port=port) for _ in range(60))
        )  # what the server's buffer holds
        assert process.num_fds() == before
    assert {result.outcome for result in results} == {Outcome.OK}
