"""Estimates -> the bytes of a latency map: rank, keep calm, override, colour, encode. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from isochrone.estimation.table import LEVELS
from isochrone.mapping import calm
from isochrone.mapping.cells import Cells
from isochrone.mapping.colour import Coloured, colour
from isochrone.mapping.override import Applied, Override, sort_out
from isochrone.mapping.partition import Tolerance
from isochrone.mapping.rank import NONE, STATES, rank
from isochrone.mapping.rows import overridden, rows_of
from isochrone.mapping.unpack import key_of, level_of, unpack
from isochrone_edge.alt_svc import CLEAR
from isochrone_edge.latency_map import EVERYWHERE, HELD, HOMES, INFERRED, OVERRIDE, RTT_UNIT_MS, LatencyMap
from isochrone_edge.latency_map_writer import Colour, encode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from isochrone.estimation.table import EstimateTable
    from isochrone.model import Origin
    from isochrone.settings import Steering

MAX_BYTES = 600_000  # of a map; the palette gets what the cells leave
MIN_COLOURS = 2304  # even when the cells leave less: 36 first choices x flags x some round-trip times
MAX_COLOURS = 65_536
_DEFAULT = LEVELS.index("default")


class EndpointState(NamedTuple):
    """What is known of an origin's endpoint now."""

    up: bool = True  # False: it was seen not to answer
    proved: bool = False  # verification has proved its affinity endpoint
    withdrawn: bool = False  # it was offered before: clients may still be pinned to it


class NothingToBuildError(ValueError):
    """There is no estimate that a map could be made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was built."""

    version: str
    content: str  # same content, same decisions: nothing to publish
    unchanged: bool  # the content is that of the previous map
    bytes: int
    colours: int
    cells: dict[str, int]  # by level
    tolerance: dict[str, Any]  # ms, share, exact order or not, and the factors by which it had to be raised
    held: int  # cells that keep a first choice that is no longer the best
    changed: int  # cells that have another first choice than in the previous map
    kept: int  # cells that keep their previous palette entry
    dropped: int  # cells without a candidate that is up: coarser ones decide for them
    overrides: tuple[Applied, ...]

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        fields = {name: getattr(self, name) for name in self.__slots__ if name != "overrides"}
        return {**fields, "overrides": [applied.as_dict() for applied in self.overrides]}


class BuiltMap(NamedTuple):
    """A map's bytes, and what is in them."""

    data: bytes
    report: Report


def build_map(
    table: EstimateTable,
    origins: Sequence[Origin],
    *,
    settings: Steering,
    previous: LatencyMap | None = None,
    now: float,
    endpoint_states: Mapping[str, EndpointState] | None = None,
    overrides: Sequence[Override] = (),
) -> BuiltMap:
    """The map that these estimates make.

    Args:
        table: estimates; columns of origins that are not in `origins` are left out.
        origins: all that the map shall offer, at most 256; their order breaks ties.
        settings: the `[steering]` section.
        previous: the map before this one, for calm and for keeping colours.
        now: Unix seconds.
        endpoint_states: by id of the origin; one that is not in it counts as up and not proved.
        overrides: first choices from configuration.

    Raises:
        NothingToBuildError: no origin has an estimate in the default cell.
        UnknownOriginError: an override names an origin that is not there.
        ValueError: a cell's key does not fit the format, a cell is there twice, or there is no default.
    """
    endpoints = endpoint_states or {}
    described = [describe(origin, endpoints.get(origin.id, EndpointState())) for origin in origins]
    states = np.array([STATES.index(entry["state"]) for entry in described], np.uint8)
    applied = sort_out(overrides, {entry["id"]: entry["state"] == "up" for entry in described}, now)
    rows = rows_of(table, origins)
    rows, forced = overridden(rows, {origin.id: i for i, origin in enumerate(origins)}, applied)

    order = rank(rows.rtt_ms, states, max_candidates=settings.max_candidates)
    usable = (order[:, 0] != NONE) & ((states[order[:, 0]] == 0) | (forced != NONE) | bool(states.all()))
    usable |= (level_of(rows.cells) == _DEFAULT) & (order[:, 0] != NONE)
    dropped = int(np.count_nonzero(~usable))
    rows, forced, order = rows.take(usable), forced[usable], order[usable]
    if not len(rows.cells) or level_of(rows.cells[-1:])[0] != _DEFAULT:
        raise NothingToBuildError(
            "no origin has an estimate in the default cell: there is nothing to build a map of"
        )

    before, memory, before_first = _before(previous, origins, rows.cells)
    settled = calm.settle(
        cells=rows.cells,
        best=order[:, 0],
        previous=np.where(forced == NONE, before_first, NONE).astype(np.int16),
        rtt_ms=rows.rtt_ms,
        spread_ms=rows.spread_ms,
        usable=states == 0,
        memory=memory,
        threshold_ms=settings.threshold_ms,
        now=now,
    )
    first = np.where(forced == NONE, settled.first, forced).astype(np.int16)
    other = np.flatnonzero(first != order[:, 0])
    order[other] = rank(
        rows.rtt_ms[other], states, max_candidates=settings.max_candidates, first=first[other]
    )
    inferred = rows.samples[np.arange(len(first)), first] == 0
    flags = inferred * INFERRED | settled.held * HELD | (forced != NONE) * OVERRIDE

    cells = Cells(rows.rtt_ms, rows.samples, order, flags.astype(np.uint8), states)
    extra = {calm.SECTION: settled.memory.bytes()} if len(settled.memory) else {}
    known = (
        np.count_nonzero(level_of(rows.cells) <= LEVELS.index("asn"))
        if (rows.home != EVERYWHERE).any()
        else 0
    )
    budget = _budget(
        rows.cells, int(known), order.shape[1], len(json.dumps(described)) + sum(map(len, extra.values()))
    )
    tolerance = Tolerance(settings.tolerance_ms, settings.tolerance_share)
    coloured = colour(cells, tolerance, budget, before)
    used = _tolerance(coloured)
    homes = np.where(forced == NONE, rows.home, EVERYWHERE)
    data = _encode(
        rows.cells, homes, coloured, described, table.grid_step, now, notes={"tolerance": used}, extra=extra
    )
    built = LatencyMap(data)
    counts = np.bincount(level_of(rows.cells), minlength=len(LEVELS)).tolist()
    report = Report(
        version=built.version,
        content=built.content,
        unchanged=previous is not None and previous.content == built.content,
        bytes=len(data),
        colours=built.colours,
        cells={level: count for level, count in zip(LEVELS, counts, strict=True) if count},
        tolerance=used,
        held=int(np.count_nonzero(settled.held)),
        changed=int(np.count_nonzero((before_first != NONE) & (before_first != first))),
        kept=coloured.kept,
        dropped=dropped,
        overrides=tuple(applied),
    )
    return BuiltMap(data, report)


