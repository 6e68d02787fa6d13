"""Whether all parts of a latency map fit together: what the edge takes on trust when it loads one. Pure.

The edge looks at nothing that grows with the number of cells. So whoever reads a map from a file or is about to publish one
looks at every cell, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isochrone_edge.latency_map import KINDS, SPLIT_BITS, LatencyMap, MapError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def sound(data: bytes) -> LatencyMap:
    """The map that these bytes are, every cell and colour of it looked at.

    Raises:
        MapError: they are none, or its parts do not fit together; the message says which.
    """
    live = LatencyMap(data)
    starts = np.frombuffer(live.sections[b"PALO"], "<u4").astype(np.int64)
    empty = np.flatnonzero(np.diff(starts) < 1)
    if len(empty):
        raise MapError(f"its colour {empty[0]} has no candidates, or the colours are out of order")
    for kind, tag in KINDS.items():
        if tag in live.sections:
            keys, colours = _table(kind, live.sections[tag])
            if not np.all(keys[1:] > keys[:-1]):
                raise MapError(f"its {kind} cells are out of order")
            if len(colours) and int(colours.max()) >= live.colours:
                raise MapError(
                    f"its {kind} cells name colour {colours.max()} of {live.colours}, counted from 0"
                )
    return live


def _table(kind: str, section: memoryview[int]) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
    """(n,) stored keys and (n,) colours; docs/MAP_FORMAT.md, Cells."""
    bits = SPLIT_BITS.get(kind)
    if bits is None:
        keys, colours = np.frombuffer(section[: len(section) // 4 * 4], "<u2").reshape(2, -1)
        return keys.astype(np.int64), colours
    uppers = int.from_bytes(section[:4], "little")
    heads = np.frombuffer(section, "<u4", 2 * uppers, 4).reshape(-1, 2).astype(np.int64)
    counts = np.diff(heads[:, 1], prepend=0)
    if np.any(counts < 1):
        raise MapError(f"its {kind} cells have a head of none")
    n, at = int(counts.sum()), 4 + 8 * uppers
    lowers = np.frombuffer(section, "u1" if bits == 8 else "<u2", n, at)
    colours = np.frombuffer(section, "<u2", n, at + n * bits // 8)
    return np.repeat(heads[:, 0], counts) << bits | lowers, colours
