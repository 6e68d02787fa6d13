"""What passes through the edge, in both directions, and what does not; with and without crossing.mjs."""

import asyncio
import gzip
import hashlib
import io
import os
import re

import aiohttp
import psutil
import pytest
import pytest_asyncio
from edge_support import OK, a_site, slow, status, websocket

pytestmark = [pytest.mark.edge, pytest.mark.asyncio(loop_scope="module")]
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND")


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["on", "off"], ids=["crossing", "no_crossing"]
)
async def edge(request):
    async with a_site("near", CROSSING=request.param) as site:
        yield site


@pytest.fixture
def site(edge):
    edge.reset()
    return edge


async def test_the_module_that_saves_crossings_is_found(site):
    await site.get()
    assert not [line for line in site.edge.log_lines() if "without crossing" in line]


@pytest.mark.parametrize("method", METHODS)
async def test_every_method(site, method):
    response, _ = await site.get("/m?x=1", method=method)
    assert response.status == 200
    (seen,) = site.near.seen
    assert (seen.method, seen.target, seen.get("host")) == (method, "/m?x=1", "near.origins.test")


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/?",
        "/a%20b/%C3%A4%E2%82%AC",
        "/?q=%C3%A4&&x=&y",
        "/a//b",
        "/%2F%2e%2E%5c",
        "/x?next=https://evil.test/%0d%0aSet-Cookie:x",
        "/" + "p" * 4000,
    ],
)
async def test_paths_and_queries_arrive_exactly(site, target):
    site.near.answer = OK
    await site.raw(b"GET %b HTTP/1.1\r\nhost: a.test\r\n\r\n" % target.encode())
    assert site.near.seen[0].target == target


async def test_a_path_in_raw_utf_8_arrives_encoded(site):
    site.near.answer = OK
    await site.raw("GET /ä/€?q=ö HTTP/1.1\r\nhost: a.test\r\n\r\n".encode())
    assert site.near.seen[0].target == "/%C3%A4/%E2%82%AC?q=%C3%B6"


async def test_bodies_pass_in_both_directions(site):
    for size in (0, 1, 16_384, 16_385, 3_000_000):
        payload = os.urandom(size)
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            site.reset()
            await site.get("/echo", method=method, data=io.BytesIO(payload))
            (seen,) = site.near.seen
            assert (seen.length, seen.sha256) == (size, hashlib.sha256(payload).hexdigest()), (method, size)

    async def parts():
        for _ in range(50):
            yield b"x" * 1000

    site.reset()
    await site.get("/chunked", method="POST", data=parts())
    assert site.near.seen[0].length == 50_000

    body = os.urandom(5_000_000)
    for head in (
        b"content-length: %d\r\n\r\n%b" % (len(body), body),
        b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body),
    ):
        site.near.answer = b"HTTP/1.1 200 OK\r\n" + head
        _, got = await site.get()
        assert got == body
    site.near.answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    response, _ = await site.get()
    assert response.headers["content-length"] == str(len(body))


async def test_a_large_upload_costs_constant_memory(site):
    """256 MB here, 2 GB in bench/edge_memory.py."""
    await site.get("/warm", method="POST", data=bytes(1 << 16))
    process = psutil.Process(site.edge.pid)
    before = highest = process.memory_info().rss

    async def parts():
        nonlocal highest
        for number in range(4096):
            yield bytes(1 << 16)
            if number % 256 == 0:
                highest = max(highest, process.memory_info().rss)

    await site.get("/upload", method="POST", data=parts())
    assert site.near.seen[-1].length == 256 << 20
    assert highest - before < 64 << 20


