"""Publishing and rolling back against a real local KV: order of steps, crashes between them, two writers, what is kept."""

from __future__ import annotations

import json
import time

import pytest
from daemon_support import command
from publishing_support import NAMESPACE, Refusal, RefusingApi, client, local_kv, small_map

from isochrone.lab.site import toml
from isochrone.publishing.kv_errors import KvUnreachableError
from isochrone.publishing.manifest import MANIFEST_KEY, parse
from isochrone.publishing.plan import Action, Guards, plan_publish
from isochrone.publishing.publish import (
    OutdatedPlanError,
    UnknownVersionError,
    apply,
    look,
    rollback_plan,
    versions,
)
from isochrone_edge.latency_map import LatencyMap

pytestmark = pytest.mark.system

NOW = 1_790_000_000.0
MOVED = {3320: 1, 7018: 0, 3215: 1, 2856: 1}


class Recorder:
    """A real KV whose calls are noted, and which can be cut off after some of its writes."""

    def __init__(self, kv, writes=99):
        self.kv, self.left, self.calls = kv, writes, []

    async def get(self, key):
        self.calls.append(("get", key))
        return await self.kv.get(key)

    async def put(self, key, value, *, read_back=True):
        if self.left == 0:
            raise KvUnreachableError("kv.example.test", "killed")
        self.left -= 1
        self.calls.append(("put", key))
        await self.kv.put(key, value, read_back=read_back)

    async def delete(self, keys):
        self.calls.append(("delete", tuple(keys)))
        await self.kv.delete(keys)

    async def keys(self, prefix):
        self.calls.append(("keys", prefix))
        return await self.kv.keys(prefix)


async def publish(kv, data, *, keep=5, now=NOW, force=True, **options):
    plan = plan_publish(data, await look(kv), now=now, guards=Guards(force=force), **options)
    assert plan.writes, plan
    return plan, await apply(kv, plan, keep=keep)


async def test_the_map_is_written_and_read_back_before_the_manifest(tmp_path):
    async with local_kv(tmp_path) as base_url, client(base_url) as real:
        assert (await look(real)).version is None
        kv = Recorder(real)
        plan, done = await publish(kv, small_map(NOW))
        assert plan.action is Action.FIRST
        assert done.confirmed
        key = plan.manifest.key
        writes = [call for call in kv.calls if call[0] != "get"]
        assert writes[:2] == [("put", key), ("put", MANIFEST_KEY)]
        live = await look(real)
        assert live.version == plan.manifest.version == done.version
        assert live.map.cells == 5
        assert await real.get(key) == small_map(NOW)
        # A handful of requests: the free plan has a thousand writes a day.
        assert len(kv.calls) <= 8


async def test_a_crash_between_any_two_steps_leaves_the_old_map_live(tmp_path):
    async with local_kv(tmp_path) as base_url, client(base_url) as real:
        old, _ = await publish(real, small_map(NOW))
        for writes in (0, 1):
            with pytest.raises(KvUnreachableError):
                await publish(Recorder(real, writes), small_map(NOW + 60, firsts=MOVED))
            live = await look(real)
            assert live.version == old.manifest.version
            assert live.damage == ""
        _, done = await publish(real, small_map(NOW + 60, firsts=MOVED))
        assert (await look(real)).version == done.version


async def test_a_plan_made_before_somebody_else_published_is_not_applied(tmp_path):
    async with local_kv(tmp_path) as base_url, client(base_url) as kv:
        await publish(kv, small_map(NOW))
        mine = plan_publish(
            small_map(NOW + 60, firsts=MOVED), await look(kv), now=NOW, guards=Guards(force=True)
        )
        theirs, _ = await publish(kv, small_map(NOW + 61, firsts=MOVED, rtt_ms=20))
        with pytest.raises(OutdatedPlanError, match=f"now {theirs.manifest.version} is"):
            await apply(kv, mine, keep=5)
        assert (await look(kv)).version == theirs.manifest.version


async def test_the_last_maps_are_kept_and_the_live_one_always(tmp_path):
    async with local_kv(tmp_path) as base_url, client(base_url) as kv:
        made = []
        for number in range(7):
            _, done = await publish(kv, small_map(NOW + 60 * number, rtt_ms=10 + number), keep=3)
            made.append(done.version)
        assert await versions(kv) == made[-3:]
        plan = await rollback_plan(kv, made[-3])
        await apply(kv, plan, keep=3)
        assert (await look(kv)).version == made[-3]
        _, done = await publish(kv, small_map(NOW + 6000, rtt_ms=90), keep=2)
        assert await versions(kv) == [
            made[-3],
            done.version,
        ]  # what was live a moment ago is still being read


async def test_rolling_back_finds_the_newest_intact_older_map(tmp_path):
    async with local_kv(tmp_path) as base_url, client(base_url) as kv:
        with pytest.raises(UnknownVersionError, match="nothing to go back to"):
            await rollback_plan(kv)
        made = [(await publish(kv, small_map(NOW + 60 * n, rtt_ms=10 + n)))[1].version for n in range(4)]
        with pytest.raises(UnknownVersionError, match="holds no map 2020"):
            await rollback_plan(kv, "2020")
        with pytest.raises(UnknownVersionError, match="holds no map current"):
            await rollback_plan(kv, "current")
        data = await kv.get(f"map/{made[2]}")
        await kv.put(f"map/{made[2]}", data[:-1])
        with pytest.raises(UnknownVersionError, match="is damaged"):
            await rollback_plan(kv, made[2])
        plan = await rollback_plan(kv)
        assert (plan.action, plan.manifest.version) == (Action.ROLL_BACK, made[1])
        assert (await rollback_plan(kv, made[3])).action is Action.NOTHING
        await apply(kv, plan, keep=5)
        live = await look(kv)
        assert (live.version, live.damage) == (made[1], "")


