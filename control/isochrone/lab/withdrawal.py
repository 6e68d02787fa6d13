"""How long a broken affinity endpoint goes on being offered: measured at the edge, beside the bound that the settings give.

Only the endpoint breaks: its UDP is blocked while the origin answers HTTP as before, so that nothing but verification can notice.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp

from isochrone.lab.endpoints import LabError
from isochrone.settings import load

if TYPE_CHECKING:
    from collections.abc import Callable

    from isochrone.lab.site import LabSite
    from isochrone.lab.traffic import Answer, Traffic

WAIT_S = 60.0
MANY_LEFT_OUT = (
    5  # rounds of checks: with so many the machine was too busy to say anything of what it measured
)
PAUSE_S = 0.05
STATUS_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a promise, in seconds. A figure is None when it was not seen."""

    seconds: float | None  # from the cause to the first answer of the edge that shows it
    publish_s: float | None  # of that: from the verdict until the map was live
    rounds: int  # `fall` or `rise`
    interval_s: float
    refresh_s: float
    check_s: float  # what the last check may take beyond its interval
    #: rounds of checks until the verdict that proved nothing, or were skipped, because the machine was late: each costs an interval
    #: more than the bound allows for
    left_out: int

    @property
    def failed(self) -> bool:
        """Whether it was not seen though the machine could have seen it."""
        return self.seconds is None and self.left_out < MANY_LEFT_OUT

    @property
    def bound_s(self) -> float | None:
        """As many check intervals as rounds, then publish and refresh.

        The first check comes at most an interval later. To withdraw, the others come half an interval apart, which leaves the last one
        time for its silence; to offer again, they come an interval apart, and the last one takes `check_s` more.
        """
        if self.publish_s is None:
            return None
        return self.rounds * self.interval_s + self.check_s + self.publish_s + self.refresh_s

    def document(self) -> dict[str, Any]:
        """For the demo's report."""
        return {
            "seconds": _rounded(self.seconds), "bound_s": _rounded(self.bound_s), "checks": self.rounds,
            "check_interval_s": self.interval_s, "check_s": self.check_s, "publish_s": _rounded(self.publish_s),
            "refresh_s": self.refresh_s, "rounds_left_out": self.left_out,
        }  # fmt: skip


def told(change: dict[str, Any]) -> str:
    """A change's document in words."""
    late = change["rounds_left_out"]
    if change["seconds"] is None or change["bound_s"] is None:
        return f"more than {WAIT_S:g} s; rounds of checks left out because this machine was late: {late}"
    last = f", the last check up to {change['check_s']:g} s" if change["check_s"] else ""
    more = f"; beyond it, rounds of checks left out because this machine was late: {late}" if late else ""
    return (
        f"{change['seconds']} s (bound {change['bound_s']} s: {change['checks']} check intervals of {change['check_interval_s']:g} s{last}, "
        f"publish {change['publish_s']} s, refresh {change['refresh_s']:g} s{more})"
    )


class Withdrawal:
    """Breaks the endpoint of the region most used, waits until the edge clears it, mends it, waits until it is offered again."""

    def __init__(self, site: LabSite, traffic: Traffic) -> None:
        self.site, self.traffic = site, traffic
        promised = [answer for answer in traffic.last.values() if answer.region and answer.alt_svc]
        self.victim = Counter(answer.region for answer in promised).most_common(1)[0][0]
        self._authority = site.internet.origins[self.victim].authority
        asn = next(answer.asn for answer in promised if answer.region == self.victim)
        self._client = site.world.client(asn)
        self._verification = load(site.config, {site.token_env: "local"}).verification
        self.moved = False  # whether the client was sent to another region meanwhile

    async def withdrawn(self) -> Change:
        """Until the edge answers `Alt-Svc: clear`."""
        return await self._change(
            1.0, lambda answer: answer.alt_svc == "clear", offered=False, rounds=self._verification.fall
        )

    async def offered_again(self) -> Change:
        """Until the edge offers it again."""
        return await self._change(
            0.0,
            lambda answer: self._authority in answer.alt_svc,
            offered=True,
            rounds=self._verification.rise,
        )

    async def _change(
        self, loss: float, good: Callable[[Answer], bool], *, offered: bool, rounds: int
    ) -> Change:
        before = _rounds_of(await self._status())
        began = time.monotonic()
        await self.site.internet.set_http3_loss(self.victim, loss)
        publishing = asyncio.create_task(self._verdict_and_publish(offered=offered))
        seconds = None
        while seconds is None and time.monotonic() - began < WAIT_S:
            self.site.check_alive()
            answer = await self.traffic.ask(self._client)
            self.moved |= answer.region != self.victim
            if good(answer):
                seconds = time.monotonic() - began
            else:
                await asyncio.sleep(PAUSE_S)
        if seconds is None:
            publishing.cancel()
        try:
            publish_s, made = await publishing
        except asyncio.CancelledError:
            publish_s, made = None, _rounds_of(await self._status())
        # The round under way when the cause began may be one more.
        return Change(
            seconds, publish_s, rounds, self._verification.interval_seconds,
            self.site.refresh_seconds, self._verification.timeout_seconds if offered else 0.0,
            max(0, made - before - rounds - 1),
        )  # fmt: skip

    async def _verdict_and_publish(self, *, offered: bool) -> tuple[float, int]:
        """Seconds from the verdict to the live map, and the rounds of checks due up to the verdict, as the daemon tells both."""
        verdict, rounds = None, 0
        while True:
            status = await self._status()
            endpoint = next(o["endpoint"] for o in status["origins"] if o["id"] == self.victim)
            if verdict is None and endpoint["offered"] is offered:
                verdict, rounds = float(endpoint["changed_at"]), _rounds_of(status)
            if verdict is not None and (self.victim in status["map"]["alt_svc"]) is offered:
                return float(status["now"]) - verdict, rounds
            await asyncio.sleep(STATUS_PAUSE_S)

    async def _status(self) -> dict[str, Any]:
        try:
            async with self.traffic.session.get(self.site.daemon_url + "/status") as response:
                status: dict[str, Any] = await response.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise LabError(f"the daemon does not answer /status: {error!r}") from None
        return status


def _rounds_of(status: dict[str, Any]) -> int:
    job = status["jobs"]["http3"]
    return int(job["runs"]) + int(job["skipped"])


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)
