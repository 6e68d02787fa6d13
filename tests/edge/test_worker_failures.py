"""When origins refuse, hang, fail or break off: deadlines, failover, breaker, hedging, answers, and the log."""

import asyncio
import contextlib
import json
import time

import aiohttp
import pytest
import pytest_asyncio
from edge_support import OK, Origin, a_site, hang, make_map, reset, slow, status

from isochrone.lab.local_edge import LocalEdge

pytestmark = [pytest.mark.edge, pytest.mark.asyncio(loop_scope="module")]
NAMES = ("a", "b", "c", "dead")


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["on", "off"], ids=["crossing", "no_crossing"]
)
async def edge(request):
    async with a_site(
        "a",
        "b",
        "c",
        dead=("dead",),
        built_in=(),
        CROSSING=request.param,
        TRY_MS="300",
        BUDGET_MS="800",
        SLOW_MS="250",
    ) as site:
        yield site


@pytest_asyncio.fixture(loop_scope="module")
async def site(edge):
    """Each test gets a map of its own, and with it a breaker that knows nothing against anybody."""
    edge.reset()
    down = {name: {"state": "down"} for name in NAMES}
    edge.built = getattr(edge, "built", 1000) + 10
    await edge.publish(make_map(NAMES, built_at=edge.built, orders=ORDERS, **down))
    await edge.publish(make_map(NAMES, built_at=edge.built + 1, orders=ORDERS))
    assert (await edge.status())["ejected"] == {}
    return edge


ORDERS = [["dead", "a"], ["dead", "b", "a"]]
DEAD_FIRST = {"asn": 101}


def tries(response):
    return int(response.headers["server-timing"].partition('tries;desc="')[2].partition('"')[0])


async def test_refused_reset_hung_and_failing_origins_are_passed_over(site):
    response, body = await site.get(cf=DEAD_FIRST)
    assert (response.status, json.loads(body)["region"], tries(response)) == (200, "a", 2)
    for answer in (reset, hang, status(502), status(503), status(504)):
        site.a.answer = answer
        for method in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE"):
            response, _ = await site.get("/x?y=1", method=method)
            assert (response.status, tries(response)) == (200, 2), (answer, method)
            assert (site.b.seen[-1].method, site.b.seen[-1].target) == (method, "/x?y=1")
        site.a.answer = None
        await site.publish(make_map(NAMES, built_at=site.built + 2, a={"state": "down"}))
        await site.publish(make_map(NAMES, built_at=site.built + 3, orders=ORDERS))
    # 500 is not among the statuses that are configured: it is the origin's answer.
    site.a.answer = status(500, b"mine")
    response, body = await site.get()
    assert (response.status, body, tries(response)) == (500, b"mine", 1)
    assert "alt-svc" not in response.headers


async def test_only_what_may_be_repeated_is(site):
    for headers, kwargs, repeated in (
        ({}, {"method": "POST", "data": b"x"}, False),
        ({}, {"method": "PATCH"}, False),
        ({"idempotency-key": "1"}, {"method": "POST", "data": b"some"}, True),
        ({"idempotency-key": "1"}, {"method": "POST"}, True),
        ({}, {"method": "PUT", "data": b"p" * 16_384}, True),
        ({}, {"method": "PUT", "data": b"p" * 16_385}, False),
        ({"idempotency-key": "1"}, {"method": "POST", "data": parts()}, False),
    ):
        site.a.answer, site.b.answer = reset, None
        site.b.seen.clear()
        response, _ = await site.get(headers=headers, **kwargs)
        site.a.answer = None
        await site.get()  # a good answer between two failures
        if repeated:
            assert (response.status, tries(response)) == (200, 2), (headers, kwargs)
            assert site.b.seen[-1].length == len(kwargs.get("data", b""))
        else:
            assert (response.status, tries(response), site.b.seen) == (502, 1, []), (headers, kwargs)


async def parts():
    yield b"x"


