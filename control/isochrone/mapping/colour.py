"""Cells that are alike share a colour. Pure, deterministic, whatever the order of the cells.

Alike are cells with the same first choice, the same candidates in the same order, and round-trip times within a tolerance.
The Internet has more such classes than a small map can hold. When they exceed the budget, cells with the same first choice
are alike when their round-trip times are, so that the order beyond the first is that of the colour and may differ from a
cell's own among candidates within the tolerance of each other; and when that is not enough, the tolerance is raised, just so
far that the palette fits. The first choice is always each cell's own.

With a previous map, a cell whose colour still fits keeps that very entry: measured anew under unchanged conditions, the map
has the same content, and nothing is published.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from isochrone.mapping.cells import Cells, Looseness
from isochrone.mapping.keep import fits, padded
from isochrone.mapping.partition import STATE_STEP, UNKNOWN, Tolerance, fitting, partition
from isochrone.mapping.rank import NONE
from isochrone.mapping.unpack import Palette, floor_samples

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from isochrone.mapping.partition import Floats, Ints, Parts


_HEADROOM = 0.9  # of the budget for colours made anew, so that later changes find room beside what is kept


class Coloured(NamedTuple):
    """The palette, in an order of its own content, and each cell's colour."""

    palette: Palette
    colour: Ints  # (n,)
    looseness: Looseness
    kept: int  # cells that kept their previous entry


