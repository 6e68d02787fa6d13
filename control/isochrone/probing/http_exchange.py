"""One GET and the status of its answer, as bytes out and bytes in: HTTP/1.1 (RFC 9112) and HTTP/2 (RFC 9113). No I/O."""

from __future__ import annotations

import re
from typing import Protocol

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions

from isochrone.probing.prober import IDENTITY

MAX_HEAD_BYTES = 65_536
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: [^\r\n]*)?\r?\n")


class Malformed(Exception):
    """What came is no answer in this protocol."""


class Exchange(Protocol):
    """One request on one connection."""

    def request(self) -> bytes:
        """What to send first."""

    def received(self, data: bytes) -> int | None:
        """The final status, once it is there. Raises Malformed."""

    def reply(self) -> bytes:
        """What to send now."""


class Http1:
    """HTTP/1.1, closed after one answer."""

    def __init__(self, authority: str, path: str, *, secure: bool) -> None:
        del secure  # the request does not show it
        self._request = (
            f"GET {path} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: {IDENTITY}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        ).encode("ascii")
        self._head = b""

    def request(self) -> bytes:
        """See Exchange."""
        return self._request

    def received(self, data: bytes) -> int | None:
        """See Exchange."""
        self._head += data
        while True:
            line = _STATUS_LINE.match(self._head)
            if line is None:
                if b"\n" in self._head or not b"HTTP/1.".startswith(self._head[:7]):
                    raise Malformed(repr(self._head[:40]))
                self._check_length()
                return None
            if not line[1].startswith(b"1") or line[1] == b"101":
                return int(line[1])
            # An interim answer (RFC 9110 section 15.2): the final one comes after its empty line.
            _, ended, rest = self._head.partition(b"\r\n\r\n")
            if not ended:
                self._check_length()
                return None
            self._head = rest

    def reply(self) -> bytes:
        """See Exchange."""
        return b""

    def _check_length(self) -> None:
        if len(self._head) > MAX_HEAD_BYTES:
            raise Malformed(f"a head of more than {MAX_HEAD_BYTES:,} bytes")


class Http2:
    """HTTP/2, one stream."""

    def __init__(self, authority: str, path: str, *, secure: bool) -> None:
        self._connection = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding=None)
        )
        self._fields = [
            (b":method", b"GET"),
            (b":scheme", b"https" if secure else b"http"),
            (b":authority", authority.encode("ascii")),
            (b":path", path.encode("ascii")),
            (b"user-agent", IDENTITY.encode("ascii")),
        ]

    def request(self) -> bytes:
        """See Exchange."""
        self._connection.initiate_connection()
        self._connection.send_headers(1, self._fields, end_stream=True)
        return self._connection.data_to_send()

    def received(self, data: bytes) -> int | None:
        """See Exchange."""
        try:
            events = self._connection.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            raise Malformed(str(error) or type(error).__name__) from None
        for event in events:
            if isinstance(event, h2.events.ResponseReceived):
                status = dict(event.headers or ()).get(b":status", b"")
                if not status.isdigit():
                    raise Malformed(f"status {status!r}")
                return int(status)
            if isinstance(event, h2.events.StreamReset):
                raise Malformed(f"the stream was reset, error {event.error_code}")
            if isinstance(event, h2.events.ConnectionTerminated) and event.error_code:
                raise Malformed(f"the connection was ended, error {event.error_code}")
        return None

    def reply(self) -> bytes:
        """See Exchange."""
        return self._connection.data_to_send()
