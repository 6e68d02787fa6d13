"""Groups of cells that are alike enough for one colour: a tree of halvings, cut where a budget of colours allows. Pure.

Every group begins as a root (cells that have to agree on something exactly) and is halved, along the origin where its
members differ most, until they are alike. How much a group differs is measured in tolerances: `width` is the smallest
factor by which the tolerance has to be raised so that one round-trip time stands for all. The tree does not depend on
where it is cut, so that the factor that yields a given number of groups is read off the widths of the halved. Neither the order of the cells nor chance has a part in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from isochrone_edge.latency_map import RTT_UNIT_MS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Ints = NDArray[np.int64]

#: Round-trip times here are whole units of the format, plus STATE_STEP for each step down in state, so that a candidate
#: that is not up counts as farther than any that is. All are exact in a float32.
STATE_STEP = 2.0**17
UNKNOWN = 2.0**21
#: width of a group in which a candidate's round-trip time is known of some and not of others; a little more for larger groups
MIXED = 16.0
_PER_MEMBER = 2.0**-18


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Round-trip times are alike within `ms`, or within `share` of themselves, whichever is larger."""

    ms: float
    share: float

    def units(self, values: Floats) -> Floats:
        """The tolerance at round-trip times in units."""
        base = np.mod(
            values, np.float32(STATE_STEP)
        )  # also right where a value of another state stands in for it
        units: Floats = np.maximum(np.float32(self.ms / RTT_UNIT_MS), np.float32(self.share) * base)
        return units

    def safe_units(self, values: Floats) -> Floats:
        """The same without what rounding may cost: half a unit for the estimate, half a unit for the colour."""
        units: Floats = np.maximum(self.units(values) - np.float32(1.0), np.float32(0.25))
        return units


class Parts(NamedTuple):
    """n cells in g groups."""

    label: Ints  # (n,) the group of each cell
    lists: NDArray[np.int16]  # (g, k) candidates of each group, unordered
    halved: Floats  # the factors below which the groups that were halved are
    width: Floats  # (g,)


def fitting(parts: Parts, budget: int) -> float:
    """The smallest factor, at least 1, with which there are at most `budget` groups (or no more than there are roots)."""
    roots = len(parts.width) - len(parts.halved)
    return max(1.0, _least([parts.halved], budget - roots))


def _least(halved: list[Floats], allowed: int) -> float:
    """The factor above which at most `allowed` groups were halved."""
    widths = np.concatenate(halved)
    if len(widths) <= max(0, allowed):
        return 0.0
    place = len(widths) - 1 - max(0, allowed)
    return float(np.partition(widths, place)[place])


