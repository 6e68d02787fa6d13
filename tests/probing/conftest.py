"""Fixtures: the packet lab, and small real servers on loopback."""

from __future__ import annotations

import pytest
from probing_support import namespaces_or_skip

from isochrone.lab.authority import Authority
from isochrone.lab.packets import PacketLab, Path

PATHS = (Path(1), Path(20), Path(20, loss=1.0), Path(30, jitter_ms=5))


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates")).issue("far", "localhost")


@pytest.fixture(scope="session")
def packets():
    """Far hosts at 1 ms, 20 ms, behind a link that loses everything, and at 30 ms with jitter."""
    namespaces_or_skip()
    with PacketLab(PATHS) as running:
        yield running
