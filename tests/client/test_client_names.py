"""Pre-resolution against a real DNS server on loopback; racing of addresses."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.client.names import Names, Service, parse_resolve
from isochrone.client.race import interleaved, race
from isochrone.client.routes import Kind, region_routes, routes
from isochrone.lab.dns_server import DnsServer
from isochrone.lab.dns_zone import read_zone

ZONE = """\
eu       300 IN A 127.0.0.2
eu       300 IN A 127.0.0.3
eu       300 IN AAAA ::1
eu       300 IN HTTPS 2 . alpn="h2" port=444
eu       300 IN HTTPS 1 svc alpn="h3,h2"
svc      300 IN A 127.0.0.7
_8443._https.eu 300 IN HTTPS 1 . alpn="h3" no-default-alpn ipv4hint=127.0.0.9
hints    300 IN HTTPS 1 only.elsewhere.test. alpn="h3" ipv4hint=127.0.0.8 ipv6hint=::1
alias    300 IN CNAME eu
aliased  300 IN HTTPS 0 eu.example.test.
circle   300 IN HTTPS 0 circle.example.test.
nowhere  300 IN HTTPS 0 .
strange  300 IN A 127.0.0.4
strange  300 IN HTTPS 1 . alpn="h9" no-default-alpn
future   300 IN A 127.0.0.4
future   300 IN HTTPS 1 . mandatory=key65333 key65333="x" alpn="h3"
"""


@pytest.fixture
async def names():
    async with DnsServer([read_zone("example.test", ZONE)], resolver=True) as server:
        yield Names(servers=[server.at()], timeout=10)


async def resolve(names, host, port=443):
    return await names.resolve(host, port, asyncio.get_running_loop().time() + 30)


async def test_addresses_and_records_of_a_name(names):
    found = await resolve(names, "EU.example.test.")
    assert found.addresses == ("::1", "127.0.0.2", "127.0.0.3")
    assert found.by == "dns"
    assert found.services == (
        Service(host="svc.example.test", port=443, protocols=("h3", "h2", "http/1.1"), addresses=("127.0.0.7",)),
        Service(host="eu.example.test", port=444, protocols=("h2", "http/1.1"), addresses=found.addresses),
    )  # fmt: skip
    with_port = await resolve(names, "eu.example.test", 8443)
    assert [(s.host, s.port, s.protocols) for s in with_port.services] == [("eu.example.test", 8443, ("h3",))]
    assert with_port.services[0].addresses == found.addresses  # real ones are worth more than hints


async def test_hints_are_used_when_the_target_has_no_address(names):
    found = await resolve(names, "hints.example.test")
    assert found.addresses == ()
    assert [(s.host, s.addresses) for s in found.services] == [("only.elsewhere.test", ("::1", "127.0.0.8"))]


async def test_aliases_are_followed_and_end(names):
    assert (await resolve(names, "alias.example.test")).services == (
        await resolve(names, "eu.example.test")
    ).services
    aliased = await resolve(names, "aliased.example.test")
    assert [s.host for s in aliased.services] == ["svc.example.test", "eu.example.test"]
    for name in ("circle", "nowhere", "strange", "future", "missing"):
        assert (await resolve(names, f"{name}.example.test")).services == (), name
    assert "no address of missing.example.test" in (await resolve(names, "missing.example.test")).problem


async def test_what_is_no_name_is_not_asked_for(names):
    long = ".".join(["x" * 60] * 4)
    assert (
        "no address of" in (await resolve(names, long, 65_535)).problem
    )  # too long with _65535._https before it
    for name in ("a..b", "x" * 64, "a b", "-a.test", "a\x00.test", "."):
        found = await resolve(names, name)
        assert (found.addresses, found.services) == ((), ())
        assert "is not a host name" in found.problem


async def test_a_dropped_question_for_the_record_does_not_hold_up_the_addresses():
    async def drop(request, response):
        return None if request.rdtype == "HTTPS" else response

    async with DnsServer([read_zone("example.test", ZONE)], resolver=True, faults=[drop]) as server:
        found = await resolve(Names(servers=[server.at()], timeout=60), "eu.example.test")
    assert found.addresses == ("::1", "127.0.0.2", "127.0.0.3")
    assert found.services == ()


async def test_what_is_given_needs_no_dns():
    nobody = Names(
        given={("a.test", 443): ("127.0.0.1", "::1"), ("*", 1): ("127.0.0.5",)}, configured={"c.test": ("127.0.0.6",)}
    )  # fmt: skip
    assert (await resolve(nobody, "a.test")).addresses == ("::1", "127.0.0.1")
    assert (await resolve(nobody, "x.test", 1)).addresses == ("127.0.0.5",)
    assert (await resolve(nobody, "c.test")).by == "configured"
    assert (await resolve(nobody, "[::1]")).addresses == ("::1",)


@pytest.mark.parametrize(
    "text",
    ["", "a", "a:443", "a:443:", "a:x:127.0.0.1", "a:0:127.0.0.1", "a:70000:127.0.0.1", "a:1:b", ":1:127.0.0.1", "a:1:127.0.0.1,", "a:1:fe80::1%lo"],
)  # fmt: skip
def test_what_is_no_override_is_told(text):
    with pytest.raises(ValueError, match="is not"):
        parse_resolve(text)


def test_overrides_as_curl_has_them():
    assert parse_resolve("+A.test.:443:127.0.0.1,[::1],::2") == (("a.test", 443), ("127.0.0.1", "::1", "::2"))


ADDRESSES = st.lists(st.ip_addresses().map(str))


@given(ADDRESSES)
def test_families_take_turns(addresses):
    order = interleaved(addresses)
    assert sorted(order) == sorted(set(addresses))
    both = min(sum(":" in a for a in order), sum(":" not in a for a in order))
    assert all((":" in a) == (n % 2 == 0) for n, a in enumerate(order[: 2 * both]))


@given(st.lists(st.sampled_from(["good", "bad", "slow", "late"]), max_size=5))
def test_a_race_has_one_winner_and_leaves_nothing(kinds):
    async def run():
        opened, closed = [], []

        async def attempt(address):
            kind = kinds[int(address)]
            if kind == "bad":
                raise OSError(address)
            await asyncio.sleep({"good": 0, "slow": 0.002, "late": 0.001}[kind])
            opened.append(address)
            return address

        try:
            won = await race(
                [str(n) for n in range(len(kinds))], attempt, abandon=closed.append, head_start=0.0005
            )
        except (OSError, ValueError):
            won = None
        assert len(asyncio.all_tasks()) == 1
        assert sorted(closed + [won] * (won is not None)) == sorted(opened)
        return won

    assert (asyncio.run(run()) is None) == (set(kinds) <= {"bad"})


async def test_a_race_that_is_cancelled_leaves_nothing():
    async def attempt(_):
        await asyncio.sleep(30)

    task = asyncio.ensure_future(race(["a", "b"], attempt, abandon=print, head_start=0.001))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(asyncio.all_tasks()) == 1


def test_routes():
    h3 = Service(host="svc.test", port=444, protocols=("h3", "h2"), addresses=("127.0.0.1",))
    found = routes("www.test", 443, allowed=["h3", "h2"], services=[h3])
    assert [(r.kind, r.protocols, r.authority) for r in found] == [
        (Kind.HTTPS_RECORD, ("h3",), "svc.test:444"),
        (Kind.ORIGIN, ("h2",), "www.test:443"),
    ]
    assert [r.protocols for r in routes("www.test", 443, allowed=["http/1.1"], services=[h3])] == [
        ("http/1.1",)
    ]
    (only,) = routes("www.test", 443, allowed=["h3"])
    assert (only.kind, only.protocols) == (Kind.ORIGIN, ("h3",))
    region = region_routes("eu.test", 443, ("eu.test", 8443), allowed=["h3", "h2", "http/1.1"])
    assert [(r.protocols, r.port) for r in region] == [(("h3",), 8443), (("h2", "http/1.1"), 443)]
