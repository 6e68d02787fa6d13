"""The reference client against real servers: pinning, falling back, following, forgetting."""

import asyncio

import pytest
from client_support import SITE, a_world

from isochrone.client.cache import Learnt
from isochrone.client.exchange import Request
from isochrone.client.fetch import Region
from isochrone.client.names import Names
from isochrone.client.routes import Kind, Route
from isochrone.client.url import BadUrl, Url
from isochrone.lab.dns_server import DnsServer
from isochrone.lab.dns_zone import read_zone


async def test_it_is_pinned_and_then_goes_to_the_region(tmp_path):
    async with a_world(tmp_path) as world:
        client = world.client()
        world.apps["site"].alt_svc = [world.pin("eu")]
        first = await client.fetch(world.url)
        assert (first.region, first.protocol, first.learnt) == ("edge", "h2", Learnt.LEARNT)
        assert world.apps["site"].seen == [("2", world.url.authority, None)]
        second = await client.fetch(world.url)
        assert (second.region, second.protocol, second.address) == ("eu", "h3", "127.0.0.2")
        assert second.learnt is Learnt.NOTHING  # the region says nothing of it: the pin stays
        endpoint = f"eu.example.test:{world.fronts['eu'].port}"
        assert world.apps["eu"].seen == [("3", world.url.authority, endpoint)]
        assert list(second.phases) == ["dns", "connect", "tls", "first_byte", "total"]
        assert second.response.body == b'{"path": "/a?b=c"}'
        world.apps["eu"].alt_svc = [world.pin("us")]  # a region may send a client on, RFC 7838 section 3
        assert (await client.fetch(world.url)).region == "eu"
        assert (await client.fetch(world.url)).region == "us"
        world.apps["us"].alt_svc = ["clear"]
        assert (await client.fetch(world.url)).learnt is Learnt.CLEARED
        assert (await client.fetch(world.url)).region == "edge"


async def test_a_pin_that_fails_is_forgotten_and_the_site_answers(tmp_path):
    async with a_world(tmp_path) as world:
        client = world.client()
        world.apps["site"].alt_svc = [world.pin("eu")]
        await client.fetch(world.url)
        world.apps["site"].alt_svc = [world.pin("us")]
        await world.stop("eu")
        fetched = await client.fetch(world.url)
        assert (fetched.region, fetched.protocol) == ("edge", "h2")
        assert [bool(a.problem) for a in fetched.attempts] == [True, False]
        assert "port is closed" in fetched.attempts[0].problem
        assert (await client.fetch(world.url)).region == "us"
        world.apps["us"].status = 421
        misdirected = await client.fetch(world.url)
        assert misdirected.region == "edge"
        assert "421" in misdirected.attempts[0].problem


async def test_when_nothing_answers_the_pin_stays(tmp_path):
    async with a_world(tmp_path) as world:
        client = world.client()
        world.apps["site"].alt_svc = [world.pin("eu")]
        await client.fetch(world.url)
        before = world.cache.path.read_text()
        for key in ("site", "eu"):
            await world.stop(key)
        fetched = await client.fetch(world.url)
        assert fetched.response is None
        assert len(fetched.attempts) == 2
        assert world.cache.path.read_text() == before


@pytest.mark.parametrize(("allowed", "protocol"), [("h2", "h2"), ("http/1.1", "http/1.1"), ("h3", "h3")])
async def test_one_protocol_only(tmp_path, allowed, protocol):
    async with a_world(tmp_path) as world:
        client = world.client()
        fetched = await client.fetch(world.url, allowed=[allowed])
        assert (fetched.region, fetched.protocol) == ("edge", protocol)
        world.apps["site"].body = bytes(range(256)) * 2000  # more than the first window of HTTP/2
        assert (await client.fetch(world.url, allowed=[allowed])).response.body == world.apps["site"].body


async def test_what_is_sent_arrives_over_every_protocol(tmp_path):
    body = bytes(range(256)) * 1000
    async with a_world(tmp_path) as world:
        client = world.client()
        for route in client_routes(world):
            connection = await client._connect(
                route, ["127.0.0.2"], world.url, asyncio.get_running_loop().time() + 20, last=True
            )
            request = Request(authority=SITE, path="/echo", method="POST", body=body)
            response = await connection.ask(request, asyncio.get_running_loop().time() + 20)
            connection.close()
            assert response.body == body
            assert response.get("x-isochrone-region") == "eu"


def client_routes(world):
    for protocol in ("h3", "h2", "http/1.1"):
        yield Route(
            kind=Kind.ORIGIN, protocols=(protocol,), host="eu.example.test", port=world.fronts["eu"].port
        )


