"""`isochrone run` proves endpoints by DNS and HTTP/3 together, withdraws what is broken at once, and offers it again."""

from __future__ import annotations

import asyncio
import time

import pytest
from daemon_support import RunningDaemon, configuration, write
from publishing_support import client, local_kv

from isochrone.lab.dns_server import DnsServer
from isochrone.lab.dns_zone import read_zone
from isochrone.lab.endpoints import ORIGIN_DOMAIN
from isochrone.lab.internet import SmallInternet
from isochrone.lab.world import load_world
from isochrone.publishing.publish import look

pytestmark = [pytest.mark.system, pytest.mark.timeout(170)]

WORLD = load_world().subset(origins=3, clients=3)
ELSEWHERE = "127.9.9.9"


def zone(net, **wrong):
    """The lab's names as DNS must have them; `wrong` gives origins (with _ for -) another address."""
    lines = []
    for origin in net.origins.values():
        address, port = origin.https
        lines.append(f"{origin.id} 60 IN A {wrong.get(origin.id.replace('-', '_'), address)}")
        lines.append(f'{origin.id} 60 IN HTTPS 1 . alpn="h3" port={port}')
    return [read_zone(ORIGIN_DOMAIN, "\n".join(lines) + "\n")]


def all_offered(told):
    return told["counters"]["publishes"] and all(origin["endpoint"]["offered"] for origin in told["origins"])


def entry(told, origin):
    return next(each for each in told["origins"] if each["id"] == origin)


async def in_the_map(kv, good, seconds=30):
    """Waits until the live map's `alt_svc` of each origin is as wanted."""
    end = time.monotonic() + seconds
    while not good(found := {o["id"]: o.get("alt_svc") for o in (await look(kv)).map.origins}):
        assert time.monotonic() < end, found
        await asyncio.sleep(0.1)


async def test_broken_promises_are_withdrawn_and_made_again(tmp_path):
    async with (
        SmallInternet(WORLD) as net,
        DnsServer(zone(net)) as server,
        local_kv(tmp_path / "kv") as base_url,
        client(base_url) as kv,
    ):
        dns = {"authoritative": [str(server.at())], "interval_seconds": 1, "timeout_seconds": 1}
        config = write(tmp_path, configuration(net, base_url, dns=dns))
        first, second, third = net.origins
        async with RunningDaemon(config) as daemon:
            told = await daemon.until(all_offered)
            assert all(o["dns"]["proved"] and o["dns"]["findings"] == [] for o in told["origins"])
            assert told["jobs"]["dns"]["runs"] >= 1

            # One name leads elsewhere, another endpoint's UDP is blocked. Both origins still answer HTTP.
            server.serve(zone(net, **{first.replace("-", "_"): ELSEWHERE}))
            await net.set_http3_loss(second, 1.0)
            told = await daemon.until(
                lambda t: not any(entry(t, o)["endpoint"]["offered"] for o in (first, second))
            )
            assert [o["state"] for o in told["origins"]] == ["up"] * 3
            assert entry(told, third)["endpoint"]["offered"]
            assert {f["check"] for f in entry(told, first)["dns"]["findings"]} == {"dns.wrong_address"}
            assert not any(entry(told, o)["dns"]["failed"] for o in (second, third))
            await in_the_map(
                kv, lambda said: [isinstance(said[o], dict) for o in net.origins] == [False, False, True]
            )
            assert {o["id"]: o.get("alt_svc") for o in (await look(kv)).map.origins}[first] == "clear"

            server.serve(zone(net))
            await net.set_http3_loss(second, 0.0)
            await daemon.until(all_offered)
            await in_the_map(kv, lambda said: all(isinstance(value, dict) for value in said.values()))

            # Silence from everybody at once is this controller's own trouble: nothing is withdrawn.
            server.faults = [silence]
            for origin in net.origins:
                await net.set_http3_loss(origin, 1.0)
            runs = (await daemon.status())["jobs"]
            told = await daemon.until(
                lambda t: all(t["jobs"][job]["runs"] >= runs[job]["runs"] + 4 for job in ("dns", "http3"))
            )
            assert all_offered(told)
            assert told["doubted"]["http3"] >= 2
            assert all(o["dns"]["failed"] == 0 for o in told["origins"])
            assert (await daemon.end())[0] == 0
        assert "Traceback" not in daemon.log.read_text()


async def silence(request, response):
    return None
