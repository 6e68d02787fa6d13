"""Agent and control plane in one process, over real sockets: what each does when the other is not as it should be."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gzip
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections import deque

import pytest
from agents_support import TOKENS, Targets, control_document, write
from aiohttp import web

from isochrone.agents import plan as plans
from isochrone.agents import wire
from isochrone.agents.checks import Refused
from isochrone.agents.client import Client, ControlPlaneError
from isochrone.agents.clock import AgentClock
from isochrone.agents.intake import Intake
from isochrone.agents.sender import Sender
from isochrone.agents.settings import AgentSettings
from isochrone.agents.spool import Spool
from isochrone.backoff import Backoff
from isochrone.cli import Failure
from isochrone.cli.agent import _run as once_command
from isochrone.model import Outcome, Sample, Target
from isochrone.probing.keeping import Measured
from isochrone.service.agent_process import AgentProcess
from isochrone.service.agents_api import AgentsApi
from isochrone.service.remote_agents import FLAG_SECONDS, PLAN_SECONDS, RemoteAgents
from isochrone.settings import load
from isochrone.store.sqlite import Store

NOW = 1_790_000_000.0
TARGETS = tuple(Target(f"192.0.2.{n}", 443, 64512 + n) for n in range(5))


class Site:
    """The control plane's side of agents, with a clock and targets that a test sets."""

    def __init__(self, folder, targets=TARGETS, now=NOW, **sections):
        entries = [{"address": t.address, "port": t.port, "asn": t.asn} for t in targets]
        document = control_document(
            port=1, targets=entries, state_dir=folder / "state", origins=("eu-1", "us-1"), **sections
        )
        self._settings = load(write(folder / "isochrone.toml", document), {"ISOCHRONE_TEST_KV": "x"})
        self.path = folder / "isochrone.db"
        self.targets, self.now, self.heard = targets, now, []
        self.store = Store.open(self.path)
        self.restart()

    def restart(self):
        self.agents = RemoteAgents(
            self._settings, self._settings.model_origins(), lambda: self.targets, self.store, lambda: self.now,
            told=self.heard.append,
        )  # fmt: skip
        self.agents.recall()

    @contextlib.asynccontextmanager
    async def serve(self):
        app = web.Application()
        AgentsApi(self.agents).add_to(app)
        async with serving(app) as url:
            yield url


