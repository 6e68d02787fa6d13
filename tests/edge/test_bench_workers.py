"""The Workers that the benchmarks measure still run."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from edge import measure_stages

pytestmark = [pytest.mark.edge, pytest.mark.asyncio(loop_scope="module")]


async def test_every_stage_of_a_request_can_be_measured():
    stages = await measure_stages(1)
    assert len(stages) == 10
    assert all(isinstance(cost, float) for cost in stages.values())
