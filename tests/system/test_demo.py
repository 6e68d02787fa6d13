"""The main job, end to end: the demo as a newcomer runs it, in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from isochrone.lab.withdrawal import MANY_LEFT_OUT

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def test_the_demo_passes_its_own_drills():
    command = [sys.executable, "-m", "isochrone.cli", "demo", "--seconds", "30", "--no-browser", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.stdout.count("\n") == 1, done.stderr
    report = json.loads(done.stdout)
    assert (done.returncode, report["problems"]) == (0, [])
    assert report["asns"] >= 24
    assert report["countries"] >= 12
    assert report["origins"] >= 14
    assert report["failed_requests"] == 0
    assert report["mean_regret_ms"] <= 1.0
    assert report["alt_svc_followed_ok"] == report["alt_svc_offered"] >= 24
    for drill in ("withdrawal", "offered_again"):
        # On a machine too busy to keep to its rounds of checks nothing was measured, and it says so.
        if report["withdrawal"]["rounds_left_out"] < MANY_LEFT_OUT:
            assert report[drill]["seconds"] > 0
            assert report[drill]["bound_s"] > 3 * report[drill]["check_interval_s"]
    assert report["failover_s"] <= 10
    assert report["recovery_s"] is not None
    assert report["samples"] >= report["asns"] * report["origins"]
    assert set(report["map"]) == {"version", "bytes", "colours", "cells"}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_nothing_outlives_the_demo(how, tmp_path):
    command = [sys.executable, "-m", "isochrone.cli", "demo", "--no-browser", "--seconds", "100"]
    env = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    ) as demo:
        for line in demo.stdout:
            if "measuring" in line:
                break
        family = psutil.Process(demo.pid).children(recursive=True)
        assert any("run" in process.cmdline() for process in family)
        assert len(family) > 16
        demo.send_signal(how)
        rest = demo.stdout.read() if how != signal.SIGKILL else ""
        demo.wait(timeout=30)
    assert "Traceback" not in rest
    until = time.monotonic() + 15
    while time.monotonic() < until and any(p.is_running() and p.status() != "zombie" for p in family):
        time.sleep(0.1)
    assert [p.cmdline() for p in family if p.is_running() and p.status() != "zombie"] == []
    if how != signal.SIGKILL:
        assert "interrupted before all drills were done" in rest
        assert demo.returncode == 1
        assert not list(tmp_path.glob("isochrone-demo-*"))