@contextlib.asynccontextmanager
async def serving(app):
    runner = web.AppRunner(app, auto_decompress=False, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.fixture
def site(tmp_path):
    made = Site(tmp_path)
    yield made
    made.store.close()


def body(plan, *, batch="ab" * 16, at=NOW - 5, count=3, **changes):
    rows = [
        wire.Row(at=at - n, address=f"192.0.2.{n % 5}", port=443, method="tcp", rtt_ms=5.0, **changes)
        for n in range(count)
    ]
    header = wire.Header(isochrone=1, batch=batch, origin="eu-1", plan=plan, samples=len(rows))
    return wire.encode(header, rows)


async def outcome(site, sent):
    """What became of a batch, in a word."""
    try:
        return "repeat" if (await site.agents.take("eu-1", sent)).repeat else "stored"
    except Refused as refused:
        return refused.code


# The control plane


async def test_batches_of_old_plans_are_taken_after_a_restart(site):
    old = await site.agents.plan_for("eu-1")
    site.targets = TARGETS[1:]
    assert (await site.agents.plan_for("eu-1")).id == old.id  # a plan stands for a while
    site.now += PLAN_SECONDS + 1
    new = await site.agents.plan_for("eu-1")
    assert new.id != old.id
    site.restart()
    assert not (await site.agents.take("eu-1", body(old.id))).repeat
    with pytest.raises(Refused) as caught:
        await site.agents.take("eu-1", body(new.id, batch="cd" * 16))
    assert caught.value.code == "unknown_target"  # the new plan has it no more
    with pytest.raises(Refused) as caught:
        await site.agents.take("eu-1", body("0" * 64, batch="cd" * 16))
    assert (caught.value.code, caught.value.status) == ("unknown_plan", 409)


async def test_no_batch_is_taken_twice_however_late_it_comes_again(site):
    """While its id is remembered it is known; afterwards its samples are too old."""
    plan = (await site.agents.plan_for("eu-1")).id
    sent = body(plan)
    assert not (await site.agents.take("eu-1", sent)).repeat
    end = NOW + 2 * site.agents.keep_seconds
    known, refused = 0, 0
    while site.now < end:
        site.now += 6 * 3600
        site.agents.forget(site.now)
        code = await outcome(site, sent)
        assert code in (
            {"repeat", "time_past", "unknown_plan"} if not refused else {"time_past", "unknown_plan"}
        )
        known, refused = known + (code == "repeat"), refused + (code != "repeat")
    assert known
    assert refused
    assert len(site.store.sample_columns()) == 3


async def test_agents_are_late_flagged_and_back(site, caplog):
    caplog.set_level(logging.INFO)
    agents = site.agents
    plan = (await agents.plan_for("eu-1")).id
    assert agents.state("eu-1", site.now) == "unseen"
    await agents.take("eu-1", body(plan))
    assert agents.state("eu-1", site.now) == "ok"
    site.now += 100
    for _ in range(3):
        agents.watch()
    assert agents.state("eu-1", site.now) == "late"
    assert agents.silent().startswith("no good batch from any agent for 100 s")
    assert sum("no good batch for" in message for message in caplog.messages) == 1
    await agents.take("eu-1", body(plan, batch="cd" * 16, at=site.now - 1))
    agents.watch()
    assert "is back" in caplog.text
    assert agents.silent() == ""
    for _ in range(2):
        with pytest.raises(Refused):
            await agents.take("eu-1", b"x")
    assert agents.state("eu-1", site.now) == "flagged"
    assert sum("batch refused" in message for message in caplog.messages) == 1
    told = agents.document(site.now)[0]
    assert told["refused"] == {"total": 2, "malformed": 2}
    assert told["problem"].startswith("malformed: ")
    site.now += FLAG_SECONDS + 1
    assert agents.state("eu-1", site.now) != "flagged"
    heard = site.agents.standings["eu-1"].last_good
    site.restart()  # when it was heard of last is not forgotten
    assert site.agents.standings["eu-1"].last_good == heard


async def test_what_targets_answered_is_told_while_it_is_news(site):
    plan = (await site.agents.plan_for("eu-1")).id
    await site.agents.take("eu-1", body(plan, at=NOW - 1, count=1))
    await site.agents.take("eu-1", body(plan, batch="cd" * 16, at=NOW - 3600, count=1))
    assert site.heard == [{("192.0.2.0", 443): Outcome.OK}, {}]


async def test_a_flood_over_many_batches_is_refused(tmp_path):
    site = Site(tmp_path, probing={"interval_seconds": 60})
    plan = await site.agents.plan_for("eu-1")
    begin = NOW // 600 * 600 + 100
    site.now = begin + 50
    codes = [
        await outcome(site, body(plan.id, batch=f"{number:032x}", at=begin + number / 10, count=5))
        for number in range(20)
    ]
    assert (
        codes == ["stored"] * 12 + ["flood"] * 8
    )  # ten rounds of five fit into the span, and two more are allowed
    assert len(site.store.sample_columns()) == 60
    site.store.close()


# The agent


def measured(number, at):
    target = TARGETS[number % 5]
    return Measured(target, Sample(at, "eu-1", target.asn, "", 5.0, "tcp"))


class Bench:
    """Spool, intake, client and sender of an agent for a control plane at `url`."""

    def __init__(self, folder, url, **changes):
        values = {"control_plane": url, "origin": "eu-1", "spool_dir": folder / "spool", "timeout_seconds": 5}
        self.settings = AgentSettings(**(values | changes))
        self.spool = Spool.open(self.settings.spool_dir, self.settings.spool_max_bytes)
        self.clock = AgentClock(wall=lambda: NOW)
        lock = asyncio.Lock()
        self.intake = Intake(self.spool, lock, self.clock, "eu-1")
        self.client = Client(self.settings, TOKENS["eu-1"], self.clock)
        self.sender = Sender(
            self.spool, lock, self.client, self.clock, self.intake, Backoff(first=0.01, most=0.05)
        )

    async def measure(self, plan, count=2):
        await self.intake.keep(plan, [measured(n, self.clock.elapsed() - 1 - n) for n in range(count)])

    async def send(self):
        await self.sender.send(self.spool.oldest())


@pytest.mark.parametrize(
    "answer",
    [
        web.Response(text="<html>log in first</html>", content_type="text/html"),  # any server's 200
        web.Response(text='{"batch": "' + "0" * 32 + '"}'),  # another batch's
        web.Response(status=413, text="<html>too large</html>", content_type="text/html"),  # a proxy's
        web.Response(status=302, headers={"Location": "http://127.0.0.1:9/"}),
        web.Response(status=401, text='{"code": "unauthorized"}'),
        web.Response(status=404),
        web.Response(status=503, headers={"Retry-After": "7"}),
        web.Response(text="x" * 100_000),
        web.Response(text="[" * 10_000),
    ],
)
async def test_only_the_control_planes_own_word_lets_a_batch_go(tmp_path, answer):
    async def handle(request):
        await request.read()
        return web.Response(status=answer.status, body=answer.body, headers=answer.headers)

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", handle)
    async with serving(app) as url:
        bench = Bench(tmp_path, url)
        await bench.measure("0" * 64)
        async with bench.client:
            with pytest.raises(ControlPlaneError) as caught:
                await bench.send()
            assert caught.value.wait == (7 if answer.status == 503 else 0)
    assert len(bench.spool) == 1
    bench.spool.close()


async def test_a_refused_batch_is_put_aside_and_a_damaged_one(tmp_path, site):
    site.now = time.time()
    plan = await site.agents.plan_for("eu-1")
    async with site.serve() as url:
        bench = Bench(tmp_path, url)
        async with bench.client:
            await bench.measure("0" * 64)
            await bench.send()
            await bench.measure(plan.id)
            entry = bench.spool.oldest()
            (bench.spool.folder / entry.name).write_bytes(b"torn")
            await bench.send()
            await bench.measure(plan.id, 4)
            await bench.send()
    counts = bench.spool.counts
    assert (len(bench.spool), counts.refused, counts.damaged) == (0, 2, 2)
    assert len(list((bench.spool.folder / "refused").iterdir())) == 2
    assert len(site.store.sample_columns()) == 4
    bench.spool.close()


@pytest.mark.parametrize("wrong", [7200, -2 * 86_400])
async def test_a_batch_stamped_by_a_wrong_clock_arrives_right(tmp_path, site, wrong):
    """The spool holds it from before the control plane was heard of; its refusal is what sets the clock right."""
    site.now = time.time()
    plan = await site.agents.plan_for("eu-1")
    async with site.serve() as url:
        bench = Bench(tmp_path, url)
        bench.clock.offset = site.now + wrong - bench.clock.elapsed()
        await bench.measure(plan.id)
        async with bench.client:
            while len(bench.spool):
                await bench.send()
    assert bench.spool.counts.refused == 0
    assert abs(site.store.sample_columns().timestamp - site.now).max() < 60
    bench.spool.close()


async def test_one_round_of_an_agent(tmp_path):
    """By its own manners too: what the plan allows and this host does not is not probed."""
    async with Targets(3) as real:
        targets = tuple(Target(t["address"], t["port"], t["asn"]) for t in real.entries)
        site = Site(tmp_path, targets, time.time())
        async with site.serve() as url:
            for lab, outcome in ((True, "ok"), (False, "prober_failed")):
                settings = AgentSettings(
                    control_plane=url,
                    origin="eu-1",
                    spool_dir=tmp_path / f"spool-{lab}",
                    lab=lab,
                    timeout_seconds=5,
                )
                spool = Spool.open(settings.spool_dir, settings.spool_max_bytes)
                done = await AgentProcess(settings, TOKENS["eu-1"], spool).once()
                assert [sample.outcome.value for sample in done.samples] == [outcome] * 3
                assert len(spool) == 0
                assert plans.read(spool.plan()) == await site.agents.plan_for("eu-1")
                spool.close()
        told = site.agents.document(time.time())[0]
        assert told["samples"] == {"total": 6, "ok": 3, "prober_failed": 3}
        assert told["says"].startswith("isochrone/")
        site.store.close()


async def test_one_round_that_does_not_reach_the_control_plane_is_no_good_one(tmp_path):
    """The full disk and the signal, by the command's own status."""
    async with Targets(3) as real:
        targets = tuple(Target(t["address"], t["port"], t["asn"]) for t in real.entries)
        site = Site(tmp_path, targets, time.time())
        async with site.serve() as url:
            for fault, words in (("disk", "samples were lost"), ("signal", "stopped before everything")):
                settings = AgentSettings(
                    control_plane=url, origin="eu-1", spool_dir=tmp_path / fault, lab=True, timeout_seconds=5
                )
                spool = Spool.open(settings.spool_dir, settings.spool_max_bytes)
                if fault == "disk":
                    spool.add = full
                else:
                    asyncio.get_running_loop().call_later(0.3, os.kill, os.getpid(), signal.SIGTERM)
                with pytest.raises(Failure, match=words) as caught:
                    await once_command(settings, TOKENS["eu-1"], spool, once=True)
                assert caught.value.status == 1
                spool.close()
        site.store.close()


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


FULL = """
import asyncio, logging, resource, sys
from pathlib import Path
from isochrone.agents import intake
from isochrone.agents.clock import AgentClock
from isochrone.agents.spool import Spool
from isochrone.model import Sample, Target
from isochrone.probing.keeping import Measured

logging.basicConfig(stream=sys.stdout, format="%(message)s")
intake.WAITING_SAMPLES = 10
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

async def main():
    spool = Spool.open(Path(sys.argv[1]), 1 << 20)
    clock = AgentClock()
    taking = intake.Intake(spool, asyncio.Lock(), clock, "eu-1")
    target = Target("192.0.2.1", 443, 64500)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # what a full disk does to a write
    for number in range(7):
        await taking.keep("0" * 64, [Measured(target, Sample(number + n / 2, "eu-1", 1, "", 5.0, "tcp")) for n in range(2)])
    print("full", taking.waiting, len(spool), spool.counts.unkept)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await taking.keep("0" * 64, [])
    print("room", taking.waiting, spool.samples, spool.counts.unkept)
    print(sorted(path.name.rpartition("-")[2] for path in Path(sys.argv[1]).glob("*")))

asyncio.run(main())
"""


def test_a_full_disk_is_told_once_and_what_does_not_fit_is_counted(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL, tmp_path / "spool"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = deque(done.stdout.splitlines())
    assert "can't be written (the disk is full)" in lines.popleft()
    assert [lines.popleft(), lines.popleft()] == [
        "2 samples were lost: no room on the disk and none in memory"
    ] * 2
    assert lines.popleft() == "full 10 0 4"
    assert lines.popleft() == "room 0 10 4"
    assert "10.batch" in lines.popleft()
    found = next((tmp_path / "spool").glob("*.batch")).read_bytes()
    assert json.loads(gzip.decompress(found).splitlines()[0])["samples"] == 10