def describe(origin: Origin, endpoint: EndpointState) -> dict[str, Any]:
    """An origin as the map offers it: `alt_svc` only where it is proved and the origin is up.

    An endpoint that was offered and no longer is has "clear" in its place, by which the edge unpins clients (RFC 7838 section 3).
    """
    state = "down" if not endpoint.up else "draining" if origin.draining else "up"
    entry: dict[str, Any] = {
        "id": origin.id,
        "host": origin.host,
        "weight": origin.weight,
        "latitude": origin.latitude,
        "longitude": origin.longitude,
        "state": state,
    }
    if origin.alt_svc is not None and endpoint.proved and state == "up":
        entry["alt_svc"] = {"authority": origin.alt_svc.authority, "ma": origin.alt_svc.max_age}
    elif origin.alt_svc is not None and endpoint.withdrawn:
        entry["alt_svc"] = CLEAR
    return entry


def _before(
    previous: LatencyMap | None, origins: Sequence[Origin], cells: NDArray[np.uint64]
) -> tuple[tuple[Any, NDArray[np.int64]] | None, calm.Memory, NDArray[np.int16]]:
    """The previous palette with each cell's entry in it, what calm remembers, and each cell's first choice so far."""
    if previous is None:
        return None, calm.Memory(), np.full(len(cells), NONE, np.int16)
    old = unpack(previous, {origin.id: i for i, origin in enumerate(origins)})
    entry = old.colour_of(cells)
    first = np.where(entry < 0, NONE, np.maximum(old.palette.order[entry, 0], NONE))
    first[old.palette.flags[entry] & OVERRIDE != 0] = NONE  # what a person said is no habit of the network
    memory = calm.Memory.read(bytes(previous.sections.get(calm.SECTION, b"")))
    return (old.palette, entry), memory, first.astype(np.int16)


def _budget(cells: NDArray[np.uint64], homes: int, candidates: int, other: int) -> int:
    """How many colours fit: what the size leaves after cells, heads of their tables, `other` and some KB of the rest."""
    levels, keys = level_of(cells), key_of(cells)
    pairs, asns = keys[levels == LEVELS.index("asn_country")], keys[levels == LEVELS.index("asn")]
    heads = len(np.unique((pairs & np.uint64(0xFFFF)) << np.uint64(16) | pairs >> np.uint64(32)))
    heads += len(np.unique(asns >> np.uint64(8)))
    left = MAX_BYTES - 4 * len(cells) + len(asns) - homes - 8 * heads - other - 2048
    return min(MAX_COLOURS, max(MIN_COLOURS, left // (5 + 4 * candidates)))


def _tolerance(coloured: Coloured) -> dict[str, Any]:
    loose = coloured.looseness
    return {
        "ms": loose.tolerance.ms,
        "share": loose.tolerance.share,
        "exact_order": loose.exact,
        "factor_first": round(loose.first, 3),
        "factor_others": round(loose.others, 3),
    }


def _encode(
    cells: NDArray[np.uint64],
    homes: NDArray[np.uint8],
    coloured: Coloured,
    origins: list[dict[str, Any]],
    grid_step: float,
    now: float,
    *,
    notes: dict[str, Any],
    extra: dict[bytes, bytes],
) -> bytes:
    palette = coloured.palette
    rtt_ms = palette.units * RTT_UNIT_MS
    colours = [
        Colour(tuple((o, r, s) for o, r, s in zip(*row, strict=True) if o != NONE), flags)
        for *row, flags in zip(
            palette.order.tolist(),
            rtt_ms.tolist(),
            palette.samples.tolist(),
            palette.flags.tolist(),
            strict=True,
        )
    ]
    levels, keys = level_of(cells), key_of(cells)
    tables = {
        name: dict(zip(keys[levels == n].tolist(), coloured.colour[levels == n].tolist(), strict=True))
        for n, name in enumerate(LEVELS)
    }
    default = tables.pop("default")[0]
    where = {
        name: dict(zip(keys[levels == n].tolist(), homes[levels == n].tolist(), strict=True))
        for n, name in enumerate(LEVELS)
        if name in HOMES
    }
    return encode(
        built_at=now, origins=origins, palette=colours, default=default, cells=tables,
        grid_step=grid_step, homes=where, notes=notes, extra=extra,
    )  # fmt: skip