async def test_an_event_stream_is_not_held_back_until_its_end(site):
    """Chunks 50 ms apart may arrive together at the local edge; that they come before the stream ends is shown."""
    gate = asyncio.Event()

    async def stream(request, reader, writer):
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        writer.write(b"7\r\ndata: 0\r\n")
        await asyncio.wait_for(gate.wait(), 20)
        writer.write(b"7\r\ndata: 1\r\n0\r\n\r\n")

    site.near.answer = stream
    async with site.session.get(site.edge.url + "/sse") as response:
        assert await asyncio.wait_for(response.content.readexactly(7), 10) == b"data: 0"
        gate.set()
        assert await response.read() == b"data: 1"


async def test_a_long_event_stream_costs_constant_memory(site):
    event = b"data: " + b"x" * 8184 + b"\n\n"
    chunk = b"%x\r\n%b\r\n" % (len(event), event)

    async def stream(request, reader, writer):
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for _ in range(16_384):
            writer.write(chunk)
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    site.near.answer = stream
    process = psutil.Process(site.edge.pid)
    length, before = 0, process.memory_info().rss
    highest = before
    async with site.session.get(site.edge.url + "/sse") as response:
        async for part in response.content.iter_chunked(1 << 20):
            length += len(part)
            highest = max(highest, process.memory_info().rss)
    assert length == 16_384 * len(event)
    assert highest - before < 64 << 20


async def test_head_204_304_and_ranges(site):
    site.near.answer = b"HTTP/1.1 200 OK\r\ncontent-length: 12345\r\n\r\n"
    response, body = await site.get(method="HEAD")
    assert (response.status, response.headers["content-length"], body) == (200, "12345", b"")
    site.near.answer = b'HTTP/1.1 204 No Content\r\netag: "a"\r\n\r\n'
    response, body = await site.get()
    assert (response.status, response.headers["etag"], body) == (204, '"a"', b"")
    site.near.answer = b'HTTP/1.1 304 Not Modified\r\netag: "a"\r\n\r\n'
    response, body = await site.get(headers={"if-none-match": '"a"'})
    assert (response.status, body) == (304, b"")
    assert site.near.seen[-1].get("if-none-match") == '"a"'
    site.near.answer = (
        b"HTTP/1.1 206 Partial Content\r\ncontent-range: bytes 2-3/9\r\ncontent-length: 2\r\n\r\nok"
    )
    response, body = await site.get(headers={"range": "bytes=2-3"})
    assert (response.status, response.headers["content-range"], body) == (206, "bytes 2-3/9", b"ok")
    assert site.near.seen[-1].get("range") == "bytes=2-3"


@pytest.mark.parametrize(
    "code",
    [200, 201, 203, 226, 299, 301, 302, 303, 307, 308, 400, 401, 404, 409, 410, 418, 422, 429, 500, 501, 599],
)
async def test_statuses_and_redirects_are_passed_on(site, code):
    site.near.answer = status(
        code, extra=b"location: https://elsewhere.test/x?y\r\nwww-authenticate: Basic\r\n"
    )
    for method, sent in (("GET", b""), ("HEAD", b""), ("POST", b"small"), ("PUT", bytes(20_000))):
        site.near.seen.clear()
        response, body = await site.get(method=method, data=sent or None)
        assert (response.status, body) == (code, b"" if method == "HEAD" else b"no")
        assert response.headers["location"] == "https://elsewhere.test/x?y"
        assert response.headers["www-authenticate"] == "Basic"
        assert [(seen.method, seen.length) for seen in site.near.seen] == [(method, len(sent))]


async def test_several_cookie_fields_arrive_as_one(site):
    for line, body in ((b"GET", b""), (b"POST", b""), (b"POST", b"small"), (b"PUT", bytes(20_000))):
        site.near.seen.clear()
        length = b"Content-Length: %d\r\n" % len(body) if line != b"GET" else b""  # else not the quick way
        await site.raw(
            b"%b / HTTP/1.1\r\nHost: h\r\nCookie: a=1\r\nCookie: b=2; c=x,y\r\n%b\r\n%b"
            % (line, length, body)
        )
        (seen,) = site.near.seen
        assert (seen.all("cookie"), seen.length) == (["a=1; b=2; c=x,y"], len(body))