async def test_nothing_sent_yet_is_sent_elsewhere_even_when_it_is_not_idempotent(site):
    """Cloudflare says with 521 to 530 that it could not connect."""
    site.a.answer = status(521)
    response, _ = await site.get(method="POST", data=b"order")
    assert (response.status, tries(response), site.b.seen[-1].length) == (200, 2, 5)


async def test_budget_and_tries(site):
    for origin in site.origins.values():
        origin.answer = hang
    for headers, least, most in (
        ({}, 0.8, 1.6),
        ({"x-isochrone-budget-ms": "200"}, 0.2, 0.7),
        ({"x-isochrone-budget-ms": "60000"}, 0.8, 1.6),
    ):
        began = time.monotonic()
        response, body = await site.get(headers=headers)
        assert least <= time.monotonic() - began + 0.02 < most
        assert response.status == 504
        assert response.headers["content-type"] == "application/problem+json"
        told = json.loads(body)
        assert (told["status"], told["title"]) == (504, "The service did not answer in time")
        assert "origins.test" not in body.decode() + str(response.headers)
    response, _ = await site.get(headers={"x-isochrone-budget-ms": "0"})
    assert response.status == 504


async def test_a_long_upload_takes_its_time_and_one_that_stands_still_does_not(site):
    async def slowly(count):
        for _ in range(count):
            await asyncio.sleep(0.1)
            yield bytes(1000)

    response, body = await site.get(
        "/up", method="POST", data=slowly(16)
    )  # 1.6 s; a try has 0.3, the budget is 0.8
    assert (response.status, json.loads(body)["length"]) == (200, 16_000)
    if site.edge.options.vars["CROSSING"] == "off":
        return  # without the module the edge can't see it

    async def endless():
        while not over.is_set():
            yield bytes(65536)
            await asyncio.sleep(0)

    async def never_reads(reader, writer):
        await asyncio.sleep(20)

    over, site.a.body = asyncio.Event(), never_reads
    began = time.monotonic()
    try:
        response, _ = await site.get("/up", method="POST", data=endless())
    finally:
        over.set()
    assert response.status == 504
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("crossing", ["on", "off"])
async def test_any_status_that_is_configured_goes_on_and_no_more_than_max_tries(crossing):
    async with a_site("a", "b", "c", RETRY_STATUSES="429,503", MAX_TRIES="2", CROSSING=crossing) as site:
        site.a.answer = status(429)
        response, body = await site.get()
        assert (response.status, json.loads(body)["region"], tries(response)) == (200, "b", 2)
        site.b.answer = status(503)
        response, _ = await site.get()
        assert (response.status, tries(response), site.c.seen) == (503, 2, [])


