"""What stands between a client and a QUIC server: nothing, or something that drops, delays or answers in the server's place.

A `Wire` sees every datagram from the client, with the server behind it, and passes on what it likes. `limit` is for what comes back.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from typing import TYPE_CHECKING

from aioquic.asyncio.server import QuicServer
from aioquic.buffer import Buffer  # type: ignore[attr-defined]
from aioquic.quic.packet import encode_quic_retry, encode_quic_version_negotiation, pull_quic_header
from aioquic.quic.retry import QuicRetryTokenHandler

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioquic.quic.connection import NetworkAddress
    from aioquic.quic.packet import QuicHeader

LONG_HEADER = 0x80  # RFC 9000 section 17.2
RESET_BYTES = 40  # of a stateless reset: as long as a small packet


class WiredServer(QuicServer):
    """A QUIC server behind a wire."""

    def __init__(self, wire: Wire, **arguments: object) -> None:
        super().__init__(**arguments)  # type: ignore[arg-type]
        self._wire = wire

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """What is sent goes over the wire too."""
        super().connection_made(_Outgoing(transport, self._wire))  # type: ignore[arg-type]

    def datagram_received(self, data: bytes | str, addr: NetworkAddress) -> None:
        """As the wire likes."""
        if isinstance(data, bytes):
            self._wire.arrived(self, data, addr)

    def deliver(self, data: bytes, addr: NetworkAddress) -> None:
        """To the server itself."""
        if self._transport is not None and not self._transport.is_closing():
            super().datagram_received(data, addr)

    def answer(self, data: bytes, addr: NetworkAddress) -> None:
        """In the server's place."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(data, addr)

    def header(self, data: bytes) -> QuicHeader:
        """The header of a datagram's first packet."""
        return pull_quic_header(Buffer(data=data), host_cid_length=self._configuration.connection_id_length)

    def reset_token(self, data: bytes) -> bytes | None:
        """The token of the connection id that a datagram is for, once its handshake is complete."""
        cid = self.header(data).destination_cid
        protocol = self._protocols.get(cid)
        if protocol is None or not protocol._quic._handshake_complete:  # noqa: SLF001  aioquic has no public way to see it
            return None
        tokens = {known.cid: known.stateless_reset_token for known in protocol._quic._host_cids}  # noqa: SLF001  as above
        return tokens.get(cid)


class _Outgoing:
    """A transport whose sending the wire may refuse."""

    def __init__(self, transport: asyncio.BaseTransport, wire: Wire) -> None:
        self._transport, self._wire = transport, wire

    def sendto(self, data: bytes, addr: NetworkAddress) -> None:
        """As the wire likes."""
        if self._wire.may_leave(data, addr):
            self._transport.sendto(data, addr)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)


class Wire:
    """A good one: everything passes."""

    def arrived(self, server: WiredServer, data: bytes, addr: NetworkAddress) -> None:
        """A datagram from a client."""
        server.deliver(data, addr)

    def may_leave(self, data: bytes, addr: NetworkAddress) -> bool:
        """Whether a datagram to a client is let through."""
        del data, addr
        return True


class Delay(Wire):
    """Everything from the client waits so many seconds: the whole delay of a round trip."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def arrived(self, server: WiredServer, data: bytes, addr: NetworkAddress) -> None:
        """Later."""
        asyncio.get_running_loop().call_later(self._seconds, server.deliver, data, addr)


class LoseFirst(Wire):
    """The first datagram of every client is lost."""

    def __init__(self) -> None:
        self._seen: set[NetworkAddress] = set()

    def arrived(self, server: WiredServer, data: bytes, addr: NetworkAddress) -> None:
        """All but the first."""
        if addr in self._seen:
            server.deliver(data, addr)
        self._seen.add(addr)


class OneAnswer(Wire):
    """Of what the server sends, each client gets the first datagram only: the others are too large for the path."""

    def __init__(self) -> None:
        self._seen: set[NetworkAddress] = set()

    def may_leave(self, data: bytes, addr: NetworkAddress) -> bool:
        """The first only."""
        first = addr not in self._seen
        self._seen.add(addr)
        return first and len(data) > 0


class Mute(Wire):
    """After its first flight nothing of what the server sends arrives: handshakes complete, and then there is silence."""

    def __init__(self) -> None:
        self._heard: Counter[NetworkAddress] = Counter()

    def arrived(self, server: WiredServer, data: bytes, addr: NetworkAddress) -> None:
        """Passes; the second datagram ends the client's handshake."""
        self._heard[addr] += 1
        server.deliver(data, addr)

    def may_leave(self, data: bytes, addr: NetworkAddress) -> bool:
        """The answer to the first datagram only."""
        return self._heard[addr] < 2 and len(data) > 0


