"""Fixtures for tests against real QUIC servers."""

from __future__ import annotations

import socket

import pytest
from servers import SITE, make_certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def good(certificates):
    """A leaf for the public host."""
    return certificates.leaf("good", SITE)


@pytest.fixture(scope="session")
def has_ipv6():
    """Whether this host has an IPv6 loopback."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True
