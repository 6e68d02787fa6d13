"""A window of samples kept up to date: new samples cost the work on the groups that they touch, not on all. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isochrone.estimation.aggregate import Aggregates, Aggregator
from isochrone.estimation.quantiles import STEP_BITS, STEPS, VALUE_BITS, Summary, summarise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from isochrone.model import Origin
    from isochrone.settings import Estimation

_GROUP = np.uint64(VALUE_BITS + STEP_BITS)


class Running(Aggregator):
    """Like an `Aggregator`, and it goes on: keeps 8 bytes a sample.

    The figures of a group that nothing new was said about stay as they are: all its samples grow old alike, so that the weight of
    each against the others is the same. That they leave the window is seen when the group is next touched; begin anew once a window.
    """

    def __init__(
        self,
        origins: Sequence[Origin],
        settings: Estimation,
        now: float,
        half_life_seconds: float | None = None,
    ) -> None:
        super().__init__(origins, settings, now, half_life_seconds)
        self._kept: list[
            tuple[NDArray[np.uint64], float]
        ] = []  # sorted keys, and the time that their ages count from
        self._summary: Summary | None = None

    def advance(self, now: float) -> None:
        """Samples from here on are of the window that ends at `now`, not before the last one."""
        if now < self._now:
            raise ValueError(f"a running window can't go back from {self._now} to {now}")
        self.aggregates()  # whatever came before has its age
        self._now = now

    def aggregates(self) -> Aggregates:
        """Those of all samples so far."""
        fresh = self._taken()
        if self._summary is None:
            self._summary = summarise(fresh, self._q, self._weights())  # sorts
            self._kept.append((fresh, self._now))
        elif len(fresh):
            self._summary = self._joined(fresh)
            fresh.sort()
            self._kept.append((fresh, self._now))
        return self._told(self._summary)

    def _joined(self, fresh: NDArray[np.uint64]) -> Summary:
        touched = np.unique(fresh >> _GROUP)
        parts = [fresh, *(self._older(keys, since, touched) for keys, since in self._kept)]
        anew = summarise(np.concatenate(parts), self._q, self._weights())
        before = self._summary or anew
        same = ~np.isin(before.group, touched.astype(np.int64))
        group = np.concatenate([before.group[same], anew.group])
        order = np.argsort(group, kind="stable")
        return Summary(
            group[order],
            np.concatenate([before.samples[same], anew.samples])[order],
            np.concatenate([before.value_ms[same], anew.value_ms])[order],
            np.concatenate([before.spread_ms[same], anew.spread_ms])[order],
        )

    def _older(
        self, keys: NDArray[np.uint64], since: float, touched: NDArray[np.uint64]
    ) -> NDArray[np.uint64]:
        """The kept keys of the touched groups that are still in the window, as old as they are now."""
        start = np.searchsorted(keys, touched << _GROUP)
        count = np.searchsorted(keys, (touched + np.uint64(1)) << _GROUP) - start
        row = np.repeat(start - np.r_[0, np.cumsum(count)[:-1]], count) + np.arange(int(count.sum()))
        found = keys[row]
        aged = round((self._now - since) * STEPS / self._window)
        step = (found & np.uint64(STEPS - 1)).astype(np.int64) + aged
        inside: NDArray[np.uint64] = found[step < STEPS] + np.uint64(aged)
        return inside
