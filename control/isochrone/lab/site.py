"""A whole site on this machine: the small internet, the local edge before it, and the daemon, unchanged, beside it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from isochrone.lab.internet import LabError, SmallInternet
from isochrone.lab.local_edge import EdgeOrigin, LocalEdge

if TYPE_CHECKING:
    from types import TracebackType

    from isochrone.lab.world import World

NAMESPACE = "15c40000000000000000000000000000"
TOKEN_ENV = "ISOCHRONE_LAB_TOKEN"  # noqa: S105  a variable's name
STOP_S = 10.0


class LabSite:
    """Everything running while the context lasts. Needs no root; all traffic stays on loopback.

    Attributes:
        internet: origins, targets and the paths between them.
        edge: the Worker in real workerd.
        config: the isochrone.toml that the daemon runs with.
    """

    refresh_seconds = 1  # of the edge
    token_env = TOKEN_ENV

    def __init__(self, world: World, *, directory: Path | None = None) -> None:
        self.world = world
        self.internet = SmallInternet(world)
        self._wanted = directory
        self._stack = contextlib.AsyncExitStack()
        self._daemon: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._begin()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _begin(self) -> None:
        temporary = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="isochrone-demo-"))
        self.directory = self._wanted or Path(temporary)
        self.secret = secrets.token_urlsafe(24)
        await self._stack.enter_async_context(self.internet)
        ca = self.internet.ca_pem.read_text(encoding="ascii")
        origins = self.internet.origins.values()
        self.edge = LocalEdge(
            vars={
                "ORIGINS": json.dumps([{"id": o.id, "host": o.authority} for o in origins]),
                "MAP_REFRESH_SECONDS": str(self.refresh_seconds),  # a deployed edge keeps to 30 or more
            },
            secrets={"ISOCHRONE_SECRET": self.secret},
            kv_namespaces={"LATENCY_MAP": NAMESPACE},
            origins={
                o.authority: EdgeOrigin(
                    address=f"{o.https[0]}:{o.https[1]}", tls=True, ca=ca, certificate_host=o.host
                )
                for o in origins
            },
        )
        await self._stack.enter_async_context(self.edge)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.daemon_url = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.config = self.directory / "isochrone.toml"
        self.config.write_text(toml(self._configuration()), encoding="utf-8")
        self._stack.push_async_callback(self.stop_daemon)
        await self.start_daemon()

    async def start_daemon(self) -> None:
        """`isochrone run`, as a process of its own; its log goes to daemon.log."""
        with (self.directory / "daemon.log").open("ab") as log:
            self._daemon = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "isochrone.lab.tied_main", str(os.getpid()), "run", "-c", str(self.config),
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,  # a Ctrl-C is for the demo, which ends it when all is told
                env={**os.environ, TOKEN_ENV: "local"},
            )  # fmt: skip

    async def stop_daemon(self, how: signal.Signals = signal.SIGTERM) -> int | None:
        """End the daemon; its exit status."""
        daemon, self._daemon = self._daemon, None
        if daemon is None or daemon.returncode is not None:
            return daemon.returncode if daemon else None
        daemon.send_signal(how)
        try:
            return await asyncio.wait_for(daemon.wait(), STOP_S)
        except TimeoutError:
            daemon.kill()
            return await daemon.wait()

    def check_alive(self) -> None:
        """Raises LabError when the daemon has ended by itself, with what it said last."""
        if self._daemon is not None and self._daemon.returncode is not None:
            said = (
                (self.directory / "daemon.log")
                .read_text(encoding="utf-8", errors="replace")
                .splitlines()[-3:]
            )
            raise LabError(f"the daemon ended with status {self._daemon.returncode}: " + " / ".join(said))

    def _configuration(self) -> dict[str, Any]:
        net = self.internet
        return {
            "site": net.public_host,
            "probing": {"interval_seconds": 9, "timeout_seconds": 1.5, "concurrency": 6, "lab": True},
            "estimation": {"interval_seconds": 2, "min_samples": 2, "window_seconds": 600},
            "kv": {
                "account_id": "local", "namespace_id": NAMESPACE, "token_env": TOKEN_ENV,
                "base_url": self.edge.kv_api,
            },
            # Fast, to be seen within seconds: a real site would give its endpoints and its clients more rest. A round of checks
            # should end within half an interval, also where an endpoint is silent: 16 beginnings and the timeout take 1.95 s.
            "publishing": {"max_moved_share": 1.0, "check_seconds": 5, "refresh_seconds": 10},
            "verification": {
                "interval_seconds": 4, "timeout_seconds": 1.5, "trust_store": str(net.ca_pem), "fall": 3, "rise": 3,
            },
            "service": {"listen": self.daemon_url.removeprefix("http://")},
            "origins": [
                {
                    "id": origin.id, "host": origin.authority, "alt_svc": origin.authority,
                    "latitude": place.latitude, "longitude": place.longitude,
                    "addresses": [origin.https[0]], "source_address": origin.agent_address,
                }
                for origin, place in zip(net.origins.values(), self.world.origins, strict=True)
            ],
            "targets": [
                {
                    "address": target.address[0], "port": target.address[1], "asn": client.asn,
                    "country": client.country, "continent": client.continent, "colo": client.colo,
                    "latitude": client.latitude, "longitude": client.longitude,
                }
                for target, client in zip(net.targets.values(), self.world.clients, strict=True)
            ],
        }  # fmt: skip


def toml(document: dict[str, Any]) -> str:
    """TOML for tables and arrays of tables of plain values."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in document.items() if not _is_table(value)]
    for key, value in document.items():
        for table in (
            value if isinstance(value, list) and _is_table(value) else [value] if _is_table(value) else []
        ):
            lines += ["", f"[[{key}]]" if isinstance(value, list) else f"[{key}]"]
            lines += [f"{name} = {json.dumps(entry)}" for name, entry in table.items()]
    return "\n".join(lines) + "\n"


def _is_table(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))
