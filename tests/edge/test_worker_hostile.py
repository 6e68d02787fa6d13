"""Hostile input, on raw sockets: nothing crashes, nothing leaks, nothing leaves for a host that is not an origin."""

import asyncio
import json
import random

import pytest
import pytest_asyncio
from edge_support import OK, SECRET, a_site, make_map, status

pytestmark = [pytest.mark.edge, pytest.mark.asyncio(loop_scope="module")]
HEAD = b"Host: www.example.test\r\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def edge():
    async with a_site("a", "b", SITE="www.example.test, example.test") as site:
        site.a.answer = site.b.answer = OK
        yield site
        log = "\n".join(site.edge.log_lines())
        assert "Traceback" not in log
        assert "no origin is mapped" not in log  # no request for any other host was even tried
        assert SECRET not in log


@pytest.fixture
def site(edge):
    edge.reset()
    edge.a.answer = edge.b.answer = OK
    return edge


def reached(site):
    return [seen for origin in site.origins.values() for seen in origin.seen]


@pytest.mark.parametrize(
    "host",
    [
        "evil.test", "www.example.test.evil.test", "evil.test:80", "www.example.test@evil.test", "www.example.test/@evil.test/x",
        "www.example.test?x", "www.example.test#x", "a b", "www.example.test, evil.test", "www.example.test:99999", "[::1]", "127.0.0.1",
        "www.example.test:80:80", "www.example.test\\", "", "%77ww.example.test", "-", "www.example.test.", "xn--a", "www_example_test",
    ],
)  # fmt: skip
async def test_a_host_that_is_not_ours_gets_421(site, host):
    for target in (b"/", b"/.isochrone/status"):
        answer = await site.raw(b"GET " + target + b" HTTP/1.1\r\nHost: " + host.encode() + b"\r\n\r\n", 1.0)
        assert answer.split(b" ")[1] in (b"421", b"400"), answer
        assert b"alt-svc" not in answer.lower()
    assert reached(site) == []