class StrangersLost(Wire):
    """A balancer that routes by address and port: it knows only ports that a handshake came from, others go astray."""

    def __init__(self) -> None:
        self._known: set[NetworkAddress] = set()

    def arrived(self, server: WiredServer, data: bytes, addr: NetworkAddress) -> None:
        """From known ports only."""
        if data[0] & LONG_HEADER:
            self._known.add(addr)
        if addr in self._known:
            server.deliver(data, addr)
        else:
            self.astray(server, data, addr)

    def astray(self, server: WiredServer, data: bytes, addr: NetworkAddress) -> None:
        """Nobody answers."""


class StrangersReset(StrangersLost):
    """As before, but the server that such packets reach answers with a stateless reset."""

    def astray(self, server: WiredServer, data: bytes, addr: NetworkAddress) -> None:
        """It has no such connection."""
        _reset(server, data, addr)


class ResetAll(Wire):
    """The server forgets each connection at once: stateless resets to all that comes after the handshake."""

    def arrived(self, server: WiredServer, data: bytes, addr: NetworkAddress) -> None:
        """Handshakes pass."""
        if data[0] & LONG_HEADER or not _reset(server, data, addr):
            server.deliver(data, addr)


def _reset(server: WiredServer, data: bytes, addr: NetworkAddress) -> bool:
    token = server.reset_token(data)
    if token is None:
        return False
    filler = bytearray(os.urandom(RESET_BYTES - len(token)))
    filler[0] = filler[0] & 0x3F | 0x40  # the header bits of RFC 9000 section 10.3
    server.answer(bytes(filler) + token, addr)
    return True


class Instead(Wire):
    """Somebody else answers every datagram: `reply(server, datagram)` is what."""

    def __init__(self, reply: Callable[[WiredServer, bytes], bytes]) -> None:
        self._reply = reply

    def arrived(self, server: WiredServer, data: bytes, addr: NetworkAddress) -> None:
        """Never reaches the server."""
        server.answer(self._reply(server, data), addr)


def noise(server: WiredServer, data: bytes) -> bytes:
    """Bytes that look like a stateless reset of a connection that nobody has."""
    del server, data
    return bytes([0x40]) + os.urandom(RESET_BYTES - 1)


def old_versions(server: WiredServer, data: bytes) -> bytes:
    """Version Negotiation that offers draft 29 and gQUIC only (RFC 9000 section 17.2.1)."""
    header = server.header(data)
    return encode_quic_version_negotiation(
        source_cid=header.destination_cid,
        destination_cid=header.source_cid,
        supported_versions=[0xFF00001D, 0x51303530],
    )


def retry_for_ever(server: WiredServer, data: bytes) -> bytes:
    """Retry to every Initial, whatever its token (RFC 9000 section 17.2.5 allows one)."""
    header = server.header(data)
    return encode_quic_retry(
        version=header.version or 1,
        source_cid=os.urandom(8),
        destination_cid=header.source_cid,
        original_destination_cid=header.destination_cid,
        retry_token=b"token",
    )


class NewRetryKey(Wire):
    """Before a server that asks for tokens: each token comes back to a server that has another key."""

    def arrived(self, server: WiredServer, data: bytes, addr: NetworkAddress) -> None:
        """Passes."""
        if data[0] & LONG_HEADER and server.header(data).token:
            server._retry = QuicRetryTokenHandler()  # noqa: SLF001  aioquic has no public way to set it
        server.deliver(data, addr)
