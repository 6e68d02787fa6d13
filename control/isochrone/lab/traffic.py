"""Clients in every network of the world, asking the edge; what they got is kept for the table and the report."""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp

if TYPE_CHECKING:
    from isochrone.lab.site import LabSite
    from isochrone.lab.world import WorldClient

_DESCRIPTION = re.compile(r'([a-z]+);desc="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request came to. `region` is "" when it failed."""

    asn: int
    at: float  # loop time
    status: int
    region: str
    alt_svc: str
    map: str
    reason: str
    tries: int


@dataclass(slots=True)
class Traffic:
    """Requests from every network, round after round, over one keep-alive session."""

    site: LabSite
    session: aiohttp.ClientSession
    requests: int = 0
    failed: int = 0
    last: dict[int, Answer] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    async def ask(self, client: WorldClient) -> Answer:
        """One request from one network. A failure is counted, never raised."""
        cf = {
            "asn": client.asn, "country": client.country, "continent": client.continent, "colo": client.colo,
            "latitude": f"{client.latitude:.4f}", "longitude": f"{client.longitude:.4f}",
        }  # fmt: skip
        status, region, headers = 0, "", {}
        self.requests += 1
        try:
            async with self.session.get(
                self.site.edge.url + "/hello", headers={"MF-CF-Blob": json.dumps(cf)}
            ) as response:
                status, headers = response.status, dict(response.headers)
                body = await response.read()
                if status == 200:
                    region = json.loads(body)["region"]
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
            self.failures.append(f"AS{client.asn}: {error!r}")
        if not region:
            self.failed += 1
            if status:
                self.failures.append(f"AS{client.asn}: status {status}")
        said = dict(_DESCRIPTION.findall(headers.get("Server-Timing", "")))
        answer = Answer(
            client.asn, time.monotonic(), status, region, headers.get("Alt-Svc", ""),
            said.get("map", ""), said.get("reason", ""), int(said.get("tries", 0)),
        )  # fmt: skip
        self.last[client.asn] = answer
        return answer

    async def round(self) -> list[Answer]:
        """One request from every network, a few at a time."""
        gate = asyncio.Semaphore(4)

        async def one(client: WorldClient) -> Answer:
            async with gate:
                return await self.ask(client)

        return await asyncio.gather(*(one(client) for client in self.site.world.clients))

    def regret_ms(self, answer: Answer) -> float:
        """True round-trip time of the region that answered minus that of the best living one, in ms."""
        world, alive = self.site.world, self.site.internet.alive
        best = next(o for o in world.ranking(answer.asn) if alive(o))
        return world.true_rtt(answer.asn, answer.region) - world.true_rtt(answer.asn, best)
