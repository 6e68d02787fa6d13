"""The small internet with its real parts: servers, relays, certificates, a client, and everything's end."""

import asyncio
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import time

import aiohttp
import pytest
from lab_support import gone, gone_soon, https_session, small_world

from isochrone.client import http3
from isochrone.client.errors import (
    CertificateRefusedError,
    HandshakeRefusedError,
    RequestFailedError,
    UnreachableError,
    UnresolvedError,
)
from isochrone.client.exchange import Request
from isochrone.lab.authority import Authority
from isochrone.lab.client import follow_alt_svc
from isochrone.lab.internet import LabError, LabProcessError, SmallInternet
from isochrone.lab.origin import OWN_ALT_SVC
from isochrone.verification.certificates import TrustStore


async def ask_http3(net, address, request, *, server_name, source_address, timeout_s=10, alpn="h3"):
    deadline = asyncio.get_running_loop().time() + timeout_s
    connection = await http3.connect(
        *address, authority=request.authority, server_name=server_name, trust=TrustStore(net.ca_pem),
        source_address=source_address, deadline=deadline, alpn=alpn,
    )  # fmt: skip
    try:
        return connection, await connection.ask(request, deadline)
    finally:
        connection.close()


def follow(net, client, origin, **options):
    value = f'h3="{net.origins[origin].authority}"; ma=60; persist=1'
    given = {
        "public_host": net.public_host,
        "hosts": net.hosts,
        "ca_pem": net.ca_pem,
        "source_address": client.address,
    }
    return follow_alt_svc(value, **{**given, **options})


async def test_https_and_http3_answer_as_the_right_region():
    async with SmallInternet(small_world(3, 3)) as net, https_session(net) as session:
        assert set(net.pids()) == {"relays", "targets", "nursery", *net.origins}
        for origin in net.origins.values():
            url = f"https://{origin.authority}/a/b?c=d"
            async with session.get(
                url, headers={"X-Isochrone-Colour": "c7", "Traceparent": "00-1"}
            ) as answer:
                report = await answer.json()
                assert answer.headers["x-isochrone-region"] == origin.id
                assert answer.headers["alt-svc"] == OWN_ALT_SVC
            assert report["region"] == origin.id
            assert (report["http"], report["method"], report["path"], report["query"]) == (
                "1.1",
                "GET",
                "/a/b",
                "c=d",
            )
            assert report["headers"] == {"x-isochrone-colour": "c7", "traceparent": "00-1"}
        for client in net.world.clients:
            best = net.world.best(client.asn)
            rtt_ms = net.world.true_rtt(client.asn, best)
            response = await follow(net, client, best, path="/x?y=1", headers=[("X-Isochrone-Map", "7")])
            assert (response.region, response.status, response.protocol) == (best, 200, "h3")
            assert response.handshake_ms >= rtt_ms - 1
            report = json.loads(response.body)
            assert (report["asn"], report["http"], report["host"]) == (client.asn, "3", net.public_host)
            assert (report["path"], report["query"]) == ("/x", "y=1")
            authority = net.origins[best].authority
            assert report["headers"] == {"x-isochrone-map": "7", "alt-used": authority}
            assert "alt-svc" not in dict(response.headers)


