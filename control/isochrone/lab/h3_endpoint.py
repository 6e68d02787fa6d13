"""A small HTTP/3 endpoint that does as it is told: well, or wrong in one way. aioquic's own server, with its behaviour changed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable  # noqa: TC003  dataclasses are read at run time by tests
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from aioquic import tls
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import ErrorCode, FrameType, H3Connection, encode_frame
from aioquic.h3.events import HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import HandshakeCompleted, ProtocolNegotiated, QuicEvent

from isochrone.lab.h3_wire import Wire, WiredServer
from isochrone.lab.h3server import Tickets as TicketStore

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from aioquic.quic.connection import QuicConnection

    Pem = tuple[Path, Path]

DISABLE_ACTIVE_MIGRATION = b"\x0c\x00"  # transport parameter 0x0c, empty (RFC 9000 section 18.2)

#: What an endpoint does in place of a good answer.
Act = Literal[
    "answer", "close", "close_at_once", "refuse", "reset", "reject", "fall_back", "goaway", "drain", "silent", "half", "cut"
]  # fmt: skip
Tickets = Literal["kept", "none", "forgotten", "no_early_data"]


@dataclass(frozen=True, slots=True)
class Manner:
    """How an endpoint behaves. As it stands: well."""

    regions: tuple[str, ...] = (
        "fra-1",
    )  # what it calls itself: one for each connection in turn; "" says nothing
    acts: tuple[Act, ...] = ("answer",)  # one for each connection in turn
    status: int = 200
    fields: tuple[tuple[str, str], ...] = ()  # more header fields
    body: bytes = b"ok\n"
    alpn: tuple[str, ...] = ("h3",)
    retry: bool = False  # asks for a token first
    tickets: Tickets = "kept"
    streams: int | None = None  # how many requests a connection may have; None: aioquic's 128
    migration: bool = True  # False: disable_active_migration
    wire: Callable[[], Wire] = Wire


@dataclass(slots=True)
class Served:
    """What one server keeps between connections."""

    manner: Manner
    regions: Iterator[str]
    acts: Iterator[Act]


class _Protocol(QuicConnectionProtocol):
    """One connection."""

    served: ClassVar[Served]

    def __init__(self, quic: QuicConnection, *arguments: Any, **more: Any) -> None:
        super().__init__(quic, *arguments, **more)
        manner = self.served.manner
        self._region, self._act = next(self.served.regions), next(self.served.acts)
        self._http: H3Connection | None = None
        changed: Any = quic
        if manner.streams is not None:
            changed._local_max_streams_bidi.value = changed._local_max_streams_bidi.sent = manner.streams  # noqa: SLF001
        if not manner.migration:
            plain = changed._serialize_transport_parameters  # noqa: SLF001
            changed._serialize_transport_parameters = lambda: plain() + DISABLE_ACTIVE_MIGRATION  # noqa: SLF001
        if manner.tickets == "no_early_data":
            _reject_early_data(changed)

    def quic_event_received(self, event: QuicEvent) -> None:
        """Does what it is told, when its time has come."""
        match event:
            case ProtocolNegotiated() if self._act == "refuse":
                self._quic.close(error_code=0x02, frame_type=0, reason_phrase="not now")
            case ProtocolNegotiated(alpn_protocol="h3"):
                self._http = H3Connection(self._quic)
            case HandshakeCompleted() if self._act == "close_at_once":
                self._quic.close(error_code=ErrorCode.H3_NO_ERROR, reason_phrase="enough")
            case HandshakeCompleted() if self._act in {"goaway", "drain"} and self._http is not None:
                control = self._http._local_control_stream_id  # noqa: SLF001  aioquic can't send GOAWAY
                if control is not None:
                    self._quic.send_stream_data(control, encode_frame(FrameType.GOAWAY, b"\x00"))
        if self._http is not None:
            for told in self._http.handle_event(event):
                if isinstance(told, HeadersReceived):
                    self._request(told.stream_id, self._http)

    def _request(self, stream: int, http: H3Connection) -> None:
        match self._act:
            case "close":
                self._quic.close(error_code=ErrorCode.H3_INTERNAL_ERROR, reason_phrase="going away")
            case "reset":
                self._quic.reset_stream(stream, ErrorCode.H3_REQUEST_CANCELLED)
            case "reject" | "goaway":
                self._quic.reset_stream(stream, ErrorCode.H3_REQUEST_REJECTED)
            case "fall_back":
                self._quic.reset_stream(stream, ErrorCode.H3_VERSION_FALLBACK)
            case "answer" | "drain" | "half" | "cut":
                self._answer(stream, http)
            case _:
                pass  # silence
        self.transmit()

    def _answer(self, stream: int, http: H3Connection) -> None:
        manner = self.served.manner
        fields = [(":status", str(manner.status)), *manner.fields]
        if self._region:
            fields.append(("x-isochrone-region", self._region))
        if self._act == "cut":
            fields.append(("content-length", str(len(manner.body) + 100)))
        http.send_headers(stream, [(name.encode(), value.encode()) for name, value in fields])
        if self._act != "half":
            body = manner.body.replace(b"%region%", self._region.encode())
            http.send_data(stream, body, end_stream=True)


def _reject_early_data(quic: Any) -> None:
    """Tickets allow early data, and yet the server takes none (RFC 8446 section 4.2.10)."""
    plain = quic._initialize  # noqa: SLF001  aioquic has no setting for it

    def initialize(peer_cid: bytes) -> None:
        plain(peer_cid)
        quic.tls.__class__ = _Rejecting
        update = quic.tls.update_traffic_key_cb

        def without_early(direction: Any, epoch: tls.Epoch, *key: Any) -> None:
            if epoch is not tls.Epoch.ZERO_RTT:
                update(direction, epoch, *key)

        quic.tls.update_traffic_key_cb = without_early

    quic._initialize = initialize  # noqa: SLF001


class _Rejecting(tls.Context):
    """Never says that it accepts early data."""

    @property
    def early_data_accepted(self) -> bool:
        """Never."""
        return False

    @early_data_accepted.setter
    def early_data_accepted(self, value: bool) -> None:
        del value


@asynccontextmanager
async def endpoint(sock: socket.socket, pem: Pem, manner: Manner) -> AsyncIterator[WiredServer]:
    """An endpoint on a bound UDP socket while the context lasts. Closes the socket."""
    configuration = QuicConfiguration(is_client=False, alpn_protocols=list(manner.alpn))
    configuration.load_cert_chain(*map(str, pem))
    served = Served(manner, itertools.cycle(manner.regions), itertools.cycle(manner.acts))
    protocol = type("ThisProtocol", (_Protocol,), {"served": served})
    store = None if manner.tickets == "none" else TicketStore()

    def find(identity: bytes) -> tls.SessionTicket | None:
        return None if store is None or manner.tickets == "forgotten" else store.find(identity)

    def server() -> WiredServer:
        return WiredServer(
            manner.wire(), configuration=configuration, create_protocol=protocol, retry=manner.retry,
            session_ticket_handler=store.keep if store else None, session_ticket_fetcher=find if store else None,
        )  # fmt: skip

    transport, running = await asyncio.get_running_loop().create_datagram_endpoint(server, sock=sock)
    try:
        yield running
    finally:
        running.close()
        transport.close()
        await asyncio.sleep(0)
