"""Fields of text -> arrays of numbers, for all rows of a block at once.

Eight characters are one 64-bit word, so a number is read with a handful of operations on whole columns (SWAR:
https://lemire.me/blog/2022/01/21/swar-explained-parsing-eight-digits/). Only plain spellings are understood:
digits with at most one point. Whatever else a row holds is marked bad here and left to `csv_rows`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    U64 = NDArray[np.uint64]
    Index = NDArray[np.int64]
    Flags = NDArray[np.bool_]

PAD = b" " * 24  # around the text, so that words which reach past its ends can be read
DIGITS = 19  # that fit 64 bits whatever they are
INVALID = 0xFFFF  # no code of two or three characters is that

_ZEROS = np.uint64(0x3030303030303030)
_POINTS = np.uint64(0x1E1E1E1E1E1E1E1E)  # points, less b"0" by exclusive or
_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_OVER_9 = np.uint64(0x7676767676767676)  # added to a byte above 9 it sets the byte's highest bit
_PAIRS = np.uint64(0x000000FF000000FF)
_MUL_1 = np.uint64(100 + (1_000_000 << 32))
_MUL_2 = np.uint64(1 + (10_000 << 32))
#: the last n characters of a word that was loaded little-endian
_LAST = np.array([(2**64 - 1) ^ (2 ** (64 - 8 * n) - 1) for n in range(9)], np.uint64)
#: what to divide by, by the number of decimals; -1 means that there was no point
_SCALE = np.array([10.0**n for n in range(24)] + [1.0])


def _base36() -> NDArray[np.uint8]:
    table = np.full(256, 255, np.uint8)
    for character in b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ":
        table[character] = int(chr(character), 36)
    return table


_BASE36 = _base36()
_FIRST = _BASE36[np.arange(65536) & 0xFF].astype(np.uint32)
_SECOND = _BASE36[np.arange(65536) >> 8].astype(np.uint32)
#: codes by two characters as they stand in memory
_TWO = np.where((_FIRST < 36) & (_SECOND < 36), _FIRST * 36 + _SECOND, INVALID).astype(np.uint16)


class Field(NamedTuple):
    """Where one column's text is in each row: [start, end) in the block's bytes."""

    start: Index
    end: Index


def _take_point_out(words: list[U64]) -> Index:
    """Move the digits before the first point up, over it. How many digits come after it; -1 where there is none."""
    decimals = np.full(len(words[0]), -1)
    shift = np.zeros(len(words[0]), np.uint64)  # 8 from the word with the point on
    for number, word in enumerate(words):
        if number and shift.all():  # every row's point is below
            words[number] = word << np.uint64(8)
        else:
            point = word ^ _POINTS
            point = (point - _ONES) & ~point & _HIGHS
            point &= ~point + np.uint64(1)  # the lowest bit is the first point's
            point *= shift == 0  # a second point stays, and is no digit
            # All bits before the point; all there are when there is none.
            below = (point >> np.uint64(7)) - np.uint64(1)
            here = (point != 0).astype(np.int64)
            decimals += here * (8 * number + 8 - (np.bitwise_count(below) >> 3).astype(np.int64))
            shift |= here.view(np.uint64) << np.uint64(3)
            words[number] = ((word & below) << shift) | (word & ~(below << np.uint64(8) | np.uint64(0xFF)))
        if number + 1 < len(words):
            words[number] |= words[number + 1] >> (np.uint64(64) - shift)
    return decimals


def _number(words: list[U64]) -> tuple[U64, Flags]:
    """The number that words of eight digits make up, and whether they hold anything else than digits."""
    total: U64 | None = None
    bad = np.zeros(len(words[0]), np.uint64)
    for word in reversed(words):
        bad |= (word + _OVER_9) | word
        pairs = word * np.uint64(10) + (word >> np.uint64(8))
        eight = ((pairs & _PAIRS) * _MUL_1 + ((pairs >> np.uint64(16)) & _PAIRS) * _MUL_2) >> np.uint64(32)
        total = eight if total is None else total * np.uint64(10**8) + eight
    assert total is not None  # noqa: S101  there is at least one word
    return total, (bad & _HIGHS) != 0


class Text:
    """The bytes of a block, read as words at any position. `data` begins and ends with PAD."""

    def __init__(self, data: bytes) -> None:
        self.bytes = np.frombuffer(data, np.uint8)
        self._words: U64 = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
        self._twos: NDArray[np.uint16] = np.ndarray((len(data) - 1,), "<u2", data, strides=(1,))

    def last(self, end: Index, length: Index) -> U64:
        """The last `length` (0 to 8) characters before `end`, at the upper end of a word; the rest is 0."""
        word = self._words[end - 8]
        word &= _LAST[length]
        return word

    def equals(self, field: Field, name: bytes) -> Flags:
        """Where the field is this text of at most 8 characters."""
        length = field.end - field.start
        word = np.uint64(int.from_bytes(name, "little") << 8 * (8 - len(name)))
        same: Flags = (length == len(name)) & (self.last(field.end, np.clip(length, 0, 8)) == word)
        return same

    def integer(self, field: Field) -> tuple[U64, Flags]:
        """Whole numbers of at most 19 digits."""
        length = field.end - field.start
        value, bad = _number(self._digits(field.end, length))
        return value, bad | (length < 1) | (length > DIGITS)

    def decimal(self, field: Field, *, signed: bool = False) -> tuple[NDArray[np.float64], Flags]:
        """Numbers of at most 19 digits with at most one point; an empty field is NaN.

        Up to 15 digits in all the result is the nearest double, as of `float`; beyond, it may be its neighbour.
        """
        start, end = field
        if signed:
            minus = self.bytes[start] == ord("-")
            start = start + minus
        length = end - start
        words = self._digits(end, length)
        decimals = _take_point_out(words)
        number, bad = _number(words)
        digits = length - (decimals >= 0)
        bad |= (digits < 1) | (digits > DIGITS)
        value = number / _SCALE[decimals]
        if signed:
            value = np.where(minus, -value, value)
        empty = field.start == end
        value[empty] = np.nan
        return value, bad & ~empty

    def _digits(self, end: Index, length: Index) -> list[U64]:
        """The characters of the longest field in words of eight, the last first, each character less b"0"."""
        words = []
        for back in range(0, min(max(8, int(length.max(initial=0))), DIGITS + 1), 8):
            word = self._words[end - (8 + back)]
            word ^= _ZEROS
            word &= _LAST[np.clip(length - back, 0, 8)]
            words.append(word)
        return words

    def code(self, field: Field, width: int) -> tuple[NDArray[np.uint16], Flags]:
        """Codes of two or three characters as `letters` has them; an empty field is 0."""
        length = field.end - field.start
        code = _TWO[self._twos[field.start]].astype(np.uint32)
        bad = (length != width) | (code == INVALID)
        if width == 3:
            third = _BASE36[self.bytes[field.start + 2]]
            bad |= third >= 36
            code = code * 36 + third
        empty = length == 0
        code[empty | bad] = 0
        return code.astype(np.uint16), bad & ~empty