async def test_cookies_stay_several_and_compressed_bodies_stay_compressed(site):
    site.near.answer = b"HTTP/1.1 200 OK\r\nset-cookie: a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT\r\nset-cookie: b=2\r\ncontent-length: 0\r\n\r\n"
    response, _ = await site.get()
    assert response.headers.getall("set-cookie") == ["a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT", "b=2"]
    large = gzip.compress(os.urandom(300_000))
    for encoding, body in (
        ("gzip", gzip.compress(b"hello" * 99)),
        ("gzip", large),
        ("br", b"\x01\x02"),
        ("zstd", b"\x28\xb5"),
    ):
        site.near.answer = b"HTTP/1.1 200 OK\r\ncontent-encoding: %b\r\ncontent-length: %d\r\n\r\n%b" % (
            encoding.encode(), len(body), body,
        )  # fmt: skip
        for accepts in ({"accept-encoding": "gzip, br, zstd"}, {"accept-encoding": "identity"}):
            response, got = await site.get(headers=accepts)
            assert (response.headers["content-encoding"], got) == (encoding, body)
            assert site.near.seen[-1].get("accept-encoding") == accepts["accept-encoding"]


async def test_long_header_lists_and_odd_bytes(site):
    headers = {f"x-h{n}": f'value {n} "quoted\\" {{}} \'' for n in range(300)}
    await site.get(headers=headers)
    seen = dict(site.near.seen[-1].headers)
    assert {name: seen[name] for name in headers} == headers
    lines = b"".join(b"x-r%d: %b\r\n" % (n, b"v" * n) for n in range(300))
    site.near.answer = b"HTTP/1.1 200 OK\r\n%bcontent-length: 0\r\n\r\n" % lines
    answer = await site.raw(b"GET / HTTP/1.1\r\nhost: a.test\r\n\r\n", 1)
    got = dict(line.split(": ", 1) for line in answer.decode().split("\r\n\r\n")[0].split("\r\n")[1:])
    assert [got[f"x-r{n}"] for n in range(1, 300)] == ["v" * n for n in range(1, 300)]
    site.near.answer = OK
    await site.raw(b"GET / HTTP/1.1\r\nhost: a.test\r\nx-odd: caf\xe9 \xc3\xa9 \xff\r\n\r\n")
    assert site.near.seen[-1].get("x-odd").encode("latin-1") == b"caf\xe9 \xc3\xa9 \xff"


@pytest.mark.parametrize("extra", [{}, {"content": b"body"}], ids=["no_body", "body"])
async def test_what_is_of_one_connection_ends_here(site, extra):
    site.near.answer = (
        b"HTTP/1.1 200 OK\r\nconnection: x-foo, keep-alive, content-type\r\nx-foo: 1\r\nkeep-alive: timeout=5\r\n"
        b"proxy-authenticate: Basic\r\nproxy-connection: close\r\nte: x\r\ntrailer: y\r\nupgrade: h2c\r\ncontent-type: a/b\r\n"
        b'alt-svc: h3=":1"; ma=99\r\nalt-svc: clear\r\nx-stays: 1\r\ncontent-length: 2\r\n\r\nok'
    )
    body = extra.get("content", b"")
    answer = await site.raw(
        b"%b / HTTP/1.1\r\nHost: a.test\r\nConnection: x-secret, keep-alive, cookie\r\nX-Secret: 1\r\nKeep-Alive: timeout=5\r\n"
        b"TE: trailers\r\nTrailer: x-t\r\nProxy-Connection: keep-alive\r\nProxy-Authorization: basic x\r\nUpgrade: h2c\r\n"
        b"Cookie: a=b\r\nX-Stays: 1\r\n%b\r\n%b"
        % (b"POST" if body else b"GET", b"Content-Length: %d\r\n" % len(body) if body else b"", body)
    )
    names = {name for name, _ in site.near.seen[-1].headers}
    gone = {
        "x-secret",
        "keep-alive",
        "te",
        "trailer",
        "proxy-connection",
        "proxy-authorization",
        "upgrade",
        "connection",
    }
    assert not names & gone
    assert {"cookie", "x-stays", "via"} <= names
    fields = answer.lower().split(b"\r\n\r\n")[0]
    for name in (
        b"x-foo",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-connection",
        b"\nte:",
        b"trailer",
        b"upgrade",
        b"alt-svc",
    ):
        assert name not in fields, (name, answer)
    assert b"x-stays: 1" in fields
    assert b"content-type: a/b" in fields


