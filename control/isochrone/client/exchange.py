"""What is asked and what comes back, whatever carries it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from isochrone import __version__

USER_AGENT = f"isochrone/{__version__} fetch"
MAX_BODY = 64 << 20  # bytes that are kept in memory; a larger answer is an error
MAX_HEAD = 64 << 10  # bytes of an answer's head


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request; `authority` is the public host's, with the port unless it is 443."""

    authority: str
    path: str = "/"
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def fields(self) -> list[tuple[str, str]]:
        """The fields beside the target and the authority; names in lower case (RFC 9114 section 4.2)."""
        own = [
            ("user-agent", USER_AGENT),
            ("accept", "*/*"),
            *((name.lower(), value) for name, value in self.headers),
        ]
        return [*own, ("content-length", str(len(self.body)))] if self.body else own


@dataclass(slots=True)
class Response:
    """The final answer; interim ones (RFC 9110 section 15.2) are left out. Names in lower case."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes = field(default=b"", repr=False)

    def get(self, name: str) -> str | None:
        """A field's value, several joined with commas (RFC 9110 section 5.3); None when it is not there."""
        values = [value for key, value in self.headers if key == name]
        return ", ".join(values) if values else None


class Connection(Protocol):
    """A connection after its handshake, with the certificate verified."""

    protocol: str  # ALPN id: h3, h2 or http/1.1
    address: str
    phases: dict[str, float]  # name -> milliseconds, in the order in which they ended

    async def ask(self, request: Request, deadline: float) -> Response:
        """One request and its answer, by `deadline` (the loop's time). Raises `RequestFailedError`."""

    def close(self) -> None:
        """Let go of it; a second call does nothing."""


class TooLarge(Exception):
    """The answer is larger than MAX_BODY."""

    def __init__(self) -> None:
        super().__init__(f"the answer is larger than {MAX_BODY >> 20} MiB")
