"""Relays delay, lose and forget as told. Bounds are wide: the machine may be busy; the figures are in the bench."""

import socket
import threading
import time

import pytest
from lab_support import RelayProcess, echo_server, gone, udp_from

from isochrone.lab.relay import Relays

AGENT, OTHER = "127.1.1.1", "127.1.2.1"


def round_trips(source, to, count):
    found = []
    with udp_from(source, to) as sock:
        for number in range(count):
            sent = time.perf_counter()
            sock.send(number.to_bytes(4, "big") * 300)
            assert sock.recv(4096) == number.to_bytes(4, "big") * 300
            found.append((time.perf_counter() - sent) * 1e3)
    return found


def test_delay_goes_by_the_source_address():
    with echo_server() as (server, peers), RelayProcess() as relay:
        to = relay.listen(server, {AGENT: 20.0, OTHER: 60.0})
        for source, rtt_ms in ((AGENT, 20.0), (OTHER, 60.0), ("127.9.9.9", 0.0)):
            found = round_trips(source, to, 10)
            assert rtt_ms - 0.1 <= min(found) <= rtt_ms + 5
        assert {peer[0] for peer in peers} == {AGENT, OTHER, "127.9.9.9"}  # the server sees who asks
        stats = relay.ask({"op": "stats"})
        assert (stats["forwarded"], stats["flows"], stats["held"]) == (60, 3, 0)


def test_order_is_kept_when_the_path_becomes_shorter():
    with echo_server() as (server, _), RelayProcess() as relay:
        to = relay.listen(server, {AGENT: 200.0})
        with udp_from(AGENT, to) as sock:
            for number in range(20):
                sock.send(bytes([number]))
                if number == 10:
                    assert relay.ask({"op": "path", "name": "r", "source": AGENT, "rtt_ms": 1})["ok"]
            assert [sock.recv(10)[0] for _ in range(20)] == list(range(20))
        assert min(round_trips(AGENT, to, 3)) < 100


def test_loss():
    with echo_server() as (server, peers), RelayProcess() as relay:
        to = relay.listen(server)
        with udp_from(AGENT, to, timeout=0.3) as sock:
            assert relay.ask({"op": "path", "name": "r", "source": AGENT, "loss": 1.0})["ok"]
            sock.send(b"x")
            with pytest.raises(TimeoutError):
                sock.recv(10)
            assert not peers
            assert relay.ask({"op": "path", "name": "r", "source": None, "loss": 0.5})["ok"]
            for _ in range(200):
                sock.send(b"x")
                time.sleep(0.0005)
            deadline = time.monotonic() + 3
            while relay.ask({"op": "stats"})["held"] and time.monotonic() < deadline:
                time.sleep(0.01)
            assert 60 <= len(peers) <= 140
            assert relay.ask({"op": "stats"})["lost"] > 60


def test_a_dead_server_is_silence_and_its_return_is_seen():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = closed.getsockname()
    with RelayProcess() as relay:
        to = relay.listen(nobody)
        with udp_from(AGENT, to, timeout=0.2) as sock:
            for _ in range(2):
                sock.send(b"x")
                with pytest.raises(TimeoutError):
                    sock.recv(10)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
                server.bind(nobody)
                server.settimeout(3)
                sock.send(b"hello")
                data, peer = server.recvfrom(10)
                assert data == b"hello"
                server.sendto(b"back", peer)
                assert sock.recv(10) == b"back"
        assert relay.ask({"op": "stats"})["refused"] >= 1


def test_what_is_too_large_or_too_much_is_dropped():
    with echo_server() as (server, _), RelayProcess() as relay:
        to = relay.listen(server, {AGENT: 2000.0})
        with udp_from(AGENT, to) as sock:
            sock.send(b"x" * 5000)
            for _ in range(1500):
                sock.send(b"x")
                time.sleep(0.0001)
        stats = relay.ask({"op": "stats"})
        assert stats["overflowed"] >= 1500 + 1 - 1024
        assert stats["held"] <= 1024


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (b"nonsense", "not a JSON line"),
        (b"[]", "unknown op None"),
        ({"op": "dance"}, "unknown op 'dance'"),
        ({"op": "listen"}, "malformed"),
        (
            {"op": "listen", "name": "x", "address": ["192.0.2.1", 1], "server": ["127.0.0.1", 1]},
            "cannot listen",
        ),
        ({"op": "listen", "name": "r", "address": ["127.0.0.1", 0], "server": ["127.0.0.1", 1]}, "already"),
        ({"op": "path", "name": "nobody", "source": AGENT, "loss": 0.1}, "no relay called"),
        ({"op": "path", "name": "r", "source": AGENT, "loss": 2}, "must lie"),
        ({"op": "path", "name": "r", "source": AGENT, "rtt_ms": -1}, "must lie"),
        ({"op": "path", "name": "r", "source": AGENT, "rtt_ms": "long"}, "malformed"),
    ],
)
def test_bad_commands_are_answered_and_survived(relays, command, problem):
    answer = relays.ask(command)
    assert not answer["ok"]
    assert problem in answer["error"]
    assert relays.ask({"op": "stats"})["ok"]


@pytest.fixture(scope="module")
def relays():
    with RelayProcess() as relay:
        relay.listen(("127.0.0.1", 9))
        yield relay


def test_idle_flows_are_forgotten_and_the_oldest_give_way():
    relays = Relays(max_flows=2, idle_s=0.3)
    with echo_server() as (server, _):
        to = relays.listen("r", ("127.0.0.1", 0), server, {}, 0.0)
        thread = threading.Thread(target=relays.run)
        thread.start()
        try:
            with udp_from(AGENT, to) as one, udp_from(AGENT, to) as two, udp_from(AGENT, to) as three:
                for sock in (one, two, three):
                    sock.send(b"x")
                    assert sock.recv(10) == b"x"
                assert relays.stats()["flows"] == 2
                deadline = time.monotonic() + 6
                while relays.stats()["flows"] and time.monotonic() < deadline:
                    time.sleep(0.05)
                assert relays.stats()["flows"] == 0
                one.send(b"again")
                assert one.recv(10) == b"again"
        finally:
            relays.running = False
            thread.join()


def test_ends_with_its_input():
    with RelayProcess() as relay:
        pid = relay.process.pid
    assert gone([pid])