async def test_the_application_over_both_protocols():
    async with SmallInternet(small_world(1, 1)) as net, https_session(net) as session:
        client, origin = net.world.clients[0], net.world.origins[0].id
        await net.set_path(client.asn, origin, rtt_ms=1)
        base = f"https://{net.origins[origin].authority}"

        async def over_http1(path):
            async with session.get(base + path) as answer:
                return answer.status, await answer.read()

        async def over_http3(path):
            answer = await follow(net, client, origin, path=path)
            return answer.status, answer.body

        for ask in (over_http1, over_http3):
            assert await ask("/healthz") == (200, origin.encode())
            assert await ask("/bytes/100000") == (200, b"i" * 100_000)
            assert await ask("/status/503") == (503, origin.encode())
            assert await ask("/status/204") == (204, b"")
            status, events = await ask("/sse?n=3&interval_ms=10")
            assert (status, events.count(b"data: " + origin.encode())) == (200, 3)
            begun = time.monotonic()
            assert (await ask("/slow/50"))[0] == 200
            assert time.monotonic() - begun >= 0.05
            assert json.loads((await ask("/bytes/many"))[1])["path"] == "/bytes/many"
        async with session.post(f"{base}/echo", data=b"abc" * 50_000) as answer:
            assert await answer.read() == b"abc" * 50_000
        async with session.post(f"{base}/", data=b"abc") as answer:
            assert (await answer.json())["body_bytes"] == 3
        async with session.head(f"{base}/bytes/77") as answer:
            assert answer.headers["content-length"] == "77"
        body = bytes(range(256)) * 1000
        post = Request(authority=net.public_host, path="/echo", method="POST", body=body)
        _, answer = await ask_http3(
            net, net.origins[origin].http3, post, server_name=net.public_host, source_address=client.address
        )
        assert (answer.status, answer.body) == (200, body)


async def test_kill_is_death_and_restart_brings_back():
    async with SmallInternet(small_world(2, 1)) as net, https_session(net) as session:
        client, (dying, living) = net.world.clients[0], net.origins
        pid = net.pid(dying)
        assert net.alive(dying)
        await net.kill_origin(dying)
        assert not net.alive(dying)
        assert await gone_soon([pid], 0)
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(f"https://{net.origins[dying].authority}/")
        with pytest.raises(UnreachableError):
            await follow(net, client, dying, timeout_s=0.6)
        assert (await follow(net, client, living)).region == living
        with pytest.raises(LabError, match="dead already"):
            await net.kill_origin(dying)
        await net.restart_origin(dying)
        assert net.pid(dying) != pid
        assert (await follow(net, client, dying)).region == dying
        async with session.get(f"https://{net.origins[dying].authority}/healthz") as answer:
            assert await answer.text() == dying
        with pytest.raises(LabError, match="is alive"):
            await net.restart_origin(dying)
        with pytest.raises(KeyError):
            await net.kill_origin("nobody")


async def test_a_death_from_outside_is_noticed():
    async with SmallInternet(small_world(1, 1)) as net:
        origin = next(iter(net.origins))
        os.kill(net.pid(origin), signal.SIGKILL)
        async with asyncio.timeout(5):
            while net.alive(origin):  # noqa: ASYNC110 - the lab has no event for it
                await asyncio.sleep(0.01)
        await net.restart_origin(origin)
        assert net.alive(origin)


async def test_a_frozen_origin_says_nothing_and_thaws():
    async with SmallInternet(small_world(1, 1)) as net:
        client, origin = net.world.clients[0], next(iter(net.origins))
        await net.freeze_origin(origin)
        with pytest.raises(UnreachableError):
            await follow(net, client, origin, timeout_s=0.5)
        await net.thaw_origin(origin)
        assert (await follow(net, client, origin)).region == origin
        await net.freeze_origin(origin)  # and its end comes all the same
        pids = net.pids()
    assert await gone_soon(pids.values(), 0)


async def test_bad_certificates_are_refused(tmp_path):
    async with SmallInternet(small_world(1, 1)) as net:
        client, origin = net.world.clients[0], next(iter(net.origins))
        stranger = Authority(tmp_path / "stranger")
        with pytest.raises(CertificateRefusedError):
            await follow(net, client, origin, ca_pem=stranger.ca_pem)
        async with https_session(net, stranger.ca_pem) as session:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await session.get(f"https://{net.origins[origin].authority}/")
        past = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
        host = net.origins[origin].host
        for stem, names, end in (("wrong", (host,), None), ("expired", (net.public_host, host), past)):
            await net.kill_origin(origin)
            certificate = net.authority.issue(stem, *names, not_after=end)
            await net.restart_origin(origin, certificate=certificate)
            with pytest.raises(CertificateRefusedError) as caught:
                await follow(net, client, origin)
            assert caught.value.phase == "handshake"
            assert host in caught.value.authority