async def test_where_the_request_came_from_is_told(site):
    for host in ("www.example.test", "www.example.test:8443"):
        await site.get(cf={"httpProtocol": "HTTP/2"}, headers={"host": host})
        seen = site.near.seen[-1]
        assert seen.get("x-forwarded-host") == host
        assert seen.get("x-forwarded-proto") == "http"
        assert seen.get("x-forwarded-for") is None
        assert seen.get("via") == "2 isochrone"
    for client, before, after in (
        ("192.0.2.1", None, "192.0.2.1"),
        ("192.0.2.1", "198.51.100.7", "198.51.100.7, 192.0.2.1"),
        ("192.0.2.1", "198.51.100.7, 192.0.2.1", "198.51.100.7, 192.0.2.1"),
        ("2001:db8::1", 'x", "y', 'x", "y, 2001:db8::1'),
    ):
        for method in ("GET", "POST"):
            headers = {
                "cf-connecting-ip": client,
                "via": "1.0 fred",
                "x-forwarded-host": "forged",
                "x-forwarded-proto": "gopher",
            }
            if before:
                headers["x-forwarded-for"] = before
            await site.get(headers=headers, method=method)
            seen = site.near.seen[-1]
            assert seen.get("x-forwarded-for") == after
            assert seen.get("via") == "1.0 fred, 1.1 isochrone"
            assert seen.get("x-forwarded-proto") == "http"
            assert seen.get("x-forwarded-host").startswith("127.0.0.1:")


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_what_clients_say_in_our_name_is_dropped(site, method):
    forged = {
        "x-isochrone-origin": "evil",
        "x-isochrone-colour": "9",
        "X-Isochrone-Anything": "1",
        "x-isochrone-budget-ms": "9000",
    }
    await site.get(headers=forged, method=method)
    ours = {name: value for name, value in site.near.seen[-1].headers if name.startswith("x-isochrone")}
    assert ours == {"x-isochrone-origin": "near", "x-isochrone-colour": "-1", "x-isochrone-map": "none"}


async def test_a_trace_is_continued_or_begun(site):
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    await site.get(
        headers={"traceparent": f"00-{trace}-{parent}-01", "tracestate": "rojo=1,isochrone=old,congo=2"}
    )
    seen = site.near.seen[-1]
    version, identity, hop, flags = seen.get("traceparent").split("-")
    assert (version, identity, flags) == ("00", trace, "01")
    assert hop != parent
    assert seen.get("tracestate") == "isochrone=colour:-1;map:none,rojo=1,congo=2"
    ids = set()
    for bad in (
        None,
        None,
        "",
        "00-0",
        f"00-{'0' * 32}-{parent}-01",
        f"00-{trace}-{'0' * 16}-01",
        f"ff-{trace}-{parent}-01",
        f"00-{trace.upper()}-{parent}-01",
    ):
        await site.get(headers={} if bad is None else {"traceparent": bad, "tracestate": "a=b"})
        seen = site.near.seen[-1]
        version, identity, hop, flags = seen.get("traceparent").split("-")
        assert (version, len(identity), len(hop), flags) == ("00", 32, 16, "00")
        assert seen.get("tracestate") == "isochrone=colour:-1;map:none"
        ids.add(identity)
    assert len(ids) == 8
    assert trace not in ids


