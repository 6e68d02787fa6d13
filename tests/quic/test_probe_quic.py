"""QUIC probes against real servers on loopback: what is measured, and who is blamed."""

from __future__ import annotations

import asyncio
import json
import resource
import time

import psutil
import pytest
from command_line import isochrone
from servers import black_hole, dead_port, quic_server, relay, server_thread

from isochrone.model import Outcome, Target
from isochrone.probing import quic
from isochrone.probing.prober import ProberTrouble, resolve
from isochrone.probing.quic import QuicProber, round_trip
from isochrone.probing.quic_link import QuicLink


async def probe(port, address="127.0.0.1", timeout=5.0, **how):
    return await QuicProber().run_once(Target(address, port, 64500), timeout=timeout, **how)


async def test_a_good_target(good):
    async with quic_server(good) as (port, _):
        result = await probe(port)
    assert result.outcome is Outcome.OK
    assert result.detail == ""
    assert list(result.phases) == ["first_answer", "handshake", "confirmation", "ping"]
    assert result.rtt_ms == min(result.phases[name] for name in ("first_answer", "confirmation", "ping"))
    assert 0 < result.rtt_ms < 5000


async def test_the_certificate_does_not_matter(certificates):
    async with quic_server(certificates.leaf("old", "other.example.com", expired=True)) as (port, _):
        assert (await probe(port)).outcome is Outcome.OK


async def test_a_host_name_is_resolved_in_a_phase_of_its_own(good):
    async with quic_server(good) as (port, _):
        result = await probe(port, "localhost")
    # localhost may be ::1 first, where nobody listens; either way the name was resolved and the phase is there.
    assert "dns" in result.phases
    assert result.address in {"127.0.0.1", "::1"}


async def test_ipv6(good):
    try:
        async with quic_server(good, host="::1") as (port, _):
            result = await probe(port, "::1")
    except OSError:
        pytest.skip("this host has no IPv6 loopback")
    assert result.outcome is Outcome.OK


async def test_retry_gives_an_exact_first_exchange(good):
    async with quic_server(good, retry=True) as (port, _):
        result = await probe(port)
    assert result.outcome is Outcome.OK


async def test_an_injected_delay_is_measured(good):
    async with quic_server(good) as (port, _), relay(port, delay=0.05) as through:
        results = [await probe(through) for _ in range(5)]
    assert all(result.outcome is Outcome.OK for result in results)
    assert min(result.rtt_ms for result in results) >= 99.9  # never less than the truth
    assert min(result.rtt_ms for result in results) < 150


async def test_a_lost_initial_does_not_lengthen_the_sample(good):
    for _ in range(
        5
    ):  # a busy machine may be so late that more is sent again: then there is rightly no sample
        async with quic_server(good) as (port, _), relay(port, drops=[0]) as through:
            result = await probe(through)
        if result.outcome is Outcome.OK:
            break
    assert result.outcome is Outcome.OK
    assert result.phases["first_answer"] > 600  # sent again after twice the initial RTT
    assert result.rtt_ms in (result.phases["confirmation"], result.phases.get("ping"))
    assert result.rtt_ms < 600


@pytest.mark.parametrize(
    ("first_repeated", "finished_repeated", "ping_repeated", "expected"),
    [
        (False, False, False, 5),
        (False, False, True, 10),
        (True, False, True, 20),
        (False, True, True, 10),
        (True, True, False, 5),
        (True, True, True, None),
    ],
)
async def test_exchanges_that_were_sent_twice_are_not_samples(
    first_repeated, finished_repeated, ping_repeated, expected
):
    link = QuicLink(QuicProber()._configuration, "127.0.0.1", dead_port())
    link.close()
    link.first_sent, link.first_received, link.first_repeated = 1.0, 1.010, first_repeated
    link.finished_sent, link.confirmed, link.finished_repeated = 2.0, 2.020, finished_repeated
    link.ping_sent, link.ping_acknowledged, link.ping_repeated = 3.0, 3.005, ping_repeated
    assert round_trip(link) == (None if expected is None else pytest.approx(expected))


async def test_the_ping_is_timed_to_the_acknowledgement_of_the_last_one_it_covers(good):
    async with quic_server(good) as (port, _), relay(port, delay=0.02) as through:
        link = QuicLink(QuicProber()._configuration, "127.0.0.1", through, anonymous=True)
        try:
            link.start()
            deadline = asyncio.get_running_loop().time() + 20
            await link.until(lambda: link.confirmed is not None, deadline)
            assert link.ping_sent is None
            link.ping()
            await link.until(lambda: link.ping_acknowledged is not None, deadline)
        finally:
            link.close()
    assert link.ping_sent >= link.confirmed
    assert link.ping_acknowledged - link.ping_sent >= 0.04 - 0.0001  # the relay holds both ways


async def test_silence_is_the_target_s():
    with black_hole() as port:
        result = await probe(port, timeout=0.3)
    assert result.outcome is Outcome.TARGET_FAILED
    assert result.detail == "no answer within 0.3 s"
    assert result.rtt_ms is None


async def test_a_closed_port_is_known_at_once():
    result = await probe(dead_port(), timeout=30)
    assert result.outcome is Outcome.TARGET_FAILED
    assert "closed" in result.detail


async def test_a_refused_handshake_is_the_target_s(good):
    async with quic_server(good, alpn=["other"]) as (port, _):
        result = await probe(port)
    assert result.outcome is Outcome.TARGET_FAILED
    assert "no_application_protocol" in result.detail
    assert "first_answer" in result.phases


