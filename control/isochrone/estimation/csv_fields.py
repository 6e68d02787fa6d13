"""Where the fields of a block of rows are, for all rows at once, and which known name each field of a column holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isochrone.estimation.csv_numbers import PAD, Field, Text
from isochrone.estimation.csv_rows import LINE_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from isochrone.estimation.csv_numbers import U64, Flags, Index


class Rows:
    """The rows of a block and where their fields are. Blank lines are no rows.

    `odd` marks the rows whose fields are not to be had by cutting at commas; theirs are then of no meaning.
    """

    def __init__(self, data: bytes, width: int) -> None:
        self._data, self._width, self.text = data, width, Text(data)
        characters = self.text.bytes
        feeds = characters == ord("\n")
        cuts = np.flatnonzero((characters == ord(",")) | feeds)
        ends = cuts[width - 1 :: width]
        regular = len(cuts) == width * np.count_nonzero(feeds) and bool(feeds[ends].all())
        if not regular:
            ends = np.flatnonzero(feeds)
        self._starts, self._ends = np.r_[len(PAD), ends + 1][:-1], ends
        self.odd = np.zeros(len(ends), bool)
        self.line = np.arange(len(ends))
        if regular:
            self._cuts = cuts.reshape(-1, width)
        else:
            last = np.searchsorted(cuts, ends)
            self.odd = np.diff(last, prepend=-1) != width
            blank = (ends == self._starts) | (
                (ends == self._starts + 1) & (characters[self._starts] == ord("\r"))
            )
            first = np.where(self.odd, 0, last - (width - 1))[~blank]
            padded = np.r_[cuts, np.full(width, ends[-1])]
            self._cuts = padded[first[:, None] + np.arange(width)]
            self.odd, self.line = self.odd[~blank], self.line[~blank]
            self._starts, self._ends = self._starts[~blank], ends[~blank]
        self._quoted: list[Flags] = []
        self.odd |= self._ends - self._starts > LINE_MAX
        if b'"' in data:
            self._take_quotes_off()
        if b"\0" in data:
            self._mark(characters == 0)
        if not data.isascii():
            try:
                data.decode()
            except UnicodeDecodeError:
                self._mark(characters >= 128)

    def field(self, column: int) -> Field:
        """Where one column is in each row."""
        start = self._cuts[:, column - 1] + 1 if column else self._starts
        end = self._cuts[:, column]
        if column == self._width - 1:
            end = end - (self.text.bytes[end - 1] == ord("\r"))
        if self._quoted:
            start, end = start + self._quoted[column], end - self._quoted[column]
        return Field(start, end)

    def bytes_of(self, row: int) -> bytes:
        """One row's text."""
        return self._data[self._starts[row] : self._ends[row]]

    def _take_quotes_off(self) -> None:
        """Quotes around whole fields are nothing but decoration; rows with any others are odd."""
        characters, quoted = self.text.bytes, []
        pairs = np.zeros(len(self.line), np.int64)
        for column in range(self._width):
            start, end = self.field(column)
            around = (characters[start] == ord('"')) & (characters[end - 1] == ord('"')) & (end - start >= 2)
            quoted.append(around)
            pairs += around
        self._quoted = quoted
        owner = np.searchsorted(self._ends, np.flatnonzero(characters == ord('"')))
        self.odd |= np.bincount(owner, minlength=len(pairs)) != 2 * pairs

    def _mark(self, characters: Flags) -> None:
        self.odd[np.searchsorted(self._ends, np.flatnonzero(characters))] = True


class Names:
    """A small set of known texts that fields are compared with."""

    def __init__(self, names: Sequence[bytes]) -> None:
        self._lengths = np.array([len(name) for name in names])
        # Words that hold the longest one.
        self._count = (max((len(name) for name in names), default=0) + 7) // 8
        table = [[self._word(name, i) for i in range(self._count)] for name in names]
        self._words = np.array(table, np.uint64).reshape(len(names), self._count).T.copy()
        self._factors = 0x9E3779B97F4A7C15 + 0x5851F42D4C957F2E * np.arange(self._count + 1, dtype=np.uint64)
        self._bits, slots = 8, np.zeros(0, np.uint64)
        while True:  # more slots until every name has its own; with 16 times as many as names that comes soon
            slots = self._slot(self._words, self._lengths)
            if len(set(slots.tolist())) == len(names):
                break
            self._bits += 1
        self._table = np.zeros(1 << self._bits, np.int32)
        self._table[slots] = np.arange(len(names))

    @staticmethod
    def _word(name: bytes, i: int) -> int:
        """Eight characters counted from the end, at the upper end of the word, like `Text.last`."""
        part = name[max(0, len(name) - 8 * i - 8) : max(0, len(name) - 8 * i)]
        return int.from_bytes(part, "little") << 8 * (8 - len(part)) if part else 0

    def _slot(self, words: Sequence[U64] | U64, length: Index) -> U64:
        mixed = length.astype(np.uint64) * self._factors[-1]
        for word, factor in zip(words, self._factors, strict=False):
            mixed = (mixed ^ word) * factor
            mixed ^= mixed >> np.uint64(29)
        slot: U64 = (mixed * self._factors[0]) >> np.uint64(64 - self._bits)
        return slot

    def find(self, text: Text, field: Field) -> NDArray[np.int32]:
        """The index of each row's text among the names, or -1."""
        length = field.end - field.start
        parts = [
            text.last(np.maximum(field.end - 8 * i, 8), np.clip(length - 8 * i, 0, 8))
            for i in range(self._count)
        ]
        if not len(self._lengths):
            return np.full(len(length), -1, np.int32)
        index = self._table[self._slot(parts, length)]
        same = self._lengths[index] == length
        for part, word in zip(parts, self._words, strict=True):
            same &= part == word[index]
        return np.where(same, index, -1).astype(np.int32)