async def test_websockets_pass_through_and_carry_no_alt_svc(site):
    site.near.answer = websocket
    async with site.session.ws_connect(
        site.edge.url + "/socket?x=1", headers={"x-isochrone-origin": "forged"}
    ) as socket:
        await socket.send_str("hello")
        assert await socket.receive_str(timeout=10) == "hello"
        await socket.send_bytes(b"\0\1")
        assert await socket.receive_bytes(timeout=10) == b"\0\1"
        assert "alt-svc" not in socket._response.headers
        assert socket._response.headers.getall("set-cookie") == ["a=1", "b=2"]
        assert site.near.seen[-1].get("x-isochrone-origin") == "near"
    site.near.answer = status(403)
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await site.session.ws_connect(site.edge.url + "/socket")
    assert caught.value.status == 403


async def test_seen_from_outside(site):
    response, _ = await site.get()
    timing = dict(part.strip().split(";", 1) for part in response.headers["server-timing"].split(","))
    assert timing.keys() == {"colour", "map", "origin", "edge", "tries", "reason"}
    assert timing["origin"].startswith('desc="near";dur=')
    assert timing["tries"] == 'desc="1"'
    assert timing["reason"] == 'desc="no_map:built_in"'
    site.near.answer = b"HTTP/1.1 200 OK\r\nserver-timing: db;dur=5\r\ncontent-length: 0\r\n\r\n"
    response, _ = await site.get()
    assert ", ".join(response.headers.getall("server-timing")).startswith("db;dur=5, colour")


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_whose_time_it_was_is_told_in_milliseconds(site, method):
    site.near.answer = slow(0.3)
    response, _ = await site.get(method=method)
    took = {
        name: float(ms)
        for name, ms in re.findall(r"(origin|edge);[^,]*?dur=([0-9.]+)", response.headers["server-timing"])
    }
    assert 290 <= took["origin"] < 3000
    assert took["edge"] < 290


async def test_fields_of_the_connection_go_though_none_names_them_and_none_can_name_ours(site):
    site.near.answer = b"HTTP/1.1 200 OK\r\nproxy-authenticate: Basic\r\nproxy-connection: keep-alive\r\ncontent-length: 2\r\n\r\nok"
    for method in ("GET", "POST"):
        response, _ = await site.get(method=method)
        assert not [name for name in response.headers if name.lower().startswith("proxy-")]
    site.near.answer = b"HTTP/1.1 200 OK\r\nconnection: server-timing, alt-svc\r\ncontent-length: 2\r\n\r\nok"
    for method in ("GET", "POST"):
        response, _ = await site.get(method=method)
        assert "server-timing" in response.headers


async def test_only_a_get_can_become_a_websocket(site):
    head = (
        b"POST /pay HTTP/1.1\r\nHost: www.example.test\r\nUpgrade: websocket\r\nContent-Length: 3\r\n\r\nabc"
    )
    assert (await site.raw(head)).startswith(b"HTTP/1.1 200")
    seen = site.near.seen[-1]
    assert (seen.method, seen.length, seen.get("upgrade")) == ("POST", 3, None)


@pytest.mark.parametrize("method", [b"GET", b"POST"])
async def test_several_cookies_with_bytes_that_are_no_text_keep_them(site, method):
    head = b" / HTTP/1.1\r\nHost: www.example.test\r\nCookie: a=\xe9\r\nCookie: b=1\r\n"
    body = b"Content-Length: 1\r\n\r\nx" if method == b"POST" else b"\r\n"
    assert (await site.raw(method + head + body)).startswith(b"HTTP/1.1 200")
    sent = ", ".join(site.near.seen[-1].all("cookie")).encode("latin-1")
    assert sent == b"a=\xe9, b=1"
