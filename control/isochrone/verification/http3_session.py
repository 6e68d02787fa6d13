"""One connection to one address of an endpoint: handshake, certificate, request. What goes wrong is raised as Trouble."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from typing import TYPE_CHECKING

from aioquic.quic.configuration import QuicConfiguration

from isochrone.probing.prober import ProberTrouble
from isochrone.probing.quic import INITIAL_RTT, LATE_BOUND
from isochrone.probing.quic_link import LinkClosed
from isochrone.verification.certificates import told_of
from isochrone.verification.http3_exchange import Answer, Exchange
from isochrone.verification.http3_link import EndpointLink, StatelessReset
from isochrone.verification.quic_words import (
    INVALID_TOKEN,
    NO_APPLICATION_PROTOCOL,
    VERSION_FALLBACK,
    closed_in_words,
    http3_code,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aioquic.tls import SessionTicket

    from isochrone.settings import Verification
    from isochrone.verification.certificates import TrustStore

LATE_SHARE = 0.25  # of the time waited for: this process's own lateness beyond it makes the silence its own
_VERSION_REASON = "Could not find a common protocol version"  # aioquic's words; it has no code for it


class Trouble(Exception):
    """What is wrong: `kind` of http3_faults.FAULTS, the evidence, and more of it by name."""

    def __init__(self, kind: str, evidence: str, details: Mapping[str, str] | None = None) -> None:
        self.kind, self.evidence = kind, evidence
        self.details = dict(details or {})
        super().__init__(evidence)


class Dialler:
    """Makes connections that ask for the public host `site`, whichever address they lead to."""

    def __init__(self, site: str, settings: Verification, trust: TrustStore) -> None:
        self.site = site
        self.settings = settings
        self._trust = trust
        self._configuration = QuicConfiguration(
            is_client=True,
            alpn_protocols=["h3"],
            server_name=site,
            verify_mode=ssl.CERT_NONE,  # judged by TrustStore, which finds all faults, before anything is sent
            initial_rtt=INITIAL_RTT,
        )

    def open(self, address: str, port: int, *, ticket: SessionTicket | None = None) -> Session:
        """A connection that has sent nothing yet; `ticket` resumes an earlier one. Raises OSError."""
        configuration = self._configuration
        if ticket is not None:
            configuration = replace(configuration, session_ticket=ticket)
        exchange = Exchange()
        exchange.link = EndpointLink(configuration, address, port, on_event=exchange.on_event)
        return Session(self, exchange)

    def certificate_troubles(self, session: Session, *, now: float) -> list[Trouble]:
        """What is wrong with the chain that the server has shown, judged at `now` (Unix seconds)."""
        chain = session.link.peer_certificates()
        faults = self._trust.faults(chain, self.site, now=now)
        return [Trouble(f"certificate_{fault.kind}", fault.evidence, told_of(chain[0])) for fault in faults]


class Session:
    """One connection. Its methods raise Trouble, ProberTrouble, or OSError when this host can't send."""

    def __init__(self, dialler: Dialler, exchange: Exchange) -> None:
        self.exchange, self.link = exchange, exchange.link
        self._dialler = dialler
        self._timeout = dialler.settings.timeout_seconds

    @property
    def handshake_ms(self) -> float | None:
        """First packet to completed handshake."""
        link = self.link
        if link.completed is None or link.first_sent is None:
            return None
        return (link.completed - link.first_sent) * 1000

    def close(self) -> None:
        """Let go of everything."""
        self.link.close()

    def start(self) -> None:
        """Send the first flight."""
        self.link.start()

    async def shaken(self) -> None:
        """Until the handshake is complete."""
        await self._until(lambda: self.link.completed is not None, self._unfinished, _refused)

    def ask(self) -> Answer:
        """Send the request for the health document; the answer fills up as it comes."""
        return self.exchange.ask(self._dialler.site, self._dialler.settings.path)

    async def answered(self, answer: Answer, *, within: float | None = None) -> None:
        """Until the answer is whole, at most `within` seconds (else the timeout)."""
        path = self._dialler.settings.path

        def overdue(seconds: float) -> Trouble:
            if self.exchange.goaway:
                return Trouble("goaway", "GOAWAY came in place of an answer")
            if not self.link.streams_allowed:
                return Trouble("no_streams", "initial_max_streams_bidi is 0, and no MAX_STREAMS came")
            if not self.link.acknowledged:
                return Trouble(
                    "mute", f"in {seconds:g} s after the handshake nothing that was sent was acknowledged"
                )
            part = "the whole answer" if answer.status is not None else "answer"
            return Trouble("no_answer", f"connected, but no {part} to GET {path} within {seconds:g} s")

        await self._until(lambda: answer.over, overdue, self._ended, within=within)
        if answer.reset is not None:
            raise self._reset(answer.reset)

    async def _until(
        self,
        done: Callable[[], bool],
        overdue: Callable[[float], Trouble],
        ended: Callable[[LinkClosed], Trouble],
        *,
        within: float | None = None,
    ) -> None:
        seconds = self._timeout if within is None else within
        try:
            await self.link.until(done, asyncio.get_running_loop().time() + seconds)
        except TimeoutError:
            if self.link.late > max(LATE_BOUND, LATE_SHARE * seconds):
                late = self.link.late * 1000
                raise ProberTrouble(f"this verifier's event loop was late by {late:.0f} ms") from None
            raise overdue(seconds) from None
        except LinkClosed as closed:
            raise ended(closed) from None

    def _unfinished(self, seconds: float) -> Trouble:
        link = self.link
        if link.first_received is None:
            return Trouble("unreachable", f"no answer to QUIC within {seconds:g} s")
        if link.strange == link.received:
            return Trouble(
                "no_quic", f"{link.received} datagram(s) came back, none of them QUIC for this connection"
            )
        if link.retried:
            return Trouble("retry", f"a Retry packet came, and after it no handshake within {seconds:g} s")
        return Trouble(
            "handshake_timeout",
            f"the server answered, but the handshake did not complete within {seconds:g} s",
        )

    def _ended(self, closed: LinkClosed) -> Trouble:
        if isinstance(closed, StatelessReset):
            return Trouble(
                "stateless_reset", "the server answered with a stateless reset: it has lost the connection"
            )
        if closed.ours:
            return Trouble("malformed", f"the answer breaks the protocol: {closed_in_words(closed)}")
        if self.exchange.goaway:
            return Trouble(
                "goaway", f"GOAWAY came in place of an answer, then the end: {closed_in_words(closed)}"
            )
        return Trouble(
            "closed", f"the server closed the connection instead of answering: {closed_in_words(closed)}"
        )

    def _reset(self, code: int) -> Trouble:
        if self.exchange.goaway:
            return Trouble("goaway", f"GOAWAY came, and the request was reset: error {http3_code(code)}")
        if code == VERSION_FALLBACK:
            return Trouble("version_fallback", f"the request was reset: error {http3_code(code)}")
        return Trouble("reset", f"the server reset the request: error {http3_code(code)}")


def _refused(closed: LinkClosed) -> Trouble:
    """Why a handshake ended."""
    if closed.refused:
        return Trouble("port_closed", str(closed))
    if closed.error_code is None:
        return Trouble("unreachable", str(closed))
    if closed.error_code == NO_APPLICATION_PROTOCOL and not closed.application:
        return Trouble("alpn", "the server does not speak h3 (TLS alert no_application_protocol)")
    if str(closed).startswith(_VERSION_REASON):
        return Trouble("version", "the server speaks no QUIC version that clients do (1 or 2)")
    if closed.error_code == INVALID_TOKEN and not closed.application:
        return Trouble("retry", f"the server refused the token of its own Retry: {closed_in_words(closed)}")
    if closed.ours:
        return Trouble("handshake", f"the server's handshake is not valid: {closed_in_words(closed)}")
    return Trouble("handshake", f"the server ended the handshake: {closed_in_words(closed)}")
