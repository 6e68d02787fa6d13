"""The Worker in real workerd before origins that are told what to do, byte by byte."""

import asyncio
import base64
import contextlib
import hashlib
import json
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from isochrone.lab.local_edge import EdgeOrigin, LocalEdge
from isochrone_edge.latency_map import LatencyMap, letters
from isochrone_edge.latency_map_writer import Colour, encode

NAMESPACE = "0123456789abcdef0123456789abcdef"
SECRET = "s3cret"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@dataclass
class Seen:
    """A request as it reached an origin."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    length: int = 0
    sha256: str = ""

    def all(self, name):
        return [value for key, value in self.headers if key == name]

    def get(self, name):
        values = self.all(name)
        assert len(values) < 2, values
        return values[0] if values else None


@dataclass
class Origin:
    """An HTTP/1.1 server. `answer` is raw bytes, or a coroutine function (request, reader, writer); None tells of the request."""

    name: str
    answer: object = None
    body: object = None  # what is done in place of reading a request's body
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self.server.close()

    @property
    def place(self):
        return EdgeOrigin(address=f"127.0.0.1:{self.port}", tls=False)

    async def _serve(self, reader, writer):
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await self._one(head, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, OSError):
            pass
        finally:
            writer.close()

    async def _one(self, head, reader, writer):
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        method, target, _ = first.split(" ")
        pairs = [line.partition(":")[::2] for line in lines]
        request = Seen(method, target, [(name.lower(), value.strip()) for name, value in pairs])
        self.seen.append(request)
        if self.body is not None:
            await self.body(reader, writer)
        digest = hashlib.sha256()
        async for chunk in body_of(request, reader):
            request.length += len(chunk)
            digest.update(chunk)
        request.sha256 = digest.hexdigest()
        answer = self.answer
        if callable(answer):
            await answer(request, reader, writer)
        elif answer is not None:
            writer.write(answer)
        else:
            told = {
                "region": self.name,
                "method": method,
                "target": target,
                "length": request.length,
                "sha256": request.sha256,
            }
            body = json.dumps(told).encode()
            if method == "HEAD":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body))
            else:
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                    % (len(body), body)
                )
        await writer.drain()


async def body_of(request, reader):
    if "chunked" in (request.get("transfer-encoding") or ""):
        while True:
            size = int((await reader.readline()).strip(), 16)
            rest = size
            while rest:
                chunk = await reader.read(min(rest, 65536))
                if not chunk:
                    raise asyncio.IncompleteReadError(b"", rest)
                rest -= len(chunk)
                yield chunk
            await reader.readline()
            if not size:
                return
    left = int(request.get("content-length") or 0)
    while left:
        chunk = await reader.read(min(left, 65536))
        if not chunk:
            raise asyncio.IncompleteReadError(b"", left)
        left -= len(chunk)
        yield chunk


async def hang(request, reader, writer):
    await asyncio.sleep(30)


async def reset(request, reader, writer):
    writer.transport.abort()
    raise ConnectionResetError


def status(code, body=b"no", extra=b""):
    return b"HTTP/1.1 %d Status\r\ncontent-length: %d\r\n%b\r\n%b" % (code, len(body), extra, body)


def slow(seconds, then=OK):
    async def answer(request, reader, writer):
        await asyncio.sleep(seconds)
        writer.write(then)

    return answer


async def websocket(request, reader, writer):
    """Accepts the upgrade and says every frame back; then hangs up."""
    key = request.get("sec-websocket-key").encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    accept = base64.b64encode(hashlib.sha1(key).digest())
    writer.write(
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: "
        + accept
        + b'\r\nalt-svc: h3=":1"\r\nset-cookie: a=1\r\nset-cookie: b=2\r\n\r\n'
    )
    while True:
        first, second = await reader.readexactly(2)
        length = second & 127
        mask = await reader.readexactly(4)
        payload = bytes(b ^ mask[i % 4] for i, b in enumerate(await reader.readexactly(length)))
        if first & 15 == 8:
            writer.write(bytes([0x88, len(payload)]) + payload)
            raise ConnectionResetError
        writer.write(bytes([first, len(payload)]) + payload)
        await writer.drain()


class Site:
    """The edge, its KV, its origins and its clients."""

    def __init__(self, edge, session, origins):
        self.edge, self.session, self.origins = edge, session, origins
        self.port = int(edge.url.rpartition(":")[2])

    def __getattr__(self, name):
        try:
            return self.origins[name]
        except KeyError:
            raise AttributeError(name) from None

    def reset(self):
        for origin in self.origins.values():
            origin.answer = origin.body = None
            origin.seen.clear()

    async def put(self, key, value):
        url = f"{self.edge.kv_api}/storage/kv/namespaces/{NAMESPACE}/values/{key.replace('/', '%2F')}"
        data = aiohttp.FormData()
        data.add_field("value", value if isinstance(value, bytes) else value.encode(), filename="value")
        data.add_field("metadata", "{}")
        async with self.session.put(aiohttp.client.URL(url, encoded=True), data=data) as response:
            assert response.status == 200, await response.text()

    async def delete(self, key):
        url = f"{self.edge.kv_api}/storage/kv/namespaces/{NAMESPACE}/values/{key.replace('/', '%2F')}"
        async with self.session.delete(aiohttp.client.URL(url, encoded=True)) as response:
            assert response.status in (200, 404), await response.text()

    async def publish(self, data, canary=None, share=0.0):
        """Write a map, and a canary beside it, as the control plane does; wait until the edge uses it."""
        entry = await self.write(data)
        if canary is not None:
            entry["canary"] = {**await self.write(canary), "share": share}
        await self.put("map/current", json.dumps(entry))
        version = entry["version"]
        for _ in range(200):
            await self.get("/settle")
            told = await self.status()
            if told["map"] == version and (told["canary"] or {}).get("share") == (
                None if canary is None else share
            ):
                self.reset()
                return version
            await asyncio.sleep(0.03)
        raise AssertionError(f"the edge never took {version}: {told} {self.edge.log_lines()}")

    async def write(self, data):
        version = LatencyMap(data).version
        await self.put(f"map/{version}", data)
        return {"version": version, "key": f"map/{version}", "sha256": hashlib.sha256(data).hexdigest()}

    async def own(self, path):
        headers = {"authorization": f"Bearer {SECRET}"}
        async with self.session.get(self.edge.url + "/.isochrone/" + path, headers=headers) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def status(self):
        return await self.own("status")

    async def get(self, path="/", cf=None, method="GET", **kwargs):
        """A request, and its answer with the body read: `(response, body)`."""
        headers = kwargs.pop("headers", {})
        headers = aiohttp.client.CIMultiDict(headers)
        if cf is not None:
            headers["MF-CF-Blob"] = json.dumps(cf)
        url = aiohttp.client.URL(self.edge.url + path, encoded=True)
        async with self.session.request(
            method, url, headers=headers, allow_redirects=False, **kwargs
        ) as response:
            return response, await response.read()

    async def raw(self, data, seconds=3.0, more=0.15):
        """Bytes out, and all that comes back: until the other side closes, or is silent for `more` after a whole answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        answer = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(seconds):
                while True:
                    async with asyncio.timeout(more if is_whole(answer) else None):
                        chunk = await reader.read(65536)
                    if not chunk:
                        break
                    answer += chunk
        writer.close()
        return answer


