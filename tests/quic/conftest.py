"""Fixtures for tests against real QUIC servers."""

from __future__ import annotations

import pytest
from servers import SITE, make_certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def good(certificates):
    """A leaf for the public host."""
    return certificates.leaf("good", SITE)
