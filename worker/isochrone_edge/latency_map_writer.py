"""Writes what `latency_map` reads. The control plane's side of the contract; the edge never imports it."""

from __future__ import annotations

import hashlib
import json
import struct
import sys
import time
import zlib
from array import array
from typing import TYPE_CHECKING, NamedTuple

from . import latency_map as form

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Colour(NamedTuple):
    """Ranked candidates as (index into the map's origins, rtt_ms, samples), best first, and the colour's flags."""

    candidates: tuple[tuple[int, float, int], ...]
    flags: int = 0


def encode(
    *,
    built_at: float,
    origins: Sequence[Mapping[str, object]],
    palette: Sequence[Colour],
    default: int,
    cells: Mapping[str, Mapping[int, int]],
    grid_step: float = 0,
    precedence: Sequence[str] = tuple(form.KINDS),
    homes: Mapping[str, Mapping[int, int]] | None = None,
    notes: Mapping[str, object] | None = None,
    extra: Mapping[bytes, bytes] | None = None,
) -> bytes:
    """The bytes of a map.

    Args:
        built_at: Unix seconds.
        origins: JSON-able, each with `id` and `host`; at most 256.
        palette: at most 65,536 colours, none empty.
        default: colour of whoever no cell knows.
        cells: kind -> key -> colour; keys as `LatencyMap.items` gives them.
        grid_step: degrees; 0 when there is no grid.
        precedence: kinds in the order in which the edge tries them.
        homes: of `asn` and `asn_country`: key -> what `home_of` gives, EVERYWHERE or NOWHERE; a key that is not in it
            is everywhere.
        notes: further JSON-able entries of META. Like `extra`, no part of the content: they decide nothing.
        extra: further sections by tag (four bytes), for readers that know them.

    Raises:
        ValueError: something does not fit the format; the message names it.
    """
    if not 1 <= len(origins) <= 256:
        raise ValueError(f"a map holds 1 to 256 origins, not {len(origins)}")
    if not 1 <= len(palette) <= 65536:
        raise ValueError(f"a map holds 1 to 65536 colours, not {len(palette)}")
    starts, candidates, flags = [0], bytearray(), bytearray()
    for number, colour in enumerate(palette):
        if not colour.candidates:
            raise ValueError(f"colour {number} has no candidates")
        for origin, rtt_ms, samples in colour.candidates:
            if not 0 <= origin < len(origins):
                raise ValueError(f"colour {number} names origin {origin} of {len(origins)}")
            if not rtt_ms >= 0:
                raise ValueError(f"colour {number} has the round-trip time {rtt_ms} ms")
            units = min(65535, round(min(rtt_ms, form.RTT_MAX_MS) / form.RTT_UNIT_MS))
            candidates += form.CANDIDATE.pack(origin, form.evidence_code(samples), units)
        starts.append(len(candidates) // form.CANDIDATE.size)
        flags.append(colour.flags)
    for kind, table in (*cells.items(), (form.DEFAULT, {0: default})):
        if table and not (min(table.values()) >= 0 and max(table.values()) < len(palette)):
            raise ValueError(f"a {kind} cell names a colour that the palette of {len(palette)} does not have")
    body = {
        b"ORIG": _json(list(origins)),
        b"PALO": _bytes("I", starts),
        b"PALC": bytes(candidates),
        b"FLAG": bytes(flags),
    }
    for kind, tag in form.KINDS.items():
        if cells.get(kind):
            body[tag] = _table(kind, cells[kind])
    for kind, tag in form.HOMES.items():
        known = (homes or {}).get(kind)
        if known and cells.get(kind) and any(home != form.EVERYWHERE for home in known.values()):
            keys = sorted(cells[kind], key=_stored_order) if kind == "asn_country" else sorted(cells[kind])
            body[tag] = bytes(known.get(key, form.EVERYWHERE) for key in keys)
    for kind in cells.keys() - form.KINDS.keys():
        raise ValueError(f"{kind!r} is no kind of cell: known are {', '.join(form.KINDS)}")
    shape = {"default": default, "grid_step": grid_step, "precedence": list(precedence)}
    return _finish(built_at, shape, body, notes or {}, extra or {})


def with_origins(old: form.LatencyMap, origins: Sequence[Mapping[str, object]], *, built_at: float) -> bytes:
    """The bytes of the same map with other facts about its origins, e.g. a state or a promise: a version of its own.

    Cells, colours and what is measured stay as they are; the edge ranks by `state` itself.

    Args:
        old: the map.
        origins: JSON-able, the same `id`s in the same order.
        built_at: Unix seconds.

    Raises:
        ValueError: they are other origins.
    """
    if [origin["id"] for origin in origins] != [origin["id"] for origin in old.origins]:
        raise ValueError("these are not the map's origins in the map's order")
    own = {b"ORIG", b"PALO", b"PALC", b"FLAG", *form.KINDS.values(), *form.HOMES.values()}
    sections = {tag: bytes(data) for tag, data in old.sections.items() if tag != b"META"}
    body = {tag: data for tag, data in sections.items() if tag in own} | {b"ORIG": _json(list(origins))}
    shape = {name: old.meta[name] for name in _SHAPE}
    notes = {name: note for name, note in old.meta.items() if name not in {*_SHAPE, *_STAMP}}
    extra = {tag: data for tag, data in sections.items() if tag not in own}
    return _finish(built_at, shape, body, notes, extra)


_SHAPE = ("default", "grid_step", "precedence")
_STAMP = ("version", "built_at", "content")


def _finish(
    built_at: float,
    shape: Mapping[str, object],
    body: Mapping[bytes, bytes],
    notes: Mapping[str, object],
    extra: Mapping[bytes, bytes],
) -> bytes:
    content = hashlib.sha256(_json(shape) + b"".join(tag + data for tag, data in body.items())).hexdigest()
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(built_at))
    meta = {
        **notes,
        "version": f"{stamp}-{content[:8]}",
        "built_at": built_at,
        "content": content,
        **shape,
    }
    return _assemble({b"META": _json(meta), **body, **extra})


