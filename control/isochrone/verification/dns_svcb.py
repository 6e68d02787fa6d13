"""One HTTPS record (RFC 9460): read from its wire format, every rule that it breaks named. Pure.

Libraries refuse a broken record as a whole. Clients do so too, silently, so here it is read as far as it goes and `problems` says
what is wrong with it.
"""

from __future__ import annotations

import ipaddress
import itertools
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class Key(IntEnum):
    """SvcParamKeys that clients know (RFC 9460 section 14.3.2)."""

    MANDATORY = 0
    ALPN = 1
    NO_DEFAULT_ALPN = 2
    PORT = 3
    IPV4HINT = 4
    ECH = 5
    IPV6HINT = 6


@dataclass(frozen=True, slots=True)
class Problem:
    """`kind` is the finding's; `evidence` says it in words."""

    kind: str
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """One HTTPS or SVCB record, as far as it could be read."""

    wire: bytes
    priority: int = 0  # 0: AliasMode
    target: str = "."  # lower case, without the last dot; "." is the owner itself, or in AliasMode: nothing
    alpn: tuple[bytes, ...] = ()
    no_default_alpn: bool = False
    port: int | None = None
    ipv4hint: tuple[str, ...] = ()
    ipv6hint: tuple[str, ...] = ()
    ech: bool = False
    mandatory: tuple[int, ...] = ()
    params: Mapping[int, bytes] = field(default_factory=dict, hash=False)  # all, raw
    problems: tuple[Problem, ...] = ()

    @property
    def alias(self) -> bool:
        """Whether it only leads elsewhere (section 2.4.2)."""
        return self.priority == 0

    @property
    def protocols(self) -> tuple[bytes, ...]:
        """What it offers: http/1.1 beside the named ones unless it says otherwise (section 7.1.2)."""
        return self.alpn if self.no_default_alpn else (*self.alpn, b"http/1.1")

    @property
    def hints(self) -> tuple[str, ...]:
        """All addresses hinted at."""
        return self.ipv4hint + self.ipv6hint

    def owner_or_target(self, owner: str) -> str:
        """The name whose addresses a client connects to (section 2.5.2)."""
        return owner if self.target == "." else self.target

    def __str__(self) -> str:
        target = "." if self.target == "." else f"{self.target}."
        return " ".join([str(self.priority), target, *(_param(key, raw) for key, raw in self.params.items())])


def read_binding(wire: bytes) -> Binding:
    """The record in `wire` (RDATA). Never raises: what can't be read is a problem of kind https_malformed."""
    try:
        (priority,) = struct.unpack_from("!H", wire)
        target, place = _name(wire, 2)
    except (struct.error, IndexError, ValueError) as error:
        return Binding(
            wire=wire, problems=(_malformed(f"it is cut short or has a bad target name ({error})"),)
        )
    problems: list[Problem] = []
    params: dict[int, bytes] = {}
    last = -1
    while place < len(wire):
        if place + 4 > len(wire):
            problems.append(_malformed("it ends inside a parameter"))
            break
        key, length = struct.unpack_from("!HH", wire, place)
        value = wire[place + 4 : place + 4 + length]
        if len(value) < length:
            problems.append(_malformed(f"{key_text(key)} ends before its value does"))
            break
        if key == last:
            problems.append(_malformed(f"{key_text(key)} is there twice"))
        elif key < last:
            problems.append(_malformed(f"{key_text(key)} stands after {key_text(last)}: keys must ascend"))
        params.setdefault(key, value)
        last, place = max(key, last), place + 4 + length
    fields = _fields(params, problems)
    if priority == 0 and params:
        problems = [
            Problem("https_alias_params", "AliasMode (priority 0) with parameters, which clients ignore")
        ]
    return Binding(
        wire=wire, priority=priority, target=target, params=params, problems=tuple(problems), **fields
    )


def key_text(key: int) -> str:
    """A key as zone files write it."""
    return Key(key).name.lower().replace("_", "-") if key in _KNOWN else f"key{key}"


_KNOWN = frozenset(Key)


