"""Two maps -> what moved between them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from isochrone.estimation.table import LEVELS
from isochrone.mapping.unpack import Unpacked, key_of, level_of, unpack
from isochrone_edge.latency_map import RTT_UNIT_MS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from isochrone_edge.latency_map import LatencyMap

_ASN = LEVELS.index("asn")


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelDiff:
    """Cells of one level, by what became of them."""

    cells: int  # in the new map
    added: int
    removed: int
    moved: int  # in both, with another first choice


@dataclass(frozen=True, slots=True, kw_only=True)
class MapDiff:
    """What a newer map does differently."""

    old: str  # versions
    new: str
    same_content: bool
    levels: dict[str, LevelDiff]
    moved_share: float  # of the weight: another first choice, whatever the reason
    unforced_share: float  # the part of it that no change of an origin's state explains
    origins_added: tuple[str, ...]
    origins_removed: tuple[str, ...]
    origins_changed: dict[str, dict[str, tuple[Any, Any]]]  # id -> field -> (old, new)
    rtt_drift_ms: dict[
        str, float
    ]  # new minus old of cells that keep their first choice: mean, p50 and p99 of the size, max

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "old": self.old,
            "new": self.new,
            "same_content": self.same_content,
            "moved_share": round(self.moved_share, 6),
            "unforced_share": round(self.unforced_share, 6),
            "levels": {
                name: {"cells": d.cells, "added": d.added, "removed": d.removed, "moved": d.moved}
                for name, d in self.levels.items()
            },
            "origins": {
                "added": list(self.origins_added),
                "removed": list(self.origins_removed),
                "changed": {
                    name: {field: {"old": old, "new": new} for field, (old, new) in changes.items()}
                    for name, changes in self.origins_changed.items()
                },
            },
            "rtt_drift_ms": self.rtt_drift_ms,
        }


def same_content(old: LatencyMap, new: LatencyMap) -> bool:
    """Whether both decide and promise the same in every particular, the figures among them."""
    return old.content == new.content


def moved_share(
    old: LatencyMap, new: LatencyMap, users: Mapping[int, float] | None = None, *, forced: bool = False
) -> float:
    """The share of the weight, 0 to 1, whose first choice changes from one map to the other.

    Args:
        old: the map before.
        new: the map after.
        users: weight of each ASN, those that are not in it have none; each ASN weighs the same when not given.
        forced: count moves that a change of state explains as well: away from an origin that is not up any more, or back to
            one that was not. A guard against faults of measurement must not stand in their way.
    """
    diff = diff_maps(old, new, users)
    return diff.moved_share if forced else diff.unforced_share


def diff_maps(old: LatencyMap, new: LatencyMap, users: Mapping[int, float] | None = None) -> MapDiff:
    """What `new` does differently from `old`.

    Shares are of the ASNs that the old map knew, each by its weight: what its clients were sent to is known. One that is not
    in the new map moves to what the new map's default says. Without a single ASN, every cell of both maps weighs the same.
    """
    ids = {origin["id"]: number for number, origin in enumerate(old.origins)}
    for origin in new.origins:
        ids.setdefault(origin["id"], len(ids))
    before, after = unpack(old, ids), unpack(new, ids)
    first_before, first_after = before.palette.order[:, 0], after.palette.order[:, 0]
    there = after.colour_of(before.cells)
    was, now = first_before[before.colour], first_after[np.where(there < 0, after.colour[-1], there)]
    differs = was != now
    kept = there >= 0
    weight = _weights(before, users, kept)
    states_before, states_after = _up(old, ids), _up(new, ids)
    # Back to one that was not up; one that the old map did not have at all may just have been measured wrong.
    returned = states_after[now] & ~states_before[now] & (now < len(old.origins))
    explained = (states_before[was] & ~states_after[was]) | returned
    total = float(weight.sum()) or 1.0
    same = kept & ~differs
    drift = (after.palette.units[there[same], 0] - before.palette.units[before.colour[same], 0]) * RTT_UNIT_MS
    added = before.colour_of(after.cells) < 0
    return MapDiff(
        old=old.version,
        new=new.version,
        same_content=same_content(old, new),
        levels=_levels(before, after, kept, differs & kept, added),
        moved_share=float(weight[differs].sum()) / total,
        unforced_share=float(weight[differs & ~explained].sum()) / total,
        origins_added=tuple(o["id"] for o in new.origins if o["id"] not in {p["id"] for p in old.origins}),
        origins_removed=tuple(o["id"] for o in old.origins if o["id"] not in {p["id"] for p in new.origins}),
        origins_changed=_changes(old, new),
        rtt_drift_ms=_drift(drift),
    )


def _weights(
    before: Unpacked, users: Mapping[int, float] | None, kept: NDArray[np.bool_]
) -> NDArray[np.float64]:
    asn = level_of(before.cells) == _ASN
    weight: NDArray[np.float64] = np.zeros(len(asn))
    if not asn.any():
        weight[kept] = 1.0
        return weight
    if users is None:
        weight[asn] = 1.0
        return weight
    weight[asn] = [users.get(key, 0.0) for key in key_of(before.cells[asn]).tolist()]
    if not weight.any():
        weight[asn] = 1.0
    return weight


def _up(live: LatencyMap, ids: Mapping[str, int]) -> NDArray[np.bool_]:
    """By number of an origin whether it is up; what the map does not have is not."""
    up = np.zeros(len(ids), bool)
    for origin in live.origins:
        up[ids[origin["id"]]] = origin.get("state", "up") == "up"
    return up


def _levels(
    before: Unpacked,
    after: Unpacked,
    kept: NDArray[np.bool_],
    moved: NDArray[np.bool_],
    added: NDArray[np.bool_],
) -> dict[str, LevelDiff]:
    count = len(LEVELS)

    def by_level(cells: NDArray[np.uint64]) -> list[int]:
        found: list[int] = np.bincount(level_of(cells), minlength=count).tolist()
        return found

    columns = (
        by_level(after.cells),
        by_level(after.cells[added]),
        by_level(before.cells[~kept]),
        by_level(before.cells[moved]),
    )
    return {
        level: LevelDiff(cells=cells, added=new, removed=gone, moved=other)
        for level, cells, new, gone, other in zip(LEVELS, *columns, strict=True)
        if cells or gone
    }


def _changes(old: LatencyMap, new: LatencyMap) -> dict[str, dict[str, tuple[Any, Any]]]:
    before = {origin["id"]: origin for origin in old.origins}
    changes = {}
    for origin in new.origins:
        was = before.get(origin["id"], origin)
        fields = {
            name: (was.get(name), origin.get(name))
            for name in sorted(was.keys() | origin.keys())
            if was.get(name) != origin.get(name)
        }
        if fields:
            changes[origin["id"]] = fields
    return changes


def _drift(drift: NDArray[np.float64]) -> dict[str, float]:
    if not len(drift):
        return {"mean": 0.0, "p50": 0.0, "p99": 0.0, "max": 0.0}
    size = np.abs(drift)
    figures = {
        "mean": drift.mean(),
        "p50": np.quantile(size, 0.5),
        "p99": np.quantile(size, 0.99),
        "max": size.max(),
    }
    return {name: round(float(value), 3) for name, value in figures.items()}
