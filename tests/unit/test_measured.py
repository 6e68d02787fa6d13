"""README tells what the benchmarks measured, no more and no less."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))

from _report import BEGIN, END, RESULTS, load, merged, section  # noqa: E402


def test_the_section_is_made_from_the_results():
    readme = (ROOT / "README.md").read_text()
    assert readme.count(BEGIN) == readme.count(END) == 1
    assert merged(readme, section(load())) == readme, "run .venv/bin/python bench/_report.py"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_result_is_one_of_a_whole_run_of_a_benchmark(path):
    result = json.loads(path.read_text())
    assert (ROOT / "bench" / f"{path.stem}.py").exists()
    assert result["benchmark"] == path.stem
    assert result["machine"]["date"]
    for bar in result["bars"]:
        better = bar["value"] <= bar["bar"] if bar["better"] == "lower" else bar["value"] >= bar["bar"]
        assert bar["ok"] == better


def test_the_size_of_the_map_is_told():
    built = {"samples": 7000, "bytes": 1, "colours": 1234, "cells": {"asn": 2000, "default": 1}}
    result = {"machine": {"date": "", "cores": 2, "cpu": "", "python": ""}, "bars": [], "build": built}
    told = section({"map": result})
    assert "1,234 colours and 2,001 cells (2,000 asn, 1 default); 7,000 samples were used." in told
