"""The edge's cache: one copy for all regions, and each answer with the promise of the client it is given to."""

import asyncio
import gzip
import json
from hashlib import sha256

import pytest
import pytest_asyncio
from edge_support import a_site, make_map, reset

pytestmark = [pytest.mark.edge, pytest.mark.asyncio(loop_scope="module")]
NAMES = ("a", "b")
PROVED = {name: {"alt_svc": {"authority": f"{name}.origins.test:443", "ma": 60}} for name in NAMES}


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["on", "off"], ids=["crossing", "no_crossing"]
)
async def edge(request):
    async with a_site(*NAMES, CACHE_TTL_SECONDS="60", CROSSING=request.param) as site:
        await site.publish(make_map(NAMES, orders=[["b", "a"]], **PROVED))
        yield site


@pytest.fixture
def site(edge):
    edge.reset()
    return edge


def answer(extra=b"", body=b"kept", code=b"200 OK"):
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n%b\r\n%b" % (code, len(body), extra, body)


async def twice(site, path, first=None, second=None, **kwargs):
    """How often an origin was asked by two requests, and the second answer."""
    await site.get(path, headers=first or {}, **kwargs)
    await asyncio.sleep(0.1)  # the copy is kept beside the answer
    response, body = await site.get(path, headers=second or first or {}, **kwargs)
    return sum(len(origin.seen) for origin in site.origins.values()), response, body


async def test_one_copy_serves_all_regions_and_each_client_gets_its_own_promise(site):
    site.a.answer = site.b.answer = answer(b'etag: "x"\r\nalt-svc: h3=":1"\r\nserver-timing: db;dur=3\r\n')
    response, body = await site.get("/one?x=1", {"asn": 100})
    assert response.headers["alt-svc"].startswith('h3="a.origins.test')
    await asyncio.sleep(0.1)
    response, body = await site.get("/one?x=1", {"asn": 101})
    assert (response.status, body, response.headers["etag"]) == (200, b"kept", '"x"')
    assert response.headers.getall("alt-svc") == ['h3="b.origins.test:443"; ma=60; persist=1']
    assert 'cache;desc="hit"' in ", ".join(response.headers.getall("server-timing"))
    assert int(response.headers["age"]) < 10
    assert "cache-control" not in response.headers
    assert not [name for name in response.headers if name.lower().startswith("x-isochrone")]
    assert (len(site.a.seen), len(site.b.seen)) == (1, 0)
    await site.get("/one?x=2", {"asn": 100})
    assert len(site.a.seen) == 2


@pytest.mark.parametrize(
    "extra",
    [
        b"cache-control: private\r\n", b"cache-control: no-store\r\n", b"cache-control: max-age=60, no-cache\r\n",
        b"cache-control: max-age=0\r\n", b"set-cookie: a=1\r\n", b"vary: *\r\n", b"vary: accept, *\r\n",
        b"expires: Wed, 21 Oct 2020 07:28:00 GMT\r\n", b"cache-control: max-age=5\r\nage: 5\r\n",
    ],
)  # fmt: skip
async def test_what_must_not_be_kept_is_not(site, extra):
    site.a.answer = answer(extra)
    asked, _, _ = await twice(site, f"/no/{hash(extra)}")
    assert asked == 2


async def test_requests_that_no_copy_may_answer(site):
    site.a.answer = answer()
    for n, headers in enumerate(
        (
            {"authorization": "Basic x"},
            {"range": "bytes=0-1"},
            {"cache-control": "no-cache"},
            {"cache-control": "no-store"},
        )
    ):
        assert (await twice(site, f"/r{n}", headers))[0] == 2, headers
        site.a.seen.clear()
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert (await twice(site, f"/m{method}", method=method))[0] == 2
        site.a.seen.clear()


