"""CSV text -> columns: plain rows all at once, the others one by one. A row is one physical line.

That a row is one line is what keeps damage small: an open quote or a lost field never reaches the next row, and line
numbers are those an editor shows. Fields that are looked at need no line feed inside; other columns must not have one.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from isochrone.estimation.csv_blocks import Block, read_blocks
from isochrone.estimation.csv_fields import Names, Rows
from isochrone.estimation.csv_numbers import Field
from isochrone.estimation.csv_rows import CODES, OUTCOME_NAMES, Layout, fill
from isochrone.estimation.rejects import NoSamplesError, Reason, Rejects
from isochrone.estimation.samples import OUTCOMES, RawColumns, SampleColumns, screen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

WORKERS = min(4, os.cpu_count() or 1)
MALLOC_HINT = (32 << 20) - (1 << 16)  # just below the largest that is learned from
SPACE = ord(" ")


def read_file(path: Path, origins: tuple[str, ...], now: float, rejects: Rejects) -> Iterator[SampleColumns]:
    """The usable samples of one file, block by block in its order; see `samples.read_samples`."""
    # glibc's malloc hands large arrays back to the system at once, and the next one costs a page fault for every 4 KiB;
    # having seen one of this size come and go it keeps them. That is a third of the time.
    np.empty(MALLOC_HINT, np.uint8)
    name = str(path)
    parser: _Parser | None = None
    waiting: deque[Future[tuple[SampleColumns, Rejects]]] = deque()
    refused = rejects.total
    with ThreadPoolExecutor(WORKERS, "samples") as pool:
        for block in read_blocks(path, rejects):
            if parser is None:
                head, others = block.split()
                layout = Layout.of(head)
                if layout is None:
                    rejects.add(Reason.HEADER, name, [block.first_line], 1)
                    return
                parser = _Parser(layout, origins, now, name)
                block = others  # noqa: PLW2901
            waiting.append(pool.submit(parser.samples, block))
            while len(waiting) > WORKERS:
                yield _merged(waiting.popleft(), rejects)
        while waiting:
            yield _merged(waiting.popleft(), rejects)
    if parser is None and rejects.total == refused:
        rejects.add(Reason.EMPTY_FILE, name, [1], 1)


def _merged(part: Future[tuple[SampleColumns, Rejects]], rejects: Rejects) -> SampleColumns:
    columns, found = part.result()
    rejects.merge(found)
    return columns


class _Parser:
    """What the blocks of one file have in common."""

    def __init__(self, layout: Layout, origins: tuple[str, ...], now: float, name: str) -> None:
        self._layout, self._origins, self._now, self._name = layout, origins, now, name
        self._ids = [origin.encode() for origin in origins]
        self._known, self._outcomes = Names(self._ids), Names(OUTCOME_NAMES)

    def samples(self, block: Block) -> tuple[SampleColumns, Rejects]:
        rejects = Rejects()
        return screen(self._rows(block), self._origins, self._now, self._name, rejects), rejects

    def _rows(self, block: Block) -> RawColumns:
        rows = Rows(block.data, self._layout.width)
        raw = RawColumns.blank(len(rows.line))
        raw.line = rows.line + block.first_line
        text, odd = rows.text, rows.odd

        def field(name: str) -> Field | None:
            return rows.field(self._layout.columns[name]) if name in self._layout.columns else None

        for name in ("timestamp", "rtt_ms", "latitude", "longitude"):
            if (found := field(name)) is not None:
                values, bad = text.decimal(found, signed=name != "timestamp")
                setattr(raw, name, values)
                odd |= bad
        odd |= np.isnan(raw.timestamp)
        for name, (width, _) in CODES.items():
            if (found := field(name)) is not None:
                codes, bad = text.code(found, width)
                setattr(raw, name, codes)
                odd |= bad
        if (found := field("asn")) is not None:
            asn, bad = text.integer(found)
            raw.asn = asn.astype(np.uint32)
            odd |= bad | (asn > 0xFFFFFFFF)
        if (found := field("origin")) is not None:
            raw.origin = self._known.find(text, found)
            # An unknown name may be a known one with spaces around it.
            odd |= (raw.origin < 0) & (
                (text.bytes[found.start] <= SPACE) | (text.bytes[found.end - 1] <= SPACE)
            )
        if (found := field("outcome")) is not None:
            others = np.flatnonzero(~text.equals(found, OUTCOME_NAMES[0]))
            outcome = self._outcomes.find(text, Field(found.start[others], found.end[others]))
            raw.outcome[others] = outcome % len(OUTCOMES)
            odd[others] |= outcome < 0
        for row in np.flatnonzero(odd).tolist():
            fill(raw, row, rows.bytes_of(row), self._layout, self._ids)
        return raw


def read_samples(
    paths: Iterable[str | Path], origins: Sequence[str], *, now: float, rejects: Rejects
) -> Iterator[SampleColumns]:
    """The usable samples of CSV files (plain or gzip), in parts of some 100,000 rows, in the order of the files.

    Bad rows and bad files are counted in `rejects` (complete when the iterator is) and the rest is used.

    Raises:
        UnreadableSamplesError: a file can't be opened.
    """
    for path in paths:
        yield from read_file(Path(path), tuple(origins), now, rejects)


def load_samples(
    paths: Iterable[str | Path], origins: Sequence[str], *, now: float
) -> tuple[SampleColumns, Rejects]:
    """All usable samples at once: 34 bytes a sample. `aggregate` on `read_samples` needs less memory.

    Raises:
        UnreadableSamplesError: a file can't be opened.
        NoSamplesError: there is no usable row.
    """
    rejects = Rejects()
    parts = list(read_samples(paths, origins, now=now, rejects=rejects))
    if not rejects.used:
        raise NoSamplesError(rejects)
    return SampleColumns.join(parts, origins), rejects