async def test_damage_is_seen_and_publishing_mends_it(tmp_path):
    async with local_kv(tmp_path) as base_url, client(base_url) as kv:
        data = small_map(NOW)
        plan, _ = await publish(kv, data)
        key = plan.manifest.key
        for value, says in (
            (data[:-9], "SHA-256"),
            (data[:40] + b"?" + data[41:], "SHA-256"),
            (None, "missing"),
        ):
            await kv.delete([key]) if value is None else await kv.put(key, value)
            live = await look(kv)
            assert says in live.damage
            assert live.version == plan.manifest.version
            repair = plan_publish(data, live, now=NOW, guards=Guards(), last_good=LatencyMap(data))
            assert repair.action is Action.REPAIR
        await kv.put(MANIFEST_KEY, (await kv.get(MANIFEST_KEY))[:-20])
        live = await look(kv)
        assert "not JSON" in live.damage
        assert live.version is None
        await publish(kv, data)
        assert (await look(kv)).damage == ""


def configure(folder, base_url):
    path = folder / "isochrone.toml"
    document = {
        "site": "www.example.test",
        "kv": {
            "account_id": "a",
            "namespace_id": NAMESPACE,
            "token_env": "ISOCHRONE_TEST_TOKEN",
            "base_url": base_url,
            "timeout_seconds": 5,
        },
        "service": {"listen": "127.0.0.1:9"},
        "origins": [
            {"id": name, "host": f"{name}.example.test", "latitude": 1.0, "longitude": 2.0}
            for name in ("fra", "iad")
        ],
    }
    path.write_text(toml(document))
    return str(path)


async def test_the_commands(tmp_path):
    now = time.time()
    one, two = tmp_path / "one.map", tmp_path / "two.map"
    one.write_bytes(small_map(now - 60))
    two.write_bytes(small_map(now, firsts=MOVED))
    async with local_kv(tmp_path / "kv") as base_url, client(base_url) as kv:
        config = configure(tmp_path, base_url)
        code, out, err = await command("publish", str(one), "-c", config)
        assert (code, err) == (0, "")
        assert "first: nothing is live yet" in out
        assert "nothing was written; add --apply" in out
        assert await kv.get(MANIFEST_KEY) is None
        code, out, _ = await command("publish", str(one), "-c", config, "--apply", "--json")
        first = json.loads(out)
        assert code == 0
        assert (first["action"], first["applied"], first["confirmed"]) == ("first", True, True)
        code, out, _ = await command("publish", str(one), "-c", config, "--apply")
        assert code == 0
        assert "nothing: the content is the same" in out

        code, out, err = await command("publish", str(two), "-c", config, "--apply")
        assert code == 1
        assert "more than the 30% allowed at once" in err
        assert parse(await kv.get(MANIFEST_KEY)).version == first["version"]
        code, out, err = await command("publish", str(two), "-c", config, "--apply", "--force")
        assert (code, err) == (0, "")
        code, out, _ = await command("status", "-c", config, "--json")
        status = json.loads(out)
        assert code == 0
        assert status["kv"]["live"] == parse(await kv.get(MANIFEST_KEY)).version
        assert len(status["kv"]["versions"]) == 2

        code, out, _ = await command("rollback", "-c", config)
        assert code == 0
        assert "roll back" in out
        assert "nothing was written" in out
        code, out, _ = await command("rollback", "-c", config, "--apply")
        assert code == 0
        assert parse(await kv.get(MANIFEST_KEY)).version == first["version"]
        code, _, err = await command("rollback", "never", "-c", config)
        assert code == 1
        assert "holds no map never" in err

        # Altered in KV: refused and told.
        await kv.put(first_key := f"map/{first['version']}", one.read_bytes()[:-3])
        code, out, err = await command("status", "-c", config)
        assert code == 1
        assert "damaged" in out
        assert err.startswith(f"isochrone: the map at {first_key} is damaged")
        assert err.count("\n") == 1


async def test_wrong_use_of_the_commands(tmp_path):
    async with RefusingApi() as api:
        config = configure(tmp_path, api.base_url)
        good, bad = tmp_path / "good.map", tmp_path / "bad.map"
        good.write_bytes(small_map(NOW))
        bad.write_bytes(small_map(NOW)[:-1])
        api.refusal = Refusal(404, 10009, "key not found")
        for arguments, status, says in (
            (("publish", str(tmp_path / "none.map"), "-c", config), 2, "can't be read"),
            (("publish", str(bad), "-c", config), 2, "bad.map: it says"),
            (("publish", "-c", config), 2, "Missing argument"),
        ):
            code, _, err = await command(*arguments)
            assert code == status
            assert says in err
            assert "Traceback" not in err
        for refusal, status, says in (
            (Refusal(401, 1000, "Invalid API Token"), 2, "refused the token"),
            (Refusal(404, 10013, "namespace not found"), 2, "no KV namespace"),
            (Refusal(500, 0, "", text="oops"), 1, "not reachable"),
        ):
            api.refusal = refusal
            for arguments in (("publish", str(good)), ("rollback",), ("status",)):
                code, _, err = await command(*arguments, "-c", config)
                assert code == status
                assert says in err
                assert err.count("\n") == 1