def colour(
    cells: Cells, tolerance: Tolerance, budget: int, previous: tuple[Palette, Ints] | None = None
) -> Coloured:
    """Colours for all cells, at most `budget` unless there are more first choices than that.

    `previous` is a palette in terms of these origins, with the entry that each cell had in it; -1: none.
    """
    units = cells.units()
    target = int(budget * _HEADROOM)
    looseness = _looseness(cells, units, tolerance, target)
    palette, label = _canonical(*_paint(cells, units, looseness))
    if budget < len(palette) < 2 * budget:  # the odd ones among merged cells were more than fit
        looseness = _looseness(cells, units, tolerance, target * target // len(palette))
        palette, label = _canonical(*_paint(cells, units, looseness))
    crowded = len(palette) > budget
    if crowded:
        looseness = _looseness(cells, units, tolerance, target)
        palette, label = _canonical(*_paint(cells, units, looseness, spare_odd=False))
    fresh = Coloured(palette, label, looseness, 0)
    if previous is None or not len(previous[0]) or crowded:
        return fresh
    known, entry = previous
    entry = np.where(fits(cells, units, known, entry, looseness), entry, -1)
    rest = np.flatnonzero(entry < 0)
    palette, label = _paint(cells.take(rest), units[rest], looseness)
    entry[rest] = label + len(known)
    palette, label = _canonical(_join([known, palette]), entry)
    return Coloured(palette, label, looseness, len(entry) - len(rest)) if len(palette) <= budget else fresh


def _looseness(cells: Cells, units: Floats, tolerance: Tolerance, budget: int) -> Looseness:
    """The least that fits the budget."""
    strict = Looseness(tolerance, exact=True, first=1.0, others=1.0)
    if len(np.unique(_roots(cells, exact=True))) <= budget:
        parts = _divide(cells, units, strict, budget)
        if len(parts.width) <= budget and fitting(parts, budget) <= 1:
            return strict
    # No more than half of the budget for what the first choice's own round-trip time needs.
    half = max(1, budget // 2)
    first = fitting(_by_first(cells, units, replace(strict, exact=False), half), half)
    loose = Looseness(tolerance, exact=False, first=first, others=1.0)
    return replace(loose, others=fitting(_divide(cells, units, loose, budget), budget))


def _roots(cells: Cells, *, exact: bool) -> Ints:
    """Numbers for what the cells of a colour have to share: flags and first choice, or all candidates in their order."""
    lists = cells.order if exact else cells.order[:, :1]
    rows = np.ascontiguousarray(np.column_stack([lists, cells.flags]).astype(np.int16))
    whole = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
    return np.unique(whole, return_inverse=True)[1].astype(np.int64)


def _by_first(cells: Cells, units: Floats, looseness: Looseness, budget: int | None = None) -> Parts:
    """The roots halved until the round-trip times of the first choice are alike."""
    roots = _roots(cells, exact=looseness.exact)
    first = np.take_along_axis(units, cells.order[:, :1].astype(np.int64), axis=1)
    return partition(roots, first, first, looseness.tolerance, limit=looseness.first, budget=budget)


def _divide(cells: Cells, units: Floats, looseness: Looseness, budget: int | None = None) -> Parts:
    """The groups that become colours."""
    roots = _by_first(cells, units, looseness).label
    rows, last = np.arange(len(units)), np.count_nonzero(cells.order != NONE, axis=1) - 1
    first = cells.order[:, 0]
    reach = units[rows, cells.order[rows, last]]
    near, exact = np.minimum(units, reach[:, None]), units.copy()
    near[rows, first] = exact[rows, first] = 0  # settled by the roots
    return partition(
        roots,
        near,
        exact,
        looseness.tolerance,
        limit=looseness.others,
        budget=budget,
        count=cells.order.shape[1],
        lists=cells.order if looseness.exact else None,
    )


def _paint(
    cells: Cells, units: Floats, looseness: Looseness, *, spare_odd: bool = True
) -> tuple[Palette, Ints]:
    """The colours of these cells alone."""
    width = cells.order.shape[1]
    if not len(units):
        none = np.zeros((0, width))
        return Palette(
            none.astype(np.int16), none.astype(np.int32), none.astype(np.int32), np.zeros(0, np.uint8)
        ), np.zeros(0, np.int64)
    parts = _divide(cells, units, looseness)
    members = np.argsort(parts.label, kind="stable")
    label = parts.label[members]
    starts = np.flatnonzero(np.diff(label, prepend=-1))
    ends = np.append(starts[1:], len(label)) - 1
    lists = _first_in_front(parts.lists, cells.order[members[starts], 0])
    at = np.maximum(lists, 0).astype(np.int64)
    there = lists != NONE
    values = np.take_along_axis(units[members], at[label], axis=1)
    typical = np.empty(lists.shape, np.float32)
    for place in range(width):
        column = values[np.lexsort((values[:, place], label)), place]
        low, high, median = column[starts], column[ends], column[(starts + ends) // 2]
        factor = np.float32(looseness.first if place == 0 else looseness.others)
        # Half a unit more than the safe tolerance, so that there is a whole number between.
        lowest = np.ceil(high - factor * looseness.tolerance.safe_units(high) - np.float32(0.5))
        highest = np.floor(low + factor * looseness.tolerance.safe_units(low) + np.float32(0.5))
        typical[:, place] = np.clip(median, lowest, np.maximum(lowest, highest))
        there[:, place] &= high < UNKNOWN  # known of every member
    samples = np.minimum.reduceat(np.take_along_axis(cells.samples[members], at[label], axis=1), starts)
    if not looseness.exact:
        key = np.where(there, typical, np.float32(np.inf))
        key[:, 0] = -1
        sort = np.lexsort((lists, key), axis=1)
        lists, there, typical, samples = (
            np.take_along_axis(a, sort, axis=1) for a in (lists, there, typical, samples)
        )
    palette = Palette(
        order=np.where(there, lists, NONE).astype(np.int16),
        units=np.where(there, np.mod(typical, np.float32(STATE_STEP)), 0).astype(np.int32),
        samples=floor_samples(np.where(there, samples, 0).astype(np.int32)),
        flags=cells.flags[members[starts]],
    )
    label = parts.label
    if spare_odd and not looseness.exact:
        # Rarely what all members know well leaves out what is good for one: that one goes with its exact likes.
        odd = np.flatnonzero(~fits(cells, units, palette, label, looseness))
        if len(odd):
            more, label[odd] = _paint(cells.take(odd), units[odd], replace(looseness, exact=True))
            label[odd] += len(palette)
            palette = _join([palette, more])
    return palette, label


def _first_in_front(lists: NDArray[np.int16], first: NDArray[np.int16]) -> NDArray[np.int16]:
    """The lists, each with its first choice moved to the front and the others as they were."""
    sort = np.argsort(lists != first[:, None], axis=1, kind="stable")
    return np.take_along_axis(lists, sort, axis=1)


def _take(palette: Palette, colours: Ints) -> Palette:
    return Palette(
        palette.order[colours], palette.units[colours], palette.samples[colours], palette.flags[colours]
    )


def _join(palettes: list[Palette]) -> Palette:
    width = max(palette.order.shape[1] for palette in palettes)
    return Palette(
        order=np.concatenate([padded(palette.order, width, NONE) for palette in palettes]),
        units=np.concatenate([padded(palette.units, width, 0) for palette in palettes]),
        samples=np.concatenate([padded(palette.samples, width, 0) for palette in palettes]),
        flags=np.concatenate([palette.flags for palette in palettes]),
    )


def _canonical(palette: Palette, colours: Ints) -> tuple[Palette, Ints]:
    """What is used of a palette, equal entries merged, in an order that depends on the entries alone."""
    rows = np.column_stack([palette.order, palette.units, palette.samples, palette.flags]).astype(np.int32)
    used, colours = np.unique(colours, return_inverse=True)
    _, some, number = np.unique(rows[used], axis=0, return_index=True, return_inverse=True)
    return _take(palette, used[some]), number.ravel()[colours]