async def test_statuses(site):
    for code, kept in (
        (b"200 OK", True),
        (b"203 X", True),
        (b"301 Moved", True),
        (b"404 No", False),
        (b"500 No", False),
        (b"302 Found", False),
    ):
        site.a.answer = answer(code=code)
        assert (await twice(site, f"/s{code[:3].decode()}"))[0] == (1 if kept else 2), code
        site.a.seen.clear()
    site.a.answer = answer(b"cache-control: max-age=30\r\n", code=b"404 No")
    asked, response, _ = await twice(site, "/s404b")
    assert (asked, response.status, response.headers["cache-control"]) == (1, 404, "max-age=30")


async def test_a_client_that_has_the_copy_already_gets_304(site):
    since = "Wed, 21 Oct 2026 07:28:00 GMT"
    site.a.answer = answer(
        b'etag: "x"\r\ncontent-type: text/css\r\ncache-control: max-age=30\r\nlast-modified: %b\r\n'
        % since.encode()
    )
    for path, condition, code in (
        ("/c1", {"if-none-match": 'W/"x"'}, 304),
        ("/c2", {"if-modified-since": since}, 304),
        ("/c3", {"if-none-match": '"y"', "if-modified-since": since}, 200),
    ):
        asked, response, body = await twice(site, path, {}, condition)
        assert (asked, response.status, body) == (1, code, b"" if code == 304 else b"kept"), condition
        assert (response.headers["etag"], response.headers["cache-control"]) == ('"x"', "max-age=30")
        assert "age" in response.headers
        assert response.headers["alt-svc"].startswith('h3="a.origins.test')
        assert ("content-type" in response.headers) is (code == 200)
        site.a.seen.clear()
    assert (await twice(site, "/c4", {}, {"if-match": '"x"'}))[0] == 2
    site.a.seen.clear()
    site.a.answer = answer(b'etag: "x"\r\n', body=b"")
    asked, response, _ = await twice(site, "/c5", {}, {"if-none-match": '"x"'})
    assert (asked, response.status) == (1, 304)


async def test_vary_is_honoured(site):
    async def by_language(request, reader, writer):
        writer.write(
            answer(b"vary: Accept-Language\r\n", (request.get("accept-language") or "none").encode())
        )

    site.a.answer = by_language
    for _ in range(3):
        for language in ("de", "fr", "en"):
            response, body = await site.get("/v", headers={"accept-language": language})
            assert body == language.encode()
            assert response.headers["vary"] == "Accept-Language"
            await asyncio.sleep(0.1)
    assert len(site.a.seen) == 3


async def test_compressed_answers_pass_untouched_and_are_not_kept(site):
    body = gzip.compress(b"hello" * 1000)
    site.a.answer = answer(b"content-encoding: gzip\r\n", body)
    asked, response, got = await twice(site, "/gz", {"accept-encoding": "gzip"})
    assert (asked, got, response.headers["content-encoding"]) == (2, body, "gzip")


async def test_a_copy_answers_when_every_origin_is_gone(site):
    site.a.answer = answer()
    await site.get("/kept")
    await asyncio.sleep(0.1)

    async def gone(request, reader, writer):
        raise ConnectionResetError

    site.a.answer = site.b.answer = gone
    response, body = await site.get("/kept")
    assert (response.status, body) == (200, b"kept")
    told = await site.status()
    assert told["requests"]["cache_hits"] > 0
    assert json.dumps(told)


async def test_off_by_default():
    async with a_site("a") as site:
        site.a.answer = answer(b"cache-control: max-age=60\r\n")
        assert (await twice(site, "/off"))[0] == 2


async def test_an_answer_to_a_body_is_given_to_nobody_else(site):
    raw = b"GET /fat HTTP/1.1\r\nhost: www.example.test\r\n"
    assert b'"length": 4' in await site.raw(raw + b"content-length: 4\r\n\r\nevil")
    await asyncio.sleep(0.1)
    assert b'"length": 0' in await site.raw(raw + b"\r\n")


async def test_a_page_that_a_cookie_was_sent_for_is_not_given_to_others(site):
    alice, bob = {"cookie": "session=alice"}, {"cookie": "session=bob"}
    for number, (extra, asked) in enumerate(
        ((b"", 2), (b"cache-control: public\r\n", 1), (b"cache-control: max-age=9\r\n", 1))
    ):
        site.reset()
        site.a.answer = answer(extra)
        assert (await twice(site, f"/cookie/{number}", alice, bob))[0] == asked, extra
        site.a.seen.clear()
        assert (await twice(site, f"/cookie/{number}/none"))[0] == 1, extra  # without a cookie it is kept