async def test_dns_failure_is_the_prober_s():
    result = await probe(443, "no-such-name.invalid")
    assert result.outcome is Outcome.PROBER_FAILED
    assert result.detail.startswith("DNS: no-such-name.invalid")


async def test_resolution_is_bounded(monkeypatch):
    async def never(*_args, **_kwargs):
        await asyncio.sleep(60)

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
    with pytest.raises(ProberTrouble, match=r"not resolved within 0\.05 s"):
        await resolve("www.example.com", timeout=0.05)


async def test_a_wrong_source_address_is_the_prober_s():
    result = await probe(443, source_address="192.0.2.1")
    assert result.outcome is Outcome.PROBER_FAILED
    assert "source address" in result.detail


async def test_the_source_address_is_used(good):
    async with quic_server(good) as (port, _):
        assert (await probe(port, source_address="127.0.0.77")).outcome is Outcome.OK


async def test_no_socket_left_is_the_prober_s():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    prober = QuicProber()
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        result = await prober.run_once(Target("127.0.0.1", 443, 64500), timeout=1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert result.outcome is Outcome.PROBER_FAILED
    assert result.detail == "no socket is left in this process"


async def test_a_busy_event_loop_does_not_lengthen_the_round_trip(good):
    with server_thread(good) as port:
        prober = QuicProber()
        task = asyncio.create_task(prober.run_once(Target("127.0.0.1", port, 64500), timeout=10))
        await asyncio.sleep(0)  # the first Initial leaves
        time.sleep(0.5)  # noqa: ASYNC251  the answer lies in the socket meanwhile
        result = await task
    assert result.outcome is Outcome.OK
    assert result.phases["handshake"] > 490
    assert result.rtt_ms < 490


async def test_our_own_lateness_is_not_the_target_s_failure():
    with black_hole() as port:
        task = asyncio.create_task(probe(port, timeout=0.1))
        await asyncio.sleep(0)
        time.sleep(0.1 + 4 * quic.LATE_BOUND)  # noqa: ASYNC251
        result = await task
    assert result.outcome is Outcome.PROBER_FAILED
    assert "event loop was late by" in result.detail


async def test_an_answer_read_too_late_still_counts(good):
    """The deadline passes while the loop is busy, but everything had arrived: nothing is blamed on the target."""
    with server_thread(good) as port:
        task = asyncio.create_task(probe(port, timeout=0.2))
        await asyncio.sleep(0)
        time.sleep(0.6)  # noqa: ASYNC251
        result = await task
    assert result.outcome is not Outcome.TARGET_FAILED


async def test_many_at_once_leave_nothing_behind(good):
    process = psutil.Process()
    before = process.num_fds()
    async with quic_server(good) as (port, _):
        with black_hole() as hole:
            prober = QuicProber()
            ports = [port] * 40 + [hole] * 20 + [dead_port()] * 20
            results = await asyncio.gather(
                *(
                    prober.run_once(Target("127.0.0.1", p, 64500), timeout=10 if p == port else 0.2)
                    for p in ports
                )
            )
            cancelled = asyncio.create_task(prober.run_once(Target("127.0.0.1", hole, 64500), timeout=10))
            await asyncio.sleep(0.01)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
    assert sum(result.outcome is Outcome.OK for result in results) == 40
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert process.num_fds() == before


# The command


async def test_command_json(good):
    async with quic_server(good) as (port, _):
        status, out, err = await isochrone(
            "probe", "127.0.0.1", "--count", 2, "--interval", 0, "--port", port, "--json"
        )
    assert (status, err) == (0, "")
    told = json.loads(out)
    assert [p["outcome"] for p in told["probes"]] == ["ok", "ok"]
    assert set(told["probes"][0]["phases"]) == {"first_answer", "handshake", "confirmation", "ping"}
    summary = told["summary"][0]
    assert (summary["sent"], summary["ok"], summary["prober_failed"]) == (2, 2, 0)
    assert 0 < summary["min_ms"] <= summary["median_ms"]
    assert summary["curl"].endswith(f"https://127.0.0.1:{port}/")


async def test_command_for_people(good):
    async with quic_server(good) as (port, _):
        status, out, err = await isochrone(
            "probe", "127.0.0.1", "::1", "--count", 1, "--port", port, "--timeout", 3
        )
    assert (status, err) == (0, "")
    assert "127.0.0.1: 1 of 1 ok, min" in out
    assert "target_failed" in out


async def test_command_when_all_fail():
    status, out, err = await isochrone("probe", "127.0.0.1", "--count", 1, "--port", dead_port())
    assert (status, err) == (1, "")
    assert "target_failed: the port is closed" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["not an address"], "'not an address' is not a host name; give an IP address or a host name"),
        (["127.0.0.1", "--source", "here"], "'here' is not an IP address"),
        (["127.0.0.1", "--port", "70000"], "70000 is not in the range"),
        (["127.0.0.1", "--method", "pigeon"], "'pigeon' is not"),
        (["127.0.0.1", "--count", "0"], "0 is not in the range"),
        ([], "Missing argument"),
    ],
)
async def test_command_with_wrong_usage(arguments, sentence):
    status, out, err = await isochrone("probe", *arguments)
    assert (status, out) == (2, "")
    assert sentence in err
    assert "Traceback" not in err