async def test_who_is_refused_is_in_the_log(site):
    trace = "d" * 32
    headers = {"host": "evil.test", "traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    response, _ = await site.get("/x?token=1", headers=headers)
    assert response.status == 421
    line = json.loads(await site.edge.wait_for_log(trace))
    assert (line["event"], line["status"], line["path"], line["origin"]) == ("failure", 421, "/x", "")
    assert line["reason"] == "none|refused:host"


async def test_our_hosts_are_served_in_any_spelling(site):
    for host in ("www.example.test", "WWW.Example.TEST", "www.example.test:443", "example.test:8080"):
        assert (await site.raw(b"GET / HTTP/1.1\r\nHost: " + host.encode() + b"\r\n\r\n")).startswith(
            b"HTTP/1.1 200"
        )
        assert reached(site)[-1].get("host").endswith(".origins.test")


async def test_two_hosts_and_absolute_targets(site):
    answer = await site.raw(b"GET / HTTP/1.1\r\n" + HEAD + b"Host: evil.test\r\n\r\n", 1.0)
    assert answer.split(b" ")[1] in (b"421", b"400")
    assert reached(site) == []
    for target in (
        b"http://evil.test/p",
        b"https://evil.test:99/p?q",
        b"http://www.example.test@evil.test/p",
    ):
        answer = await site.raw(b"GET " + target + b" HTTP/1.1\r\n" + HEAD + b"\r\n", 1.0)
        assert answer.split(b" ")[1] in (b"200", b"400", b"421")
    assert {seen.get("host") for seen in reached(site)} <= {"a.origins.test"}
    assert {seen.get("x-forwarded-host") for seen in reached(site)} <= {"www.example.test"}
    for target in (
        b"//evil.test/p",
        b"/\\evil.test/p",
        b"/@evil.test",
        b"/%2e%2e//evil.test",
        b"/http://evil.test/",
        b"/..//..//evil.test",
        b"/?http://evil.test",
    ):
        answer = await site.raw(b"GET " + target + b" HTTP/1.1\r\n" + HEAD + b"\r\n", 1.0)
        assert answer.startswith(b"HTTP/1.1 200"), (target, answer)
    assert {seen.get("host") for seen in reached(site)} == {"a.origins.test"}


async def test_targets_that_are_no_paths(site):
    for line in (
        b"OPTIONS *",
        b"CONNECT evil.test:443",
        b"GET @evil.test/",
        b"GET \xc3\xa4",
        b"GET",
        b"GET /a b",
    ):
        answer = await site.raw(line + b" HTTP/1.1\r\n" + HEAD + b"\r\n", 1.0)
        assert answer == b"" or answer.split(b" ")[1] in (b"400", b"421", b"500", b"501"), (line, answer)
        assert b"Traceback" not in answer
    assert reached(site) == []
    # The runtime itself takes this one for the path of an absolute target; it goes to our origin, as a path.
    await site.raw(b"GET evil.test/x HTTP/1.1\r\n" + HEAD + b"\r\n", 1.0)
    assert {(seen.get("host"), seen.target) for seen in reached(site)} <= {("a.origins.test", "/x")}


async def test_dots_and_encoded_slashes_do_not_reach_what_is_closed(site):
    for path in (
        b"/.isochrone/status",
        b"/a/../.isochrone/status",
        b"/./.isochrone/status",
        b"/a/%2e%2e/.isochrone/status",
        b"/.isochrone/../.isochrone/status",
        b"/.\\.isochrone\\status",
        b"/x\\..\\.isochrone\\status",
        b"/.isochrone",
        b"/.isochrone/",
        b"/.isochrone?x",
    ):
        answer = await site.raw(b"GET " + path + b" HTTP/1.1\r\n" + HEAD + b"\r\n", 1.0)
        assert answer.split(b" ")[1] == b"404", (path, answer)
    assert reached(site) == []
    for path, arrives in (
        (b"/%2F..%2f/%5c", "/%2F..%2f/%5c"),
        (b"/x/../../../etc/passwd", "/etc/passwd"),
        (b"/.isochrone%2fstatus", "/.isochrone%2fstatus"),
        (b"/.isochronex", "/.isochronex"),
        (b"/x/.isochrone/status", "/x/.isochrone/status"),
    ):
        await site.raw(b"GET " + path + b" HTTP/1.1\r\n" + HEAD + b"\r\n", 1.0)
        assert reached(site)[-1].target == arrives


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: www.example.test\r\n\r\n"


@pytest.mark.parametrize(
    "request_",
    [
        b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"POST / HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\n" + SMUGGLED,
        b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 5\r\nContent-Length: 60\r\n\r\nabcde" + SMUGGLED,
        b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: +5\r\n\r\nabcde" + SMUGGLED,
        b"POST / HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"POST / HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"POST / HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"POST / HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"POST / HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n" + SMUGGLED,
        b"GET / HTTP/1.1\r\n" + HEAD + b"X: a\r\n b\r\n\r\n" + SMUGGLED,
        b"GET / HTTP/1.1\r\n" + HEAD + b"X: a\x00b\r\n\r\n" + SMUGGLED,
        b"GET / HTTP/1.1\r\n" + HEAD + b"X: a\rb\r\n\r\n" + SMUGGLED,
        b"GET / HTTP/1.1\r\n" + HEAD + b"X y: a\r\n\r\n" + SMUGGLED,
        b"GET / HTTP/1.1\r\n" + HEAD + b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 777\r\n\r\n" + SMUGGLED,
    ],
    ids=range(14),
)  # fmt: skip
async def test_smuggling_bytes_make_no_second_request_at_the_origin(site, request_):
    """What follows on the same connection is at most a request of its own, that the edge sees and marks as any other."""
    await site.raw(request_, 1.0)
    for seen in reached(site):
        assert seen.get("via").endswith("isochrone"), seen
        assert seen.get("x-isochrone-origin") == "a"
        assert len(seen.all("content-length")) + len(seen.all("transfer-encoding")) <= 1


async def test_injection_by_path_query_and_fields(site):
    for target in (
        b"/%0d%0aX-Evil:%201",
        b"/?%0aX-Evil=1&%00",
        b"/%E2%80%A8X-Evil:1",
        b'/"><script>',
        b"/%22%2c%22x-isochrone-origin%22:%22evil",
    ):
        await site.raw(b"GET " + target + b" HTTP/1.1\r\n" + HEAD + b"\r\n", 1.0)
    for name in (
        b"x-q",
        b"cookie",
        b"via",
        b"traceparent",
        b"tracestate",
        b"x-forwarded-for",
        b"cf-connecting-ip",
        b"x-canary",
        b"connection",
    ):
        for value in (
            b'","x-isochrone-origin":"evil',
            b'\\","x-evil":"1',
            b"\\u000d\\u000ax-evil: 1",
            b'"}}',
            b"{}",
            b"a" * 4000,
            b"\xff\xfe",
            b'x", x-evil',
            b"host, via, x-isochrone-origin",
        ):
            site.reset()
            site.a.answer = OK
            answer = await site.raw(
                b"GET /f HTTP/1.1\r\n" + HEAD + name + b": " + value + b"\r\n\r\n", 1.0, 0.02
            )
            assert answer.startswith(b"HTTP/1.1 200"), (name, value, answer)
            (seen,) = reached(site)
            assert not [n for n, _ in seen.headers if n == "x-evil"]
            assert seen.all("x-isochrone-origin") == ["a"]
            assert seen.get("via").endswith("isochrone")
            assert b"evil" not in answer


async def test_odd_facts(site):
    odd = [
        '"\r\nX-Evil: 1',
        "'; drop",
        -1,
        0,
        2**40,
        1e300,
        None,
        [],
        {},
        True,
        "\u0000",
        "ÄÖ",
        "D" * 10_000,
        "nan",
        "inf",
    ]
    for value in odd:
        cf = dict.fromkeys(
            ("asn", "country", "colo", "continent", "latitude", "longitude", "httpProtocol"), value
        )
        response, body = await site.get(headers={"host": "www.example.test"}, cf=cf)
        assert (response.status, body) == (200, b"ok"), value
        assert "evil" not in str(response.headers).lower()
        site.a.answer = status(500)
        await site.get(headers={"host": "www.example.test"}, cf=cf)  # and through the log
        site.a.answer = OK
    answer = await site.raw(
        b"GET / HTTP/1.1\r\n"
        + HEAD
        + b"MF-CF-Blob: "
        + json.dumps({"asn": 3320, "x": "y" * 30_000}).encode()
        + b"\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 200")


async def test_enormous_heads(site):
    for lines in (
        b"X-A: " + b"a" * 200_000 + b"\r\n",
        b"".join(b"X-%d: y\r\n" % n for n in range(20_000)),
        b"Cookie: " + b"a=b; " * 20_000 + b"\r\n",
    ):
        answer = await site.raw(b"GET / HTTP/1.1\r\n" + HEAD + lines + b"\r\n", 3.0)
        assert answer == b"" or answer.split(b" ")[1] in (b"200", b"400", b"413", b"431"), answer[:200]
    answer = await site.raw(b"GET /" + b"p" * 100_000 + b" HTTP/1.1\r\n" + HEAD + b"\r\n", 3.0)
    assert answer == b"" or answer.split(b" ")[1] in (b"200", b"400", b"414", b"431")
    assert (await site.raw(b"GET / HTTP/1.1\r\n" + HEAD + b"\r\n")).startswith(b"HTTP/1.1 200")


async def test_random_bytes(site):
    rng = random.Random(7)
    good = b"GET /a?b=c HTTP/1.1\r\nHost: www.example.test\r\nCookie: a=b\r\nX-Y: z\r\n\r\n"

    async def one(data):
        answer = await site.raw(data, 0.3)
        assert b"Traceback" not in answer
        assert SECRET.encode() not in answer

    mutated = []
    for _ in range(120):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 5)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        mutated.append(bytes(data))
    for start in range(0, len(mutated), 20):
        await asyncio.gather(*(one(data) for data in mutated[start : start + 20]))
    assert (await site.raw(good)).startswith(b"HTTP/1.1 200")


