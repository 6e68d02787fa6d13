"""The local edge itself: real workerd, a Worker in Python, KV over REST, origins behind the mapped hosts."""

import asyncio
import contextlib
import json
import os
import signal
import ssl
import sys
from pathlib import Path

import aiohttp
import psutil
import pytest
import pytest_asyncio
import trustme
from aiohttp import web

from isochrone.lab.local_edge import (
    REPOSITORY,
    EdgeOptions,
    EdgeOrigin,
    EdgeStartError,
    LocalEdge,
    dry_run,
    node_binary,
)

pytestmark = [pytest.mark.edge, pytest.mark.asyncio(loop_scope="module")]

WORKERS = Path(__file__).parent / "workers"
NAMESPACE = "5f0e1d2c3b4a59687786a5b4c3d2e1f0"


def module_fixture(function):
    return pytest_asyncio.fixture(scope="module", loop_scope="module")(function)


class Origin:
    """One aiohttp server on two ports, plain and TLS; it tells what it was asked."""

    def __init__(self):
        self.authority = trustme.CA()
        self.runner = None
        self.plain = self.tls = ""

    @property
    def ca(self):
        return self.authority.cert_pem.bytes().decode()

    async def start(self):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.authority.issue_cert("fra.example.test").configure_cert(context)
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/redirect", self.redirect)
        app.router.add_get("/parts", self.parts)
        app.router.add_get("/socket", self.socket)
        app.router.add_route("*", "/{tail:.*}", self.tell)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        for context_or_none in (None, context):
            await web.TCPSite(self.runner, "127.0.0.1", 0, ssl_context=context_or_none).start()
        self.plain, self.tls = (f"127.0.0.1:{port}" for _, port in self.runner.addresses)

    async def tell(self, request):
        body = await request.read()
        told = {
            "method": request.method,
            "host": request.host,
            "target": request.raw_path,
            "bytes": len(body),
        }
        return web.json_response(told | {"tls": request.secure, "headers": dict(request.headers)})

    async def redirect(self, request):
        return web.Response(status=302, headers={"location": "https://elsewhere.example.test/"})

    async def parts(self, request):
        response = web.StreamResponse()
        await response.prepare(request)
        for number in range(3):
            await response.write(f"part {number};".encode())
            await asyncio.sleep(0.2)
        return response

    async def socket(self, request):
        socket = web.WebSocketResponse(protocols=["isochrone"])
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(f"heard {message.data}")
        return socket


@module_fixture
async def client():
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
        yield session


@module_fixture
async def origin():
    origin = Origin()
    await origin.start()
    yield origin
    await origin.runner.cleanup()


@module_fixture
async def inward():
    async with LocalEdge(
        main=WORKERS / "inward.py",
        vars={"PLAIN": "text", "JSON": {"depth": 3}},
        secrets={"SECRET": "hidden"},
        kv_namespaces={"STORE": NAMESPACE},
    ) as edge:
        yield edge