async def test_a_stream_is_not_cut_by_the_deadline(site):
    async def stream(request, reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(12):
            writer.write(b"1\r\nx\r\n")
            await writer.drain()
            await asyncio.sleep(0.1)
        writer.write(b"0\r\n\r\n")

    for failed in (False, True):  # what an origin that has failed lately gets can be aborted
        for method in ("GET", "POST"):
            site.a.answer = reset if failed else stream
            await site.get()
            site.a.answer = stream
            response, body = await site.get(method=method)
            assert (response.status, tries(response), body) == (200, 1, b"x" * 12)


async def test_no_origin_reachable_is_502_and_none_at_all_is_503(site):
    for origin in site.origins.values():
        origin.answer = reset
    before = (await site.status())["requests"]
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    response, body = await site.get("/secret?q=1", headers={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"})
    told = json.loads(body)
    assert (response.status, told) == (
        502, {"type": "about:blank", "title": "The service can't be reached", "status": 502, "trace_id": trace},
    )  # fmt: skip
    assert response.headers["cache-control"] == "no-store"
    line = json.loads(await site.edge.wait_for_log(trace))
    assert (line["event"], line["trace_id"]) == ("failure", trace)
    assert line["reason"] == "default:measured|unreachable"
    assert (line["path"], line["status"], line["tries"], line["map"]) == (
        "/secret",
        502,
        4,
        told_map(response),
    )
    response, body = await site.get(method="HEAD")
    assert (response.status, body) == (502, b"")
    told = (await site.status())["requests"]
    assert (told["failed"], told["refused"]) == (before["failed"] + 2, before["refused"])


def told_map(response):
    return response.headers["server-timing"].partition('map;desc="')[2].partition('"')[0]


async def test_without_any_origin_the_edge_refuses(site):
    async with a_site(built_in=()) as empty:
        response, body = await empty.get()
        assert (response.status, response.headers["retry-after"]) == (503, "5")
        assert json.loads(body)["status"] == 503
        told = (await empty.status())["requests"]
        assert (told["failed"], told["refused"]) == (0, 1)


async def test_the_last_answer_is_given_when_all_fail_with_one(site):
    for name, origin in site.origins.items():
        origin.answer = status(503, name.encode(), b"retry-after: 7\r\n")
    response, body = await site.get()
    assert (response.status, response.headers["retry-after"]) == (503, "7")
    assert body == b"c"
    site.b.answer = reset
    site.a.answer = status(599)
    response, _ = await site.get()
    assert response.status == 599


@pytest.mark.parametrize("code", [999, 100, 103, 199])
async def test_an_impossible_status_is_no_answer(site, code):
    site.a.answer = status(code)
    response, body = await site.get()
    assert (response.status, json.loads(body)["region"]) == (200, "b")


@pytest.mark.parametrize("crossing", ["on", "off"])
async def test_a_change_of_protocol_nobody_asked_for_is_no_answer(crossing):
    async with a_site("a", "b", CROSSING=crossing) as site:
        await site.publish(make_map(["a", "b"]))
        site.a.answer = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: h2c\r\n\r\n"
        for n in range(6):
            response, body = await site.get(cf={"asn": 100})
            assert (response.status, json.loads(body)["region"]) == (200, "b")
            assert tries(response) == (2 if n < 5 else 1)
        assert (await site.status())["ejected"].keys() == {"a"}


async def test_the_breaker_ejects_after_five_and_lets_no_more_than_half_go(site):
    for n in range(5):
        response, _ = await site.get(cf=DEAD_FIRST)
        assert tries(response) == 2, n
    response, _ = await site.get(cf=DEAD_FIRST)
    assert tries(response) == 1
    ejected = (await site.status())["ejected"]
    assert ejected.keys() == {"dead"}
    assert 20 < ejected["dead"] <= 30
    for origin in site.origins.values():
        origin.answer = reset
    for _ in range(8):
        await site.get()
    for origin in site.origins.values():  # all ejected: all are tried
        origin.answer = None
    response, _ = await site.get()
    assert response.status == 200


async def test_an_answer_cut_off_in_its_body_counts_and_the_origin_is_left(site):
    async def cut(request, reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 300000\r\n\r\n" + bytes(100_000))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()
        raise ConnectionResetError

    site.a.answer = cut
    failed = 0
    for _ in range(12):
        try:
            await site.get()
        except aiohttp.ClientError:
            failed += 1
        await asyncio.sleep(0.1)
    assert failed <= 3
    told = await site.status()
    assert told["ejected"].keys() == {"a"}
    assert told["requests"]["cut"] >= 2
    line = json.loads(await site.edge.wait_for_log('"event": "cut"'))
    assert (line["reason"], line["origin"]) == ("origin:reset_in_body", "a")


async def test_an_answer_that_came_whole_makes_up_for_one_cut_off(site):
    async def sometimes_cut(request, reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n" + bytes(50_000))
        await writer.drain()
        if request.target == "/cut":
            await asyncio.sleep(0.05)
            writer.transport.abort()
            raise ConnectionResetError
        writer.write(bytes(50_000))

    site.a.answer = sometimes_cut
    before = (await site.status())["requests"]["cut"]
    for path in ("/cut", "/whole", "/cut"):
        with contextlib.suppress(aiohttp.ClientError):
            await site.get(path)
        await asyncio.sleep(0.3)
    for _ in range(50):
        told = await site.status()
        if told["requests"]["cut"] == before + 2:
            break
        await asyncio.sleep(0.1)
    assert (told["requests"]["cut"], told["ejected"]) == (before + 2, {})


async def test_clients_that_leave_are_not_held_against_the_origin(site):
    async def endless(request, reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(50):
            writer.write(b"1\r\nx\r\n")
            await writer.drain()
            await asyncio.sleep(0.02)

    site.a.answer = endless
    for _ in range(8):
        response = await site.session.get(site.edge.url + "/")
        await response.content.readexactly(1)
        response.close()
    await asyncio.sleep(0.5)
    told = await site.status()
    assert told["ejected"] == {}


async def test_slow_and_repeated_requests_are_logged(site):
    trace = "a" * 32
    site.a.answer = slow(0.27)
    await site.get(
        headers={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"},
        cf={"asn": 3320, "country": "DE", "colo": "FRA"},
    )
    line = json.loads(await site.edge.wait_for_log(trace))
    assert (line["event"], line["origin"], line["asn"], line["country"], line["colo"]) == (
        "slow",
        "a",
        3320,
        "DE",
        "FRA",
    )
    assert line["origin_ms"] >= 250
    await site.get("/slow-and-plain")  # quick until its end
    assert json.loads(await site.edge.wait_for_log('"/slow-and-plain"'))["event"] == "slow"
    site.a.answer = None
    before = (await site.status())["requests"]["retried"]
    trace = "b" * 32
    await site.get(headers={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}, cf=DEAD_FIRST)
    line = json.loads(await site.edge.wait_for_log(trace))
    assert (line["event"], line["tries"], line["reason"]) == ("failover", 2, "asn:measured|unreachable")
    assert (line["trace_id"], line["colour"]) == (trace, 1)
    assert (await site.status())["requests"]["retried"] == before + 1
    trace, site.a.answer = "c" * 32, status(500)
    await site.get(headers={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"})
    line = json.loads(await site.edge.wait_for_log(trace))
    # It is the origin's own, and a failure all the same.
    assert (line["event"], line["status"], line["origin"]) == ("failure", 500, "a")


async def test_a_share_of_all_requests_is_logged_and_their_traces_say_so():
    async with a_site("a", LOG_SHARE="1") as site:
        await site.get()
        _, trace, _, flags = site.a.seen[-1].get("traceparent").split("-")
        assert flags == "01"
        assert json.loads(await site.edge.wait_for_log(trace))["event"] == "sampled"
    async with a_site("a", LOG_SHARE="0.3") as site:
        for _ in range(200):
            await site.get()
        flags = [seen.get("traceparent")[-2:] for seen in site.a.seen]
        assert 25 <= flags.count("01") <= 95
        assert flags.count("01") + flags.count("00") == 200


@pytest.mark.parametrize("crossing", ["on", "off"])
async def test_a_hedge_is_sent_after_the_usual_time_and_the_loser_is_let_go(crossing):
    async with a_site("a", "b", HEDGE="on", TRY_MS="2000", CROSSING=crossing) as site:
        # On a busy machine one of them is slower than usual itself, and takes what the bucket holds. Those that are let go
        # at once the other origin never sees: it is the edge that counts them.
        sent, hedged, before = 0, 0, -1
        while hedged != before and sent < 400:
            before = hedged
            for _ in range(40):
                await site.get()
            sent += 40
            hedged = (await site.status())["requests"]["hedged"]
        site.a.answer = slow(0.3)
        response, body = await site.get(
            method="POST", data=b"x"
        )  # there is a token for it, but it may not be repeated
        assert (response.status, tries(response), body) == (200, 1, b"ok")
        left = asyncio.Event()

        async def late(request, reader, writer):
            try:
                await asyncio.wait_for(reader.read(), 3)  # ends when the edge lets the connection go
                left.set()
            finally:
                writer.close()

        async def long(request, reader, writer):  # at the end of its answer all would be let go anyway
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nfi\r\n")
            await asyncio.wait_for(left.wait(), 1)
            writer.write(b"2\r\nne\r\n0\r\n\r\n")

        site.a.answer, site.b.answer = late, long
        response, body = await site.get()
        assert (response.status, body, tries(response)) == (200, b"fine", 2)
        site.b.answer = None
        assert (await site.status())["requests"]["hedged"] == hedged + 1
        # No more than 5 %.
        site.a.answer = slow(0.2)
        await asyncio.gather(*(site.get() for _ in range(40)))
        assert hedged + 1 < (await site.status())["requests"]["hedged"] <= 0.05 * (sent + 42)


async def test_a_burst_through_a_dead_origin_is_served(site):
    """While some are on their way to it, others make the breaker eject it: the failure is its own all the same."""
    for _ in range(3):
        answers = await asyncio.gather(*(site.get("/burst", cf=DEAD_FIRST) for _ in range(40)))
        assert {response.status for response, _ in answers} == {200}
    assert (await site.status())["ejected"].keys() == {"dead"}


async def test_nothing_is_confused_when_all_happens_at_once(site):
    """Many requests in flight, each told apart by its body; a third of them through failing origins."""
    site.a.answer = None

    async def one(number):
        payload = b"%d" % number
        response, body = await site.get(
            f"/n{number}", cf=DEAD_FIRST if number % 3 else None, method="PUT", data=payload
        )
        assert response.status == 200
        assert json.loads(body)["target"] == f"/n{number}"

    await asyncio.gather(*(one(n) for n in range(30)))
    site.a.answer = OK


async def test_a_client_that_shortens_its_budget_ejects_nobody(site):
    site.a.answer = site.b.answer = site.c.answer = slow(0.1)
    for _ in range(12):
        response, _body = await site.get(headers={"x-isochrone-budget-ms": "5"})
        assert response.status == 504
    assert (await site.status())["ejected"] == {}


async def test_all_first_requests_of_an_isolate_share_what_it_knows():
    async with a_site("a") as site:
        await asyncio.gather(*[site.get() for _ in range(8)])
        assert (await site.status())["requests"]["requests"] == 9


async def test_without_a_binding_for_the_map_requests_go_to_the_built_in_order():
    async with Origin("a") as origin:
        edge = LocalEdge(
            vars={"ORIGINS": json.dumps([{"id": "a", "host": "a.origins.test"}])},
            origins={"a.origins.test": origin.place},
        )
        async with edge, aiohttp.ClientSession() as session:
            for _ in range(3):
                async with session.get(edge.url) as response:
                    assert response.status == 200


async def test_one_url_that_always_answers_503_ejects_nobody(site):
    async def limited(request, reader, writer):
        writer.write(status(503) if request.target == "/limited" else OK)

    for origin in site.origins.values():
        origin.answer = limited
    for method in ("POST", "PUT"):
        for _ in range(6):
            response, _ = await site.get("/limited", method=method, data=b"x")
            assert response.status == 503
    site.b.answer = site.c.answer = None  # now only the first asks to wait
    site.a.answer = status(503, b"", b"retry-after: 1\r\n")
    for _ in range(6):
        response, _ = await site.get()
        assert (response.status, tries(response)) == (200, 2)
    assert (await site.status())["ejected"].keys() <= {"dead"}
    site.a.answer = status(503)
    for _ in range(5):
        await site.get()
    assert "a" in (await site.status())["ejected"]


@pytest.mark.parametrize("length", [b"2\r\ncontent-length: 2", b"2, 2", b"9007199254740993", b"-1", b"x"])
async def test_an_answer_with_an_impossible_length_is_no_answer(site, length):
    site.a.answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: " + length + b"\r\n\r\nok"
    response, body = await site.get()
    assert (response.status, json.loads(body)["region"]) == (200, "b")
    response, body = await site.get(method="POST", data=b"x")
    assert (response.status, json.loads(body)["status"]) == (502, 502)
    assert not any(seen.method == "POST" for seen in site.b.seen)
