"""One DNS message to one server and back: UDP, TCP, TLS (RFC 7858), HTTPS (RFC 8484). No judgement of what comes back.

Each raises TransportFailed for what the server or the way to it did, and ProberTrouble for what this host could not do.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ssl
from typing import TYPE_CHECKING

import aiohttp

from isochrone.nameserver import NameServer, Transport
from isochrone.probing.prober import ProberTrouble, own_fault

if TYPE_CHECKING:
    from collections.abc import Callable

    Accept = Callable[[bytes], str]  # why a packet is not the answer; empty when it is

_MEDIA_TYPE = "application/dns-message"
_LONGEST = 65_535
_UDP_TRIES = 3

#: What a connection attempt brings home that is the other side's doing; all else of the system's errors is ours.
_THEIRS = {
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EPIPE,
    errno.ECONNABORTED,
    errno.EHOSTUNREACH,
    errno.ETIMEDOUT,
}


class TransportFailed(Exception):
    """No answer. `kind` is the finding's: silent, unreachable, mismatch, tls, certificate, doh."""

    def __init__(self, kind: str, evidence: str) -> None:
        self.kind, self.evidence = kind, evidence
        super().__init__(evidence)


class Links:
    """The connections of one round. TCP and TLS ones are kept for the next question (RFC 7766 section 6.2.1)."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self._idle: dict[NameServer, list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = {}
        self._http: aiohttp.ClientSession | None = None

    async def exchange(self, server: NameServer, wire: bytes, accept: Accept, timeout: float) -> bytes:
        """The answer to `wire`, within `timeout` seconds.

        Raises:
            TransportFailed: there is none, and it is not this host's fault.
            ProberTrouble: this host could not ask.
        """
        try:
            if server.transport is Transport.UDP:
                return await _udp(server, wire, accept, timeout)
            async with asyncio.timeout(timeout):
                if server.transport is Transport.HTTPS:
                    return await self._over_https(server, wire)
                return await self._over_stream(server, wire)
        except TimeoutError:
            raise TransportFailed("silent", f"no answer within {timeout:g} s") from None
        except (aiohttp.ClientConnectorCertificateError, ssl.SSLCertVerificationError) as error:
            raise TransportFailed("certificate", f"its certificate is not good: {_reason(error)}") from None
        except (aiohttp.ClientConnectorSSLError, ssl.SSLError) as error:
            raise TransportFailed("tls", f"TLS failed: {_reason(error)}") from None
        except aiohttp.ClientConnectorError as error:
            raise _connecting(error.os_error) from None
        except aiohttp.ClientError as error:
            raise TransportFailed("doh", f"no valid HTTP answer: {error}") from None
        except asyncio.IncompleteReadError:
            raise TransportFailed("unreachable", "it closed the connection instead of answering") from None
        except OSError as error:
            raise _connecting(error) from None

    async def close(self) -> None:
        """Close what is open."""
        writers = [writer for links in self._idle.values() for _, writer in links]
        self._idle.clear()
        for writer in writers:
            await _close(writer)
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def _over_stream(self, server: NameServer, wire: bytes) -> bytes:
        idle = self._idle.setdefault(server, [])
        while True:
            kept = bool(idle)
            reader, writer = idle.pop() if kept else await self._connect(server)
            try:
                writer.write(len(wire).to_bytes(2, "big") + wire)
                await writer.drain()
                length = int.from_bytes(await reader.readexactly(2), "big")
                answer = await reader.readexactly(length)
            except (OSError, asyncio.IncompleteReadError):
                await _close(writer)
                if not kept:  # a kept connection may have been closed since: only a fresh one proves anything
                    raise
            except BaseException:
                await _close(writer)
                raise
            else:
                idle.append((reader, writer))
                return answer

    async def _connect(self, server: NameServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        secure = server.transport is Transport.TLS
        return await asyncio.open_connection(
            server.address,
            server.port,
            ssl=self._tls if secure else None,
            server_hostname=(server.host or server.address) if secure else None,
        )

    async def _over_https(self, server: NameServer, wire: bytes) -> bytes:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._tls, limit_per_host=8, happy_eyeballs_delay=None),
                headers={"User-Agent": "isochrone-verify"},
            )
        name = server.host or (f"[{server.address}]" if ":" in server.address else server.address)
        place = f"[{server.address}]" if ":" in server.address else server.address or server.host
        async with self._http.post(
            f"https://{place}:{server.port}{server.path}",
            data=wire,
            headers={
                "Content-Type": _MEDIA_TYPE,
                "Accept": _MEDIA_TYPE,
                "Host": name if server.port == 443 else f"{name}:{server.port}",
            },
            server_hostname=server.host or server.address,
            allow_redirects=False,
        ) as answer:
            if answer.status != 200:
                raise TransportFailed("doh", f"HTTP status {answer.status}")
            if answer.content_type != _MEDIA_TYPE:
                raise TransportFailed("doh", f"an answer of type {answer.content_type}, not {_MEDIA_TYPE}")
            body = bytearray()
            async for piece in answer.content.iter_chunked(16_384):
                body += piece
                if len(body) > _LONGEST:
                    raise TransportFailed("doh", f"an answer of more than {_LONGEST} bytes")
            return bytes(body)


class _Datagrams(asyncio.DatagramProtocol):
    """Waits for the datagram that answers; others are kept as evidence."""

    def __init__(self, accept: Accept) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.strange = ""
        self._accept = accept

    def datagram_received(self, data: bytes, addr: tuple[str | int, ...]) -> None:
        del addr  # the socket is connected
        why_not = self._accept(data)
        if why_not:  # it may be forged (RFC 5452 section 9.1): the right one may still come
            self.strange = why_not
        elif not self.answer.done():
            self.answer.set_result(data)

    def error_received(self, exc: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(exc)


async def _udp(server: NameServer, wire: bytes, accept: Accept, timeout: float) -> bytes:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(
        lambda: _Datagrams(accept), remote_addr=(server.address, server.port)
    )
    try:
        for _ in range(_UDP_TRIES):  # one lost packet proves nothing
            transport.sendto(wire)
            done, _ = await asyncio.wait({protocol.answer}, timeout=timeout / _UDP_TRIES)
            if done:
                return protocol.answer.result()
        if protocol.strange:
            raise TransportFailed("mismatch", protocol.strange)
        raise TransportFailed("silent", f"no answer within {timeout:g} s, asked {_UDP_TRIES} times")
    finally:
        if protocol.answer.done() and not protocol.answer.cancelled():
            protocol.answer.exception()  # seen
        transport.close()


def _connecting(error: OSError) -> Exception:
    if error.errno in _THEIRS:
        return TransportFailed("unreachable", f"it refuses the connection ({error.strerror or error})")
    return ProberTrouble(own_fault(error))


async def _close(writer: asyncio.StreamWriter) -> None:
    """Let go of a connection without waiting for the other side to say goodbye."""
    writer.transport.abort()
    with contextlib.suppress(OSError, ssl.SSLError, TimeoutError):
        await writer.wait_closed()


def _reason(error: Exception) -> str:
    inner = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    return str(getattr(inner, "verify_message", "") or getattr(inner, "reason", "") or inner)
