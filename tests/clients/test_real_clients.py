"""Real clients that know only the edge end up on their region's own endpoint, and leave it again when they should."""

import asyncio
import os
import shutil
import time

import pytest
import pytest_asyncio
from clients_support import IDLE, WAIT, Chromium, Curl, Fetch, a_lab, chromium_arguments
from playwright.async_api import async_playwright

pytestmark = [pytest.mark.edge, pytest.mark.asyncio(loop_scope="module")]
BROKEN = {"chromium": 4, "curl": 6, "fetch": 8}  # which of the lab's origins dies before it
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lab():
    async with a_lab() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(lab):
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("there is no chromium, which CI installs")
        pytest.skip("there is no chromium: apt-get install chromium")
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=chromium_arguments(lab), timeout=120_000
        )
        yield running
        await running.close()


@pytest.fixture(params=["chromium", "curl", "fetch"])
def new_client(request, lab, tmp_path):
    """Makes a client that knows nothing yet."""
    if request.param == "chromium":
        browser = request.getfixturevalue("browser")
        return lambda: Chromium(lab, browser)
    kind = {"curl": Curl, "fetch": Fetch}[request.param]
    return lambda: kind(lab, tmp_path)


async def until(client, wanted):
    """The first page that is as wanted; a browser finishes its first HTTP/3 handshake beside a page over TCP."""
    pages = []
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        pages.append(await client.get())
        assert pages[-1].status == 200, pages
        if wanted(pages[-1]):
            return pages[-1]
        await asyncio.sleep(0.05)
    raise AssertionError(pages[-3:])


def pinned_to(origin):
    return lambda page: (page.protocol, page.region, page.asked_over) == ("h3", origin, "3")


async def test_every_region_s_clients_end_up_on_its_own_endpoint(lab, new_client, tmp_path):
    await lab.publish()
    for origin in lab.ids:
        lab.client_of(origin)
        (tmp_path / "alt-svc.txt").unlink(missing_ok=True)
        async with new_client() as client:
            first = await client.get()
            assert (first.region, first.asked_over) == (origin, "1.1")
            assert first.protocol in {"h2", "http/1.1"}
            await until(client, pinned_to(origin))
            seen = len(lab.front.app.requests)
            await until(client, pinned_to(origin))
            assert len(lab.front.app.requests) == seen  # the edge is not asked any more


async def test_a_broken_endpoint_is_left_and_a_withdrawn_one_forgotten(lab, new_client):
    await lab.publish()
    async with new_client() as client:
        # One for each kind of client, and not the default, which waiting for a map asks again and again: after five failures
        # in a row the edge's breaker would send the next client elsewhere, and pin it there.
        broken, other = (lab.ids[BROKEN[client.name] + n] for n in range(2))
        lab.client_of(broken)
        await until(client, pinned_to(broken))
        await lab.net.kill_origin(broken)
        try:
            await lab.publish(withdrawn=[broken], endpoints=False)
            page = (
                await client.get()
            )  # the page loads all the same, from the next region, with Alt-Svc: clear
            assert (page.status, page.protocol, page.region, page.asked_over) == (200, "h2", other, "1.1")
        finally:
            await lab.net.restart_origin(broken)
        for _ in range(3):  # the endpoint is back, but nobody promises it
            page = await client.get()
            assert (page.protocol, page.asked_over) == ("h2", "1.1")


async def test_a_change_of_choice_is_followed(lab, new_client):
    await lab.publish(max_age=3)
    before, after = lab.ids[2], lab.ids[3]
    lab.client_of(before)
    async with new_client() as client:
        await until(client, pinned_to(before))
        lab.client_of(after)
        # Then `ma` is over, and the connection too, which a browser keeps for as long as it is used.
        await asyncio.sleep(IDLE + 1)
        await until(client, pinned_to(after))


async def test_curl_and_fetch_share_one_cache(lab, tmp_path):
    await lab.publish()
    for index, origin in enumerate(lab.ids):
        lab.client_of(origin)
        folder = tmp_path / str(index)  # a handle of curl's may write its cache once more when it is let go
        folder.mkdir()
        kinds = (Curl, Fetch) if index % 2 else (Fetch, Curl)
        first, second = (kind(lab, folder) for kind in kinds)
        assert (await first.get()).asked_over == "1.1"
        assert pinned_to(origin)(await second.get())
        assert pinned_to(origin)(await first.get())
