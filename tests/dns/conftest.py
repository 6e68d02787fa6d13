"""Fixtures of the DNS tests."""

from __future__ import annotations

import ssl

import pytest

from isochrone.lab.authority import Authority


class Certificates:
    def __init__(self, folder):
        self._authority = Authority(folder)
        self.ca_pem = self._authority.ca_pem
        self._made = {}

    def context(self, *names, **dates):
        key = (names, *dates.items())
        if key not in self._made:
            self._made[key] = self._context(*names, **dates)
        return self._made[key]

    def _context(self, *names, **dates):
        leaf = self._authority.issue("-".join(names) + "-" + "-".join(dates), *names, **dates)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(leaf.chain, leaf.key)
        return context


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))
