"""Samples in the store -> the bytes of a map. Numeric work: call it in a thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from isochrone.estimation.aggregate import aggregate
from isochrone.estimation.estimate import estimate
from isochrone.estimation.samples import RawColumns, Rejects, SampleColumns, screen
from isochrone.mapping.build import EndpointState, NothingToBuildError, Report, build_map
from isochrone.mapping.override import overrides_of
from isochrone.store.columns import OUTCOMES
from isochrone_edge.latency_map import LatencyMap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from isochrone.model import Origin
    from isochrone.settings import Settings
    from isochrone.store.columns import StoredSamples
    from isochrone.store.sqlite import Store


class BuildBusyError(Exception):
    """The build before was given up and its thread is still at work."""

    def __init__(self) -> None:
        super().__init__("the build before was given up and is still at work; this one is left out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A map, and what it was made from."""

    data: bytes
    map: LatencyMap
    report: Report
    samples: int  # used
    rejected: int  # stored samples that can't be used, e.g. of origins that are gone


def build(
    store: Store,
    settings: Settings,
    origins: Sequence[Origin],
    *,
    endpoints: Mapping[str, EndpointState],
    previous: LatencyMap | None,
    now: float,
) -> Built:
    """The map that the window's samples give.

    Args:
        store: where the samples are.
        settings: `estimation` and `steering` are used.
        origins: of the configuration, in its order.
        endpoints: by id of the origin, what verification knows.
        previous: the live map, for hysteresis.
        now: Unix seconds.

    Raises:
        NothingToBuildError: no sample in the window can be used, or too few for any estimate.
        StoreError: the store can't be read.
    """
    stored = store.sample_columns(since=now - settings.estimation.window_seconds)
    columns, rejects = usable(stored, [origin.id for origin in origins], now)
    if not len(columns):
        told = "; ".join(rejects.sentences()) if rejects.total else "no target has answered within the window"
        raise NothingToBuildError(f"no map yet: {told}; see the outcomes in /status")
    table = estimate(aggregate(columns, origins, settings.estimation, now), origins, settings.estimation)
    built = build_map(
        table,
        origins,
        settings=settings.steering,
        previous=previous,
        now=now,
        endpoint_states=endpoints,
        overrides=overrides_of(settings.overrides),
    )
    return Built(
        data=built.data,
        map=LatencyMap(built.data),
        report=built.report,
        samples=rejects.used,
        rejected=rejects.total,
    )


def usable(stored: StoredSamples, origins: Sequence[str], now: float) -> tuple[SampleColumns, Rejects]:
    """Stored samples by the rules for all samples. The daemon's targets are the user's own words: private ASNs count."""
    raw = RawColumns.blank(len(stored))
    raw.origin[:] = stored.origin_in(origins)
    for name in (
        "timestamp",
        "outcome",
        "asn",
        "country",
        "colo",
        "continent",
        "rtt_ms",
        "latitude",
        "longitude",
    ):
        getattr(raw, name)[:] = getattr(stored, name)
    rejects = Rejects()
    return screen(raw, tuple(origins), now, "store", rejects, private_asns=True), rejects


def ok_samples(stored_counts: dict[str, int]) -> int:
    """How many of the store's samples are good ones."""
    return stored_counts.get(OUTCOMES[0].value, 0)
