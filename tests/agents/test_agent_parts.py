"""Wire form, checks, clock, plan, spool and settings of agents, each by itself."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isochrone.agents import plan as plans
from isochrone.agents import wire
from isochrone.agents.checks import Refused, allowance_of, check
from isochrone.agents.clock import AgentClock
from isochrone.agents.plan import PlanError
from isochrone.agents.settings import load
from isochrone.agents.spool import BLOCK_BYTES, KEPT_REFUSED, Spool, SpoolError
from isochrone.model import Origin, Outcome, Target
from isochrone.settings import Probing, SettingsError

NOW = 1_790_000_000.0
DAY = 86_400.0
FRANKFURT = Origin(id="eu-1", host="h", latitude=50.11, longitude=8.68)
TARGETS = [Target(f"192.0.2.{n}", 443, 64500 + n, "JP", latitude=35.7, longitude=139.7) for n in range(30)]
PLAN = plans.write(Probing(interval_seconds=300, methods=("tcp", "quic")), TARGETS)
TOKEN = {"ISOCHRONE_AGENT_TOKEN": "secret"}


def row(number=0, **changes):
    values = {
        "at": NOW - 10 - number,
        "address": f"192.0.2.{number % 30}",
        "port": 443,
        "method": "tcp",
        "rtt_ms": 230.0,
    }
    return wire.Row(**(values | changes))


def batch(rows, **changes):
    values = {
        "isochrone": 1,
        "batch": "ab" * 16,
        "origin": "eu-1",
        "plan": PLAN.id,
        "samples": max(1, len(rows)),
    }
    return wire.Batch(wire.Header(**(values | changes)), rows)


def judge(rows, now=NOW, **changes):
    return check(batch(rows, **changes), origin=FRANKFURT, plan=PLAN, now=now, max_age=DAY)


def refusal(rows, **changes):
    with pytest.raises(Refused) as caught:
        judge(rows, **changes)
    assert str(caught.value)
    return caught.value.code


# Wire

ROWS = st.builds(
    wire.Row,
    at=st.floats(allow_nan=False, allow_infinity=False),
    address=st.ip_addresses().map(str),
    port=st.integers(1, 65_535),
    method=st.sampled_from(["tcp", "quic", "icmp"]),
    outcome=st.sampled_from(["ok", "target_failed", "prober_failed"]),
    rtt_ms=st.none() | st.floats(allow_nan=False, allow_infinity=False),
)


@given(st.lists(ROWS, min_size=1, max_size=20))
def test_a_batch_comes_back_as_it_went(rows):
    sent = batch(rows)
    body = wire.encode(*sent)
    assert wire.decode(body) == sent
    assert wire.encode(*sent) == body  # a repeat is the same bytes


@given(st.binary(max_size=200), st.booleans())
def test_what_is_no_batch_is_told_in_one_sentence(data, packed):
    with pytest.raises(wire.MalformedError) as caught:
        wire.decode(gzip.compress(data) if packed else data)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@settings(max_examples=300)
@given(st.data())
def test_a_body_that_is_cut_or_longer_is_refused(data):
    body = wire.encode(*batch([row(n) for n in range(3)]))
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(wire.MalformedError):
        wire.decode(body[:cut])
    with pytest.raises(wire.MalformedError):
        wire.decode(body + data.draw(st.binary(min_size=1, max_size=9)))


def test_bounds_are_of_the_unpacked_batch_too():
    for plain in (bytes(wire.MAX_PLAIN_BYTES + 1), b"\n" * (wire.MAX_SAMPLES + 2)):
        with pytest.raises(wire.MalformedError) as caught:
            wire.decode(gzip.compress(plain))
        assert caught.value.too_large
    with pytest.raises(wire.MalformedError) as caught:
        wire.decode(b"x" * (wire.MAX_BODY_BYTES + 1))
    assert caught.value.too_large


# Checks


def test_a_good_batch_gets_what_the_plan_knows():
    found = judge([row(0), row(1, outcome="target_failed", rtt_ms=None)])
    assert found.set_aside == 0
    first, second = found.samples
    assert (first.origin, first.asn, first.country, first.rtt_ms, first.method) == (
        "eu-1",
        64500,
        "JP",
        230.0,
        "tcp",
    )
    assert (second.asn, second.rtt_ms, second.outcome) == (64501, None, Outcome.TARGET_FAILED)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"address": "192.0.2.99"}, "unknown_target"),
        ({"port": 444}, "unknown_target"),
        ({"method": "icmp"}, "unknown_method"),
        ({"at": NOW + 61}, "time_ahead"),
        ({"at": NOW - DAY - 1}, "time_past"),
        ({"at": -math.inf}, "time_past"),
        ({"rtt_ms": 0.0}, "rtt_impossible"),
        ({"rtt_ms": -5.0}, "rtt_impossible"),
        ({"rtt_ms": 4000.1}, "rtt_impossible"),
        ({"rtt_ms": None}, "rtt_missing"),
        ({"outcome": "prober_failed"}, "rtt_unexpected"),
        ({"rtt_ms": 90.0}, "faster_than_light"),
    ],
)
def test_one_sample_that_can_not_be_true_refuses_the_batch(change, code):
    wrong = row(0).model_copy(update=change)
    assert refusal([*(row(n) for n in range(1, 5)), wrong]) == code


def test_a_batch_of_another_origin_is_refused():
    assert refusal([row()], origin="us-1") == "unknown_origin"


def test_a_few_samples_faster_than_light_are_set_aside_alone():
    found = judge([row(0, rtt_ms=1.0), *(row(n) for n in range(1, 20))])
    assert (len(found.samples), found.set_aside) == (19, 1)
    assert (
        refusal([*(row(n, rtt_ms=1.0) for n in range(3)), *(row(n) for n in range(3, 20))])
        == "faster_than_light"
    )


def test_duplicates_and_floods():
    assert refusal([row(0), row(1), row(0)]) == "duplicate"
    judge([row(0, at=NOW - 10), row(0, at=NOW - 9)])  # the end of one round and the begin of the next
    assert refusal([row(0, at=NOW - n) for n in range(3)]) == "flood"
    judge([row(0, at=NOW - 300 * n) for n in range(50)])
    assert refusal([row(0, at=NOW - 140 * n) for n in range(50)]) == "flood"
    allowance = allowance_of(PLAN)
    assert (allowance.plan, allowance.samples) == (PLAN.id, 60 * 4)


@given(st.lists(ROWS | st.integers(0, 29).map(row), min_size=1, max_size=20))
def test_whatever_is_taken_can_be_true(rows):
    try:
        found = judge(rows)
    except Refused:
        return
    assert len(found.samples) + found.set_aside == len(rows)
    for sample in found.samples:
        assert NOW - DAY <= sample.timestamp <= NOW + 60
        assert sample.asn in range(64500, 64530)
        assert (sample.rtt_ms is None) == (sample.outcome is not Outcome.OK)
        assert sample.rtt_ms is None or 0 < sample.rtt_ms <= 4000


# Clock


class Times:
    def __init__(self):
        self.wall, self.boot = NOW, 100.0

    def clock(self, **changes):
        return AgentClock(
            **({"wall": lambda: self.wall, "since_boot": lambda: self.boot, "boot": "b1"} | changes)
        )

    def passes(self, seconds):
        self.wall += seconds
        self.boot += seconds


def test_a_clock_that_is_set_does_not_move_samples():
    times = Times()
    clock = times.clock()
    note = clock.note()
    times.passes(10)
    times.wall += 7200  # somebody sets it
    assert clock.now() == NOW + 10
    clock.hear(NOW + 10.4, 0.1)
    assert clock.now() == NOW + 10
    assert clock.shift_of(note) == 0


def test_a_wrong_clock_is_set_right_and_what_it_stamped_is_shifted():
    times = Times()
    times.wall += 3600
    clock = times.clock()
    note = clock.note()
    assert clock.shift_of(note) == 0  # nothing is known yet
    times.passes(50)
    clock.hear(NOW + 50, 0.2)
    assert abs(clock.now() - (NOW + 50)) < 1
    assert abs(clock.shift_of(note) + 3600) < 1
    assert clock.shift_of(clock.note()) == 0
    for other in ("b2 1.0", "", "b1", "b1 x", "b1 nan"):
        assert clock.shift_of(other) == 0


# Plan


def test_a_plan_comes_back_and_its_name_is_its_content():
    read = plans.read(PLAN.body)
    assert read == PLAN
    assert PLAN.id == hashlib.sha256(PLAN.body).hexdigest()
    assert plans.write(PLAN.probing, TARGETS[1:]).id != PLAN.id
    assert gzip.decompress(PLAN.packed()) == PLAN.body
    assert PLAN.planned == 60
    at_zero = [Target("192.0.2.1", 443, 64500, latitude=0.0, longitude=0.0)]
    assert plans.read(plans.write(PLAN.probing, at_zero).body).targets["192.0.2.1", 443] == at_zero[0]


@pytest.mark.parametrize(
    "change", [{"isochrone": 2}, {"probing": {}}, {"targets": [{"address": "x"}]}, {"more": 1}]
)
def test_a_plan_that_is_not_understood(change):
    document = json.loads(PLAN.body) | change
    if change == {"probing": {}}:
        document = {"isochrone": 1, "targets": []}
    with pytest.raises(PlanError, match="not a plan that this version understands"):
        plans.read(json.dumps(document).encode())
    with pytest.raises(PlanError):
        plans.read(b"\xff")


# Spool


def add(spool, number, size=100):
    return spool.add(f"{number:032x}", 10, bytes(size))


def ids(spool):
    found = []
    while (entry := spool.oldest()) is not None:
        found.append(int(entry.id, 16))
        spool.remove(entry)
    return found


def test_the_spool_keeps_order_across_restarts(tmp_path):
    spool = Spool.open(tmp_path / "s", 1 << 20)
    for number in range(12):
        assert add(spool, number) == 0
    assert (len(spool), spool.samples, spool.bytes) == (12, 120, 12 * BLOCK_BYTES)
    with pytest.raises(SpoolError, match="another agent uses this spool"):
        Spool.open(tmp_path / "s", 1 << 20)
    spool.count(round_began=5.0)
    spool.close()
    (tmp_path / "s" / "0000000000000099-x.batch.new").write_bytes(b"half")
    spool = Spool.open(tmp_path / "s", 1 << 20)
    assert spool.counts.round_began == 5.0
    assert not list((tmp_path / "s").glob("*.new"))
    add(spool, 12)
    assert spool.read(spool.oldest()) == bytes(100)
    assert ids(spool) == list(range(13))
    assert (len(spool), spool.bytes) == (0, 0)


def test_a_full_spool_drops_its_oldest_and_counts_them(tmp_path):
    spool = Spool.open(tmp_path / "s", 10 * BLOCK_BYTES)
    assert [add(spool, number) for number in range(13)] == [0] * 10 + [10] * 3
    assert spool.bytes <= 10 * BLOCK_BYTES
    assert ids(spool) == list(range(3, 13))
    spool.close()
    assert Spool.open(tmp_path / "s", 1 << 20).counts.dropped == 30


def test_what_was_refused_is_put_aside_up_to_a_bound(tmp_path):
    spool = Spool.open(tmp_path / "s", 1 << 20)
    for number in range(KEPT_REFUSED + 5):
        add(spool, number)
        spool.put_aside(spool.oldest(), damaged=number == 0)
    assert len(spool) == 0
    assert len(list((tmp_path / "s" / "refused").iterdir())) == KEPT_REFUSED
    assert (spool.counts.refused, spool.counts.damaged) == (10 * (KEPT_REFUSED + 4), 10)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.integers(1, 9000), st.sampled_from(["oldest", "restart"])), max_size=30))
def test_the_spool_is_a_bounded_queue(tmp_path_factory, steps):
    folder = tmp_path_factory.mktemp("s")
    spool, model, number = Spool.open(folder, 5 * BLOCK_BYTES), [], 0
    for step in steps:
        if step == "restart":
            spool.close()
            spool = Spool.open(folder, 5 * BLOCK_BYTES)
        elif step == "oldest":
            if model:
                model.pop(0)
                spool.remove(spool.oldest())
        else:
            add(spool, number, step)
            model.append((number, -(-step // BLOCK_BYTES)))
            number += 1
            while sum(blocks for _, blocks in model) > 5:
                model.pop(0)
        assert len(spool) == len(model)
        assert spool.bytes == sum(blocks for _, blocks in model) * BLOCK_BYTES
    assert ids(spool) == [number for number, _ in model]
    spool.close()


# Settings


def write(tmp_path, text):
    path = tmp_path / "agent.toml"
    path.write_text(text)
    return path


GOOD = 'control_plane = "https://control.example.com/"\norigin = "eu-1"\n'


def test_settings_are_read(tmp_path):
    found, token = load(write(tmp_path, GOOD), TOKEN)
    assert (found.control_plane, found.origin, token) == ("https://control.example.com", "eu-1", "secret")
    assert found.spool_dir == tmp_path / "spool"
    load(write(tmp_path, GOOD.replace("https://control.example.com/", "http://127.0.0.1:9475")), TOKEN)


@pytest.mark.parametrize(
    ("text", "environ", "words"),
    [
        ("", TOKEN, "control_plane: missing"),
        (GOOD + 'spol_dir = "x"', TOKEN, "did you mean 'spool_dir'"),
        (GOOD.replace("https", "http"), TOKEN, "would send the token in clear; use https"),
        (GOOD, {}, "ISOCHRONE_AGENT_TOKEN is not set"),
        (GOOD, {"ISOCHRONE_AGENT_TOKEN": "a b"}, "is no token"),
        (GOOD + 'token_env = "OTHER"', TOKEN, "OTHER is not set"),
        (GOOD + 'trust_store = "none.pem"', TOKEN, "trust_store: there is no file"),
        (GOOD + "spool_max_bytes = 5", TOKEN, "spool_max_bytes: must be"),
        (GOOD + 'source_address = "here"', TOKEN, "not an IP address"),
        (GOOD + "poll_seconds = nan", TOKEN, "poll_seconds: must be"),
        ("control_plane = [", TOKEN, "not valid TOML"),
    ],
)
def test_what_is_wrong_is_told(tmp_path, text, environ, words):
    with pytest.raises(SettingsError) as caught:
        load(write(tmp_path, text), environ)
    assert any(words in problem for problem in caught.value.problems), caught.value.problems
    assert all("secret" not in problem for problem in caught.value.problems)


def command(*arguments, name="agent", **env):
    return subprocess.run(
        [sys.executable, "-c", "from isochrone.cli import main; main()", name, *map(str, arguments)],
        capture_output=True, text=True, env=os.environ | env, timeout=60, check=False,
    )  # fmt: skip


def test_the_command_ends_in_a_sentence(tmp_path):
    done = command("-c", tmp_path / "none.toml")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    over_tls = write(
        tmp_path, 'control_plane = "https://127.0.0.1:9"\norigin = "eu-1"\ntimeout_seconds = 5\n'
    )
    assert " object at 0x" not in command("-c", over_tls, "--once", **TOKEN).stderr
    path = write(tmp_path, 'control_plane = "http://127.0.0.1:9"\norigin = "eu-1"\ntimeout_seconds = 5\n')
    done = command("-c", path, "--once", **TOKEN)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "isochrone: http://127.0.0.1:9/agents/eu-1/plan: can't connect ("
    )
    assert " object at 0x" not in done.stderr
    assert "Traceback" not in done.stderr
    for environ, status in ((TOKEN, 0), ({"ISOCHRONE_AGENT_TOKEN": ""}, 2)):
        done = command("-c", path, name="check", **environ)
        assert done.returncode == status, done.stderr
        assert "eu-1" in done.stdout or "is not set" in done.stderr
    done = command("--new-token")
    token, digest = (line.split()[1] for line in done.stdout.splitlines())
    assert hashlib.sha256(token.encode()).hexdigest() == digest


@pytest.mark.parametrize(
    "text", ['{"dropped": "x"}', '{"round_began": null}', '{"other": 1}', "[", "[" * 100_000]
)
def test_counts_that_make_no_sense_begin_anew(tmp_path, text):
    (tmp_path / "state.json").write_text(text)
    spool = Spool.open(tmp_path, 1 << 20)
    assert (spool.counts.dropped, spool.counts.round_began) == (0, 0.0)
    spool.close()
