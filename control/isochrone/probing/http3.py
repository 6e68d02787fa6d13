"""HTTP/3 probes: QUIC's handshake takes the place of connect and TLS, told apart as far as it can be.

`connect` is the first exchange (our first Initial until the server's first datagram), `tls` from there to the completed handshake,
`first_byte` from the request to the head of its answer. The sample is the handshake's, as `quic` has it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aioquic.h3.connection import H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.events import StreamReset

from isochrone.probing.prober import IDENTITY, TargetTrouble, attempt, silence
from isochrone.probing.quic import QuicProber, shake_hands, why
from isochrone.probing.quic_link import LinkClosed, QuicLink

if TYPE_CHECKING:
    from aioquic.quic.events import QuicEvent

    from isochrone.model import Target
    from isochrone.probing.prober import Gate, ProbeResult


class Http3Prober:
    """One GET over a connection of its own, ended with the head of its answer, whatever its status."""

    method = "h3"

    def __init__(self, *, path: str = "/", gate: Gate | None = None) -> None:
        self._path = path
        self._gate = gate
        self._quic = QuicProber()

    async def run_once(
        self, target: Target, *, source_address: str | None = None, timeout: float
    ) -> ProbeResult:
        """Shake hands, ask; `timeout` seconds for all of it."""
        loop = asyncio.get_running_loop()

        async def measure(address: str, deadline: float, phases: dict[str, float]) -> tuple[float, str]:
            exchange = _Exchange()
            exchange.link = link = QuicLink(
                self._quic.configuration_for(target), address, target.port,
                source_address=source_address, anonymous=True, on_event=exchange.on_event,
            )  # fmt: skip
            try:
                link.start()
                rtt = await shake_hands(link, deadline=deadline, timeout=timeout)
                began = loop.time()
                exchange.ask(target, self._path)
                try:
                    await link.until(lambda: exchange.over, deadline)
                except TimeoutError:
                    raise silence(link.late, timeout, "no answer to the request") from None
                except LinkClosed as closed:
                    raise TargetTrouble(why(closed)) from None
                if exchange.status is None:
                    raise TargetTrouble(f"the server reset the request: error 0x{exchange.reset or 0:x}")
                phases["first_byte"] = (loop.time() - began) * 1000
                return rtt, f"status {exchange.status}"
            finally:
                link.close()
                _connect_phases(link, phases)

        return await attempt(target, measure, timeout=timeout, gate=self._gate)


def _connect_phases(link: QuicLink, phases: dict[str, float]) -> None:
    """Put them before `first_byte`, as they happened."""
    first_byte = phases.pop("first_byte", None)
    if link.first_sent is not None and link.first_received is not None:
        phases["connect"] = (link.first_received - link.first_sent) * 1000
        if link.completed is not None:
            phases["tls"] = (link.completed - link.first_received) * 1000
    if first_byte is not None:
        phases["first_byte"] = first_byte


class _Exchange:
    """One request on one connection."""

    link: QuicLink

    def __init__(self) -> None:
        self.status: str | None = None
        self.reset: int | None = None
        self._http: H3Connection | None = None
        self._stream: int | None = None

    @property
    def over(self) -> bool:
        return self.status is not None or self.reset is not None

    def ask(self, target: Target, path: str) -> None:
        http = self._http = self._http or H3Connection(self.link.quic)
        self._stream = self.link.quic.get_next_available_stream_id()
        host = f"[{target.address}]" if ":" in target.address else target.address
        fields = {
            ":method": "GET",
            ":scheme": "https",
            ":authority": host if target.port == 443 else f"{host}:{target.port}",
            ":path": path,
            "user-agent": IDENTITY,
        }
        http.send_headers(
            self._stream, [(k.encode("ascii"), v.encode("ascii")) for k, v in fields.items()], end_stream=True
        )
        self.link.transmit()

    def on_event(self, event: QuicEvent) -> None:
        """Follow the connection; the server's settings may come before our request."""
        if self.link.completed is None:
            return
        http = self._http = self._http or H3Connection(self.link.quic)
        if isinstance(event, StreamReset) and event.stream_id == self._stream:
            self.reset = event.error_code
        for answer in http.handle_event(event):
            if (
                isinstance(answer, HeadersReceived)
                and answer.stream_id == self._stream
                and self.status is None
            ):
                status = dict(answer.headers).get(b":status", b"").decode("ascii", "replace")
                if not status.startswith("1"):  # interim answers, RFC 9110 section 15.2
                    self.status = status
