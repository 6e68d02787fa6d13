"""What the demo proves: choices, affinity, failover and return, each against the truth that the lab replays."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from isochrone.client.alt_svc import AltSvcError
from isochrone.client.errors import ClientError
from isochrone.lab.client import follow_alt_svc
from isochrone.lab.withdrawal import Withdrawal, told

if TYPE_CHECKING:
    from collections.abc import Callable

    from isochrone.lab.site import LabSite
    from isochrone.lab.traffic import Answer, Traffic

MAP_WAIT_S = 45.0
SETTLE_WAIT_S = 30.0
MOVE_WAIT_S = 90.0
PAUSE_S = 0.25
CLEAR_GAIN_MS = 5.0


class DrillError(Exception):
    """A drill did not come to its end; the message says which and what was seen."""


class Drills:
    """Runs the drills one after another and fills `report`; `say` is told what is going on."""

    def __init__(self, site: LabSite, traffic: Traffic, say: Callable[[str], None]) -> None:
        self.site, self.traffic, self.say = site, traffic, say
        self.report: dict[str, Any] = {}
        self.problems: list[str] = []

    async def wait_for_map(self) -> None:
        """Until every network is steered by a measured cell and every endpoint is promised."""
        self.say("measuring: the daemon probes every network from every region")
        began = time.monotonic()
        done = await self._until(
            lambda a: a.reason.startswith(("asn", "asn_country")) and bool(a.alt_svc), MAP_WAIT_S
        )
        if not done:
            missing = [
                a for a in self.traffic.last.values() if not a.alt_svc or not a.reason.startswith("asn")
            ]
            raise DrillError(
                f"after {MAP_WAIT_S:g} s {len(missing)} networks have no measured cell or no promised endpoint; "
                f"AS{missing[0].asn} was steered by {missing[0].reason or 'nothing'}"
            )
        self.report["map_s"] = round(time.monotonic() - began, 1)

    async def judge(self) -> None:
        """Choices against the truth, once they stand still."""
        self.say("choosing: one request from every network, judged against the true round-trip times")
        until, best = time.monotonic() + SETTLE_WAIT_S, None
        while best is None or (best[0] > 0 and time.monotonic() < until):
            answers = [a for a in await self.traffic.round() if a.region]
            regrets = [self.traffic.regret_ms(a) for a in answers]
            mean = sum(regrets) / max(1, len(regrets))
            best = (mean, sum(r > 0 for r in regrets))
            if mean <= 0.2:
                break
            await asyncio.sleep(1)
        self.report["mean_regret_ms"] = round(best[0], 3)
        self.report["wrong_choices"] = best[1]
        if best[0] > 1.0:
            self.problems.append(f"mean regret is {best[0]:.2f} ms, more than 1 ms")

    async def affinity(self) -> None:
        """Every network follows the Alt-Svc it was given by a real HTTP/3 connection and must land where it was sent."""
        self.say("affinity: every network follows its Alt-Svc over HTTP/3")
        net = self.site.internet
        offered = followed = 0
        for client in self.site.world.clients:
            answer = await self.traffic.ask(client)
            if not answer.alt_svc:
                continue
            offered += 1
            try:
                landed = await follow_alt_svc(
                    answer.alt_svc, public_host=net.public_host, hosts=net.hosts, ca_pem=net.ca_pem,
                    source_address=client.address,
                )  # fmt: skip
            except (ClientError, AltSvcError) as error:
                self.problems.append(f"AS{client.asn}: {error}")
                continue
            if landed.region == answer.region and landed.status == 200:
                followed += 1
            else:
                self.problems.append(
                    f"AS{client.asn} was sent to {answer.region} and landed in {landed.region or 'none'}"
                )
        self.report["alt_svc_offered"], self.report["alt_svc_followed_ok"] = offered, followed
        if not offered:
            self.problems.append("no Alt-Svc was offered to anybody")

    async def withdrawal(self) -> None:
        """An affinity endpoint breaks and nothing else: it is cleared at the edge, and offered again when it is mended."""
        drill = Withdrawal(self.site, self.traffic)
        self.say(f"withdrawal: HTTP/3 of {drill.victim} is blocked, its HTTP goes on")
        broken = await drill.withdrawn()
        self.report["withdrawal"] = broken.document()
        self.say(f"withdrawn after {told(broken.document())}; HTTP/3 of {drill.victim} comes back")
        mended = await drill.offered_again()
        if broken.seconds is not None:  # else nothing was withdrawn that could be offered again
            self.report["offered_again"] = mended.document()
            self.say(f"offered again after {told(mended.document())}")
            if mended.failed:
                self.problems.append(f"the mended endpoint of {drill.victim} was not offered again")
        if broken.failed:
            self.problems.append(f"the broken endpoint of {drill.victim} was never cleared at the edge")
        if drill.moved:
            self.problems.append(f"traffic left {drill.victim}, though only its HTTP/3 endpoint was broken")

    async def failover(self) -> None:
        """The origin most used dies: traffic and promises move; it comes back and so do they."""
        # Networks that gain little by it may rightly stay where they have moved to: hysteresis. The others must return.
        clear = [a for a in self.traffic.last.values() if a.region and self._margin(a.asn) > CLEAR_GAIN_MS]
        if not clear:
            raise DrillError("failover: no network has an answer from a region that is clearly its best")
        victim, count = Counter(a.region for a in clear).most_common(1)[0]
        self.say(f"failover: {victim}, clearly the best of {count} networks, is killed")
        affected = {a.asn for a in clear if a.region == victim}
        promise = self.site.internet.origins[victim].authority
        before = {a.map for a in self.traffic.last.values()}
        began = time.monotonic()
        await self.site.internet.kill_origin(victim)
        # First the edge alone; then all of it: a newer map, and nobody tries the dead origin any more.
        edge = await self._until(
            lambda a: bool(a.region) and a.region != victim and promise not in a.alt_svc, MOVE_WAIT_S
        )
        self.report["edge_failover_s"] = round(time.monotonic() - began, 2) if edge else None
        moved = edge and await self._until(
            lambda a: bool(a.region) and a.region != victim and a.map not in before and a.tries == 1,
            MOVE_WAIT_S,
        )
        self.report["failover_s"] = round(time.monotonic() - began, 2) if moved else None
        if not moved:
            self.problems.append(
                f"{MOVE_WAIT_S:g} s after {victim} died its traffic or its Alt-Svc had not moved"
            )
        self.say(f"recovery: {victim} comes back")
        began = time.monotonic()
        await self.site.internet.restart_origin(victim)
        back = await self._until(
            lambda a: a.asn not in affected or (a.region == victim and promise in a.alt_svc), MOVE_WAIT_S
        )
        self.report["recovery_s"] = round(time.monotonic() - began, 2) if back else None
        if not back:
            self.problems.append(
                f"{MOVE_WAIT_S:g} s after {victim} came back its traffic or its Alt-Svc had not"
            )

    def _margin(self, asn: int) -> float:
        first, second = self.site.world.ranking(asn)[:2]
        return self.site.world.true_rtt(asn, second) - self.site.world.true_rtt(asn, first)

    async def _until(self, good: Callable[[Answer], bool], seconds: float) -> bool:
        """Rounds of traffic until every network's answer is good; False when that takes too long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.site.check_alive()
            answers = await self.traffic.round()
            if all(good(answer) for answer in answers):
                return True
            await asyncio.sleep(PAUSE_S)
        return False
