"""ICMP echo on the wire, IPv4 (RFC 792) and IPv6 (RFC 4443): built and parsed, no I/O.

The payload carries a token by which an answer is known to be ours and not a guess, and who is asking.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

from isochrone.probing.prober import IDENTITY

TOKEN_BYTES = 8
PAYLOAD_BYTES = 56  # as ping's
TEXT = IDENTITY.encode("ascii").ljust(PAYLOAD_BYTES - TOKEN_BYTES, b" ")[: PAYLOAD_BYTES - TOKEN_BYTES]
HEADER = struct.Struct("!BBHHH")  # type, code, checksum, identifier, sequence number
PACKET_BYTES = HEADER.size + PAYLOAD_BYTES

ECHO_REQUEST = {4: 8, 6: 128}
ECHO_REPLY = {4: 0, 6: 129}
_UNREACHABLE = {4: 3, 6: 1}
_TIME_EXCEEDED = {4: 11, 6: 3}
_V4_HEADER, _V6_HEADER, _V6_ICMP, _V4_ICMP = 20, 40, 58, 1
_REASONS = {
    4: {0: "network unreachable", 1: "host unreachable", 2: "protocol unreachable", 3: "port unreachable",
        4: "packet too big", 9: "network prohibited", 10: "host prohibited", 13: "prohibited by a filter"},
    6: {0: "no route", 1: "prohibited by a filter", 2: "beyond scope", 3: "address unreachable",
        4: "port unreachable", 5: "source address refused", 6: "route rejected"},
}  # fmt: skip

Version = Literal[4, 6]


@dataclass(frozen=True, slots=True)
class Answer:
    """What an ICMP message says about an echo request: its reply, or why there is none."""

    ident: int
    sequence: int
    token: bytes = b""  # empty in errors: routers return only the beginning of what they drop
    refusal: str = ""  # empty in replies
    destination: bytes = b""  # of the request an error is about, packed; empty in replies
    own: bool = False  # the error was made by the very host that sent the request


def echo_request(version: Version, ident: int, sequence: int, token: bytes) -> bytes:
    """An echo request. The kernel fills in the checksum of ICMPv6, and of IPv4 on datagram sockets."""
    kind = ECHO_REQUEST[version]
    body = token + TEXT
    total = 0 if version == 6 else checksum(HEADER.pack(kind, 0, 0, ident, sequence) + body)
    return HEADER.pack(kind, 0, total, ident, sequence) + body


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def parse(version: Version, data: bytes, *, ip_header: bool = False, sender: bytes = b"") -> Answer | None:
    """What it says about one of our requests; None when it is something else or damaged.

    `ip_header`: the data begins with the IPv4 header, as it does from a raw socket. `sender`: the packed address that it
    came from, where known.
    """
    if ip_header:
        if len(data) < _V4_HEADER or data[0] >> 4 != 4:
            return None
        sender = data[12:16]
        data = data[(data[0] & 0xF) * 4 :] if data[0] & 0xF >= 5 else b""
    if len(data) < HEADER.size:
        return None
    kind, code, _, ident, sequence = HEADER.unpack_from(data)
    if kind == ECHO_REPLY[version]:
        return Answer(ident, sequence, data[HEADER.size : HEADER.size + TOKEN_BYTES])
    if kind in (_UNREACHABLE[version], _TIME_EXCEEDED[version]):
        return _about(version, data[HEADER.size :], sender, reason(version, kind, code))
    return None


def reason(version: Version, kind: int, code: int) -> str:
    """An ICMP error in words."""
    if kind == _TIME_EXCEEDED[version]:
        return "time exceeded on the way"
    return _REASONS[version].get(code, f"unreachable, code {code}")


def _about(version: Version, original: bytes, sender: bytes, why: str) -> Answer | None:
    """The request inside an error."""
    if version == 4:
        if len(original) < _V4_HEADER or original[0] >> 4 != 4 or original[9] != _V4_ICMP:
            return None
        source, destination = original[12:16], original[16:20]
        rest = original[max(original[0] & 0xF, 5) * 4 :]
    else:
        if len(original) < _V6_HEADER or original[0] >> 4 != 6 or original[6] != _V6_ICMP:
            return None
        source, destination = original[8:24], original[24:40]
        rest = original[_V6_HEADER:]
    if len(rest) < HEADER.size:
        return None
    kind, _, _, ident, sequence = HEADER.unpack_from(rest)
    if kind != ECHO_REQUEST[version]:
        return None
    return Answer(ident, sequence, b"", why, destination, own=bool(sender) and source == sender)
