"""A real `isochrone run` beside a small internet, and what it tells."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import aiohttp
from publishing_support import NAMESPACE

from isochrone.lab.site import toml
from ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from isochrone.lab.internet import SmallInternet

TOKEN_ENV = "ISOCHRONE_TEST_TOKEN"
MAIN = "from isochrone.cli import main; main()"


def configuration(net: SmallInternet, kv_url: str, **sections: dict[str, Any]) -> dict[str, Any]:
    """A fast daemon for this internet; sections are merged over the defaults here."""
    document: dict[str, Any] = {
        "site": net.public_host,
        "probing": {"interval_seconds": 2, "timeout_seconds": 1, "concurrency": 16, "lab": True},
        "estimation": {"interval_seconds": 1, "min_samples": 2, "window_seconds": 600},
        "kv": {
            "account_id": "local",
            "namespace_id": NAMESPACE,
            "token_env": TOKEN_ENV,
            "base_url": kv_url,
            "timeout_seconds": 5,
        },
        "publishing": {"check_seconds": 1, "max_moved_share": 1.0},
        "verification": {
            "interval_seconds": 1, "timeout_seconds": 1, "trust_store": str(net.ca_pem), "fall": 2, "rise": 2,
        },
        "service": {"listen": f"127.0.0.1:{free_port()}"},
        "origins": [
            {
                "id": origin.id, "host": origin.authority, "alt_svc": origin.authority,
                "latitude": place.latitude, "longitude": place.longitude,
                "addresses": [origin.https[0]], "source_address": origin.agent_address,
            }
            for origin, place in zip(net.origins.values(), net.world.origins, strict=True)
        ],
        "targets": [
            {
                "address": target.address[0], "port": target.address[1], "asn": client.asn,
                "country": client.country, "continent": client.continent, "colo": client.colo,
            }
            for target, client in zip(net.targets.values(), net.world.clients, strict=True)
        ],
    }  # fmt: skip
    for name, section in sections.items():
        document[name] = document.get(name, {}) | section
    return document


def write(folder: Path, document: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "isochrone.toml"
    path.write_text(toml(document))
    return path


async def command(*arguments: str, timeout: float = 60) -> tuple[int, str, str]:
    """`isochrone ...`, run to its end: status, standard output, standard error."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MAIN, *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment(),
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), timeout)
    return process.returncode or 0, out.decode(), err.decode()


def environment() -> dict[str, str]:
    return {**os.environ, TOKEN_ENV: "token"}


class RunningDaemon:
    """`isochrone run` as a process; killed at the end of the block if it is still there."""

    def __init__(self, config: Path, *options: str) -> None:
        self.config = config
        self.options = options
        self.log = config.parent / "daemon.log"
        listen = next(line for line in config.read_text().splitlines() if line.startswith("listen"))
        self.url = "http://" + listen.partition('"')[2].rstrip('"')
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", MAIN, "run", "-c", str(self.config), *self.options,
                stdout=log, stderr=log, env=environment(),
            )  # fmt: skip
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def status(self) -> dict[str, Any] | None:
        """What it tells, None while it doesn't."""
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session,
                session.get(self.url + "/status") as answer,
            ):
                return await answer.json()
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def text(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(self.url + path) as answer:
            return answer.status, await answer.text()

    async def until(self, wanted: Callable[[dict[str, Any]], Any], seconds: float = 40) -> dict[str, Any]:
        """Its status as soon as it is as wanted."""
        end = time.monotonic() + seconds
        told: dict[str, Any] | None = None
        while time.monotonic() < end:
            told = await self.status()
            if told is not None and wanted(told):
                return told
            if self._process is not None and self._process.returncode is not None:
                raise AssertionError(
                    f"the daemon ended with {self._process.returncode}:\n{self.log.read_text()}"
                )
            await asyncio.sleep(0.1)
        raise AssertionError(f"not within {seconds} s; it tells {told}\n{self.log.read_text()[-4000:]}")

    async def end(self, how: signal.Signals = signal.SIGTERM, seconds: float = 10) -> tuple[int, float]:
        """Its exit status and how long it took to end."""
        assert self._process is not None
        begun = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(how)
        status = await asyncio.wait_for(self._process.wait(), seconds)
        return status, time.monotonic() - begun