def _fields(params: Mapping[int, bytes], problems: list[Problem]) -> dict[str, Any]:
    """The known parameters' values (section 7); each that breaks a rule adds a problem and is left out."""
    fields: dict[str, Any] = {}

    def take(key: Key, name: str, value: object) -> None:
        if key not in params:
            return
        if value is None:
            problems.append(
                _malformed(f"the value of {key_text(key)} is not valid: {params[key].hex() or 'empty'}")
            )
        else:
            fields[name] = value

    take(Key.ALPN, "alpn", _protocols(params.get(Key.ALPN, b"")))
    take(Key.NO_DEFAULT_ALPN, "no_default_alpn", None if params.get(Key.NO_DEFAULT_ALPN) else True)
    raw = params.get(Key.PORT, b"")
    take(Key.PORT, "port", int.from_bytes(raw, "big") if len(raw) == 2 else None)
    take(Key.IPV4HINT, "ipv4hint", _addresses(params.get(Key.IPV4HINT, b""), 4))
    take(Key.IPV6HINT, "ipv6hint", _addresses(params.get(Key.IPV6HINT, b""), 16))
    raw = params.get(Key.ECH, b"")
    take(Key.ECH, "ech", True if len(raw) >= 6 and int.from_bytes(raw[:2], "big") == len(raw) - 2 else None)
    raw = params.get(Key.MANDATORY, b"")
    if Key.MANDATORY in params:
        keys = [int.from_bytes(raw[at : at + 2], "big") for at in range(0, len(raw), 2)]
        if not raw or len(raw) % 2:
            problems.append(_malformed("mandatory is empty or of odd length"))
        elif any(b <= a for a, b in itertools.pairwise(keys)):
            problems.append(_malformed("the keys in mandatory do not ascend, or one is there twice"))
        elif Key.MANDATORY in keys:
            problems.append(_malformed("mandatory lists itself"))
        else:
            fields["mandatory"] = tuple(keys)
            missing = [key_text(key) for key in keys if key not in params]
            if missing:
                problems.append(
                    _malformed(f"mandatory lists {', '.join(missing)}, which the record does not have")
                )
            strange = [key_text(key) for key in keys if key not in _KNOWN and key in params]
            if strange:
                problems.append(
                    Problem(
                        "https_mandatory",
                        f"{', '.join(strange)} is mandatory, but no client is known to understand it",
                    )
                )
    if Key.NO_DEFAULT_ALPN in params and Key.ALPN not in params:
        problems.append(
            Problem("https_no_default_alpn", "no-default-alpn without alpn: it offers no protocol at all")
        )
    return fields


def _protocols(raw: bytes) -> tuple[bytes, ...] | None:
    found, place = [], 0
    while place < len(raw):
        length = raw[place]
        if not length or place + 1 + length > len(raw):
            return None
        found.append(raw[place + 1 : place + 1 + length])
        place += 1 + length
    return tuple(found) or None


def _addresses(raw: bytes, size: int) -> tuple[str, ...] | None:
    if not raw or len(raw) % size:
        return None
    return tuple(str(ipaddress.ip_address(raw[at : at + size])) for at in range(0, len(raw), size))


def _name(wire: bytes, place: int) -> tuple[str, int]:
    """An uncompressed name (section 2.2) and where it ends."""
    labels = []
    while length := wire[place]:
        label = wire[place + 1 : place + 1 + length]
        if length > 63 or len(label) < length:
            raise ValueError("a label that is compressed or too long")
        labels.append("".join(_escaped(byte, b'.\\"();@$') for byte in label).lower())
        place += 1 + length
    return ".".join(labels) or ".", place + 1


def _escaped(byte: int, special: bytes) -> str:
    if byte in special:
        return f"\\{chr(byte)}"
    return chr(byte) if 0x21 <= byte <= 0x7E else f"\\{byte:03d}"


def _param(key: int, raw: bytes) -> str:
    """One parameter in presentation format (section 2.1, appendix A)."""
    value: str | None
    if key == Key.ALPN and (protocols := _protocols(raw)):
        listed = b",".join(p.replace(b"\\", b"\\\\").replace(b",", b"\\,") for p in protocols)
        value = "".join(_escaped(byte, b'"\\') if byte != 0x20 else " " for byte in listed)
    elif key == Key.PORT and len(raw) == 2:
        value = str(int.from_bytes(raw, "big"))
    elif key in {Key.IPV4HINT, Key.IPV6HINT} and (found := _addresses(raw, 4 if key == Key.IPV4HINT else 16)):
        value = ",".join(found)
    elif key == Key.MANDATORY and raw and len(raw) % 2 == 0:
        value = ",".join(key_text(int.from_bytes(raw[at : at + 2], "big")) for at in range(0, len(raw), 2))
    else:
        value = "".join(_escaped(byte, b'"\\') for byte in raw)
    quoted = any(character in value for character in ' \\;()"')
    return key_text(key) + (f'="{value}"' if quoted else f"={value}" if raw else "")


def _malformed(evidence: str) -> Problem:
    return Problem("https_malformed", evidence)
