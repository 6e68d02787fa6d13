"""The main job, end to end: the demo as a newcomer runs it, in a process of its own."""

import json
import subprocess
import sys

import pytest

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
    assert report["failover_s"] <= 10
    assert report["recovery_s"] is not None
    assert report["samples"] >= report["asns"] * report["origins"]
    assert set(report["map"]) == {"version", "bytes", "colours", "cells"}
