"""Samples as columns: what estimation reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from isochrone.model import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

#: Order of the numbers in `StoredSamples.outcome` and in the samples table.
OUTCOMES = (Outcome.OK, Outcome.TARGET_FAILED, Outcome.PROBER_FAILED)

#: One row of the samples table as `columns_of` takes it.
ROW = np.dtype([
    ("id", "i8"), ("timestamp", "f8"), ("origin", "i8"), ("asn", "i8"), ("country", "i8"), ("colo", "i8"), ("continent", "i8"),
    ("method", "i8"), ("outcome", "i8"), ("rtt_ms", "f8"), ("latitude", "f8"), ("longitude", "f8"),
])  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredSamples:
    """n samples of every outcome, one array a column."""

    newest: int  # the largest id among them; 0 when there are none
    timestamp: NDArray[np.float64]  # (n,) Unix seconds
    origins: tuple[str, ...]  # the ids that `origin` counts
    origin: NDArray[np.int32]  # (n,) index into origins
    asn: NDArray[np.uint32]
    country: NDArray[np.uint16]  # `isochrone_edge.latency_map.letters` of the code; 0: unknown
    colo: NDArray[np.uint16]
    continent: NDArray[np.uint16]
    methods: tuple[str, ...]
    method: NDArray[np.int32]  # (n,) index into methods
    outcome: NDArray[np.uint8]  # (n,) index into OUTCOMES; 0 is ok
    rtt_ms: NDArray[np.float64]  # NaN unless outcome is ok
    latitude: NDArray[np.float64]  # NaN when unknown
    longitude: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.timestamp)

    def origin_in(self, origins: Sequence[str]) -> NDArray[np.int32]:
        """(n,) each sample's origin as an index into another list of ids; -1 where that list lacks it."""
        place = {name: number for number, name in enumerate(origins)}
        table = np.array([place.get(name, -1) for name in self.origins] or [-1], np.int32)
        return table[self.origin]


def columns_of(rows: NDArray[np.void], names: Mapping[int, str]) -> StoredSamples:
    """Rows as the table holds them (`ROW`, infinity for an absent number) as columns with dense indices of names."""

    def named(column: str) -> tuple[tuple[str, ...], NDArray[np.int32]]:
        ids, index = np.unique(rows[column], return_inverse=True)
        return tuple(names[int(number)] for number in ids), index.astype(np.int32)

    def number(column: str) -> NDArray[np.float64]:
        values = rows[column].astype(np.float64)
        values[np.isinf(values)] = np.nan
        return values

    (origins, origin), (methods, method) = named("origin"), named("method")
    return StoredSamples(
        newest=int(rows["id"].max(initial=0)), timestamp=rows["timestamp"].astype(np.float64), origins=origins, origin=origin,
        asn=rows["asn"].astype(np.uint32), country=rows["country"].astype(np.uint16),
        colo=rows["colo"].astype(np.uint16), continent=rows["continent"].astype(np.uint16),
        methods=methods, method=method, outcome=rows["outcome"].astype(np.uint8),
        rtt_ms=number("rtt_ms"), latitude=number("latitude"), longitude=number("longitude"),
    )  # fmt: skip
