"""One HTTP/3 request on one QUIC connection (RFC 9114 section 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioquic.h3.connection import H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.events import StreamReset

if TYPE_CHECKING:
    from aioquic.quic.events import QuicEvent

    from isochrone.probing.quic_link import QuicLink

USER_AGENT = "isochrone-verify"


class Exchange:
    """One request on one connection."""

    link: QuicLink

    def __init__(self) -> None:
        self.status: str | None = None
        self.headers: dict[str, str] = {}
        self.reset: int | None = None
        self._http: H3Connection | None = None
        self._stream: int | None = None

    def ask(self, site: str, path: str) -> None:
        """Send the request; the public host is its authority."""
        http = self._http = self._http or H3Connection(self.link.quic)
        self._stream = self.link.quic.get_next_available_stream_id()
        fields = {
            ":method": "GET",
            ":scheme": "https",
            ":authority": site,
            ":path": path,
            "user-agent": USER_AGENT,
        }
        http.send_headers(
            self._stream, [(k.encode("ascii"), v.encode("utf-8")) for k, v in fields.items()], end_stream=True
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
                fields = {
                    name.decode("ascii", "replace"): value.decode("utf-8", "replace")
                    for name, value in answer.headers
                }
                if not fields.get(":status", "").startswith("1"):  # interim answers, RFC 9110 section 15.2
                    self.status, self.headers = fields.get(":status", ""), fields
