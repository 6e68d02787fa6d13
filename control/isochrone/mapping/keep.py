"""Which cells may keep the colour that they had: what makes a map stay the same while the network does. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from isochrone.mapping.partition import STATE_STEP, UNKNOWN
from isochrone.mapping.rank import NONE
from isochrone.mapping.unpack import GONE
from isochrone_edge.latency_map import HELD

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from isochrone.mapping.cells import Cells, Looseness
    from isochrone.mapping.partition import Floats, Ints
    from isochrone.mapping.unpack import Palette

_SLACK = (
    2.0  # an origin that is so many tolerances better than a colour's last candidate must not be left out
)
_Number = TypeVar("_Number", bound=np.generic)


def padded(values: NDArray[_Number], width: int, fill: int) -> NDArray[_Number]:
    """The rows made `width` long."""
    padding = np.full((len(values), width - values.shape[1]), fill, values.dtype)
    return np.hstack([values, padding])


def fits(
    cells: Cells, units: Floats, palette: Palette, entry: Ints, looseness: Looseness
) -> NDArray[np.bool_]:
    """Whether a cell's entry in the palette still says what is true of the cell, as far as `looseness` asks."""
    tolerance, width = looseness.tolerance, cells.order.shape[1]
    if not len(palette) or palette.order.shape[1] > width:
        return np.zeros(len(units), bool)
    rows = np.arange(len(units))
    lists = padded(palette.order, width, NONE)[entry]
    there, at = lists >= 0, np.maximum(lists, 0).astype(np.int64)
    counts = np.count_nonzero(there, axis=1)
    flags = palette.flags[entry]
    good = (entry >= 0) & ~np.any(lists == GONE, axis=1) & (lists[:, 0] == cells.order[:, 0])
    # A cell that was held and now is not keeps the entry: as long as it fits, nothing happened that is worth a publication.
    good &= (flags == cells.flags) | (flags == cells.flags | HELD)
    values = np.take_along_axis(units, at, axis=1)
    factors = np.full(width, looseness.others, np.float32)
    factors[0] = looseness.first
    allowed = tolerance.units(values) * factors
    off = np.abs(np.mod(values, np.float32(STATE_STEP)) - padded(palette.units, width, 0)[entry])
    evidence = np.take_along_axis(cells.samples, at, axis=1).astype(np.int64)
    claimed = padded(palette.samples, width, 0)[entry]
    good &= np.all(~there | ((values < UNKNOWN) & (off <= allowed) & (claimed <= 2 * evidence)), axis=1)
    # Beyond the first, no candidate comes before one that is better by more than the tolerance of both ...
    late = values[:, 1:-1] > values[:, 2:] + allowed[:, 1:-1] + allowed[:, 2:] + 1
    good &= ~np.any(late & there[:, 2:], axis=1)
    # ... and none is left out that is so much better than the last.
    left_out = units.copy()
    np.put_along_axis(left_out, np.where(there, at, at[:, :1]), np.float32(UNKNOWN), axis=1)
    nearest, last = left_out.min(axis=1), values[rows, np.maximum(counts - 1, 0)]
    factor = np.float32(
        looseness.others * (1 if looseness.exact else 2)
    )  # merged cells agree on their lists loosely
    slack = factor * (tolerance.units(nearest) + tolerance.units(last)) + 1
    fitting: NDArray[np.bool_] = good & ~np.where(
        counts < width, nearest < UNKNOWN, (counts > 1) & (last > nearest + slack)
    )
    return fitting
