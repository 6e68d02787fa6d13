"""Weighted quantiles of very many small groups, exactly and in any order of the input.

Each value becomes one 64-bit key, group | value | step of weight, so that one sort of plain numbers puts every group
together with its values in order. Weights are whole numbers, so their sums are exact: neither the order of the input
nor the number of threads can change a result.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

VALUE_BITS, STEP_BITS = 26, 10
STEPS = 1 << STEP_BITS  # of weight
GROUPS_MAX = 1 << (64 - VALUE_BITS - STEP_BITS)
UNIT_MS = 0.001
VALUE_MAX_MS = ((1 << VALUE_BITS) - 1) * UNIT_MS
WEIGHT_ONE = 1 << 15  # squares of 2**27 of them still fit a 64-bit sum
_SLICE = 1 << 21  # keys that are worked on at a time
_WORKERS = min(8, os.cpu_count() or 1)


class Summary(NamedTuple):
    """One row a group that has values, in order of the group's number."""

    group: NDArray[np.int64]
    samples: NDArray[np.int64]
    value_ms: NDArray[np.float32]
    spread_ms: NDArray[np.float32]


def pack(
    group: NDArray[np.integer], value_ms: NDArray[np.floating], step: NDArray[np.integer] | int = 0
) -> NDArray[np.uint64]:
    """Keys for `summarise`. Values are kept to 1 us and end at 67 s; groups are below GROUPS_MAX, steps below STEPS."""
    units = np.rint(np.minimum(value_ms, VALUE_MAX_MS) * np.float64(1 / UNIT_MS))
    value: NDArray[np.uint64] = units.astype(np.uint64)
    value |= group.astype(np.uint64) << np.uint64(VALUE_BITS)
    value <<= np.uint64(STEP_BITS)
    value |= np.asarray(step, np.uint64)
    return value


def summarise(keys: NDArray[np.uint64], q: float, weights: NDArray[np.int32] | None = None) -> Summary:
    """The weighted lower q-quantile of every group, its spread and how many values it has. Sorts `keys` in place.

    The quantile is the smallest value at which the weights of it and all smaller values reach q of the group's total
    (inverted CDF, Hyndman and Fan's definition 1): a round trip that really was, whatever the number of samples.

    The spread is half of the interval between the quantiles q - d and q + d, with d = sqrt(q (1 - q) / n) and n the
    effective number of samples (sum w)^2 / sum w^2 (Kish). It is Woodruff's interval (JASA 47, 1952) for one standard
    error: it needs no assumption on the distribution, which for round-trip times is skewed, and it shrinks with
    sqrt(n). A single sample says nothing about its spread, which then is the value itself.

    Args:
        keys: from `pack`.
        q: in (0, 1).
        weights: of each step, 1 to WEIGHT_ONE; None: all alike.
    """
    table = np.ones(STEPS, np.int32) if weights is None else weights.astype(np.int32)
    if len(keys) < _SLICE:
        keys.sort()
        return _summary(keys, q, table)
    with ThreadPoolExecutor(_WORKERS) as pool:
        _sort(keys, pool)
        parts = list(pool.map(lambda part: _summary(part, q, table), _slices(keys)))
    return Summary(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _sort(keys: NDArray[np.uint64], pool: ThreadPoolExecutor) -> None:
    """In place, on all processors: what is between the quantiles of all keys is sorted at the same time."""
    bounds = [len(keys) * i // _WORKERS for i in range(_WORKERS + 1)]
    if _WORKERS > 1:
        keys.partition(bounds[1:-1])
    list(pool.map(lambda i: keys[bounds[i] : bounds[i + 1]].sort(), range(_WORKERS)))


def _slices(keys: NDArray[np.uint64]) -> Iterator[NDArray[np.uint64]]:
    """Parts of sorted keys that never divide a group."""
    shift, start = np.uint64(VALUE_BITS + STEP_BITS), 0
    while start < len(keys):
        end = min(start + _SLICE, len(keys))
        if end < len(keys):
            last = keys[end - 1] | ((np.uint64(1) << shift) - np.uint64(1))  # the greatest its group can have
            end = start + int(np.searchsorted(keys[start:], last, "right"))
        yield keys[start:end]
        start = end


def _summary(keys: NDArray[np.uint64], q: float, table: NDArray[np.int32]) -> Summary:
    if not len(keys):
        none = np.zeros(0, np.float32)
        return Summary(np.zeros(0, np.int64), np.zeros(0, np.int64), none, none)
    group = (keys >> np.uint64(VALUE_BITS + STEP_BITS)).astype(np.uint32)
    starts = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    ends = np.r_[starts[1:], len(keys)] - 1
    weight = table[keys & np.uint64(STEPS - 1)]
    upto = np.cumsum(weight, dtype=np.int64)
    before = upto[starts] - weight[starts]
    total = upto[ends] - before
    effective = total.astype(np.float64) ** 2 / np.add.reduceat(weight * weight, starts, dtype=np.int64)

    def quantile(p: NDArray[np.float64] | float) -> NDArray[np.int64]:
        # The factor takes back what rounding may have added to p * total: 0.55 * 20 is 11, not 11.000000000000002.
        need = np.maximum(1, np.ceil(np.clip(p, 0, 1) * total * (1 - 1e-12))).astype(np.int64)
        at = np.searchsorted(upto, before + np.minimum(need, total))
        units = keys[at] >> np.uint64(STEP_BITS) & np.uint64((1 << VALUE_BITS) - 1)
        return np.asarray(units, np.int64)

    value, count = quantile(q), ends - starts + 1
    half = np.sqrt(q * (1 - q) / effective)
    spread = np.where(count == 1, value, (quantile(q + half) - quantile(q - half)) / 2)
    return Summary(
        group[starts].astype(np.int64),
        count,
        (value * UNIT_MS).astype(np.float32),
        (spread * UNIT_MS).astype(np.float32),
    )
