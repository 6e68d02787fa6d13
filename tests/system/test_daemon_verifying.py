"""`isochrone run` proves endpoints by DNS and HTTP/3 together, withdraws what is broken at once, and offers it again."""

from __future__ import annotations

import asyncio
import json
import re
import time

import aiohttp
import pytest
from daemon_support import RunningDaemon, command, configuration, write
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
            assert told["findings"]["open"] == 0
            await resolution(daemon, net, proved=set(net.origins))

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

            found = await answer(daemon, f"/findings?open=1&origin={first}")
            assert [(f["check"], f["job"], f["ended_at"]) for f in found["findings"]] == [
                ("dns.wrong_address", "dns", None)
            ]
            assert found["findings"][0]["count"] >= 2
            assert ELSEWHERE in found["findings"][0]["evidence"]
            await resolution(daemon, net, proved=set(net.origins) - {first}, offered={third})
            code, out, _ = await command("status", "-c", str(config))
            assert code == 0
            assert "findings 2 open: 2 errors\n" in out
            assert 'isochrone_findings{severity="error"} 2.0' in (await daemon.text("/metrics"))[1]

            server.serve(zone(net))
            await net.set_http3_loss(second, 0.0)
            await daemon.until(all_offered)
            await in_the_map(kv, lambda said: all(isinstance(value, dict) for value in said.values()))
            found = (await answer(daemon, "/findings"))["findings"]
            assert {(f["check"], f["origin"]) for f in found} >= {
                ("dns.wrong_address", first),
                ("http3.udp_blocked", second),
            }
            assert all(f["first_seen"] <= f["last_seen"] < f["ended_at"] for f in found)
            for query in ("limit=0", "limit=x", "open=perhaps", "strange=1", "limit=99999"):
                code, text = await daemon.text(f"/findings?{query}")
                assert code == 400
                assert query.partition("=")[0] in json.loads(text)["detail"]

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


async def answer(daemon, path):
    code, text = await daemon.text(path)
    assert code == 200, text
    return json.loads(text)


async def resolution(daemon, net, *, proved, offered=None):
    """What `/resolution` says is what the lab's DNS says, and good for as long as the TTL."""
    async with aiohttp.ClientSession() as session, session.get(daemon.url + "/resolution") as response:
        told = await response.json()
        kept = re.fullmatch(r"max-age=(\d+)", response.headers["Cache-Control"])
    assert 0 < int(kept[1]) <= 60
    for entry in told["plan"]:
        origin = net.origins[entry["origin"]]
        assert entry["name"] == origin.host
        assert entry["authority"] == origin.authority
        assert entry["proved"] is (origin.id in proved)
        assert entry["offered"] is (origin.id in (proved if offered is None else offered))
        assert 0 < entry["checked_at"] <= time.time()
        if entry["proved"]:
            assert (entry["ipv4"], entry["ipv6"], entry["ttl"]) == ([origin.https[0]], [], 60)
            assert entry["valid_until"] == entry["checked_at"] + 60
            assert [(r["target"], r["port"], r["alpn"][0]) for r in entry["https"]] == [
                (origin.host, origin.https[1], "h3")
            ]
        else:
            assert (entry["addresses"], entry["why"]) == ([], ["dns.wrong_address"])
    assert [entry["origin"] for entry in told["plan"]] == list(net.origins)


async def silence(request, response):
    return None
