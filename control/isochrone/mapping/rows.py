"""The estimates that a map is made of: the cells in order of their ids, the map's own origins, overrides put in. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from isochrone.estimation.table import LEVELS
from isochrone.mapping.rank import NONE
from isochrone.mapping.unpack import cell_ids, key_of, level_of
from isochrone_edge.latency_map import EVERYWHERE, RTT_MAX_MS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from isochrone.estimation.table import EstimateTable
    from isochrone.mapping.override import Applied
    from isochrone.model import Origin

_DEFAULT = LEVELS.index("default")


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Estimates of n cells, in order of their ids, for the map's own origins."""

    cells: NDArray[np.uint64]
    rtt_ms: NDArray[np.float32]
    samples: NDArray[np.int32]
    spread_ms: NDArray[np.float32]
    home: NDArray[np.uint8]  # see `latency_map.near`

    def take(self, which: NDArray[Any]) -> Rows:
        """Some of the rows."""
        return Rows(*(getattr(self, name)[which] for name in self.__slots__))


def rows_of(table: EstimateTable, origins: Sequence[Origin]) -> Rows:
    """The estimates for these origins, NaN for those that were never measured.

    Raises ValueError when a cell is there twice, when there is not exactly one default, or when a key does not fit.
    """
    cells = cell_ids(table.level, table.key)
    sort = np.argsort(cells)
    cells = cells[sort]
    if np.any(cells[1:] == cells[:-1]):
        raise ValueError("a cell is there twice among the estimates")
    if np.count_nonzero(level_of(cells) == _DEFAULT) != 1:
        raise ValueError("the estimates have no default cell, or more than one")
    shape = (len(cells), len(origins))
    rtt_ms, spread_ms = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
    samples = np.zeros(shape, np.int32)
    for column, origin in enumerate(origins):
        if origin.id in table.origins:
            measured = table.origins.index(origin.id)
            rtt_ms[:, column] = np.maximum(table.rtt_ms[sort, measured], 0)
            spread_ms[:, column] = table.spread_ms[sort, measured]
            samples[:, column] = table.samples[sort, measured]
    home = np.full(len(cells), EVERYWHERE, np.uint8) if table.home is None else table.home[sort]
    return Rows(cells, rtt_ms, samples, spread_ms, home)


def overridden(
    rows: Rows, index: Mapping[str, int], applied: Sequence[Applied]
) -> tuple[Rows, NDArray[np.int16]]:
    """The rows, with one for every overridden cell, and each row's overriding origin (NONE: none)."""
    wanted: dict[int, int] = {}
    # ASNs first: the override of a finer cell overrules that of its ASN.
    for entry in sorted(applied, key=lambda entry: entry.override.level != "asn"):
        if entry.status != "applied":
            continue
        override, origin = entry.override, index[entry.override.origin]
        if override.level == "asn":
            pairs = level_of(rows.cells) == LEVELS.index("asn_country")
            finer = rows.cells[pairs & (key_of(rows.cells) >> np.uint64(16) == override.key)]
            wanted.update(dict.fromkeys(finer.tolist(), origin))
        wanted[_cell(override.level, override.key)] = origin
    forced = np.full(len(rows.cells), NONE, np.int16)
    if not wanted:
        return rows, forced
    missing = np.array(sorted(set(wanted) - set(rows.cells.tolist())), np.uint64)
    if len(missing):
        base = [_base(rows, cell) for cell in missing.tolist()]
        added = replace(rows.take(np.array(base)), cells=missing)
        added.samples[:] = 0
        joined = Rows(*(np.concatenate([getattr(rows, f), getattr(added, f)]) for f in Rows.__slots__))
        rows = joined.take(np.argsort(joined.cells))
    cells, origins = np.array(list(wanted), np.uint64), np.array(list(wanted.values()), np.int16)
    at = np.searchsorted(rows.cells, cells)
    forced = np.full(len(rows.cells), NONE, np.int16)
    forced[at] = origins
    rtt_ms = rows.rtt_ms.copy()
    unknown = np.isnan(rtt_ms[at, origins])
    rtt_ms[at[unknown], origins[unknown]] = np.nan_to_num(rtt_ms[-1, origins[unknown]], nan=RTT_MAX_MS)
    return replace(rows, rtt_ms=rtt_ms), forced


def _base(rows: Rows, cell: int) -> int:
    """The row whose estimates stand in for a cell that has none: its ASN's, its country's, the default's."""
    number = np.array([cell], np.uint64)
    if level_of(number)[0] == LEVELS.index("asn_country"):
        key = int(key_of(number)[0])
        for coarser in (_cell("asn", key >> 16), _cell("country", key & 0xFFFF)):
            at = int(np.searchsorted(rows.cells, np.uint64(coarser)))
            if rows.cells[at] == coarser:
                return at
    return len(rows.cells) - 1


def _cell(level: str, key: int) -> int:
    return int(cell_ids(np.array([LEVELS.index(level)], np.uint8), np.array([key], np.uint64))[0])
