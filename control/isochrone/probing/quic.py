"""QUIC handshake probes (RFC 9000, 9001) with aioquic.

Three exchanges, each an upper bound of the network's round trip: our first Initial until the server's first datagram (holds the
server's key exchange and signature), our Finished until the server's confirmation (holds the check of it, session tickets), and
PING until its acknowledgement (holds next to nothing, unless the server delays it). The smallest of those that were not sent twice
is the sample. aioquic's own estimator cannot tell less than 1 ms and counts its own CPU time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import replace
from typing import TYPE_CHECKING

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.packet import QuicProtocolVersion
from aioquic.tls import CipherSuite

from isochrone.probing.prober import LATE_BOUND as LATE_BOUND  # noqa: PLC0414  its users know it from here
from isochrone.probing.prober import TargetTrouble, attempt, is_address, silence
from isochrone.probing.quic_link import LinkClosed, QuicLink

if TYPE_CHECKING:
    from isochrone.model import Target
    from isochrone.probing.prober import Gate, ProbeResult

INITIAL_RTT = (
    0.333  # seconds, RFC 9002 section 6.2.2: the Initial is repeated after twice this, beyond any real path
)
CONFIRM_SLACK = 0.05  # seconds beyond the first exchange's time that the confirmation is waited for

_ALERTS = {
    40: "handshake_failure",
    42: "bad_certificate",
    49: "access_denied",
    80: "internal_error",
    109: "missing_extension",
    112: "unrecognized_name",
    120: "no_application_protocol",
}  # fmt: skip  RFC 8446 section 6


class QuicProber:
    """A full handshake with ALPN h3, closed as soon as the server has confirmed it.

    The certificate is not verified: targets are whatever answers inside an ASN, and nothing is sent to them.
    """

    method = "quic"

    def __init__(self, *, gate: Gate | None = None) -> None:
        self._gate = gate
        # One version and one cipher suite (which every server must have, RFC 8446 section 9.1): keys for others would
        # be derived for each probe and thrown away.
        self._configuration = QuicConfiguration(
            is_client=True,
            alpn_protocols=["h3"],
            verify_mode=ssl.CERT_NONE,
            initial_rtt=INITIAL_RTT,
            cipher_suites=[CipherSuite.AES_128_GCM_SHA256],
            supported_versions=[QuicProtocolVersion.VERSION_1],
        )

    async def run_once(
        self, target: Target, *, source_address: str | None = None, timeout: float
    ) -> ProbeResult:
        """Resolve (if it is a name), shake hands, close; ended after `timeout` seconds."""

        async def measure(address: str, deadline: float, phases: dict[str, float]) -> tuple[float, str]:
            link = QuicLink(
                self.configuration_for(target),
                address,
                target.port,
                source_address=source_address,
                anonymous=True,
            )
            try:
                link.start()
                return await shake_hands(link, deadline=deadline, timeout=timeout), ""
            finally:
                link.close()
                phases |= _phases(link)

        return await attempt(target, measure, timeout=timeout, gate=self._gate)

    def configuration_for(self, target: Target) -> QuicConfiguration:
        """Without a name there is no server name to send (RFC 6066 section 3)."""
        if is_address(target.address):
            return self._configuration
        return replace(self._configuration, server_name=target.address)


async def shake_hands(link: QuicLink, *, deadline: float, timeout: float) -> float:
    """The round trip of a started link's handshake in ms; raises TargetTrouble or ProberTrouble."""
    loop = asyncio.get_running_loop()
    try:
        await link.until(lambda: link.completed is not None, deadline)
        first = (link.first_received or 0.0) - (
            link.first_sent or 0.0
        )  # both are there once it has completed
        patience = 2 * first + CONFIRM_SLACK
        with contextlib.suppress(TimeoutError, LinkClosed):  # the first exchange is a sample by itself
            await link.until(lambda: link.confirmed is not None, min(deadline, loop.time() + patience))
            link.ping()
            await link.until(
                lambda: link.ping_acknowledged is not None, min(deadline, loop.time() + patience)
            )
    except TimeoutError:
        what = "no answer" if link.first_received is None else "the handshake did not complete"
        raise silence(link.late, timeout, what) from None
    except LinkClosed as closed:
        raise TargetTrouble(why(closed)) from None
    rtt = round_trip(link)
    if rtt is None:
        raise TargetTrouble("packets were lost: both exchanges were sent twice, so neither has an exact time")
    return rtt


def round_trip(link: QuicLink) -> float | None:
    """The network's round trip in ms as the handshake shows it; None when loss left no exact exchange."""
    exchanges = (
        (link.first_sent, link.first_received, link.first_repeated),
        (link.finished_sent, link.confirmed, link.finished_repeated),
        (link.ping_sent, link.ping_acknowledged, link.ping_repeated),
    )
    exact = [
        back - sent
        for sent, back, repeated in exchanges
        if sent is not None and back is not None and not repeated
    ]
    return max(min(exact), 0.0) * 1000 if exact else None


def _phases(link: QuicLink) -> dict[str, float]:
    """The times of a handshake in ms: `first_answer`, `confirmation` and `ping` are exchanges, `handshake` is from first to complete."""
    spans = {
        "first_answer": (link.first_sent, link.first_received),
        "handshake": (link.first_sent, link.completed),
        "confirmation": (link.finished_sent, link.confirmed),
        "ping": (link.ping_sent, link.ping_acknowledged),
    }
    return {
        name: (end - begin) * 1000
        for name, (begin, end) in spans.items()
        if begin is not None and end is not None
    }


def why(closed: LinkClosed) -> str:
    """Why the peer or the network ended it, in words."""
    code = closed.error_code
    if code is not None and 0x100 <= code <= 0x1FF:  # RFC 9001 section 4.8
        alert = code - 0x100
        name = _ALERTS.get(alert, f"alert {alert}")
        return f"the TLS handshake was refused: {name}" + (f" ({closed})" if str(closed) else "")
    if code is not None:
        return f"the server closed the connection: error 0x{code:x}" + (f" ({closed})" if str(closed) else "")
    return str(closed)
