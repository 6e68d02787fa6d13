"""`isochrone run` chooses its targets: a spare for a silent one, also over SIGKILL; its database is replaced under it."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from daemon_support import RunningDaemon, command, configuration, write

from isochrone.lab.internet import SmallInternet
from isochrone.lab.world import load_world
from ports import free_port

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

WORLD = load_world().subset(origins=2, clients=4)
DATABASE = Path(__file__).parents[1] / "data" / "GeoLite2-ASN-Test.mmdb"


def replaced(path, data):
    """The file by another one, at once and last changed a while ago, as tools for updates do it."""
    new = path.with_suffix(".new")
    new.write_bytes(data)
    os.utime(new, (1_790_000_000, 1_790_000_000))
    new.replace(path)


def states(told):
    return {kind: told["selection"][kind] for kind in ("active", "spare", "given_up")}


async def test_a_spare_is_promoted_and_a_database_replaced(tmp_path):
    database = tmp_path / "asn.mmdb"
    shutil.copy(DATABASE, database)
    async with SmallInternet(WORLD) as net:
        nowhere = f"http://127.0.0.1:{free_port()}/client/v4"  # without KV everything here goes on
        document = configuration(
            net, nowhere, probing={"targets_per_asn": 1, "asn_database": str(database), "interval_seconds": 1}
        )
        silent, spare = document["targets"][:2]
        asn = silent["asn"]
        spare |= {"asn": asn, "country": silent["country"]}
        config = write(tmp_path / "control", document)
        async with RunningDaemon(config) as daemon:
            told = await daemon.until(lambda t: t["counters"]["rounds"] >= 2)
            assert (told["targets"], told["asns"]) == (4, 3)
            assert states(told) == {"active": 3, "spare": 1, "given_up": 0}
            (first,) = told["selection"]["databases"]
            assert (first["kind"], first["problem"]) == ("GeoLite2-ASN", "")
            assert first["age_seconds"] == pytest.approx(told["now"] - first["built_at"], abs=0.01)

            data = DATABASE.read_bytes()
            at = data.rindex(b"build_epoch") + len(b"build_epoch") + 2
            newer = data[:at] + (1_789_999_999).to_bytes(4, "big") + data[at + 4 :]
            replaced(database, newer)
            told = await daemon.until(lambda t: t["selection"]["databases"][0]["built_at"] == 1_789_999_999)
            rounds = told["counters"]["rounds"]
            replaced(database, newer[:5_000])
            told = await daemon.until(
                lambda t: t["selection"]["databases"][0]["problem"] and t["counters"]["rounds"] >= rounds + 4
            )
            assert told["selection"]["databases"][0]["built_at"] == 1_789_999_999
            assert told["healthy"]
            _status, text = await daemon.text("/metrics")
            assert re.search(
                r'^isochrone_database_age_seconds\{database="asn_database"\} [0-9.e+]+$', text, re.MULTILINE
            )
            assert 'isochrone_database_ok{database="asn_database"} 0.0' in text
            assert 'isochrone_targets{state="active"} 3.0' in text
            code, out, _err = await command("status", "-c", str(config))
            assert code == 1  # no KV
            assert "targets  3 active, 1 spare, 0 given up, in 3 ASNs" in out
            assert "asn.mmdb: not a readable MaxMind database" in out
            replaced(database, newer)
            await daemon.until(lambda t: not t["selection"]["databases"][0]["problem"])
            code, out, _err = await command("check", "-c", str(config))
            assert code == 0
            assert re.search(r"probing\.asn_database: GeoLite2-ASN, built on 2026-09-21, \d+ days old", out)

            for origin in net.origins:
                await net.set_path(asn, origin, loss=1.0)
            await daemon.until(lambda t: states(t) == {"active": 3, "spare": 0, "given_up": 1})
            await daemon.end(signal.SIGKILL)
        log = daemon.log.read_text()
        assert log.count("not a readable MaxMind database") == 1
        assert "Traceback" not in log
        async with RunningDaemon(config) as daemon:
            told = await daemon.until(lambda t: t["selection"])
            assert states(told) == {"active": 3, "spare": 0, "given_up": 1}  # known from before
            for origin in net.origins:
                await net.set_path(asn, origin, loss=0.0)
            told = await daemon.until(lambda t: states(t) == {"active": 3, "spare": 1, "given_up": 0})
            assert (await daemon.end())[0] == 0
        assert "Traceback" not in daemon.log.read_text()
