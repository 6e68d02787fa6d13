"""HTTP/3 requests on one QUIC connection (RFC 9114 section 4), and what the server says on the side."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aioquic.h3.connection import ErrorCode, FrameType, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.events import HandshakeCompleted, StreamReset

if TYPE_CHECKING:
    from aioquic.quic.events import QuicEvent

    from isochrone.verification.http3_link import EndpointLink

USER_AGENT = "isochrone-verify"
MAX_BODY_BYTES = 65_536  # of a health document; the rest is not kept


@dataclass(slots=True)
class Answer:
    """What came back for one request, as far as it has come."""

    status: str | None = None
    headers: dict[str, str] = field(
        default_factory=dict
    )  # lower-case names; several lines of one field are joined by ", "
    body: bytes = b""
    ended: bool = False
    reset: int | None = None  # the error code

    @property
    def over(self) -> bool:
        """Nothing more will come."""
        return self.ended or self.reset is not None


class _Http(H3Connection):
    """Remembers GOAWAY, which aioquic passes over."""

    goaway = False

    def _check_control_frame_type(self, frame_type: int) -> None:
        super()._check_control_frame_type(frame_type)
        self.goaway |= frame_type == FrameType.GOAWAY


class Exchange:
    """The requests of one connection. `link` is to be set before anything is asked."""

    link: EndpointLink

    def __init__(self) -> None:
        self.resumed = False  # an earlier session was taken up again
        self.early = False  # 0-RTT data was accepted
        self._http: _Http | None = None
        self._answers: dict[int, Answer] = {}

    @property
    def goaway(self) -> bool:
        """The server wants no new requests (RFC 9114 section 5.2)."""
        return self._http is not None and self._http.goaway

    def ask(self, site: str, path: str) -> Answer:
        """Send a GET for `path`; the public host is its authority. The answer fills up as it comes."""
        http = self._http = self._http or _Http(self.link.quic)
        stream = self.link.quic.get_next_available_stream_id()
        answer = self._answers[stream] = Answer()
        fields = {
            ":method": "GET",
            ":scheme": "https",
            ":authority": site,
            ":path": path,
            "user-agent": USER_AGENT,
        }
        http.send_headers(
            stream, [(k.encode("ascii"), v.encode("utf-8")) for k, v in fields.items()], end_stream=True
        )
        self.link.transmit()
        return answer

    def on_event(self, event: QuicEvent) -> None:
        """Follow the connection; the server's settings may come before our request."""
        if isinstance(event, HandshakeCompleted):
            self.resumed, self.early = event.session_resumed, event.early_data_accepted
        if self.link.completed is None:
            return
        http = self._http = self._http or _Http(self.link.quic)
        if isinstance(event, StreamReset) and event.stream_id in self._answers:
            self._answers[event.stream_id].reset = event.error_code
        for told in http.handle_event(event):
            if isinstance(told, HeadersReceived | DataReceived) and told.stream_id in self._answers:
                answer = self._answers[told.stream_id]
                if answer.ended:
                    continue  # it was long enough, and what was under way still comes
                _take(answer, told)
                if len(answer.body) >= MAX_BODY_BYTES and not told.stream_ended:
                    answer.ended = True  # a health answer that goes on for ever is no reason to wait for ever
                    self.link.quic.stop_stream(told.stream_id, ErrorCode.H3_REQUEST_CANCELLED)
                    self.link.transmit()


def _take(answer: Answer, told: HeadersReceived | DataReceived) -> None:
    if isinstance(told, DataReceived):
        answer.body = (answer.body + told.data)[:MAX_BODY_BYTES]
    elif answer.status is None:
        fields: dict[str, str] = {}
        for raw_name, raw_value in told.headers:
            name, value = raw_name.decode("ascii", "replace"), raw_value.decode("utf-8", "replace")
            fields[name] = f"{fields[name]}, {value}" if name in fields else value
        if not fields.get(":status", "").startswith("1"):  # interim answers, RFC 9110 section 15.2
            answer.status, answer.headers = fields.get(":status", ""), fields
    answer.ended |= told.stream_ended
