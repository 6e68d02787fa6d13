"""A samples file, plain or gzip, as blocks of whole lines. Memory stays small whatever the file holds."""

from __future__ import annotations

import zlib
from typing import IO, TYPE_CHECKING, NamedTuple

from isochrone.estimation.csv_numbers import PAD
from isochrone.estimation.csv_rows import LINE_MAX
from isochrone.estimation.rejects import Reason, Rejects, UnreadableSamplesError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCK = 4 << 20  # bytes of text that are worked on together: their columns then stay in the cache
GZIP = b"\x1f\x8b"
_INPUT = 1 << 18  # compressed bytes read at once


class Block(NamedTuple):
    """Whole lines, each with its line feed, between two PADs."""

    data: bytes
    first_line: int  # physical, counted from 1

    def split(self) -> tuple[bytes, Block]:
        """The first line, and the others."""
        feed = self.data.index(b"\n", len(PAD))
        others = b"".join((PAD, memoryview(self.data)[feed + 1 :]))
        return self.data[len(PAD) : feed], Block(others, self.first_line + 1)


def read_blocks(path: Path, rejects: Rejects) -> Iterator[Block]:
    """The lines of a file. What is wrong with the file as such is counted in `rejects`.

    Raises:
        UnreadableSamplesError: the file can't be opened or read.
    """
    try:
        with path.open("rb") as file:
            zipped = file.read(len(GZIP)) == GZIP
            file.seek(0)
            yield from _lines(_gathered(_inflated(file)) if zipped else _plain(file), str(path), rejects)
    except OSError as error:
        raise UnreadableSamplesError(str(path), error.strerror or str(error)) from None


class _DamagedError(Exception):
    """The compressed data ends here."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason


def _lines(pieces: Iterator[bytes], name: str, rejects: Rejects) -> Iterator[Block]:
    """Pieces of any size cut at line feeds. Of a line that is too long only so much is kept that this shows."""
    rest, line, skipping = b"", 1, False
    try:
        for piece in pieces:
            start = 0
            if skipping:
                start = piece.find(b"\n")
                if start < 0:
                    continue
                skipping = False
            end = piece.rfind(b"\n") + 1
            if end > start:
                block = Block(b"".join((PAD, rest, memoryview(piece)[start:end], PAD)), line)
                yield block
                line += block.data.count(b"\n")
                rest = piece[end:]
            else:
                rest += piece[start:]
            if len(rest) > LINE_MAX:
                rest, skipping = rest[: LINE_MAX + 1], True
    except _DamagedError as damage:
        rejects.add(damage.reason, name, [line], 1)  # what stands after the last line feed can't be trusted
    else:
        if rest:
            yield Block(b"".join((PAD, rest, b"\n", PAD)), line)


def _plain(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(BLOCK):
        yield piece


def _inflated(file: IO[bytes]) -> Iterator[bytes]:
    """The text of a gzip file: of all its members (RFC 1952 section 2.2), each checked by its checksum."""
    inflater: zlib._Decompress | None = None
    while data := file.read(_INPUT):
        while data:
            if inflater is None:
                data = data.lstrip(b"\0")  # padding is allowed between members and after the last one
                if not data:
                    break
                if not GZIP.startswith(data[: len(GZIP)]):
                    raise _DamagedError(Reason.GZIP_DAMAGED)
                inflater = zlib.decompressobj(16 + zlib.MAX_WBITS)
            try:
                yield inflater.decompress(data, BLOCK)
            except zlib.error:
                raise _DamagedError(Reason.GZIP_DAMAGED) from None
            if inflater.eof:
                data, inflater = inflater.unused_data, None
            else:
                data = inflater.unconsumed_tail
    if inflater is not None:
        yield inflater.flush()
        raise _DamagedError(Reason.GZIP_CUT)


def _gathered(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Small pieces put together to blocks; all that came before damage is kept."""
    pending: list[bytes] = []
    size = 0
    damage: _DamagedError | None = None
    try:
        for piece in pieces:
            pending.append(piece)
            size += len(piece)
            if size >= BLOCK:
                yield b"".join(pending)
                pending, size = [], 0
    except _DamagedError as error:
        damage = error
    if size:
        yield b"".join(pending)
    if damage is not None:
        raise damage
