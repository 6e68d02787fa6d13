"""What the near and the far side agree on: addresses, paths, and the log of the link."""

from __future__ import annotations

import struct
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path as File

# The benchmarking networks (RFC 2544, RFC 5180): nobody's, even if a packet should get out.
NEAR = {4: "198.18.0.1", 6: "2001:2:0:18::1"}
FAR_TUN = {4: "198.18.0.2", 6: "2001:2:0:18::2"}
FAR_NETWORK = {4: "198.19.0.0/16", 6: "2001:2:0:19::/64"}
PORT = 443  # TLS with h2 and http/1.1 on TCP, h3 on UDP
VERSION_PORT = 4433  # UDP: nothing but Version Negotiation, at once
CLOSED_PORT = 4

Version = Literal[4, 6]


@dataclass(frozen=True, slots=True)
class Path:
    """One far host's way: `delay_ms` there and back together; `jitter_ms` at most on top, and `loss`, each way."""

    delay_ms: float
    jitter_ms: float = 0.0
    loss: float = 0.0

    def told(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)


def address(number: int, version: Version) -> str:
    """The far host at the end of path `number`, from 0."""
    return (
        f"198.19.{(number + 1) >> 8}.{(number + 1) & 0xFF}"
        if version == 4
        else f"2001:2:0:19::{number + 1:x}"
    )


@dataclass(frozen=True, slots=True)
class Crossing:
    """One packet on the link. Times are nanoseconds of the wall clock.

    `flow` is (protocol, near port or ICMP identifier, far port or ICMP sequence number).
    """

    outward: bool  # from the near side to the far side
    path: int
    version: int
    flow: tuple[int, int, int]
    came: int  # the kernel's own time at which its sender's stack handed it over
    due: int
    went: int  # handed to the receiver's stack; 0 when it was lost

    @property
    def late_ms(self) -> float:
        """How late the link itself was."""
        return max(0, self.went - self.due) / 1e6


_RECORD = struct.Struct("=?HBBHHqqq")


def write_log(file: File, crossings: Iterator[Crossing]) -> None:
    """Write them, in order."""
    with file.open("wb") as out:
        for c in crossings:
            out.write(_RECORD.pack(c.outward, c.path, c.version, *c.flow, c.came, c.due, c.went))


def read_log(file: File) -> list[Crossing]:
    """What `write_log` wrote."""
    return [
        Crossing(outward, path, version, (protocol, near, far), came, due, went)
        for outward, path, version, protocol, near, far, came, due, went in _RECORD.iter_unpack(
            file.read_bytes()
        )
    ]
