"""A control plane and agents as processes on loopback, and the network between them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import psutil

from isochrone.lab.site import toml

HERE = Path(__file__).parent
TOKENS = {"eu-1": "token-of-eu-1", "us-1": "token-of-us-1"}
ENV = {"ISOCHRONE_TEST_KV": "x"}
PLACES = {"eu-1": (50.11, 8.68), "us-1": (39.04, -77.49)}


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def control_document(*, port: int, targets, state_dir: Path, agents=("eu-1",), origins=("eu-1",), **sections):
    """isochrone.toml of a control plane whose KV is away and whose verification asks a port that nobody has."""
    document = {
        "site": "www.example.test",
        "origins": [
            {
                "id": origin, "host": f"{origin}.example.test:9", "addresses": ["127.0.0.1"],
                "latitude": PLACES[origin][0], "longitude": PLACES[origin][1],
            }
            for origin in origins
        ],
        "agents": [{"origin": origin, "token_sha256": digest(TOKENS[origin])} for origin in agents],
        "targets": targets,
        "probing": {
            "methods": ["tcp"], "interval_seconds": 1, "timeout_seconds": 1, "lab": True, "network_rate": 1000,
            "network_burst": 1000, "target_rate": 100, "target_burst": 10,
        },
        "estimation": {"interval_seconds": 600},
        "verification": {"interval_seconds": 600, "timeout_seconds": 1},
        "kv": {
            "account_id": "a", "namespace_id": "n", "token_env": "ISOCHRONE_TEST_KV",
            "base_url": "http://127.0.0.1:9/v4", "timeout_seconds": 1,
        },
        "service": {"listen": f"127.0.0.1:{port}", "state_dir": str(state_dir)},
    }  # fmt: skip
    for name, section in sections.items():
        document[name] = document.get(name, {}) | section
    return document


def write(path: Path, document) -> Path:
    path.write_text(toml(document))
    return path


class Targets:
    """TCP servers on loopback that accept and say nothing, each in a network of its own ASN."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._servers: list[asyncio.Server] = []
        self.entries: list[dict] = []

    async def __aenter__(self):
        async def accept(_, writer):
            writer.close()

        for number in range(self._count):
            server = await asyncio.start_server(accept, "127.0.0.1", 0)
            self._servers.append(server)
            port = server.sockets[0].getsockname()[1]
            self.entries.append({"address": "127.0.0.1", "port": port, "asn": 64512 + number})
        return self

    async def __aexit__(self, *_):
        for server in self._servers:
            server.close()


class Forker:
    """forker.py as a process; what it started ends with it."""

    def __enter__(self):
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "forker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.kill()
        self._process.wait()

    def start(self, *argv: str, log: Path, **env: str) -> Running:
        order = {"argv": argv, "log": str(log), "env": ENV | env}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return Running(int(self._process.stdout.readline()))


class Running:
    """A process that somebody else reaps."""

    def __init__(self, pid: int) -> None:
        self.process = psutil.Process(pid)

    def alive(self) -> bool:
        try:
            return self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def rss(self) -> int:
        try:
            return self.process.memory_info().rss
        except psutil.Error:
            return 0

    async def kill(self, how=signal.SIGKILL, seconds: float = 30) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self.process.send_signal(how)
        end = time.monotonic() + seconds
        while self.alive():
            assert time.monotonic() < end, "it does not end"
            await asyncio.sleep(0.01)


class Relay:
    """The network between agent and control plane: carries, cuts, or loses answers.

    `cut()` resets what is open and refuses what comes until `mend()`. So many of the next batches as `breaking` says are cut off
    in their middle, so many as `losing` says are carried whole and their answers lost.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self.up = True
        self.breaking = 0
        self.losing = 0
        self.cuts = {
            "open": 0,
            "broken": 0,
            "lost": 0,
        }  # what was cut: an open connection, a request, an answer
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()
        self.cut()

    def cut(self) -> None:
        self.up = False
        self.cuts["open"] += bool(self._open)
        for writer in list(self._open):
            _reset(writer)

    @property
    def carries(self) -> bool:
        """Whether a connection is open."""
        return bool(self._open)

    def mend(self) -> None:
        self.up = True

    async def _carry(self, reader, writer) -> None:
        self._open.add(writer)
        there = None
        try:
            if not self.up:
                return
            from_there, there = await asyncio.open_connection("127.0.0.1", self._to)
            self._open.add(there)
            asked = bytearray()
            tasks = {
                asyncio.create_task(self._copy(reader, there, asked=asked)),
                asyncio.create_task(self._copy(from_there, writer, asked=asked, back=True)),
            }
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        except OSError:
            pass
        finally:
            for one in (writer, there):
                if one is not None:
                    self._open.discard(one)
                    _reset(one)

    async def _copy(self, reader, writer, *, asked, back=False) -> None:
        while data := await reader.read(4096):
            if not back:
                del asked[:-65536]
                asked += data
            batch = asked.rfind(b"POST ") > asked.rfind(b"GET ")
            if batch and not back and self.breaking:
                self.breaking -= 1
                self.cuts["broken"] += 1
                writer.write(data[: len(data) // 2])
                await writer.drain()
                return
            if batch and back and self.losing:
                self.losing -= 1
                self.cuts["lost"] += 1
                return
            writer.write(data)
            await writer.drain()


def _reset(writer) -> None:
    """RST, not FIN: what is on its way is lost."""
    sock = writer.get_extra_info("socket")
    with contextlib.suppress(OSError, AttributeError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def status(port: int):
    """What the control plane tells; None while it doesn't."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session,
            session.get(f"http://127.0.0.1:{port}/status") as answer,
        ):
            return await answer.json()
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return None


async def until(wanted, seconds: float = 60, *, log: Path | None = None):
    """What `wanted` gives as soon as it gives something; it may be a coroutine function."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = wanted()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(f"not within {seconds} s" + _tail(log))


def _tail(log: Path | None) -> str:
    return f"\n{log.read_text()[-4000:]}" if log is not None and log.exists() else ""


def environment(**env: str) -> dict[str, str]:
    return {**os.environ, **ENV, **env}
