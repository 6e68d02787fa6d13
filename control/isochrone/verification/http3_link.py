"""A QUIC connection that tells more of itself than probing needs: what the server declared, its tickets and resets, and other ports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aioquic.buffer import Buffer  # type: ignore[attr-defined]
from aioquic.quic.packet import (
    QuicPacketType,
    QuicProtocolVersion,
    pull_quic_header,
    pull_quic_transport_parameters,
)
from aioquic.tls import Epoch

from isochrone.probing.quic_link import Connection, LinkClosed, QuicLink
from isochrone.probing.udp import connected_socket

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioquic.quic import events
    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.quic.packet import QuicTransportParameters
    from aioquic.tls import SessionTicket

RESET_TOKEN_BYTES = 16  # RFC 9000 section 10.3
SHORTEST_RESET = 21  # bytes, section 10.3: what is shorter is no reset
#: what is told of a server's transport parameters (RFC 9000 section 18.2); connection ids and tokens say nothing to anybody
TOLD = (
    "max_idle_timeout", "max_udp_payload_size", "initial_max_data", "initial_max_stream_data_bidi_local",
    "initial_max_stream_data_bidi_remote", "initial_max_stream_data_uni", "initial_max_streams_bidi", "initial_max_streams_uni",
    "ack_delay_exponent", "max_ack_delay", "disable_active_migration", "active_connection_id_limit", "max_datagram_frame_size",
)  # fmt: skip


class StatelessReset(LinkClosed):
    """The server has no state for this connection (RFC 9000 section 10.3)."""


class _Connection(Connection):
    """Keeps what the server declares in its handshake."""

    def __init__(self, configuration: QuicConfiguration, **more: Any) -> None:
        super().__init__(configuration, anonymous=False, **more)
        self.declared: QuicTransportParameters | None = None

    def _parse_transport_parameters(self, data: bytes, from_session_ticket: bool = False) -> None:
        super()._parse_transport_parameters(data, from_session_ticket)
        if not from_session_ticket:
            self.declared = pull_quic_transport_parameters(Buffer(data=data))

    def reset_tokens(self) -> list[bytes]:
        """The server's tokens of all connection ids it gave."""
        return [cid.stateless_reset_token for cid in (self._peer_cid, *self._peer_cid_available)]


class EndpointLink(QuicLink):
    """One connection to an address of an endpoint. Raises OSError as QuicLink does.

    A configuration with a session ticket resumes an earlier session (RFC 8446 section 2.2); the server's new tickets are in `tickets`.
    """

    quic: _Connection

    def __init__(
        self,
        configuration: QuicConfiguration,
        address: str,
        port: int,
        *,
        on_event: Callable[[events.QuicEvent], None],
    ) -> None:
        self.tickets: list[SessionTicket] = []
        self.received = 0  # datagrams
        self.strange = 0  # of them those that are no QUIC packet for us, by their header alone
        self.retried = False  # the server asked for a token (RFC 9000 section 8.1.2)
        connection = _Connection(configuration, session_ticket_handler=self.tickets.append)
        super().__init__(configuration, address, port, on_event=on_event, connection=connection)

    @property
    def version(self) -> int:
        """The QUIC version in use."""
        return int(self.quic._version or 0)  # noqa: SLF001  aioquic has no public way to see it

    @property
    def streams_allowed(self) -> int:
        """How many requests the server allows on the connection, up to now."""
        return self.quic._remote_max_streams_bidi  # noqa: SLF001  aioquic has no public way to see it

    @property
    def acknowledged(self) -> bool:
        """Whether the server acknowledged anything that was sent after the handshake."""
        return self.quic._spaces[Epoch.ONE_RTT].largest_acked_packet > 0  # noqa: SLF001  as above; the Initial is packet 0

    def declared(self) -> dict[str, int | bool]:
        """The server's transport parameters: name -> value, as far as it sent them; times in milliseconds."""
        sent = self.quic.declared
        values = {} if sent is None else {name: getattr(sent, name) for name in TOLD}
        return {name: value for name, value in values.items() if value is not None and value is not False}

    def move(self) -> None:
        """Go on from another local port with a fresh connection id, as a client whose network changes (RFC 9000 section 9).

        Raises OSError when this host can't open the socket.
        """
        if self._socket is None:
            return
        fresh = connected_socket(*self._peer)
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._socket = fresh
        self._loop.add_reader(fresh, self._readable)
        self.quic.change_connection_id()

    def _received(self, data: bytes, arrived: float) -> None:
        self.received += 1
        if self.completed is not None and self._is_reset(data):
            self._end(StatelessReset("stateless reset"))
            return
        if self.completed is None:
            self._look_at(data)
        super()._received(data, arrived)

    def _is_reset(self, data: bytes) -> bool:
        # A packet that can be deciphered is none, but no such packet ends in a token of 128 random bits.
        return len(data) >= SHORTEST_RESET and data[-RESET_TOKEN_BYTES:] in self.quic.reset_tokens()

    def _look_at(self, data: bytes) -> None:
        try:
            header = pull_quic_header(Buffer(data=data), host_cid_length=len(self.quic.host_cid))
        except ValueError:
            self.strange += 1
            return
        self.retried |= header.packet_type is QuicPacketType.RETRY
        if header.destination_cid != self.quic.host_cid:
            self.strange += 1


def version_name(version: int) -> str:
    """QUIC version 1 as `1`, version 2 as `2` (RFC 9369), others in hexadecimal."""
    known = {QuicProtocolVersion.VERSION_1: "1", QuicProtocolVersion.VERSION_2: "2"}
    return {int(number): name for number, name in known.items()}.get(version, f"0x{version:08x}")
