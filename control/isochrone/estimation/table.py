"""The shape that estimates have between estimation and mapping."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Order of the numbers in `EstimateTable.level`; the names are those of the map format.
LEVELS = ("asn_country", "asn", "country_grid", "grid", "colo", "country", "continent", "default")


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateTable:
    """Estimates for n cells x m origins, one row a cell.

    A cell is (level, key) with the key as the map format encodes it (`isochrone_edge.latency_map`): the ASN;
    ASN << 16 | letters(country); grid_key(...); letters(country) << COUNTRY_SHIFT | grid_key(...); letters(colo), letters(country), letters(continent); 0
    for default.
    There is exactly one default row.
    """

    origins: tuple[str, ...]  # m ids
    level: NDArray[np.uint8]  # (n,) index into LEVELS
    key: NDArray[np.uint64]  # (n,)
    rtt_ms: NDArray[np.float32]  # (n, m) NaN: nothing is known
    samples: NDArray[np.int32]  # (n, m) 0 where inferred
    spread_ms: NDArray[
        np.float32
    ]  # (n, m) half the width within which the estimate is believed; NaN where rtt_ms is
    #: (n,) for networks, where they are (`latency_map.home_of`): the cell speaks for clients near there (`near`); None: all speak everywhere
    home: NDArray[np.uint8] | None = None
    grid_step: float = 0.0  # degrees; 0 when there are no grid cells
    counts: dict[str, int] = field(default_factory=dict)  # what was set aside, by reason
