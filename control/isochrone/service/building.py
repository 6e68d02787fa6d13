"""Samples in the store -> the bytes of a map. Numeric work: call it in a thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from isochrone.estimation.estimate import Standing, estimate_again
from isochrone.estimation.running import Running
from isochrone.estimation.samples import RawColumns, Rejects, SampleColumns, screen
from isochrone.mapping.build import EndpointState, NothingToBuildError, Report, build_map, describe
from isochrone.mapping.override import overrides_of
from isochrone.store.columns import OUTCOMES
from isochrone_edge.latency_map import LatencyMap
from isochrone_edge.latency_map_writer import with_origins

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from isochrone.model import Origin
    from isochrone.settings import Settings
    from isochrone.store.columns import StoredSamples
    from isochrone.store.sqlite import Store


KEEP_FROM = 1_000_000  # samples; fewer are read anew in a few seconds, and then nothing old is believed
BEGUN_ANEW = 4  # times in a window


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


class Builder:
    """Maps of a window that moves on. One build at a time; any thread.

    Few samples are read anew for every map. Many are kept counted (8 bytes each), and a build reads those that came since: its work
    is that of the networks which they are of. What has left the window stays believed until its network is heard of again or the
    window is begun anew, four times in its length.
    """

    def __init__(
        self, store: Store, settings: Settings, origins: Sequence[Origin], *, keep_from: int = KEEP_FROM
    ) -> None:
        self._store, self._settings, self._origins = store, settings, origins
        self._ids = [origin.id for origin in origins]
        self._keep_from = keep_from
        self._window: _Window | None = None

    def build(
        self, *, endpoints: Mapping[str, EndpointState], previous: LatencyMap | None, now: float
    ) -> Built:
        """The map that the window's samples give.

        Args:
            endpoints: by id of the origin, what verification knows.
            previous: the live map, for hysteresis.
            now: Unix seconds.

        Raises:
            NothingToBuildError: no sample in the window can be used, or too few for any estimate.
            StoreError: the store can't be read.
        """
        window, self._window = self._window, None  # whatever goes wrong below leaves it half-way
        window = self._moved_on(window, now)
        aggregates = window.running.aggregates()
        used = int(aggregates.samples.sum())
        if not used:
            told = (
                "; ".join(window.rejects.sentences())
                if window.rejects.total
                else "no target has answered within the window"
            )
            raise NothingToBuildError(f"no map yet: {told}; see the outcomes in /status")
        table, standing = estimate_again(
            window.standing, aggregates, self._origins, self._settings.estimation
        )
        if window.rejects.rows >= self._keep_from:
            self._window = window._replace(standing=standing)
        built = build_map(
            table,
            self._origins,
            settings=self._settings.steering,
            previous=previous,
            now=now,
            endpoint_states=endpoints,
            overrides=overrides_of(self._settings.overrides),
        )
        return Built(
            data=built.data,
            map=LatencyMap(built.data),
            report=built.report,
            samples=used,
            rejected=window.rejects.total,
        )

    def _moved_on(self, window: _Window | None, now: float) -> _Window:
        """The window that ends now, with all samples that are stored."""
        settings = self._settings.estimation
        if window is None or not 0 <= now - window.begun < settings.window_seconds / BEGUN_ANEW:
            window = _Window(Running(self._origins, settings, now), None, Rejects(), now, 0)
            blocks = self._store.sample_blocks(since=now - settings.window_seconds)
        else:
            window.running.advance(now)
            blocks = self._store.new_sample_blocks(window.newest)
        newest = window.newest
        for block in blocks:
            columns, rejects = usable(block, self._ids, now)
            window.rejects.merge(rejects)
            window.running.add(columns)
            newest = max(newest, block.newest)
        return window._replace(newest=newest)


class _Window(NamedTuple):
    running: Running
    standing: Standing | None
    rejects: Rejects
    begun: float  # Unix seconds
    newest: int  # id of the last sample that was read


def restated(
    live: LatencyMap, origins: Sequence[Origin], *, endpoints: Mapping[str, EndpointState], now: float
) -> bytes | None:
    """The map with what verification knows now, in milliseconds where a build takes as long as the samples are many.

    None when nothing changes by it, or when the map is of other origins: that takes a build.
    """
    described = [describe(origin, endpoints.get(origin.id, EndpointState())) for origin in origins]
    if described == live.origins or [o["id"] for o in described] != [o["id"] for o in live.origins]:
        return None
    return with_origins(live, described, built_at=now)


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
