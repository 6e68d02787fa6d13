"""The parent's side of `origins_main`: starts origins, delivers signals, knows which ones live."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from isochrone.lab.endpoints import LabError, OriginEndpoint
from isochrone.lab.process import LineProcess, Message

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

READY_S = 30.0


class Nursery:
    """The process that origins are forked from; `asns` says which client network an address belongs to."""

    def __init__(self, log: Path, asns: Mapping[str, int], *, idle_s: float) -> None:
        self.process = LineProcess("nursery", "isochrone.lab.origins_main", log=log, on_event=self._heard)
        self._asns = dict(asns)
        self._idle_s = idle_s
        self._pids: dict[str, int] = {}
        self._ready: dict[str, asyncio.Future[None]] = {}

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the living origins by id: none when the nursery is gone, the kernel ends them with it."""
        return dict(self._pids) if self.process.alive else {}

    async def start_origin(self, endpoint: OriginEndpoint) -> None:
        """Returns when both servers of the origin answer. Raises `LabError`, `LabProcessError`."""
        future = self._ready[endpoint.id] = asyncio.get_running_loop().create_future()
        answer = await self.process.ask(
            {
                "op": "start",
                "origin": {
                    "id": endpoint.id,
                    "https": endpoint.https,
                    "http3": endpoint.http3_direct,
                    "chain": str(endpoint.certificate.chain),
                    "key": str(endpoint.certificate.key),
                    "asns": self._asns,
                    "idle_s": self._idle_s,
                },
            },
            timeout=READY_S,
        )
        try:
            await asyncio.wait_for(future, READY_S)
        except TimeoutError as error:
            raise LabError(
                f"origin {endpoint.id} (process {answer['pid']}) is not ready after {READY_S:g} s"
            ) from error

    async def signal(self, origin: str, name: str) -> None:
        """KILL (returns once the process is gone), STOP, CONT or TERM. Raises `LabError`, `LabProcessError`."""
        if origin not in self.pids:
            raise LabError(f"origin {origin} is dead already")
        await self.process.ask({"op": "signal", "id": origin, "signal": name})

    def _heard(self, news: Message) -> None:
        origin = news["id"]
        match news["event"]:
            case "ready":
                self._pids[origin] = news["pid"]
                problem = None
            case "exited":
                self._pids.pop(origin, None)
                problem = f"ended with status {news['status']}"
            case _:
                problem = f"cannot serve: {news.get('error')}"
        ready = self._ready.get(origin)
        if ready is None or ready.done():
            return
        if problem is None:
            ready.set_result(None)
        else:
            ready.set_exception(LabError(f"origin {origin} {problem}"))
            ready.exception()  # marked as seen: its start may have been cancelled
