"""What only several connections to an address show: does it stay one region, resume, migrate, and how fast is it beside TCP?"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from isochrone.verification.http3_session import Trouble
from isochrone.verification.http3_timing import TcpHandshakes, slower_than_tcp, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aioquic.tls import SessionTicket

    from isochrone.verification.http3_timing import Timing
    from isochrone.verification.http3_visit import Visit, Visitor

FAILURES = (
    2  # connections that fail before no more are made: one alone is no finding, unless it is half of all
)
RESUMPTIONS = 2  # tickets of which one must be taken: a server may have changed its keys just now
LOSSES = 2  # connections with lost packets that make a finding, if they are more than half of all


@dataclass(slots=True)
class Depth:
    """All connections to one address; the first of `visits` is that of the cheap check."""

    visits: list[Visit]
    samples: dict[str, list[float]] = field(default_factory=dict)  # h1, h2, h3: handshakes in ms
    resumed: bool | None = None  # None when it was not tried
    early: bool | None = None  # 0-RTT was accepted; None when it was not offered
    troubles: list[Trouble] = field(default_factory=list)  # of resumption

    @property
    def timings(self) -> dict[str, Timing | None]:
        """Handshakes of each protocol."""
        return table(self.samples)

    @property
    def regions(self) -> list[str]:
        """What answered, in order."""
        return [visit.region for visit in self.visits if visit.region is not None]


async def look_deeper(visitor: Visitor, depth: Depth, *, connections: int) -> None:
    """Fill `depth` with what `connections` more connections show.

    Raises ProberTrouble or OSError when it is this host that could not; `depth` then holds what was seen before.
    """
    settings = visitor.dialler.settings
    tcp = TcpHandshakes(visitor.dialler.site, settings.path, timeout=settings.timeout_seconds)
    depth.samples = {**tcp.samples, "h3": []}
    for number in range(connections):
        visit = await visitor.visit(move=number == connections - 1)
        depth.visits.append(visit)
        if visit.handshake_ms is not None and visit.exact:
            depth.samples["h3"].append(visit.handshake_ms)
        if sum(seen.failed is not None for seen in depth.visits) >= FAILURES:
            return
        await tcp.measure(visitor.address, visitor.port)
    await _resume(visitor, depth)


async def _resume(visitor: Visitor, depth: Depth) -> None:
    ticket = _newest(depth.visits)
    if ticket is None:
        if any(visit.failed is None for visit in depth.visits):
            depth.troubles.append(Trouble("no_tickets", f"none came on {len(depth.visits)} connection(s)"))
        return
    told = ""
    # aioquic does not send early data again after a Retry, so that none is sent to servers that ask for tokens.
    retried = any(visit.retried for visit in depth.visits)
    for _ in range(RESUMPTIONS):
        early = bool(ticket.max_early_data_size) and not retried
        visit = await visitor.visit(ticket=ticket, early=early)
        depth.resumed, retried = visit.resumed, retried or visit.retried
        if visit.failed is not None:
            told = f"a connection that takes up an earlier session fails: {visit.failed.evidence}"
        elif not visit.resumed:
            told = "the server made a full handshake though it was shown its own ticket"
        else:
            _judge_early(depth, visit, tried=early)
            return
        ticket = visit.ticket or ticket
    depth.troubles.append(Trouble("resumption", told))


def _judge_early(depth: Depth, visit: Visit, *, tried: bool) -> None:
    if tried:
        depth.early = visit.early
        if not visit.early:
            depth.troubles.append(
                Trouble("early_data", "its ticket allows early data, which the server then rejected")
            )


def _newest(visits: list[Visit]) -> SessionTicket | None:
    return next((visit.ticket for visit in reversed(visits) if visit.ticket is not None), None)


def judge(depth: Depth, *, slow_ms: float) -> Iterator[Trouble]:
    """What is wrong with all that was seen. Pure."""
    visits = depth.visits
    regions = list(dict.fromkeys(depth.regions))
    if len(regions) > 1:
        row = ", ".join(depth.regions)
        yield Trouble(
            "region_alternates", f"{len(depth.regions)} connections in a row were answered by {row}"
        )
    failed = [visit.failed for visit in visits if visit.failed is not None]
    if len(failed) >= FAILURES or len(failed) * 2 >= len(visits):
        yield Trouble("unsteady", f"{len(failed)} of {len(visits)} connections failed: {failed[0].evidence}")
    lost = sum(visit.lost for visit in visits)
    if lost >= LOSSES and lost * 2 > len(visits):
        yield Trouble("packet_loss", f"on {lost} of {len(visits)} connections packets had to be sent again")
    times = depth.samples.get("h3", [])
    if times and (median := statistics.median(times)) > slow_ms:
        yield Trouble("handshake_slow", f"median handshake {median:.0f} ms of {len(times)}")
    elif slower := slower_than_tcp(depth.timings, slow_ms=slow_ms):
        yield Trouble("slower_than_tcp", slower)
    yield from depth.troubles
    told = {trouble.kind for trouble in visits[0].troubles}
    for visit in visits[1:]:
        for trouble in visit.troubles:
            if trouble is not visit.failed and trouble.kind not in told:
                told.add(trouble.kind)
                yield trouble
