"""Clients that are slow with a body, fall silent, or leave: it is never held against an origin."""

import asyncio
import json

import pytest
import pytest_asyncio
from edge_support import a_site, make_map, reset, slow

pytestmark = [pytest.mark.edge, pytest.mark.asyncio(loop_scope="module")]
NAMES = ("a", "b")
ENOUGH = 6  # one more than failures in a row eject an origin


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["on", "off"], ids=["crossing", "no_crossing"]
)
async def edge(request):
    async with a_site(*NAMES, CROSSING=request.param, TRY_MS="500", BUDGET_MS="1200") as site:
        site.watches = request.param == "on"
        site.built = 1000
        yield site


@pytest_asyncio.fixture(loop_scope="module")
async def site(edge):
    """The breaker knows nothing against anybody."""
    edge.reset()
    edge.built += 10
    down = {name: {"state": "down"} for name in NAMES}
    await edge.publish(make_map(NAMES, built_at=edge.built, **down))
    await edge.publish(make_map(NAMES, built_at=edge.built + 1))
    return edge


async def begun(site, method, length, body=b"x"):
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(b"%b /up HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (method, length, body))
    await writer.drain()
    return reader, writer


async def nobody_is_blamed(site):
    assert (await site.status())["ejected"] == {}
    response, body = await site.get()
    assert (response.status, json.loads(body)["region"]) == (200, "a")
    assert 'tries;desc="1"' in response.headers["server-timing"]


async def test_clients_that_leave_in_their_upload_eject_nobody(site):
    for method in (b"POST", b"PUT", b"GET"):
        for length in (100, 100_000):  # a body that is kept, and one that is streamed
            opened = await asyncio.gather(*(begun(site, method, length, b"xx") for _ in range(ENOUGH)))
            await asyncio.sleep(0.05)
            for _, writer in opened:
                writer.transport.abort()
    await asyncio.sleep(0.7)  # a try's time
    await nobody_is_blamed(site)


async def test_clients_that_leave_before_the_answer_eject_nobody(site):
    site.a.answer = slow(0.3)
    for method in (b"PUT", b"POST"):
        for length in (2, 20_000):
            opened = await asyncio.gather(
                *(begun(site, method, length, bytes(length)) for _ in range(ENOUGH))
            )
            await asyncio.sleep(0.15)
            for _, writer in opened:
                writer.transport.abort()
    await asyncio.sleep(0.5)
    site.a.answer = None
    await nobody_is_blamed(site)


@pytest.mark.parametrize("length", [100, 100_000], ids=["kept", "streamed"])
async def test_clients_that_fall_silent_get_408_and_eject_nobody(site, length):
    if length > 16384 and not site.watches:
        pytest.skip("without the module a stream is not watched")

    async def one():
        reader, writer = await begun(site, b"POST", length)
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        writer.close()
        return answer

    answers = await asyncio.gather(*(one() for _ in range(ENOUGH)))
    assert {answer.split(b"\r\n")[0] for answer in answers} == {b"HTTP/1.1 408 Request Timeout"}
    line = json.loads(await site.edge.wait_for_log('"status":408'))
    assert (line["reason"], line["origin"]) == ("default:measured|client:body", "")
    await nobody_is_blamed(site)


async def test_a_get_with_a_body_goes_through_and_its_silence_ejects_nobody(site):
    response, body = await site.get("/search", data=b"q" * 100_000)
    told = json.loads(body)
    assert (response.status, told["method"], told["length"]) == (200, "GET", 100_000)
    opened = await asyncio.gather(*(begun(site, b"GET", 100) for _ in range(ENOUGH)))
    await asyncio.sleep(1.0)
    for _, writer in opened:
        writer.close()
    await nobody_is_blamed(site)


async def test_a_slow_small_body_takes_its_time_and_is_whole_at_each_try(site):
    """1.5 s for 15 parts; a try has 0.5 s, the budget is 1.2 s. The first origin fails once it has the body."""
    site.a.answer = reset
    reader, writer = await begun(site, b"PUT", 15, b"")
    for _ in range(15):
        await asyncio.sleep(0.1)
        writer.write(b"p")
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer
    assert (site.a.seen[-1].length, site.b.seen[-1].length) == (15, 15)
    assert site.b.seen[-1].all("content-length") == ["15"]


async def test_an_origin_that_is_slow_over_a_whole_body_is_still_blamed(site):
    site.a.answer = slow(2)
    for _ in range(5):
        response, _ = await site.get("/up", method="PUT", data=b"x")
        assert response.status == 200
    assert (await site.status())["ejected"].keys() == {"a"}


@pytest.mark.parametrize("how", ["abort", "no chunk", "end"])
async def test_a_chunked_upload_that_breaks_off_never_ends_as_if_it_were_whole(site, how):
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(
        b"POST /upload HTTP/1.1\r\nHost: www.example.test\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nfirst-16-bytes--\r\n"
    )
    for _ in range(500):
        if site.a.seen and site.a.seen[-1].length == 16:
            break
        await asyncio.sleep(0.01)
    if how == "abort":
        writer.transport.abort()
    elif how == "no chunk":
        writer.write(b"zz\r\n")
    else:
        writer.write_eof()
    if how != "abort":
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        assert head.split(b" ")[1] == (b"400" if site.watches else b"502")
    writer.close()
    await asyncio.sleep(0.3)
    (seen,) = site.a.seen
    assert (seen.length, seen.sha256) == (16, "")  # never read to its end
    await nobody_is_blamed(site)


async def test_a_length_beyond_all_numbers_ejects_nobody(site):
    for length in (2**53, 2**63 - 1):
        for _ in range(ENOUGH):
            head = b"POST / HTTP/1.1\r\nHost: www.example.test\r\nContent-Length: %d\r\n\r\nabc" % length
            if site.watches:
                assert (await site.raw(head)).split(b" ")[1] == b"400"
            else:
                _, writer = await begun(site, b"POST", length, b"abc")
                writer.close()
    await nobody_is_blamed(site)