def is_whole(answer):
    head, end, body = answer.partition(b"\r\n\r\n")
    length = head.lower().partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0]
    return bool(end) and length.isdigit() and len(body) >= int(length)


@asynccontextmanager
async def a_site(*names, dead=(), built_in=None, main=None, gate=None, **variables):
    """An edge before origins of these names, in their order; those in `dead` refuse connections.

    `main`: another Worker; `gate`: a KVGate between it and its KV.
    """
    async with AsyncExitStack() as stack:
        origins = {name: await stack.enter_async_context(Origin(name)) for name in names}
        places = {f"{name}.origins.test": origin.place for name, origin in origins.items()}
        places |= {f"{name}.origins.test": EdgeOrigin(address="127.0.0.1:1", tls=False) for name in dead}
        order = names if built_in is None else built_in
        edge = await stack.enter_async_context(
            LocalEdge(
                main=main,
                vars={
                    "ORIGINS": json.dumps([{"id": n, "host": f"{n}.origins.test"} for n in order]),
                    "MAP_REFRESH_SECONDS": "0.05",
                    **variables,
                },
                secrets={"ISOCHRONE_SECRET": SECRET},
                kv_namespaces={"LATENCY_MAP": NAMESPACE},
                kv_servers={"LATENCY_MAP": gate.address} if gate else {},
                origins=places,
            )
        )
        if gate:
            gate.serve(edge.kv_api, NAMESPACE)
        session = await stack.enter_async_context(
            aiohttp.ClientSession(auto_decompress=False, timeout=aiohttp.ClientTimeout(total=60))
        )
        yield Site(edge, session, origins)


def make_map(names, *, built_at=1000.0, orders=None, rtt_ms=None, notes=None, **entries):
    """A map of origins `names`. ASN 100 + n gets colour n; colour 0 is the default: all in order.

    Args:
        names: in the order of the default.
        orders: further colours, as lists of names.
        rtt_ms: of the default's candidates; 5, 6, 7, ... when not given.
        notes: further entries of META.
        entries: by name: what replaces the fields of that origin.
    """
    origins = [
        {"id": name, "host": f"{name}.origins.test", "state": "up", "weight": 1.0, **entries.get(name, {})}
        for name in names
    ]
    rank = {name: index for index, name in enumerate(names)}
    palette = [Colour(tuple((n, rtt_ms[n] if rtt_ms else 5.0 + n, 20) for n in range(len(names))))]
    palette += [
        Colour(tuple((rank[name], 5.0 + n, 20) for n, name in enumerate(order))) for order in orders or []
    ]
    cells = {"asn": {100 + n: n for n in range(len(palette))}, "country": {letters("FR"): 0}}
    return encode(built_at=built_at, origins=origins, palette=palette, default=0, cells=cells, notes=notes)