def unused_address():
    """An address that refuses: bound and closed again."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@module_fixture
async def outward(origin):
    async with LocalEdge(
        main=WORKERS / "outward.py",
        origins={
            "plain.example.test": EdgeOrigin(address=origin.plain),
            "fra.example.test": EdgeOrigin(address=origin.tls, tls=True, ca=origin.ca),
            "alias.example.test": EdgeOrigin(
                address=origin.tls, tls=True, ca=origin.ca, certificate_host="fra.example.test"
            ),
            "wrong-name.example.test": EdgeOrigin(address=origin.tls, tls=True, ca=origin.ca),
            "untrusted.example.test": EdgeOrigin(
                address=origin.tls, tls=True, certificate_host="fra.example.test"
            ),
            "refused.example.test": EdgeOrigin(address=unused_address()),
            "port.example.test:8443": EdgeOrigin(address=origin.plain),
        },
    ) as edge:
        yield edge


# What a request brings


async def test_the_worker_sees_the_facts_of_each_request(inward, client):
    cf = {"asn": 64500, "country": "DE", "colo": "FRA", "continent": "EU", "latitude": "50.1"}
    async with client.get(f"{inward.url}/facts?a=%20b", headers={"MF-CF-Blob": json.dumps(cf)}) as response:
        told = await response.json()
    assert response.status == 200
    assert response.headers["x-made-by"] == "python"
    assert told["cf"] == {**cf, "httpProtocol": None}
    assert told["url"] == f"{inward.url}/facts?a=%20b"
    assert told["vars"] == ["text", 3, "hidden"]


async def test_without_facts_cf_is_missing(inward, client):
    async with client.get(f"{inward.url}/facts") as response:
        assert (await response.json())["cf"] is None


async def test_the_host_of_the_client_is_kept(inward, client):
    async with client.get(f"{inward.url}/facts", headers={"Host": "www.example.test"}) as response:
        told = await response.json()
    assert told["host"] == "www.example.test"
    assert told["url"] == "http://www.example.test/facts"


# KV


def values(edge, key):
    return f"{edge.kv_api}/storage/kv/namespaces/{NAMESPACE}/values/{key}"


async def test_kv_is_shared_by_the_worker_and_the_rest_api(inward, client):
    async with client.get(f"{inward.url}/kv") as response:
        assert await response.text() == "(absent)"
    async with client.put(values(inward, "from-api"), data=b"set by REST") as response:
        assert (await response.json())["success"] is True
    async with client.get(f"{inward.url}/kv") as response:
        assert await response.text() == "set by REST"
    async with client.put(f"{inward.url}/kv", data="set by the Worker") as response:
        assert response.status == 204
    async with client.get(values(inward, "from-worker")) as response:
        assert await response.text() == "set by the Worker"
    async with client.get(values(inward, "never-set")) as response:
        assert response.status == 404
        assert (await response.json())["errors"][0]["code"] == 10009


async def test_kv_persists_in_the_folder_given(tmp_path, client):
    options = EdgeOptions(
        main=WORKERS / "inward.py", kv_namespaces={"STORE": NAMESPACE}, kv_persist=tmp_path / "kv"
    )
    async with LocalEdge(options) as edge, client.put(values(edge, "from-api"), data=b"kept") as response:
        assert response.status == 200
    async with LocalEdge(options) as edge, client.get(f"{edge.url}/kv") as response:
        assert await response.text() == "kept"


# The request path


async def test_an_exception_is_a_500_and_its_traceback_is_logged(inward, client):
    async with client.get(f"{inward.url}/raises") as response:
        assert response.status == 500
    await inward.wait_for_log("ValueError: the well is dry")
    log = "\n".join(inward.log_lines())
    assert 'File "/session/metadata/inward.py"' in log
    assert 'raise ValueError("the well is dry")' in log


async def test_an_answer_that_is_no_response_is_a_500(inward, client):
    async with client.get(f"{inward.url}/none") as response:
        assert response.status == 500
    await inward.wait_for_log("TypeError: fetch returned None, not a Response")


async def test_work_given_to_wait_until_is_done_after_the_answer(inward, client):
    async with client.get(f"{inward.url}/background") as response:
        assert await response.text() == "answered"
    await inward.wait_for_log("background work is done")
    async with client.get(values(inward, "from-background")) as response:
        assert await response.text() == "done"


async def test_work_that_fails_after_the_answer_is_logged(inward, client):
    async with client.get(f"{inward.url}/background_fails") as response:
        assert response.status == 200
    await inward.wait_for_log("RuntimeError: background work broke")


async def test_a_response_that_the_worker_streams_arrives_in_parts(inward, client):
    async with client.get(f"{inward.url}/streams") as response:
        assert await response.text() == "part 0;part 1;part 2;"


async def test_a_request_body_passes_through(inward, client):
    body = os.urandom(300_000)
    async with client.post(f"{inward.url}/echo", data=body) as response:
        assert await response.read() == body


async def test_what_the_worker_logs_comes_out(inward, client):
    async with client.get(f"{inward.url}/logs"):
        pass
    await inward.wait_for_log("printed by Python")
    await inward.wait_for_log("logged through JavaScript")


async def test_chance_is_real_once_there_are_requests(inward, client):
    drawn = set()
    for _ in range(3):
        async with client.get(f"{inward.url}/chance") as response:
            drawn.update((await response.text()).split())
    async with LocalEdge(inward.options) as other, client.get(f"{other.url}/chance") as response:
        drawn.update((await response.text()).split())
    assert len(drawn) == 8


async def test_a_cron_trigger_reaches_the_worker(inward, client):
    trigger = inward.kv_api.replace("/explorer/api", "/scheduled")
    async with client.get(trigger, params={"cron": "*/5 * * * *"}) as response:
        assert await response.text() == "ok"
    await inward.wait_for_log("cron */5 * * * *")


async def test_asyncio_and_blocking_waits_work_in_a_request(inward, client):
    async with client.get(f"{inward.url}/gathers") as response:
        assert await response.text() == "[0, 1, 2, 3, 4]"
    async with client.get(f"{inward.url}/waits") as response:
        assert await response.text() == "waited"


async def test_requests_at_once_do_not_mix(inward, client):
    async def one(number):
        async with client.post(f"{inward.url}/slow_echo", data=str(number)) as response:
            return int(await response.text())

    assert await asyncio.gather(*(one(number) for number in range(40))) == list(range(40))


async def test_clients_that_leave_do_no_harm(inward, client):
    async def leave():
        with contextlib.suppress(TimeoutError):
            await client.get(f"{inward.url}/never", timeout=aiohttp.ClientTimeout(total=0.2))

    await asyncio.gather(*(leave() for _ in range(20)))
    async with client.get(f"{inward.url}/gathers") as response:
        assert response.status == 200


# The internet as the Worker sees it


def to(target):
    return {"X-Target": target}


@pytest.mark.parametrize(
    ("target", "host", "tls"),
    [
        ("http://plain.example.test", "plain.example.test", False),
        ("https://fra.example.test", "fra.example.test", True),
        ("https://alias.example.test", "alias.example.test", True),
        ("https://port.example.test:8443", "port.example.test:8443", False),
    ],
)
async def test_a_mapped_host_is_reached(outward, client, target, host, tls):
    path = "/a//b%2Fc/%E2%82%AC?q=1&q=%zz+&empty="
    async with client.get(outward.url, headers=to(target + path)) as response:
        told = await response.json()
    assert (told["host"], told["tls"], told["target"]) == (host, tls, path)


async def test_body_and_headers_reach_the_origin(outward, client):
    async def parts():
        for _ in range(20):
            yield b"x" * 10_000

    headers = to("https://fra.example.test/upload") | {"X-Custom": "kept", "CF-Connecting-IP": "192.0.2.1"}
    async with client.post(outward.url, headers=headers, data=parts()) as response:
        told = await response.json()
    assert (told["method"], told["bytes"]) == ("POST", 200_000)
    assert told["headers"]["X-Custom"] == "kept"
    assert told["headers"]["CF-Connecting-IP"] == "192.0.2.1"
    assert "CF-Worker" not in told["headers"]  # miniflare's own Worker on the way out is left out
    assert told["headers"]["Transfer-Encoding"] == "chunked"


async def test_the_answer_arrives_while_it_is_made(outward, client):
    async with client.get(outward.url, headers=to("https://fra.example.test/parts")) as response:
        arrived = [chunk async for chunk in response.content.iter_any()]
    assert arrived == [b"part 0;", b"part 1;", b"part 2;"]


async def test_a_redirect_is_handed_on(outward, client):
    target = to("https://fra.example.test/redirect")
    async with client.get(outward.url, headers=target, allow_redirects=False) as response:
        assert response.status == 302
        assert response.headers["location"] == "https://elsewhere.example.test/"


async def test_a_web_socket_is_handed_on(outward, client):
    target = to("https://fra.example.test/socket")
    async with client.ws_connect(outward.url, headers=target, protocols=["isochrone"]) as socket:
        await socket.send_str("hello")
        assert await socket.receive_str(timeout=5) == "heard hello"
        assert socket.protocol == "isochrone"


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("nowhere.example.test", "no origin is mapped for nowhere.example.test"),
        ("port.example.test", "no origin is mapped for port.example.test"),
        ("refused.example.test", "Network connection lost"),
        ("wrong-name.example.test", "internal error"),
        ("untrusted.example.test", "internal error"),
    ],
)
async def test_what_cannot_be_reached_fails_the_fetch(outward, client, host, says):
    async with client.get(outward.url, headers=to(f"https://{host}/")) as response:
        assert response.status == 502
        assert says in await response.text()


# Starting and ending


async def test_a_javascript_worker_runs_too(tmp_path, client):
    main = tmp_path / "worker.mjs"
    (tmp_path / "part.mjs").write_text('export const greeting = "hello from JavaScript";\n')
    main.write_text(
        'import { greeting } from "./part.mjs";\nexport default { fetch: () => new Response(greeting) };\n'
    )
    async with LocalEdge(main=main) as edge, client.get(edge.url) as response:
        assert await response.text() == "hello from JavaScript"
        assert edge.kv_api == ""


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import nowhere_to_be_found\n", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("def fetch(:\n", "SyntaxError: invalid syntax"),
        ("answer = 42\n", "has no class Default"),
    ],
)
async def test_a_worker_that_cannot_start_is_one_sentence(tmp_path, source, says):
    (tmp_path / "broken.py").write_text(source)
    with pytest.raises(EdgeStartError, match="The Worker could not be started") as caught:
        async with LocalEdge(main=tmp_path / "broken.py"):
            pass
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_wrong_options_are_one_sentence(tmp_path):
    with pytest.raises(EdgeStartError, match=r"There is no Worker at .*absent\.py\.$"):
        async with LocalEdge(main=tmp_path / "absent.py"):
            pass
    with pytest.raises(EdgeStartError, match=r'The origin a\.test: "address" must be ADDRESS:PORT\.$'):
        async with LocalEdge(main=WORKERS / "inward.py", origins={"a.test": EdgeOrigin(address="a")}):
            pass
    with pytest.raises(EdgeStartError, match=r'"kvServers" must be an object of ADDRESS:PORT by binding\.$'):
        async with LocalEdge(main=WORKERS / "inward.py", kv_servers={"STORE": "here"}):
            pass
    with pytest.raises(EdgeStartError, match=r'"kvServers" names STORE, which is not in "kvNamespaces"\.$'):
        async with LocalEdge(main=WORKERS / "inward.py", kv_servers={"STORE": "127.0.0.1:1"}):
            pass


async def test_a_port_that_is_taken_is_named(inward):
    port = int(inward.url.rpartition(":")[2])
    with pytest.raises(EdgeStartError, match=str(port)):
        async with LocalEdge(main=WORKERS / "inward.py", port=port):
            pass


async def test_a_missing_node_says_what_to_do(monkeypatch):
    monkeypatch.setattr("isochrone.lab.local_edge._package_folder", lambda _name: None)
    with pytest.raises(EdgeStartError, match="make setup"):
        node_binary()


async def test_the_native_runtime_gets_the_sources_as_they_are():
    described = await dry_run(
        EdgeOptions(main=WORKERS / "inward.py", runtime="native", secrets={"S": "hush"})
    )
    config = described["workers"][0]["config"]
    modules = {module["name"]: module["type"] for module in config["manifest"]["modules"]}
    assert config["compatibilityFlags"] == ["enable_request_signal", "python_workers"]
    assert config["manifest"]["mainModule"] == "inward.py"
    assert modules["inward.py"] == "python"
    assert "python_modules/workers/__init__.py" in modules
    assert not any("pyodide" in name for name in modules)
    assert "hush" not in json.dumps(described)


async def test_the_cache_of_memory_images_heals_and_stays_small(tmp_path, client):
    for age in range(6):
        old = tmp_path / f"python-{age:032}.image"
        old.write_bytes(b"old")
        os.utime(old, (1_000_000 + age, 1_000_000 + age))
    options = EdgeOptions(main=WORKERS / "outward.py", cache=tmp_path)
    edges = [LocalEdge(options) for _ in range(2)]
    async with contextlib.AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(edge) for edge in edges))
        for edge in edges:
            async with client.get(edge.url, headers=to("https://a.test/")) as response:
                assert response.status == 502
    by_size = sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_size)
    assert sorted(path.name[-7:] for path in by_size[:-1]) == ["3.image", "4.image", "5.image"]

    whole = by_size[-1].read_bytes()
    by_size[-1].write_bytes(whole[:5_000_000] + b"?" + whole[5_000_001:])
    async with LocalEdge(options) as edge, client.get(edge.url, headers=to("https://a.test/")) as response:
        assert response.status == 502
    assert by_size[-1].stat().st_size == len(whole)


async def gone(pids, seconds=5.0):
    """Whether every process has ended (a zombie has)."""

    def alive(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        return False

    for _ in range(int(seconds / 0.05)):
        if not any(alive(pid) for pid in pids):
            return True
        await asyncio.sleep(0.05)
    return False


PARENT = """
import asyncio, pathlib, sys
from isochrone.lab.local_edge import LocalEdge

