"""One connection from the first packet to the answer, and what it showed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from isochrone.probing.prober import ProberTrouble
from isochrone.probing.quic import LATE_BOUND
from isochrone.verification.http3_faults import FAULTS
from isochrone.verification.http3_link import version_name
from isochrone.verification.http3_rules import alt_svc_troubles, region_of
from isochrone.verification.http3_session import Trouble

if TYPE_CHECKING:
    from aioquic.tls import SessionTicket

    from isochrone.verification.http3_exchange import Answer
    from isochrone.verification.http3_session import Dialler, Session

MOVE_SECONDS, MOVE_HANDSHAKES = (
    1.0,
    10,
)  # how long an answer on the new path is waited for: so long, and so many handshakes
TOO_EARLY = "425"  # RFC 8470 section 5.2: a server may want a request again that came as early data


@dataclass(slots=True)
class Visit:
    """What one connection showed. `failed`: why it ended before there was an answer; `troubles` holds that one too."""

    region: str | None = None
    troubles: list[Trouble] = field(default_factory=list)
    failed: Trouble | None = None
    handshake_ms: float | None = None
    exact: bool = True  # neither lateness of this process nor a lost packet is in handshake_ms
    lost: bool = False  # a packet of the handshake had to be sent again
    version: str = ""
    declared: dict[str, int | bool] = field(default_factory=dict)
    retried: bool = False
    ticket: SessionTicket | None = None  # the newest that the server gave
    resumed: bool = False
    early: bool = False  # 0-RTT data was accepted
    migrated: bool | None = None  # the connection survived another port; None when that was not tried

    @property
    def fatal(self) -> bool:
        """Whether anything seen is an error."""
        return any(FAULTS[trouble.kind].severity == "error" for trouble in self.troubles)


@dataclass(frozen=True, slots=True)
class Visitor:
    """Visits one address of an endpoint. `host` and `port` are what Alt-Svc promises; `now` is Unix seconds."""

    dialler: Dialler
    host: str
    port: int
    address: str
    now: float

    async def visit(
        self, *, ticket: SessionTicket | None = None, early: bool = False, move: bool = False
    ) -> Visit:
        """One connection, one request, and one more from another port when told to `move`.

        `early`: the request goes out as 0-RTT data, which `ticket` must allow.

        Raises ProberTrouble or OSError when it is this host that could not.
        """
        seen = Visit()
        session = self.dialler.open(self.address, self.port, ticket=ticket)
        try:
            await self._converse(session, seen, ticket, early=early)
            if move and seen.failed is None and not seen.fatal:
                await self._move(session, seen)
        except Trouble as trouble:
            seen.failed = trouble
            seen.troubles.append(trouble)
        finally:
            session.close()
            _note(session, seen)
        return seen

    async def _converse(
        self, session: Session, seen: Visit, ticket: SessionTicket | None, *, early: bool
    ) -> None:
        session.start()
        answer = session.ask() if early else None
        await session.shaken()
        if ticket is None:
            seen.troubles += self.dialler.certificate_troubles(session, now=self.now)
            if seen.fatal:
                return  # no client would ask anything of it
        if answer is None:
            answer = session.ask()
        await session.answered(answer)
        if early and answer.status == TOO_EARLY:
            return
        self._judge(answer, seen)
        if session.exchange.goaway:
            seen.troubles.append(Trouble("draining", "GOAWAY came beside the answer to the first request"))

    def _judge(self, answer: Answer, seen: Visit) -> None:
        settings, site = self.dialler.settings, self.dialler.site
        seen.region = region_of(answer, settings, site)
        seen.troubles += alt_svc_troubles(answer, site=site, host=self.host, port=self.port)

    async def _move(self, session: Session, seen: Visit) -> None:
        if session.link.declared().get("disable_active_migration"):
            told = "the server's transport parameters hold disable_active_migration"
            seen.troubles.append(Trouble("migration_disabled", told))
            return
        session.link.move()
        answer = session.ask()
        within = MOVE_SECONDS + MOVE_HANDSHAKES * (session.handshake_ms or 0.0) / 1000
        try:
            await session.answered(answer, within=min(within, self.dialler.settings.timeout_seconds))
            seen.migrated = True
        except Trouble as trouble:
            seen.migrated = False
            told = f"after a change of the client's port: {trouble.evidence}"
            seen.troubles.append(Trouble("migration", told))
        except ProberTrouble as trouble:
            told = f"whether the connection survives another port is not known: {trouble}"
            seen.troubles.append(Trouble("not_checked", told))


def _note(session: Session, seen: Visit) -> None:
    link = session.link
    seen.handshake_ms = session.handshake_ms
    seen.lost = (link.first_repeated or link.finished_repeated) and link.late <= LATE_BOUND
    seen.exact = link.late <= LATE_BOUND and not link.first_repeated
    seen.retried = link.retried
    seen.ticket = link.tickets[-1] if link.tickets else None
    seen.resumed, seen.early = session.exchange.resumed, session.exchange.early
    if link.completed is not None:
        seen.version, seen.declared = version_name(link.version), link.declared()
