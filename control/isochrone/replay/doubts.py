"""What makes a replay say less than it seems to: samples that are on both sides, a past judged by its future. Pure."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from isochrone.estimation.samples import SampleColumns

_ODD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def doubts(train: SampleColumns, test: SampleColumns) -> list[str]:
    """Sentences for people; none when there is nothing to doubt. Neither may be empty."""
    found = []
    shared = shared_samples(train, test)
    if shared:
        found.append(
            f"{shared:,} of the {len(test):,} samples to judge on are among those learnt from: the map is judged on what it "
            "has seen, and looks better than it is"
        )
    newest, middle = float(test.timestamp.max()), float(np.median(train.timestamp))
    if newest < middle:
        found.append(
            f"the samples to judge on end at {_time(newest)}, before half of those learnt from (they end at "
            f"{_time(float(train.timestamp.max()))}): a map is judged on what comes after; are --train and --test the wrong way round?"
        )
    return found


def shared_samples(train: SampleColumns, test: SampleColumns) -> int:
    """How many test samples equal a training sample in time, origin, ASN, country and round-trip time."""
    first, last = test.timestamp.min(), test.timestamp.max()
    overlap = (train.timestamp >= first) & (train.timestamp <= last)  # none, most often: no work then
    if not overlap.any():
        return 0
    return int(np.count_nonzero(np.isin(_marks(test), _marks(train)[overlap])))


def _marks(samples: SampleColumns) -> NDArray[np.uint64]:
    """(n,) 64 bits for each sample (the finalizer of SplitMix64): different samples share one as good as never."""
    mark = samples.timestamp.view(np.uint64).copy()
    for part in (
        samples.asn.astype(np.uint64) << np.uint64(32) | samples.rtt_ms.view(np.uint32),
        samples.origin.astype(np.uint64) << np.uint64(16) | samples.country,
    ):
        mark += part * _ODD[0]
        mark = (mark ^ (mark >> np.uint64(30))) * _ODD[1]
        mark = (mark ^ (mark >> np.uint64(27))) * _ODD[2]
        mark ^= mark >> np.uint64(31)
    return mark


def _time(unix: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix))
