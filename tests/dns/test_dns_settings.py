"""`[dns]` in the configuration, and `isochrone verify dns`."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from click.testing import CliRunner
from dns_support import GOOD, ZONE, zone_text

from isochrone.cli import Failure
from isochrone.cli.verify_dns import dns_command
from isochrone.lab.dns_server import DnsServer
from isochrone.lab.dns_zone import read_zone
from isochrone.nameserver import Transport, parse
from isochrone.settings import SettingsError, load

BASE = f"""\
site = "www.example.test"
[[origins]]
id = "fra-1"
host = "fra.{ZONE}"
latitude = 50.1
longitude = 8.7
alt_svc = "fra.{ZONE}:8443"
addresses = ["203.0.113.7", "2001:db8::7"]
asn = 64500
country = "DE"
[dns]
"""


@pytest.mark.parametrize(
    ("text", "expect"),
    [
        ("192.0.2.1", (Transport.UDP, "192.0.2.1", 53, "", True)),
        ("192.0.2.1:5300", (Transport.UDP, "192.0.2.1", 5300, "", True)),
        ("[2001:db8::1]:54", (Transport.UDP, "2001:db8::1", 54, "", True)),
        ("2001:db8::1", (Transport.UDP, "2001:db8::1", 53, "", True)),
        ("udp://192.0.2.1", (Transport.UDP, "192.0.2.1", 53, "", False)),
        ("tcp://192.0.2.1", (Transport.TCP, "192.0.2.1", 53, "", False)),
        ("tls://dns.example@192.0.2.1", (Transport.TLS, "192.0.2.1", 853, "dns.example", False)),
        ("tls://192.0.2.1:8853", (Transport.TLS, "192.0.2.1", 8853, "", False)),
        ("https://dns.example/dns-query", (Transport.HTTPS, "", 443, "dns.example", False)),
        ("https://dns.example@[2001:db8::1]:8443/q", (Transport.HTTPS, "2001:db8::1", 8443, "dns.example", False)),
    ],
)  # fmt: skip
def test_servers_are_read(text, expect):
    server = parse(text)
    assert (server.transport, server.address, server.port, server.host, server.plain) == expect
    again = parse(str(server))
    assert (again.transport, again.address, again.port, again.host, again.path) == (*expect[:4], server.path)


@pytest.mark.parametrize(
    "text",
    ["", "dns.example", "udp://dns.example", "ftp://192.0.2.1", "192.0.2.1:", "192.0.2.1:0", "192.0.2.1:65536", "[::1", "[::1]53",
     "udp://192.0.2.1/dns-query", "tls://a@b", "https://a@b", "https://", "192.0.2.1:x"],
)  # fmt: skip
def test_what_names_no_server_is_refused(text):
    with pytest.raises(ValueError, match=r".+"):
        parse(text)


def write(tmp_path, text):
    path = tmp_path / "isochrone.toml"
    path.write_text(BASE + text)
    return path


def test_every_problem_of_the_section_is_told(tmp_path):
    with pytest.raises(SettingsError) as error:
        load(
            write(
                tmp_path,
                'resolvers = ["ftp://x"]\nclient_subnets = ["203.0.113.0/33"]\nttl_minimum = 3\ntrust_anchor = "no"\n',
            )
        )
    assert len(error.value.problems) == 4
    assert "dns.ttl_minimum: unknown key" in "\n".join(error.value.problems)


def test_servers_may_be_tables_too(tmp_path):
    settings = load(write(tmp_path, 'resolvers = [{address = "192.0.2.1", port = 53, transport = "tcp"}]\n'))
    assert settings.dns.resolvers == (parse("tcp://192.0.2.1"),)


@pytest.fixture
def serve():
    """A server in a thread of its own: the command runs an event loop itself."""
    stops = []

    def start(text):
        ready, port, loop = threading.Event(), [], asyncio.new_event_loop()
        stop = asyncio.Event()

        async def run():
            async with DnsServer([read_zone(ZONE, text)]) as server:
                port.append(server.port)
                ready.set()
                await stop.wait()

        thread = threading.Thread(target=lambda: (loop.run_until_complete(run()), loop.close()))
        thread.start()
        stops.append((loop, stop, thread))
        assert ready.wait(10)
        return port[0]

    yield start
    for loop, stop, thread in stops:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)


def run(*arguments):
    return CliRunner().invoke(dns_command, arguments, standalone_mode=False)


def test_good_names(serve, tmp_path):
    config = write(
        tmp_path, f'authoritative = ["127.0.0.1:{serve(GOOD)}"]\nclient_subnets = ["198.51.100.7/24"]\n'
    )
    result = run("-c", str(config), "--json")
    assert result.return_value == 0
    document = json.loads(result.output)
    assert document["findings"] == []
    (plan,) = document["plan"]
    assert plan["proved"]
    assert plan["authority"] == f"fra.{ZONE}:8443"
    assert plan["addresses"] == ["2001:db8::7", "203.0.113.7"]
    assert plan["valid_until"] == plan["checked_at"] + plan["ttl"]
    assert plan["https"][0]["alpn"][0] == "h3"
    table = run("-c", str(config))
    assert table.return_value == 0
    assert "203.0.113.7" in table.output


def test_a_broken_promise_ends_with_one(serve, tmp_path):
    config = write(tmp_path, f'authoritative = ["127.0.0.1:{serve(zone_text("fra 300 IN A 192.0.2.66"))}"]\n')
    result = run("-c", str(config))
    assert result.return_value == 1
    assert "error: dns.extra_address: fra-1" in result.output
    document = json.loads(run("-c", str(config), "--json").output)
    assert [f["check"] for f in document["findings"]] == ["dns.extra_address"]
    assert document["plan"][0]["why"] == ["dns.extra_address"]


def test_a_warning_does_not(serve, tmp_path):
    text = zone_text("-fra 300 IN A ", "fra 5 IN A 203.0.113.7")
    config = write(tmp_path, f'authoritative = ["127.0.0.1:{serve(text)}"]\n')
    result = run("-c", str(config))
    assert result.return_value == 0
    assert "warning: dns.ttl_low" in result.output


@pytest.mark.parametrize("key", ["trust_anchor", "trust_store"])
def test_files_that_hold_nothing_useful_end_in_one_sentence(tmp_path, key):
    (tmp_path / "file").write_text("; nothing\n")
    config = write(tmp_path, f'authoritative = ["127.0.0.1:1"]\n{key} = "file"\n')
    result = run("-c", str(config))
    assert isinstance(result.exception, Failure)
    assert str(result.exception).startswith(f"dns.{key}: ")
