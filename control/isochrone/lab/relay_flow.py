"""What a relay keeps: paths, listeners and the conversations ("flows") of their peers."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

Address = tuple[str, int]

SO_TIMESTAMPNS = 35  # Linux, asm-generic/socket.h; Python's socket module does not name it
RECEIVE_BUFFER = 1 << 20  # bytes


class RelayError(Exception):
    """A command that a relay cannot carry out."""


@dataclass(slots=True)
class Path:
    """How far away a source is. `rtt_ns`: round trip in nanoseconds; `loss`: probability per datagram, 0 to 1."""

    rtt_ns: int = 0
    loss: float = 0.0


@dataclass(slots=True)
class Counters:
    """What happened since the start; `late_ns_*`: how long after its due time a datagram left."""

    forwarded: int = 0
    lost: int = 0  # by the path's loss
    overflowed: int = 0  # a queue was full, the datagram was too large or could not be sent
    refused: int = 0  # the server's port was closed
    late_ns_sum: int = 0
    late_ns_max: int = 0


@dataclass(slots=True, eq=False)
class Flow:
    """One peer's conversation with a listener's server; lists hold [towards the server, towards the peer]."""

    listener: Listener
    peer: Address
    socket: socket.socket
    path: Path
    seen_ns: int = 0
    last_due: list[int] = field(default_factory=lambda: [0, 0])
    held: list[int] = field(default_factory=lambda: [0, 0])
    closed: bool = False


@dataclass(slots=True, eq=False)
class Listener:
    """One relayed address: peers come to `socket`, the real server is at `server`."""

    socket: socket.socket
    server: Address
    paths: dict[str, Path]
    default: Path
    flows: dict[Address, Flow] = field(default_factory=dict)

    def path(self, source: str) -> Path:
        """The path of a source address."""
        return self.paths.get(source, self.default)

    def change(self, source: str | None, rtt_ms: float | None, loss: float | None) -> None:
        """Changes one source's path, or everyone's (None); what is None stays. Raises `RelayError`."""
        if (rtt_ms is not None and not 0 <= rtt_ms <= 60_000) or (loss is not None and not 0 <= loss <= 1):
            raise RelayError("rtt_ms must lie in 0..60000 and loss in 0..1")
        if source is not None and source not in self.paths:
            self.paths[source] = Path(self.default.rtt_ns, self.default.loss)
            for flow in self.flows.values():
                flow.path = self.path(flow.peer[0])
        for path in (*self.paths.values(), self.default) if source is None else (self.paths[source],):
            path.rtt_ns = path.rtt_ns if rtt_ms is None else int(rtt_ms * 1e6)
            path.loss = path.loss if loss is None else loss


def open_socket(bind: Address) -> socket.socket:
    """A non-blocking UDP socket whose datagrams carry the kernel's arrival stamps; raises `OSError`."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        sock.bind(bind)
    except OSError:
        sock.close()
        raise
    return sock