async def main():
    async with LocalEdge(main=pathlib.Path(sys.argv[1])) as edge:
        print(edge.pid, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_neither_node_nor_workerd_outlives_the_parent(how):
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(WORKERS / "outward.py"), stdout=asyncio.subprocess.PIPE
    )
    workerd = int(await parent.stdout.readline())
    children = [child.pid for child in psutil.Process(parent.pid).children(recursive=True)]
    assert workerd in children
    assert len(children) >= 2
    parent.send_signal(how)
    await parent.wait()
    assert await gone(children)


async def test_workerd_is_ended_when_node_is_killed():
    async with LocalEdge(main=WORKERS / "outward.py") as edge:
        node = psutil.Process(edge.pid).parent()
        node.kill()
        if SETPRIV:  # by the kernel, else by aclose()
            assert await gone([edge.pid])
    assert await gone([edge.pid, node.pid])


SETPRIV = Path("/usr/bin/setpriv").exists()


async def command(stdin, **kwargs):
    process = await asyncio.create_subprocess_exec(
        str(node_binary()), str(REPOSITORY / "local/edge.mjs"), stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, **kwargs,
    )  # fmt: skip
    process.stdin.write(stdin)
    return process


@pytest.mark.parametrize("document", [b"", b'{"port": 0}\n'], ids=["before", "after"])
async def test_input_that_ends_too_soon_is_one_sentence(document):
    process = await command(b"", stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate(document)
    (line,) = out.splitlines()
    assert json.loads(line)["error"].startswith("Standard input ended before ")
    assert process.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="of Linux")
async def test_output_that_can_not_be_written_is_one_sentence():
    full = os.open("/dev/full", os.O_WRONLY)
    process = await command(b'{"dryRun": true}\n', stdout=full)
    os.close(full)
    told = (await process.stderr.read()).decode()
    process.stdin.close()
    assert await process.wait() == 1
    (line,) = told.splitlines()
    assert line.startswith("Standard output can't be written to: ")


async def test_cancelling_a_start_leaves_nothing(tmp_path):
    edge = LocalEdge(main=WORKERS / "outward.py", cache=tmp_path)
    starting = asyncio.ensure_future(edge.__aenter__())
    await asyncio.sleep(1)
    children = [child.pid for child in psutil.Process().children(recursive=True)]
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    remaining = [child.pid for child in psutil.Process().children(recursive=True)]
    assert len(remaining) < len(children)
