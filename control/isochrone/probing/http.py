"""HTTP/1.1 and HTTP/2 probes: name, connect, TLS and first byte, each by itself. The sample is the connect phase.

Everything up to the connect phase is what `tcp` measures; TLS and first byte hold the server's own work too and stand as phases.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Literal

from isochrone.probing import http_exchange
from isochrone.probing.prober import TargetTrouble, attempt, is_address, silence
from isochrone.probing.tcp import connect

if TYPE_CHECKING:
    import socket

    from isochrone.model import Target
    from isochrone.probing.prober import Gate, ProbeResult

PLAIN_PORT = 80
_ALPN = {"http": ["h2", "http/1.1"], "h1": ["http/1.1"], "h2": ["h2"]}


class HttpProber:
    """One GET, ended with the head of its answer, whatever its status. TLS except on port 80.

    `method`: `h1`, `h2`, or `http` for what the server picks of both. The certificate is not verified: targets are whatever
    answers inside an ASN, and nothing is sent to them. `server_name` stands in SNI and authority in place of the target's own.
    """

    def __init__(
        self,
        method: Literal["http", "h1", "h2"] = "http",
        *,
        path: str = "/",
        gate: Gate | None = None,
        server_name: str | None = None,
    ) -> None:
        self.method: str = method
        self._server_name = server_name
        self._path = path
        self._gate = gate
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE
        self._context.set_alpn_protocols(_ALPN[method])

    async def run_once(
        self, target: Target, *, source_address: str | None = None, timeout: float
    ) -> ProbeResult:
        """Connect, shake hands, ask; `timeout` seconds for all of it."""

        async def measure(address: str, deadline: float, phases: dict[str, float]) -> tuple[float, str]:
            opened, rtt = await connect(address, target.port, source_address, deadline, timeout, phases)
            status = await self._converse(opened, target, deadline, timeout, phases)
            return rtt, f"status {status}"

        return await attempt(target, measure, timeout=timeout, gate=self._gate)

    async def _converse(
        self, opened: socket.socket, target: Target, deadline: float, timeout: float, phases: dict[str, float]
    ) -> int:
        """The status of the answer. Closes the socket."""
        loop = asyncio.get_running_loop()
        writer = None
        what = "no TLS handshake"
        try:
            async with asyncio.timeout_at(deadline):
                began = loop.time()
                reader, writer = await self._streams(opened, target, timeout)
                if target.port != PLAIN_PORT:
                    phases["tls"] = (loop.time() - began) * 1000
                what = "no answer to the request"
                exchange = self._exchange(writer, target)
                began = loop.time()
                writer.write(exchange.request())
                while data := await reader.read(65_536):
                    phases.setdefault("first_byte", (loop.time() - began) * 1000)
                    if (status := exchange.received(data)) is not None:
                        return status
                    if reply := exchange.reply():
                        writer.write(reply)
            raise TargetTrouble("the server closed the connection instead of answering")
        except TimeoutError:
            raise silence(loop.time() - deadline, timeout, what) from None
        except http_exchange.Malformed as error:
            raise TargetTrouble(f"the answer is no HTTP: {error}") from None
        except ssl.SSLError as error:
            raise TargetTrouble(f"the TLS handshake failed: {error.reason or error}") from None
        except OSError as error:  # the connection was made: what ends it comes from the other side
            raise TargetTrouble(f"the connection broke: {error.strerror or error}") from None
        finally:
            if writer is not None:
                writer.transport.abort()
            else:
                opened.close()

    async def _streams(
        self, opened: socket.socket, target: Target, timeout: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if target.port == PLAIN_PORT:
            return await asyncio.open_connection(sock=opened)
        return await asyncio.open_connection(
            sock=opened,
            ssl=self._context,
            # Without a name there is no server name to send (RFC 6066 section 3).
            server_hostname=self._server_name or ("" if is_address(target.address) else target.address),
            ssl_handshake_timeout=timeout + 1,  # ours ends it first
        )

    def _exchange(self, writer: asyncio.StreamWriter, target: Target) -> http_exchange.Exchange:
        secure: ssl.SSLObject | None = writer.get_extra_info("ssl_object")
        alpn = secure.selected_alpn_protocol() if secure is not None else None
        if self.method == "h2" and alpn != "h2":
            raise TargetTrouble("the server does not speak h2")
        name = self._server_name or target.address
        host = f"[{name}]" if ":" in name else name
        default = PLAIN_PORT if secure is None else 443
        authority = host if target.port == default or self._server_name else f"{host}:{target.port}"
        kind = http_exchange.Http2 if alpn == "h2" else http_exchange.Http1
        return kind(authority, self._path, secure=secure is not None)
