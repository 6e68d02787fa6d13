"""HTTP/1.1 (RFC 9112) and HTTP/2 (RFC 9113) over TLS to one address, with the public host as server name."""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from typing import TYPE_CHECKING

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h11

from isochrone.client.errors import (
    CertificateRefusedError,
    HandshakeRefusedError,
    RequestFailedError,
    UnreachableError,
)
from isochrone.client.exchange import MAX_BODY, MAX_HEAD, Request, Response, TooLarge

if TYPE_CHECKING:
    from collections.abc import Sequence

READ = 1 << 16  # bytes
#: at a connect these come from this host; EHOSTUNREACH may also come from a router near the server
_OWN = {
    errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENETUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL,
    errno.EPERM, errno.EACCES, errno.EAFNOSUPPORT,
}  # fmt: skip


class TcpConnection:
    """One connection; open it by `connect`. One request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, authority: str) -> None:
        self.address = ""
        self.phases: dict[str, float] = {}
        self._reader, self._writer, self._authority = reader, writer, authority
        secure: ssl.SSLObject = writer.get_extra_info("ssl_object")
        self.protocol = secure.selected_alpn_protocol() or "http/1.1"
        self._first_byte: float | None = None

    async def ask(self, request: Request, deadline: float) -> Response:
        """See exchange.Connection."""
        loop = asyncio.get_running_loop()
        asked = loop.time()
        self._first_byte = None
        exchange = self._http2 if self.protocol == "h2" else self._http1
        try:
            async with asyncio.timeout_at(deadline):
                response = await exchange(request)
        except TimeoutError:
            raise RequestFailedError(self._authority, f"no answer within {deadline - asked:.1f} s") from None
        except (h11.RemoteProtocolError, h2.exceptions.ProtocolError, ValueError) as error:
            raise RequestFailedError(
                self._authority, f"the answer is no valid HTTP: {error or type(error).__name__}"
            ) from None
        except TooLarge as error:
            raise RequestFailedError(self._authority, str(error)) from None
        except _Ended as error:
            raise RequestFailedError(self._authority, str(error)) from None
        except OSError as error:
            raise RequestFailedError(
                self._authority, f"the connection broke: {error.strerror or error}"
            ) from None
        if self._first_byte is not None:
            self.phases["first_byte"] = (self._first_byte - asked) * 1000
        return response

    def close(self) -> None:
        """See exchange.Connection."""
        self._writer.transport.abort()

    async def _read(self) -> bytes:
        data = await self._reader.read(READ)
        if self._first_byte is None:
            self._first_byte = asyncio.get_running_loop().time()
        return data

    async def _http1(self, request: Request) -> Response:
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        headers = [("host", request.authority), *request.fields(), ("connection", "close")]
        self._writer.write(
            http.send(h11.Request(method=request.method, target=request.path, headers=headers)) or b""
        )
        if request.body:
            self._writer.write(http.send(h11.Data(data=request.body)) or b"")
        self._writer.write(http.send(h11.EndOfMessage()) or b"")
        response = Response(0, ())
        body = bytearray()
        while True:
            event = http.next_event()
            match event:
                case h11.NEED_DATA:
                    http.receive_data(await self._read())
                case h11.Response():
                    pairs = ((k.decode("ascii"), v.decode("latin-1")) for k, v in event.headers)
                    response = Response(event.status_code, tuple(pairs))
                case h11.Data():
                    body += event.data
                    if len(body) > MAX_BODY:
                        raise TooLarge
                case h11.EndOfMessage():
                    response.body = bytes(body)
                    return response
                case h11.ConnectionClosed() | h11.PAUSED:
                    raise _Ended("the server closed the connection instead of answering")

    async def _http2(self, request: Request) -> Response:
        http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
        http.initiate_connection()
        fields = [
            (":method", request.method), (":scheme", "https"), (":authority", request.authority), (":path", request.path),
            *request.fields(),
        ]  # fmt: skip
        stream = http.get_next_available_stream_id()
        http.send_headers(
            stream, [(k.encode("ascii"), v.encode("latin-1")) for k, v in fields], end_stream=not request.body
        )
        pending = request.body
        response = Response(0, ())
        body = bytearray()
        while True:
            while pending and (room := http.local_flow_control_window(stream)):
                size = min(room, http.max_outbound_frame_size)
                http.send_data(stream, pending[:size], end_stream=len(pending) <= size)
                pending = pending[size:]
            self._writer.write(http.data_to_send())
            data = await self._read()
            if not data:
                raise _Ended("the server closed the connection instead of answering")
            for event in http.receive_data(data):
                match event:
                    case h2.events.ResponseReceived(headers=headers):
                        pairs = [(k.decode("ascii"), v.decode("latin-1")) for k, v in headers or ()]
                        status = int(dict(pairs).get(":status", ""))
                        response = Response(status, tuple(p for p in pairs if not p[0].startswith(":")))
                    case h2.events.DataReceived(data=chunk, flow_controlled_length=length):
                        body += chunk or b""
                        if len(body) > MAX_BODY:
                            raise TooLarge
                        if length:
                            http.acknowledge_received_data(length, stream)
                    case h2.events.StreamEnded():
                        response.body = bytes(body)
                        return response
                    case h2.events.StreamReset(error_code=code):
                        raise _Ended(f"the request was reset, error {code}")
                    case h2.events.ConnectionTerminated(error_code=code) if code:
                        raise _Ended(f"the server ended the connection, error {code}")


class _Ended(Exception):
    """The other side ended it."""


def tls_context(cacert: str | None, alpn: Sequence[str]) -> ssl.SSLContext:
    """Verifies against `cacert` (PEM), else the system's store; raises OSError or ssl.SSLError when it can't be used."""
    context = ssl.create_default_context(cafile=cacert)
    context.set_alpn_protocols(list(alpn))
    return context


async def connect(
    address: str,
    port: int,
    *,
    authority: str,
    server_name: str,
    context: ssl.SSLContext,
    deadline: float,
    source_address: str | None = None,
) -> TcpConnection:
    """A TLS connection; `authority` stands in errors, `deadline` is the loop's time.

    Raises UnreachableError, HandshakeRefusedError or CertificateRefusedError. The phases are `connect` and `tls`.
    """
    loop = asyncio.get_running_loop()
    begun = loop.time()
    writer: asyncio.StreamWriter | None = None
    phase = "connection"
    try:
        async with asyncio.timeout_at(deadline):
            local = None if source_address is None else (source_address, 0)
            reader, writer = await asyncio.open_connection(address, port, local_addr=local)
            connected = loop.time()
            phase = "TLS handshake"
            await writer.start_tls(context, server_hostname=server_name)
            shaken = loop.time()
    except BaseException as error:
        if writer is not None:
            writer.transport.abort()
        if isinstance(error, TimeoutError):
            raise UnreachableError(authority, f"no {phase} within {deadline - begun:.1f} s") from None
        if isinstance(error, ssl.SSLCertVerificationError):
            raise CertificateRefusedError(
                authority, f"its certificate is refused: {error.verify_message}"
            ) from None
        if isinstance(error, ssl.SSLError):
            raise HandshakeRefusedError(
                authority, f"the TLS handshake failed: {error.reason or error}"
            ) from None
        if isinstance(error, OSError):
            kind = UnreachableError if writer is None else HandshakeRefusedError
            own = writer is None and error.errno in _OWN
            why = os.strerror(error.errno).lower() if error.errno else str(error)
            raise kind(authority, f"can't connect to {address}: {why}", own=own) from None
        raise
    connection = TcpConnection(reader, writer, authority)
    connection.address = address
    connection.phases = {"connect": (connected - begun) * 1000, "tls": (shaken - connected) * 1000}
    return connection