async def test_ten_thousand_guesses(site):
    """All 404 and all alike, whatever they share with the secret."""
    rng = random.Random(11)
    answers = set()

    async def guess(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        for _ in range(count):
            word = SECRET[: rng.randrange(len(SECRET))] + "".join(
                rng.choices("abcdefs3cret0123", k=rng.randrange(1, 9))
            )
            if word == SECRET:
                continue
            writer.write(
                b"GET /.isochrone/status HTTP/1.1\r\n"
                + HEAD
                + f"Authorization: Bearer {word}\r\n\r\n".encode()
            )
            answers.add(await reader.readuntil(b"\r\n\r\nNot Found"))
        writer.close()

    await asyncio.gather(*(guess(1250) for _ in range(8)))
    assert len(answers) == 1
    (answer,) = answers
    assert answer.startswith(b"HTTP/1.1 404")


async def test_the_edges_own_is_read_only(site):
    host = {"host": "www.example.test"}
    for method in ("GET", "HEAD", "POST", "OPTIONS", "DELETE"):
        for target in ("/.isochrone/status", "/.isochrone/decision?asn=1"):
            response, _ = await site.get(target, method=method, headers=host)
            assert response.status == 404, method
            response, body = await site.get(
                target, method=method, headers={**host, "authorization": f"Bearer {SECRET}"}
            )
            if method in ("GET", "HEAD"):
                assert (response.status, bool(body)) == (200, method == "GET")
                assert response.headers["cache-control"] == "no-store"
            else:
                assert (response.status, response.headers["allow"]) == (405, "GET, HEAD"), method
    assert reached(site) == []


@pytest.mark.parametrize("crossing", ["on", "off"])
async def test_an_edge_open_to_any_host_whose_variables_are_odd(crossing):
    """Hosts that are no URL are refused on every way; what can't be used is named and takes nothing down."""
    bad = {"ORIGINS": "[" * 50_000, "MAX_TRIES": "0"}
    async with a_site("a", CACHE_TTL_SECONDS="60", CROSSING=crossing, **bad) as open_site:
        answer = await open_site.raw(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 503"), answer
        told = await open_site.status()
        assert [problem.split(" ")[0] for problem in told["variables"]] == ["ORIGINS", "MAX_TRIES"]
        await open_site.publish(make_map(("a",)))
        for host in (b"1.2.3.999", b"[1:2]", b"[::z]", b"0x1.2.3.999"):
            for line in (b"GET /.isochrone/status", b"GET /x", b"POST /x"):
                answer = await open_site.raw(
                    line + b" HTTP/1.1\r\nHost: " + host + b"\r\nContent-Length: 0\r\n\r\n", 1.0
                )
                assert answer.split(b" ")[1] in (b"400", b"421"), (line, host, answer)
        assert open_site.a.seen == []
        answer = await open_site.raw(b"GET /x HTTP/1.1\r\nHost: 1.2.3.99\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        assert "Traceback" not in "\n".join(open_site.edge.log_lines())
