"""The name of an endpoint is resolved by the configured servers, so that DNS and HTTP/3 checks speak of the same addresses."""

import pytest

from isochrone.lab.dns_server import DnsServer
from isochrone.lab.dns_zone import read_zone
from isochrone.probing.prober import ProberTrouble, resolve
from isochrone.settings import Dns
from isochrone.verification.resolving import resolver_of

ZONE = "eu 300 IN A 127.0.0.3\neu 300 IN A 127.0.0.2\neu 300 IN AAAA ::1\nalias 300 IN CNAME eu\n"


async def test_the_configured_servers_are_asked():
    async with DnsServer([read_zone("example.test", ZONE)], resolver=True) as server:
        by_servers = resolver_of(Dns(resolvers=(server.at(),), timeout_seconds=10))
        assert await by_servers("eu.example.test", timeout=10) == ("::1", "127.0.0.2", "127.0.0.3")
        assert await by_servers("alias.example.test", timeout=10) == ("::1", "127.0.0.2", "127.0.0.3")
        assert await by_servers("192.0.2.1", timeout=10) == ("192.0.2.1",)
        with pytest.raises(ProberTrouble, match=r"nobody\.example\.test"):
            await by_servers("nobody.example.test", timeout=10)


def test_without_servers_the_system_is():
    assert resolver_of(Dns()) is resolve
