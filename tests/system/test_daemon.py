"""`isochrone run` as a real process: real probes through relays, a real local KV, real origins that die."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import signal
import socket
import time

import pytest
from daemon_support import RunningDaemon, command, configuration, environment, write
from publishing_support import Refusal, RefusingApi, client, local_kv

from isochrone.lab.internet import SmallInternet
from isochrone.lab.world import load_world
from isochrone.publishing.publish import look, versions
from isochrone.store.sqlite import Store
from ports import free_port

pytestmark = [pytest.mark.system, pytest.mark.timeout(170)]

WORLD = load_world().subset(origins=3, clients=4)


def published(told):
    return told["counters"]["publishes"] >= 1 and told["map"]["version"]


def all_offered(told):
    return all(origin["endpoint"]["offered"] for origin in told["origins"])


async def test_the_whole_life_of_a_daemon(tmp_path):
    """First map, an origin that dies and comes back, damage in KV, a rollback by hand, an orderly end."""
    async with SmallInternet(WORLD) as net, local_kv(tmp_path / "kv") as base_url, client(base_url) as kv:
        config = write(tmp_path, configuration(net, base_url))
        async with RunningDaemon(config) as daemon:
            told = await daemon.until(lambda t: published(t) and all_offered(t))
            live = await look(kv)
            assert live.map is not None
            assert [origin["id"] for origin in live.map.origins if origin.get("alt_svc")] == list(net.origins)
            assert len(live.map.items("asn")) == len(net.targets)
            assert told["samples"]["window"]["ok"] >= 2 * len(net.origins) * len(net.targets)
            assert told["kv"]["state"] == "ok"

            status, text = await daemon.text("/healthz")
            assert (status, text) == (200, "ok\n")
            status, text = await daemon.text("/")
            assert status == 200
            assert "<title>Isochrone</title>" in text
            status, text = await daemon.text("/resolution")
            assert status == 404
            assert "there is no [dns] section" in text
            assert all(origin["dns"] is None for origin in told["origins"])
            status, text = await daemon.text("/metrics")
            assert status == 200
            for wanted in (
                'isochrone_job_success_age_seconds{job="probe"}',
                'isochrone_samples_total{outcome="ok"}',
                "isochrone_kv_publishes_total 1.0",
                f'isochrone_endpoint_offered{{origin="{next(iter(net.origins))}"}} 1.0',
            ):
                assert wanted in text, text

            # An origin dies: its promise and its traffic go at once, not with the next interval.
            victim = next(iter(net.origins))
            await net.kill_origin(victim)
            begun = time.monotonic()
            await daemon.until(
                lambda t: next(o for o in t["origins"] if o["id"] == victim)["state"] == "down"
            )
            while (entry := _entry(await look(kv), victim))["state"] != "down":
                assert time.monotonic() - begun < 20
                await asyncio.sleep(0.1)
            assert entry["alt_svc"] == "clear"  # clients that are pinned to it are told
            await net.restart_origin(victim)
            await daemon.until(all_offered)
            while _entry(await look(kv), victim)["alt_svc"] == "clear":
                assert time.monotonic() - begun < 60
                await asyncio.sleep(0.1)

            # The live map is altered in KV: found, told, counted and mended.
            live = await look(kv)
            data = bytearray(await kv.get(live.manifest.key))
            data[-1] ^= 1
            await kv.put(live.manifest.key, bytes(data))
            told = await daemon.until(lambda t: t["kv"]["damaged"] == 1)
            assert "SHA-256" in told["kv"]["last_damage"]
            await daemon.until(lambda t: t["kv"]["state"] == "ok" and t["kv"]["live"] != live.version)
            assert (await look(kv)).damage == ""

            # A person rolls back: the daemon leaves that alone, also when something changes.
            # Not to the version just before: for two minutes that looks like KV being slow.
            oldest = next(version for version in await versions(kv) if version != live.version)
            code, out, err = await command("rollback", oldest, "-c", str(config), "--apply")
            assert code == 0, err
            assert err == ""
            rolled_back = (await look(kv)).version
            await net.kill_origin(victim)
            told = await daemon.until(lambda t: t["kv"]["state"] == "held")
            assert "--take-over" in told["kv"]["problem"]
            await asyncio.sleep(3)
            assert (await look(kv)).version == rolled_back
            code, out, err = await command("status", "-c", str(config))
            assert code == 0
            assert "held" in out

            code, seconds = await daemon.end()
            assert code == 0
            assert seconds < 5

        await net.restart_origin(victim)
        async with RunningDaemon(config, "--take-over") as daemon:
            await daemon.until(lambda t: t["kv"]["state"] == "ok" and t["kv"]["live"] != rolled_back)
            assert (await daemon.end(signal.SIGINT))[0] == 0
        assert "Traceback" not in daemon.log.read_text()


def _entry(live, origin):
    return next(entry for entry in live.map.origins if entry["id"] == origin)


async def test_killed_again_and_again_it_keeps_its_samples_and_republishes_nothing(tmp_path):
    async with SmallInternet(WORLD) as net, local_kv(tmp_path / "kv") as base_url, client(base_url) as kv:
        config = write(tmp_path, configuration(net, base_url))
        async with RunningDaemon(config) as daemon:
            told = await daemon.until(lambda t: published(t) and all_offered(t))
            await daemon.end(signal.SIGKILL)
        first = await look(kv)
        stored = told["samples"]["stored"]
        rng = random.Random(7)
        for _ in range(20):
            async with RunningDaemon(config) as daemon:
                told = await daemon.until(lambda t: t["kv"]["checked_at"] and t["samples"]["window"]["total"])
                assert told["samples"]["stored"] >= stored
                assert told["map"]["version"] == first.version
                assert all_offered(told)  # standings are not earned anew
                stored = told["samples"]["stored"]
                await asyncio.sleep(rng.uniform(0.0, 1.5))
                await daemon.end(signal.SIGKILL)
        async with RunningDaemon(config) as daemon:
            told = await daemon.until(lambda t: t["counters"]["rounds"] >= 2 and t["counters"]["builds"] >= 2)
            assert told["counters"]["publishes"] == 0
            assert (await daemon.end())[0] == 0
        assert (await look(kv)).version == first.version
        assert await versions(kv) == [first.version]
        with Store.open(tmp_path / "state" / "isochrone.db", read_only=True) as store:
            assert [p.version for p in store.publications()] == [first.version]
            assert sum(store.sample_counts().values()) >= stored


async def test_kv_trouble_never_stops_the_measuring(tmp_path):
    """Nobody listens, then the token is refused, then the namespace is missing, then all is well."""
    async with SmallInternet(WORLD) as net, RefusingApi() as api:
        port = free_port()
        config = write(tmp_path, configuration(net, f"http://127.0.0.1:{port}/client/v4"))
        async with RunningDaemon(config) as daemon:
            told = await daemon.until(lambda t: t["kv"]["failures"] >= 2)
            assert told["kv"]["state"] == "unreachable"
            assert f"KV is not reachable at 127.0.0.1:{port}" in told["kv"]["problem"]
            told = await daemon.until(lambda t: t["counters"]["rounds"] >= 3 and t["counters"]["builds"] >= 1)
            assert told["healthy"]
            code, _out, err = await command("status", "-c", str(config))
            assert code == 1
            assert err.count("\n") == 1
            assert "not reachable" in err
            assert (await daemon.end())[0] == 0
        lines = [line for line in daemon.log.read_text().splitlines() if "not reachable" in line]
        pauses = [_seconds(b) - _seconds(a) for a, b in itertools.pairwise(lines)]
        assert len(lines) >= 2
        assert all(pause > 0.4 for pause in pauses)
        assert "Traceback" not in daemon.log.read_text()

        for refusal, state in (
            (Refusal(403, 10000, "Authentication error"), "token_refused"),
            (Refusal(404, 10013, "namespace not found"), "namespace_missing"),
            (Refusal(429, 10000, "slow down", {"retry-after": "30"}), "rate_limited"),
        ):
            api.refusal = refusal
            config = write(tmp_path, configuration(net, api.base_url))
            async with RunningDaemon(config) as daemon:
                told = await daemon.until(lambda t, state=state: t["kv"]["state"] == state)
                assert told["kv"]["problem"]
                if state == "rate_limited":
                    assert told["kv"]["next_look_at"] - told["now"] > 20
                rounds = told["counters"]["rounds"]
                await daemon.until(lambda t, rounds=rounds: t["counters"]["rounds"] > rounds)
                assert (await daemon.end())[0] == 0


def _seconds(line):
    clock = line.split("T", 1)[1].split("Z", 1)[0]
    hours, minutes, seconds = clock.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


async def test_two_daemons_do_not_fight(tmp_path):
    async with SmallInternet(WORLD) as net, local_kv(tmp_path / "kv") as base_url, client(base_url) as kv:
        one = write(tmp_path / "one", configuration(net, base_url))
        two = write(tmp_path / "two", configuration(net, base_url))
        async with RunningDaemon(one) as first:
            await first.until(published)
            async with RunningDaemon(two) as second:
                told = await second.until(lambda t: t["kv"]["state"] == "held")
                assert told["counters"]["publishes"] == 0
            live = await look(kv)
            assert live.version == (await first.status())["map"]["version"]
            # The same state directory, by mistake: told in one sentence.
            same = configuration(net, base_url)
            (tmp_path / "one" / "again.toml").write_text(write(tmp_path / "three", same).read_text())
            code, _, err = await command("run", "-c", str(tmp_path / "one" / "again.toml"))
            assert code == 2
            assert "already in use" in err


GOOD = """
site = "www.example.com"
origins = [{ id = "fra", host = "fra.example.com", latitude = 50.1, longitude = 8.7 }]
targets = [{ address = "127.0.0.1", port = 9, asn = 3320 }]
kv = { account_id = "a", namespace_id = "n", token_env = "ISOCHRONE_TEST_TOKEN", base_url = "http://127.0.0.1:1" }
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GOOD.replace("fra.example.com", "192.0.2.1") + "[probng]\n", ["bare IP", "did you mean 'probing'"]),
        (GOOD.replace("ISOCHRONE_TEST_TOKEN", "NOBODY_SET_THIS"), ["NOBODY_SET_THIS is not set"]),
        (GOOD[: GOOD.index("kv =")], ["kv: missing"]),
        (GOOD.replace("targets = [", "# targets = ["), ["no usable target"]),
        (GOOD.replace(", asn = 3320", ""), ["no usable target", "no ASN"]),
        (GOOD.replace("http://127.0.0.1:1", "http://kv.example.com"), ["would send the token in clear"]),
    ],
)
async def test_a_bad_configuration_starts_nothing(tmp_path, text, says):
    config = tmp_path / "isochrone.toml"
    config.write_text(text)
    code, out, err = await command("run", "-c", str(config))
    assert (code, out) == (2, "")
    for sentence in says:
        assert sentence in err
    assert "Traceback" not in err
    assert not (tmp_path / "state").exists()


async def test_a_port_in_use_is_one_sentence(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = tmp_path / "isochrone.toml"
        config.write_text(GOOD + f'[probing]\nlab = true\n[service]\nlisten = "127.0.0.1:{port}"\n')
        code, _, err = await command("run", "-c", str(config))
    assert code == 2
    assert err.count("\n") == 1
    assert f"can't listen on 127.0.0.1:{port} (the port is in use)" in err
    assert not (tmp_path / "state").exists()


async def test_status_without_anything_running(tmp_path):
    async with local_kv(tmp_path / "kv") as base_url:
        config = tmp_path / "isochrone.toml"
        config.write_text(
            GOOD.replace("http://127.0.0.1:1", base_url) + f'[service]\nlisten = "127.0.0.1:{free_port()}"\n'
        )
        code, out, err = await command("status", "-c", str(config), "--json")
        document = json.loads(out)
        assert code == 1
        assert document["daemon"] is None
        assert document["kv"]["state"] == "missing"
        assert err == "isochrone: no map is live: nothing was published yet\n"
    assert environment()