def partition(
    roots: Ints,
    near: Floats,
    exact: Floats,
    tolerance: Tolerance,
    *,
    limit: float = 1.0,
    budget: int | None = None,
    count: int = 0,
    lists: NDArray[np.int16] | None = None,
) -> Parts:
    """Halve the groups of `roots` until none is wider than `limit`.

    Args:
        roots: (n,) what must never be in one group has different numbers.
        near: (n, m) round-trip times, those beyond the cell's last candidate drawn in to it: members have to agree on these.
        exact: (n, m) round-trip times, UNKNOWN where nothing is known: members have to agree on these for the group's
            candidates.
        tolerance: what is alike.
        limit: factor on the tolerance, at least 1.
        budget: raise `limit` on the way when more groups than this would come of it; `fitting` then tells how far, and the
            groups are of use only when it says `limit`.
        count: how many candidates a group has.
        lists: (n, count) the candidates of each cell when they are the same throughout a root; chosen by `near` otherwise.
    """
    rows = np.argsort(roots, kind="stable")
    group = np.unique(roots[rows], return_inverse=True)[1].astype(np.int64)
    near, exact = near[rows], exact[rows]
    bound = np.full(int(group[-1]) + 1, np.float32(np.inf))  # the least width above each group in the tree
    label, done, allowed = np.zeros(len(roots), np.int64), 0, (budget or 0) - len(bound)
    found_lists, found_width, halved = [], [], []
    while len(rows):
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        if count:
            given = None if lists is None else lists[rows[starts]]
            split = _split_for_candidates(near, exact, starts, tolerance, count, given)
        else:
            low, high = np.minimum.reduceat(near, starts), np.maximum.reduceat(near, starts)
            split = _widest(*_span(low, high, tolerance))
        bound = np.minimum(bound, split.width)
        cut = bound > limit
        halved.append(bound[cut])
        found_width.append(split.width[~cut])
        found_lists.append(split.lists[~cut])
        number = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(rows)))  # of each row's group
        ready = ~cut[number]
        label[rows[ready]] = done + (np.cumsum(~cut) - 1)[number[ready]]
        done += int(np.count_nonzero(~cut))
        left = np.flatnonzero(~ready)
        number = number[left]
        axis = split.axis[number]
        value = np.where(split.by_exact[number], exact[left, axis], near[left, axis])
        group = 2 * number + (value > split.middle[number])
        sort = np.argsort(group, kind="stable")
        left, group = left[sort], group[sort]
        rows, near, exact = rows[left], near[left], exact[left]
        bound = bound[np.unique(group) // 2]
        if budget is not None:
            limit = max(limit, _least(halved, allowed))
    return Parts(label, np.concatenate(found_lists), np.concatenate(halved), np.concatenate(found_width))


class _Split(NamedTuple):
    """How g groups would be halved."""

    width: Floats  # (g,) 0: all members are the same
    axis: Ints  # (g,) the origin
    middle: Floats  # (g,) members above it go to one half
    by_exact: NDArray[np.bool_]  # (g,) by their exact round-trip times, not the near ones
    lists: NDArray[np.int16]  # (g, count) the candidates as long as the group stays whole


def _widest(width: Floats, middle: Floats) -> _Split:
    """Along the origin where members differ most."""
    axis = np.argmax(width, axis=1)
    at = np.arange(len(width))
    none = np.zeros((len(width), 0), np.int16)
    return _Split(width[at, axis], axis, middle[at, axis], np.zeros(len(width), bool), none)


def _split_for_candidates(
    near: Floats,
    exact: Floats,
    starts: Ints,
    tolerance: Tolerance,
    count: int,
    lists: NDArray[np.int16] | None,
) -> _Split:
    """The widest of: what members agree on, the candidates' own figures, and how far they lie behind what a member has."""
    low, high = np.minimum.reduceat(near, starts), np.maximum.reduceat(near, starts)
    exact_low, exact_high = np.minimum.reduceat(exact, starts), np.maximum.reduceat(exact, starts)
    width, middle = _span(low, high, tolerance)
    exact_width, exact_middle = _span(exact_low, exact_high, tolerance)
    if lists is None:
        lists = _pick(middle, exact_middle, count)
    listed = np.zeros(width.shape, bool)
    np.put_along_axis(listed, np.where(lists < 0, lists[:, :1], lists).astype(np.int64), values=True, axis=1)
    by_near, by_exact = _widest(width, middle), _widest(np.where(listed, exact_width, 0), exact_middle)
    # A candidate that is far beyond what some member has of its own stands in the place of one that others do not have.
    behind = np.where(listed & (exact_high < UNKNOWN), _span(low, exact_high, tolerance)[0], 0).max(axis=1)
    contested = listed | np.logical_or.reduceat(near == exact, starts)
    by_contest = _widest(np.where(contested, exact_width, 0), exact_middle)
    exactly = by_exact.width > by_near.width
    width = np.where(exactly, by_exact.width, by_near.width)
    contest = (behind > width) & (by_contest.width > 0)
    width = np.where(contest, behind, width)
    members = np.diff(starts, append=len(near)).astype(np.float32)
    return _Split(
        width=np.where(width == MIXED, width + members * np.float32(_PER_MEMBER), width),
        axis=np.where(contest, by_contest.axis, np.where(exactly, by_exact.axis, by_near.axis)),
        middle=np.where(contest, by_contest.middle, np.where(exactly, by_exact.middle, by_near.middle)),
        by_exact=contest | exactly,
        lists=lists,
    )


def _span(low: Floats, high: Floats, tolerance: Tolerance) -> tuple[Floats, Floats]:
    """Width in tolerances, and the value that is equally many tolerances from both ends."""
    at_low, at_high = tolerance.safe_units(low), tolerance.safe_units(high)
    width, middle = (high - low) / (at_low + at_high), low + (high - low) * (at_low / (at_low + at_high))
    mixed = (high == UNKNOWN) & (low < UNKNOWN)
    return np.where(mixed, np.float32(MIXED), width), np.where(mixed, np.float32(UNKNOWN / 2), middle)


def _pick(near: Floats, exact: Floats, count: int) -> NDArray[np.int16]:
    """The nearest candidates of each group: by what members agree on, then by their own figures, then by index."""
    key = near.astype(np.float64) + exact.astype(np.float64) * 2.0**-24
    if count < key.shape[1]:
        return np.argpartition(key, count - 1, axis=1)[:, :count].astype(np.int16)
    return np.broadcast_to(np.arange(key.shape[1], dtype=np.int16), key.shape)
