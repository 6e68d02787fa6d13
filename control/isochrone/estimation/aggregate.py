"""Samples -> one figure for each network, place and origin: a low quantile over a recency-weighted window."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from isochrone.estimation.places import Places
from isochrone.estimation.quantiles import (
    GROUPS_MAX,
    STEP_BITS,
    STEPS,
    VALUE_BITS,
    WEIGHT_ONE,
    Summary,
    pack,
    summarise,
)
from isochrone.estimation.samples import SampleColumns, SamplesError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from isochrone.model import Origin
    from isochrone.settings import Estimation

KM_PER_MS = 299_792.458 * 2 / 3 / 1000 / 2  # of round-trip time: light in fibre goes at 2/3 c, there and back
LOCATION_SLACK_KM = 100.0  # places are those of cities, and a region is not a point
EARTH_RADIUS_KM = 6371.0088
PART = 1 << 16  # rows worked on at a time, so that their columns stay in the cache
HALF_LIVES = 4  # in the window, unless told otherwise: a sample at its end weighs 1/16


class TooManyGroupsError(SamplesError):
    """More (ASN, country, origin) groups than can be counted."""

    def __init__(self, groups: int) -> None:
        self.groups = groups
        super().__init__(
            f"the samples name more than {GROUPS_MAX:,} (ASN, country, origin) groups; the Internet has a few million"
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Aggregates:
    """What the samples say. p rows for (ASN, country, square of 2 degrees), g rows for those and origins, both ascending."""

    origins: tuple[str, ...]
    asn: NDArray[np.uint32]  # (g,)
    country: NDArray[np.uint16]  # (g,) `letters` of the code; 0: unknown
    origin: NDArray[np.uint16]  # (g,) index into `origins`
    rtt_ms: NDArray[np.float32]  # (g,) the weighted low quantile
    samples: NDArray[np.int32]  # (g,)
    spread_ms: NDArray[np.float32]  # (g,) one standard error, half of Woodruff's interval: see `quantiles`
    pair: NDArray[np.int32]  # (g,) index into the arrays below
    pair_asn: NDArray[np.uint32]  # (p,)
    pair_country: NDArray[np.uint16]  # (p,)
    pair_latitude: NDArray[np.float32]  # (p,) the median in degrees, kept to 0.01; NaN: unknown
    pair_longitude: NDArray[np.float32]  # (p,)
    pair_reach_km: NDArray[np.float32]  # (p,) how far its samples' places lie from there, within the square
    pair_colo: NDArray[np.uint16]  # (p,) the most frequent; 0: unknown
    pair_continent: NDArray[np.uint16]  # (p,) the most frequent; 0: unknown
    #: samples `used`, and those set aside: `outside_window`, `faster_than_light`
    counts: dict[str, int] = field(default_factory=dict)


def aggregate(
    samples: SampleColumns | Iterable[SampleColumns],
    origins: Sequence[Origin],
    settings: Estimation,
    now: float,
    half_life_seconds: float | None = None,
) -> Aggregates:
    """Aggregates of columns in memory, or of parts as they are read; the order of samples doesn't matter.

    Args:
        samples: what `load_samples` or `read_samples` give.
        origins: in the order that the columns' origin index counts.
        settings: `quantile` and `window_seconds` are used.
        now: Unix seconds; the window ends here.
        half_life_seconds: the age at which a sample weighs half; a quarter of the window unless given.

    Raises:
        TooManyGroupsError: the samples name absurdly many networks.
    """
    work = Aggregator(origins, settings, now, half_life_seconds)
    for part in [samples] if isinstance(samples, SampleColumns) else samples:
        work.add(part)
    return work.finish()


class Aggregator:
    """Takes samples part by part, 8 bytes each, and gives the aggregates at the end."""

    def __init__(
        self,
        origins: Sequence[Origin],
        settings: Estimation,
        now: float,
        half_life_seconds: float | None = None,
    ) -> None:
        self._ids = tuple(origin.id for origin in origins)
        self._vectors = _unit_vectors(
            np.array([o.latitude for o in origins], np.float32),
            np.array([o.longitude for o in origins], np.float32),
        )
        self._q, self._window, self._now = settings.quantile, settings.window_seconds, now
        self._half_life = half_life_seconds or settings.window_seconds / HALF_LIVES
        self._places = Places()
        self._keys: list[NDArray[np.uint64]] = []
        self._odd: list[NDArray[np.uint64]] = []  # faster than light, as far as the places are right
        self._counts = {"used": 0, "outside_window": 0, "faster_than_light": 0}

    def add(self, part: SampleColumns) -> None:
        """Take these samples in; their arrays are not kept."""
        if part.origins != self._ids:
            raise ValueError("the samples count other origins than the aggregator")
        for start in range(0, len(part), PART):
            self._add(part.part(start, start + PART))

    def _add(self, part: SampleColumns) -> None:
        age = np.maximum(self._now - part.timestamp, 0.0)
        inside = age <= self._window
        used = int(np.count_nonzero(inside))
        self._counts["outside_window"] += len(part) - used
        if not used:
            return
        keep = slice(None) if used == len(part) else inside
        pair = self._places.add(
            part.asn[keep],
            part.country[keep],
            part.colo[keep],
            part.continent[keep],
            part.latitude[keep],
            part.longitude[keep],
        )
        group = pair.astype(np.int64) * len(self._ids) + part.origin[keep]
        if int(group.max()) >= GROUPS_MAX:
            raise TooManyGroupsError(int(group.max()) + 1)
        step = np.minimum(age[keep] * (STEPS / self._window), STEPS - 1).astype(np.uint64)
        keys = pack(group, part.rtt_ms[keep], step)
        odd = self._faster_than_light(part)[keep]
        if odd.any():
            self._odd.append(keys[odd])
            keys = keys[~odd]
        self._counts["used"] += len(keys)
        self._keys.append(keys)

    def _judge_odd(self) -> None:
        """One origin alone that light can't have reached: those samples are wrong. Two or more: the place is.

        Where it is the place, the samples are taken in after all; `fit` moves such a network to where it answers first.
        Geolocation errs more often than a prober, and would take from a network just the origins that are nearest to it.
        """
        if not self._odd:
            return
        odd = np.concatenate(self._odd)
        self._odd.clear()
        group = (odd >> np.uint64(VALUE_BITS + STEP_BITS)).astype(np.int64)
        pairs, origins = np.unique(np.unique(group) // len(self._ids), return_counts=True)
        misplaced = np.isin(group // len(self._ids), pairs[origins > 1])
        self._keys.append(odd[misplaced])
        self._counts["used"] += int(np.count_nonzero(misplaced))
        self._counts["faster_than_light"] += len(odd) - int(np.count_nonzero(misplaced))

    def finish(self) -> Aggregates:
        """The aggregates of all that was added; the aggregator can't be used any more."""
        return self._told(summarise(self._taken(), self._q, self._weights()))

    def _taken(self) -> NDArray[np.uint64]:
        """The keys of all that was added; they are let go of."""
        self._judge_odd()
        keys = np.concatenate(self._keys) if self._keys else np.zeros(0, np.uint64)
        self._keys.clear()
        return keys

    def _weights(self) -> NDArray[np.int32]:
        """Of each step of age."""
        middle = (np.arange(STEPS) + 0.5) * (self._window / STEPS)
        weights = np.rint(WEIGHT_ONE * np.exp2(-middle / self._half_life))
        return np.asarray(np.maximum(1, weights), np.int32)

    def _told(self, summary: Summary) -> Aggregates:
        """The aggregates that a summary of all groups makes."""
        places = self._places.finish()
        pair = places.rank[summary.group // len(self._ids)]
        heard = np.unique(pair)  # without those of which every sample was set aside
        pair = np.searchsorted(heard, pair).astype(np.int32)
        places = places.take(heard)
        origin = (summary.group % len(self._ids)).astype(np.uint16)
        order = np.lexsort((origin, pair))
        pair = pair[order]
        return Aggregates(
            origins=self._ids,
            asn=places.asn[pair],
            country=places.country[pair],
            origin=origin[order],
            rtt_ms=summary.value_ms[order],
            samples=np.minimum(summary.samples[order], np.iinfo(np.int32).max).astype(np.int32),
            spread_ms=summary.spread_ms[order],
            pair=pair,
            pair_asn=places.asn,
            pair_country=places.country,
            pair_latitude=places.latitude,
            pair_longitude=places.longitude,
            pair_reach_km=places.reach_km,
            pair_colo=places.colo,
            pair_continent=places.continent,
            counts=dict(self._counts),
        )

    def _faster_than_light(self, part: SampleColumns) -> NDArray[np.bool_]:
        """Samples whose round trip is too short for the distance between client and origin."""
        reach = (part.rtt_ms * np.float32(KM_PER_MS / EARTH_RADIUS_KM)) + np.float32(
            LOCATION_SLACK_KM / EARTH_RADIUS_KM
        )
        client = _unit_vectors(part.latitude, part.longitude)
        origin = self._vectors[:, part.origin]
        cosine: NDArray[np.float32] = client[0] * origin[0] + client[1] * origin[1] + client[2] * origin[2]
        impossible: NDArray[np.bool_] = cosine < np.cos(np.minimum(reach, np.float32(np.pi)))
        return impossible  # never where the place is unknown: NaN is not less


def _unit_vectors(latitude: NDArray[np.float32], longitude: NDArray[np.float32]) -> NDArray[np.float32]:
    """(3, n) points on the unit sphere."""
    phi, lam = np.radians(latitude), np.radians(longitude)
    return np.stack([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)])