def _assemble(sections: Mapping[bytes, bytes]) -> bytes:
    offset = form.PREFIX.size + len(sections) * form.SECTION.size
    table, data = bytearray(), bytearray()
    for tag, section in sections.items():
        padding = -offset % 8
        data += bytes(padding) + section
        table += form.SECTION.pack(tag, offset + padding, len(section))
        offset += padding + len(section)
    rest = struct.pack("<IHHI", offset, form.MAJOR, form.MINOR, len(sections)) + bytes(table) + bytes(data)
    return form.MAGIC + struct.pack("<I", zlib.crc32(rest)) + rest


def _table(kind: str, cells: Mapping[int, int]) -> bytes:
    limit = {"asn_country": 2**48, "asn": 2**32, "country_grid": 2**36, "grid": 2**form.COUNTRY_SHIFT}.get(
        kind, 2**16
    )
    lowest, highest = min(cells), max(cells)
    if lowest < 0 or highest >= limit:
        raise ValueError(
            f"a {kind} cell has the key {lowest if lowest < 0 else highest}, which the format can't hold"
        )
    if kind == "asn_country":
        cells = {_stored_order(key): colour for key, colour in cells.items()}
    keys = sorted(cells)
    colours = _bytes("H", [cells[key] for key in keys])
    bits = form.SPLIT_BITS.get(kind)
    if bits is None:
        return _bytes("H", keys) + colours
    ends = {key >> bits: index for index, key in enumerate(keys, 1)}
    heads = [number for pair in ends.items() for number in pair]
    lowers = _bytes("B" if bits == 8 else "H", [key & (1 << bits) - 1 for key in keys])
    return struct.pack("<I", len(ends)) + _bytes("I", heads) + lowers + colours


def _stored_order(key: int) -> int:
    """(ASN, country) cells are stored country by country, which packs better."""
    return (key & 0xFFFF) << 32 | key >> 16


def _bytes(code: str, values: Iterable[int]) -> bytes:
    numbers = array(code, values)
    if sys.byteorder == "big":  # pragma: no cover
        numbers.byteswap()
    return numbers.tobytes()


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()
