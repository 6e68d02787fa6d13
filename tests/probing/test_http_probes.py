"""HTTP/1.1, 2 and 3 against real servers on loopback, and against those that misbehave."""

from __future__ import annotations

import asyncio
import socket

import psutil
import pytest
from probing_support import closed_port, hang_up, probe, quic_server, tcp_server, tls_server

from isochrone.model import Outcome
from isochrone.probing.http import HttpProber
from isochrone.probing.http3 import Http3Prober
from isochrone.probing.prober import IDENTITY


@pytest.mark.parametrize("method", ["http", "h1", "h2"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_phases_over_tcp(certificate, method, host):
    async with tls_server(certificate, host=host) as port:
        result = await probe(HttpProber(method), host, port)
    assert (result.outcome, result.detail) == (Outcome.OK, "status 200")
    assert list(result.phases) == ["connect", "tls", "first_byte"]
    assert result.rtt_ms == result.phases["connect"]
    assert all(0 < ms < 2000 for ms in result.phases.values())


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_phases_over_quic(certificate, host):
    async with quic_server(certificate, host) as port:
        result = await probe(Http3Prober(), host, port)
    assert (result.outcome, result.detail) == (Outcome.OK, "status 200")
    assert list(result.phases) == ["connect", "tls", "first_byte"]


async def test_a_name_comes_first(certificate):
    async with tls_server(certificate) as port:
        result = await probe(HttpProber("h1"), "localhost", port)
    assert next(iter(result.phases)) == "dns"


async def test_the_server_picks(certificate):
    async with tls_server(certificate, alpn=["http/1.1"]) as port:
        assert (await probe(HttpProber("http"), port=port)).outcome is Outcome.OK
        result = await probe(HttpProber("h2"), port=port)
    assert (result.outcome, result.rtt_ms) == (Outcome.TARGET_FAILED, None)
    assert "connect" in result.phases  # what was measured is shown


async def test_who_asks_is_told(certificate):
    heads = []

    async def remember(reader, writer):
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 503 Busy\r\n\r\n")
        writer.close()

    async with tls_server(certificate, handler=remember) as port:
        result = await probe(HttpProber("h1"), port=port)
    assert (result.outcome, result.detail) == (Outcome.OK, "status 503")
    assert f"User-Agent: {IDENTITY}\r\n".encode() in heads[0]
    assert f"Host: 127.0.0.1:{port}\r\n".encode() in heads[0]


async def _garbage(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"hello\r\n")
    writer.close()


async def _mute(reader, writer):
    await reader.read()
    writer.close()


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (_garbage, "no HTTP"),
        (hang_up, "closed the connection"),
        (_mute, "no answer to the request within 0.5 s"),
    ],
)
async def test_servers_that_do_not_answer(certificate, handler, why):
    async with tls_server(certificate, alpn=["http/1.1"], handler=handler) as port:
        result = await probe(HttpProber("h1"), port=port, timeout=0.5)
    assert result.outcome is Outcome.TARGET_FAILED
    assert why in result.detail


async def test_servers_that_do_not_speak_tls():
    async with tcp_server(_mute) as mute, tcp_server(hang_up) as deaf:
        silent, closed = (
            await probe(HttpProber(), port=mute, timeout=0.3),
            await probe(HttpProber(), port=deaf),
        )
    assert (silent.outcome, closed.outcome) == (Outcome.TARGET_FAILED,) * 2
    assert "no TLS handshake within" in silent.detail
    assert list(silent.phases) == list(closed.phases) == ["connect"]


async def test_a_closed_port():
    result = await probe(HttpProber(), port=closed_port(socket.SOCK_STREAM))
    assert (result.outcome, "RST" in result.detail) == (Outcome.TARGET_FAILED, True)
    result = await probe(Http3Prober(), port=closed_port(socket.SOCK_DGRAM))
    assert (result.outcome, "closed" in result.detail) == (Outcome.TARGET_FAILED, True)


async def test_nothing_is_left_behind(certificate):
    process = psutil.Process()
    async with tls_server(certificate) as port, tcp_server(hang_up) as deaf:
        before = process.num_fds()
        await asyncio.gather(*(probe(HttpProber("h2"), port=p, timeout=5) for p in [port] * 10 + [deaf] * 10))
        await asyncio.sleep(0.1)
        assert process.num_fds() <= before
    assert asyncio.all_tasks() == {asyncio.current_task()}
