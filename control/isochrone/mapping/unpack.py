"""A latency map as arrays, and cells as single numbers: what building on a previous map and comparing two maps need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from isochrone.estimation.table import LEVELS
from isochrone.mapping.rank import NONE
from isochrone_edge.latency_map import evidence_code, evidence_count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from isochrone_edge.latency_map import LatencyMap

GONE = -2  # in the order of a palette: an origin that is no more
_KEY_BITS = 56
_CANDIDATE = np.dtype([("origin", "u1"), ("evidence", "u1"), ("units", "<u2")])
_COUNTS = np.array([evidence_count(code) for code in range(256)], np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Palette:
    """c colours of at most k candidates: rows of equal length, NONE in `order` after a colour's last."""

    order: NDArray[np.int16]  # (c, k) indexes of origins, best first
    units: NDArray[np.int32]  # (c, k) round-trip times in the format's unit
    samples: NDArray[np.int32]  # (c, k)
    flags: NDArray[np.uint8]  # (c,)

    def __len__(self) -> int:
        return len(self.flags)


@dataclass(frozen=True, slots=True, eq=False)
class Unpacked:
    """A map's cells and palette."""

    cells: NDArray[np.uint64]  # (n,) ids in order
    colour: NDArray[np.int64]  # (n,)
    palette: Palette

    def colour_of(self, cells: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Each cell's colour; -1 for those that the map does not have."""
        at = np.minimum(np.searchsorted(self.cells, cells), len(self.cells) - 1)
        return np.where(self.cells[at] == cells, self.colour[at], -1)


def cell_ids(level: NDArray[np.uint8], key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One number for (level, key). Raises ValueError when a key does not fit."""
    keys = key.astype(np.uint64)
    if np.any(keys >> np.uint64(_KEY_BITS)):
        raise ValueError(f"the key {int(keys.max())} is larger than any cell's")
    return level.astype(np.uint64) << np.uint64(_KEY_BITS) | keys


def level_of(cells: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """The index into LEVELS of each cell."""
    return (cells >> np.uint64(_KEY_BITS)).astype(np.uint8)


def key_of(cells: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The key of each cell within its level."""
    return cells & np.uint64((1 << _KEY_BITS) - 1)


def floor_samples(samples: NDArray[np.int32]) -> NDArray[np.int32]:
    """Counts as the format keeps them."""
    values, at = np.unique(samples, return_inverse=True)
    floors = np.array([evidence_count(evidence_code(value)) for value in values.tolist()], np.int32)
    return floors[at].reshape(samples.shape)


def unpack(live: LatencyMap, index: dict[str, int] | None = None) -> Unpacked:
    """The map's cells and palette.

    Args:
        live: the map.
        index: numbers for the ids of origins; an origin that has none becomes GONE. The map's own when not given.
    """
    ids = [origin["id"] for origin in live.origins]
    renumber = np.array(
        [ids.index(name) if index is None else index.get(name, GONE) for name in ids], np.int16
    )
    starts = np.frombuffer(live.sections[b"PALO"], "<u4").astype(np.int64)
    stored = np.frombuffer(live.sections[b"PALC"], _CANDIDATE)
    counts = np.diff(starts)
    shape = (live.colours, int(counts.max()))
    place = np.arange(shape[1])
    there = place < counts[:, None]
    at = np.where(there, starts[:-1, None] + place, 0)
    palette = Palette(
        order=np.where(there, renumber[stored["origin"][at]], NONE).astype(np.int16),
        units=np.where(there, stored["units"][at], 0).astype(np.int32),
        samples=np.where(there, _COUNTS[stored["evidence"][at]], 0).astype(np.int32),
        flags=np.frombuffer(live.sections[b"FLAG"], np.uint8)[: live.colours].copy(),
    )
    cells, colours = [], []
    for number, kind in enumerate(LEVELS):
        pairs = np.array(live.items(kind), np.uint64).reshape(-1, 2)
        cells.append(cell_ids(np.full(len(pairs), number, np.uint8), pairs[:, 0]))
        colours.append(pairs[:, 1].astype(np.int64))
    return Unpacked(np.concatenate(cells), np.concatenate(colours), palette)