async def test_other_ways_to_fail_are_typed():
    async with SmallInternet(small_world(1, 1)) as net:
        client, origin = net.world.clients[0], next(iter(net.origins))
        endpoint = net.origins[origin]
        with pytest.raises(UnresolvedError):
            await follow(net, client, origin, hosts={})
        with pytest.raises(UnreachableError, match="cannot send from"):
            await follow(net, client, origin, source_address="192.0.2.1")
        for path in ("/slow/5000", "/sse?n=1000&interval_ms=20"):
            with pytest.raises(RequestFailedError, match="no answer within"):
                await follow(net, client, origin, path=path, timeout_s=0.8)
        with pytest.raises(HandshakeRefusedError):
            await ask_http3(
                net, endpoint.http3_direct, Request(authority=net.public_host), server_name=net.public_host,
                source_address=client.address, timeout_s=3, alpn="hq-interop",
            )  # fmt: skip
        await net.set_http3_loss(origin, 1.0)
        with pytest.raises(UnreachableError):
            await follow(net, client, origin, timeout_s=0.5)
        async with (
            https_session(net) as session,
            session.get(f"https://{endpoint.authority}/healthz") as answer,
        ):
            assert answer.status == 200
        await net.set_http3_loss(origin, 0.0)
        both = {endpoint.host: ["127.9.9.9", endpoint.https[0]]}  # the first address answers nothing
        assert (await follow(net, client, origin, hosts=both, timeout_s=2)).region == origin
        logs = [log.read_text() for log in net.directory.glob("*.log")]
        assert len(logs) == 3
        assert not any("Traceback" in log or "exception" in log for log in logs)


async def test_targets_answer_from_as_far_as_the_world_says():
    async with SmallInternet(small_world(2, 2)) as net:
        for target in net.targets.values():
            for origin in net.origins.values():
                for name in (target.host, target.address[0]):
                    link, answer = await ask_http3(
                        net, target.address, Request(authority=target.host, path="/healthz"), server_name=name,
                        source_address=origin.agent_address,
                    )  # fmt: skip
                    assert (answer.status, answer.body) == (200, b"target")
                    assert (
                        link.phases["connect"] + link.phases["tls"]
                        >= net.world.true_rtt(target.asn, origin.id) - 1
                    )


async def test_two_at_once_and_a_taken_port():
    async with SmallInternet(small_world(1, 1)) as one, SmallInternet(small_world(1, 1)) as two:
        origin = next(iter(one.origins))
        ports = [net.origins[origin].https[1] for net in (one, two)]
        assert ports[0] != ports[1]
        for net in (one, two):
            assert (await follow(net, net.world.clients[0], origin)).region == origin
        with pytest.raises(LabError, match="is taken"):
            async with SmallInternet(small_world(1, 1), port=ports[0]):
                pass


async def test_everything_ends_with_the_context():
    async with SmallInternet(small_world(3, 3)) as net:
        pids, directory = net.pids(), net.directory
        assert len(pids) == 6
        with pytest.raises(LabProcessError, match="must lie"):
            await net.set_path(net.world.clients[0].asn, net.world.origins[0].id, loss=3)
    assert await gone_soon(pids.values(), 0)
    assert not directory.exists()


async def test_everything_ends_with_an_error_too():
    pids = {}

    async def fail():
        async with SmallInternet(small_world(1, 1)) as net:
            pids.update(net.pids())
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        await fail()
    assert len(pids) == 4
    assert await gone_soon(pids.values(), 0)


PARENT = """
import asyncio, json
from isochrone.lab.internet import SmallInternet
from isochrone.lab.world import load_world

async def main():
    async with SmallInternet(load_world().subset(origins=3, clients=3)) as net:
        await net.freeze_origin(next(iter(net.origins)))
        print(json.dumps(net.pids()), flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("victim", ["parent", "nursery"])
def test_sigkill_of_the_parent_leaves_no_process(victim):
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        try:
            pids = json.loads(parent.stdout.readline())
            assert len(pids) == 6
            if victim == "nursery":
                os.kill(pids["nursery"], signal.SIGKILL)
                origins = [pid for name, pid in pids.items() if name not in {"relays", "targets", "nursery"}]
                assert gone(origins)
        finally:
            parent.kill()
    assert gone(pids.values())