async def test_a_variant_by_what_the_edge_sets_is_not_kept(site):
    for field in ("X-Isochrone-Colour", "accept, X-Forwarded-For", "Via", "TRACEPARENT"):
        site.reset()
        site.a.answer = answer(f"vary: {field}\r\n".encode())
        asked, _, _ = await twice(site, f"/set/{hash(field)}")
        assert asked == 2, field


@pytest.mark.parametrize("length", [1000, 100_000])
async def test_an_answer_that_was_cut_off_is_not_kept(site, length):
    async def cut(request, reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % length + bytes(length // 2))
        await writer.drain()
        await asyncio.sleep(0.05)
        raise ConnectionResetError

    site.a.answer = cut
    await site.raw(b"GET /cut/%d HTTP/1.1\r\nHost: www.example.test\r\nMF-CF-Blob: {}\r\n\r\n" % length)
    await asyncio.sleep(0.2)
    site.a.answer = site.b.answer = answer()
    response, body = await site.get(f"/cut/{length}", headers={"host": "www.example.test"})
    assert (response.status, body) == (200, b"kept")
    assert "cache;desc" not in response.headers["server-timing"]


async def test_a_change_ends_what_was_kept(site):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        site.reset()
        path = f"/changed/{method}"
        site.a.answer = site.b.answer = answer(body=b"old")
        assert (await twice(site, path))[0] == 1
        site.a.answer = site.b.answer = answer(code=b"500 No")
        await site.get(path, method=method, data=b"x")
        await asyncio.sleep(0.1)
        assert (await site.get(path))[1] == b"old"
        site.a.answer = site.b.answer = answer(body=b"new")
        await site.get(path, method=method, data=b"x")
        await asyncio.sleep(0.1)
        assert (await site.get(path))[1] == b"new"


async def by_language(request, reader, writer):
    body = f"{request.target} {request.get('accept-language')}".encode()
    writer.write(answer(b"vary: accept-language\r\n", body))


async def asked(site, path, *lines):
    """The body of a raw request's answer; then its copy is kept."""
    head = b"".join(line + b"\r\n" for line in lines)
    told = await site.raw(b"GET %b HTTP/1.1\r\nHost: h.test\r\n%b\r\n" % (path.encode(), head))
    await asyncio.sleep(0.1)
    return told.partition(b"\r\n\r\n")[2]


async def test_no_url_answers_for_another(site):
    site.a.answer = by_language
    variant = sha256(b"accept-language:fr").hexdigest()[:32]
    await asked(site, "/p", b"accept-language: en")
    for dots in ("..", "%2e%2e", "../../.."):
        for language in (b"1", b"2", b"fr"):
            await asked(site, f"/{dots}/{variant}/p", b"accept-language: " + language)
    assert await asked(site, "/p", b"accept-language: fr") == b"/p fr"
    assert await asked(site, "/x/../p", b"accept-language: en") == b"/p en"


async def test_what_the_origin_does_not_see_chooses_no_copy(site):
    site.a.answer = by_language
    await asked(site, "/named", b"connection: accept-language", b"accept-language: de")
    assert await asked(site, "/named", b"accept-language: de") == b"/named de"


async def test_bytes_that_are_no_text_choose_no_copy(site):
    async def by_user(request, reader, writer):
        writer.write(
            answer(b"vary: x-user\r\ncache-control: max-age=50\r\n", request.get("x-user").encode("latin-1"))
        )

    site.a.answer = by_user
    assert await asked(site, "/user", b"x-user: \xe9") == b"\xe9"
    assert await asked(site, "/user", b"x-user: \xe8") == b"\xe8"


async def test_a_change_ends_all_variants_and_what_is_on_its_way(site):
    site.a.answer = by_language
    for language in (b"en", b"fr"):
        await asked(site, "/v", b"accept-language: " + language)
    site.a.answer = None
    await site.get("/v", method="PUT", data=b"new", headers={"host": "h.test"})
    await asyncio.sleep(0.1)
    site.a.answer = answer(b"vary: accept-language\r\n", b"new")
    for language in (b"en", b"fr"):
        assert await asked(site, "/v", b"accept-language: " + language) == b"new"

    begun, changed = asyncio.Event(), asyncio.Event()

    async def slow(request, reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nol")
        begun.set()
        await asyncio.wait_for(changed.wait(), 5)
        writer.write(b"d1")

    site.a.answer = slow
    old = asyncio.ensure_future(site.get("/w"))
    await asyncio.wait_for(begun.wait(), 5)
    site.a.answer = None
    await site.get("/w", method="PUT", data=b"new")
    await asyncio.sleep(0.1)
    changed.set()
    assert (await old)[1] == b"old1"
    await asyncio.sleep(0.1)
    site.a.answer = answer(body=b"new")
    assert (await site.get("/w"))[1] == b"new"
    await asyncio.sleep(0.1)
    asked_before = len(site.a.seen)
    assert (await site.get("/w"))[1] == b"new"
    assert len(site.a.seen) == asked_before  # and then there is a copy again


async def test_a_copy_s_end_tells_nothing_of_an_origin(site):
    site.a.answer = answer(body=bytes(20_000))
    await site.get("/logo")
    await asyncio.sleep(0.1)
    site.a.answer = reset
    for number in range(5):
        response, _ = await site.get("/logo")
        assert 'cache;desc="hit"' in ", ".join(response.headers.getall("server-timing"))
        await site.get(f"/dead{number}")
    assert (await site.status())["ejected"].keys() == {"a"}
    response, _ = await site.get("/logo")
    assert response.headers["alt-svc"].startswith('h3="b.origins.test')  # where its next request goes, too
    assert (await site.status())["ejected"].keys() == {"a"}
    await site.publish(make_map(NAMES, built_at=1001, orders=[["b", "a"]], a={"state": "down"}))
    await site.publish(make_map(NAMES, built_at=1002, orders=[["b", "a"]], **PROVED))


async def test_what_is_of_the_connection_is_not_in_a_copy(site):
    site.a.answer = answer(b"connection: x-internal\r\nx-internal: secret\r\n")
    count, response, _ = await twice(site, "/internal")
    assert (count, "x-internal" in response.headers) == (1, False)


async def test_the_time_that_a_body_takes_is_none_of_its_copy_s(site):
    async def slow(request, reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncache-control: max-age=2\r\ncontent-length: 4\r\n\r\nol")
        await asyncio.sleep(1.2)
        writer.write(b"d1")

    site.a.answer = slow
    await site.get("/late")
    await asyncio.sleep(1.3)
    site.a.answer = answer(body=b"new")
    assert (await site.get("/late"))[1] == b"new"


async def test_slow_clients_of_answers_that_are_kept_are_few(site):
    site.a.answer = answer(body=bytes(8 << 20))
    before, slow = (await site.status())["requests"]["cache_stored"], []
    for number in range(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port, limit=1024)
        writer.write(b"GET /large%d HTTP/1.1\r\nHost: h.test\r\n\r\n" % number)
        await reader.readline()
        slow.append(writer)
        await asyncio.sleep(0.3)
    assert (await site.status())["requests"]["cache_stored"] == before + 2  # HELD_BYTES
    for writer in slow:
        writer.transport.abort()
    for _ in range(100):  # they are let go, and copies are made again
        await site.get("/large-again")
        await asyncio.sleep(0.1)
        if (await site.status())["requests"]["cache_stored"] > before + 2:
            return
    raise AssertionError("what was held was never given back")


async def test_an_origin_has_no_say_in_how_copies_are_kept(site):
    site.a.answer = answer(b"x-isochrone-kept-cache-control: evil\r\nx-isochrone-kept-vary: evil\r\n")
    asked, response, _ = await twice(site, "/evil")
    assert asked == 1
    assert "evil" not in str(response.headers)