async def test_a_named_region_is_asked_alone(tmp_path):
    async with a_world(tmp_path) as world:
        client = world.client()
        world.apps["us"].alt_svc = [world.pin("eu")]
        port = world.fronts["us"].port
        region = Region(id="us", host="us.example.test", port=port, endpoint=("us.example.test", port))
        by_quic = await client.fetch(world.url, region=region)
        by_tcp = await client.fetch(world.url, region=region, allowed=["h2"])
        assert [(f.region, f.protocol) for f in (by_quic, by_tcp)] == [("us", "h3"), ("us", "h2")]
        assert not world.cache.path.exists()
        await world.stop("us")
        assert (await client.fetch(world.url, region=region)).response is None


async def test_a_certificate_for_another_host_is_refused_over_everything(tmp_path):
    async with a_world(tmp_path) as world:
        other = Url.parse(f"https://other.test:{world.url.port}/")
        client = world.client(names=Names(given={("*", world.url.port): ("127.0.0.1",)}))
        for allowed in ("h3", "h2"):
            fetched = await client.fetch(other, allowed=[allowed])
            assert fetched.response is None
            assert "other.test" in fetched.attempts[0].problem
        assert world.apps["site"].seen == []


async def test_the_first_address_that_answers_is_taken(tmp_path):
    async with a_world(tmp_path) as world:
        port = world.url.port
        dead_first = Names(given={(SITE, port): ("::1", "127.0.0.99", "127.0.0.1")})
        client = world.client(names=dead_first)
        for allowed in ("h3", "h2"):
            assert (await client.fetch(world.url, allowed=[allowed])).address == "127.0.0.1"


async def test_a_region_s_name_with_hints_only_is_reached(tmp_path):
    async with a_world(tmp_path) as world:
        port = world.fronts["eu"].port
        zone = f'www 300 IN A 127.0.0.1\n_{port}._https.eu 300 IN HTTPS 1 . alpn="h3" ipv4hint=127.0.0.2\n'
        async with DnsServer([read_zone("example.test", zone)], resolver=True) as server:
            client = world.client(names=Names(servers=[server.at()], timeout=10))
            world.apps["site"].alt_svc = [world.pin("eu")]
            assert (await client.fetch(world.url)).resolved_by == "dns"
            pinned = await client.fetch(world.url)
            assert (pinned.region, pinned.protocol, pinned.address) == ("eu", "h3", "127.0.0.2")


async def test_an_https_record_of_the_site_is_followed(tmp_path):
    async with a_world(tmp_path) as world:
        port = world.url.port
        zone = f'www 300 IN A 127.0.0.1\n_{port}._https.www 300 IN HTTPS 1 www alpn="h3,h2" port={port}\n'
        async with DnsServer([read_zone("example.test", zone)], resolver=True) as server:
            client = world.client(names=Names(servers=[server.at()], timeout=10))
            fetched = await client.fetch(world.url)
        assert (fetched.protocol, fetched.route.kind) == ("h3", Kind.HTTPS_RECORD)


async def test_a_silent_region_costs_bounded_time(tmp_path):
    async with a_world(tmp_path) as world:
        client = world.client()
        silent = asyncio.DatagramProtocol()
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: silent, local_addr=("127.0.0.1", 0)
        )
        port = transport.get_extra_info("sockname")[1]
        world.apps["site"].alt_svc = [f'h3=":{port}"']
        client.names = Names(given={(SITE, world.url.port): ("127.0.0.1",), (SITE, port): ("127.0.0.1",)})
        await client.fetch(world.url)
        fetched = await client.fetch(world.url)
        transport.close()
        assert fetched.region == "edge"
        assert "no handshake within" in fetched.attempts[0].problem


async def test_answers_that_are_no_http_are_told(tmp_path):
    async def garbage(reader, writer):
        await reader.read(100)
        writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")
        writer.close()

    async with a_world(tmp_path) as world:
        import ssl

        certificate = world.authority.issue("bad", SITE)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate.chain, certificate.key)
        server = await asyncio.start_server(garbage, "127.0.0.9", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        client = world.client(names=Names(given={("*", port): ("127.0.0.9",)}))
        url = Url.parse(f"https://{SITE}:{port}/")
        fetched = await client.fetch(url, allowed=["http/1.1"])
        assert "no valid HTTP" in fetched.attempts[0].problem
        fetched = await client.fetch(url, allowed=["h2"])
        assert "does not speak h2" in fetched.attempts[0].problem
        server.close()


@pytest.mark.parametrize(
    "text",
    ["", "x", "http://a/", "https://", "https://a:0/", "https://a:70000/", "https://u@a/", "https://a b/", "https://[::1", "ftp://a", "https://a..b/", "https://-a/", "https://" + "a" * 64 + "/"],
)  # fmt: skip
def test_what_is_no_url_is_told(text):
    with pytest.raises(BadUrl):
        Url.parse(text)


def test_urls():
    assert str(Url.parse("https://WWW.Example.COM./a b?q=ä#frag")) == "https://www.example.com/a%20b?q=%C3%A4"
    assert Url.parse("https://[2001:DB8::1]:444").authority == "[2001:db8::1]:444"
    assert Url.parse("https://bücher.example").host == "xn--bcher-kva.example"
