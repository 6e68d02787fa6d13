"""What a publish would do, and whether it may: pure, shown before anything is written.

Two guards stand here. A map that moves too much of the weight at once is more often a fault of measurement than of the
network. And there is one writer: a live map that this controller neither published nor saw last belongs to somebody else,
another controller or a person who rolled back, and is left alone until told otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from isochrone.mapping.diff import diff_maps
from isochrone.mapping.sound import sound
from isochrone.publishing.manifest import Manifest, describe
from isochrone_edge.latency_map import INFERRED, KINDS, OVERRIDE, LatencyMap

if TYPE_CHECKING:
    from collections.abc import Collection


class Action(StrEnum):
    """What a plan comes to."""

    NOTHING = "nothing"
    FIRST = "first"  # nothing is live
    REPLACE = "replace"  # another routing, or other origins
    REFRESH = "refresh"  # the same routing, and the live map is old
    REPAIR = "repair"  # what is live is damaged
    ROLL_BACK = "roll_back"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What KV held when it was looked at."""

    raw: bytes | None = None  # the manifest's bytes, for compare-and-set
    manifest: Manifest | None = None
    map: LatencyMap | None = None
    damage: str = ""  # why the manifest or the map is of no use; "" when both are good or nothing is there

    @property
    def version(self) -> str | None:
        """The live version, None when no manifest tells it."""
        return self.manifest.version if self.manifest else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """What a publish must respect, and what it may override."""

    max_moved_share: float = 0.3
    refresh_seconds: float = 3600.0
    force: bool = False  # move as much weight as it takes
    take_over: bool = False  # replace what another writer published
    #: the live map was built from so few samples that correcting it must not be refused
    provisional: bool = False
    #: other figures with the same routing wait for the refresh: a daemon builds all the time
    patient: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would be done. `reason` is one sentence for people."""

    action: Action
    reason: str
    manifest: Manifest
    data: bytes
    live: Live
    moved: float | None = (
        None  # share of the weight whose first choice changes; None when there is nothing to compare
    )

    @property
    def writes(self) -> bool:
        """Whether applying it changes KV."""
        return self.action not in {Action.NOTHING, Action.REFUSED}

    def document(self) -> dict[str, Any]:
        """For `--json` and for logs."""
        return {
            "action": self.action.value,
            "reason": self.reason,
            "version": self.manifest.version,
            "live": self.live.version,
            "bytes": len(self.data),
            "cells": self.manifest.cells,
            "moved_share": None if self.moved is None else round(self.moved, 6),
        }


def plan_publish(
    data: bytes,
    live: Live,
    *,
    now: float,
    guards: Guards,
    own: Collection[str] | None = None,
    last_good: LatencyMap | None = None,
) -> Plan:
    """The plan for publishing a map over what is live.

    Args:
        data: the map's bytes.
        live: what KV holds.
        now: Unix seconds.
        guards: limits and permissions.
        own: versions that this controller published or saw last; None for a person, whose writer is whoever they say.
        last_good: compared with when the live map can't be read.

    Raises:
        MapError: `data` is no latency map.
    """
    fresh = sound(data)
    manifest = describe(data, fresh, canary=live.manifest.canary if live.manifest else None)

    def plan(action: Action, reason: str, moved: float | None = None) -> Plan:
        return Plan(action=action, reason=reason, manifest=manifest, data=data, live=live, moved=moved)

    if live.raw is None:
        return plan(Action.FIRST, "nothing is live yet")
    stranger = _stranger(live, own) if not (guards.take_over or guards.force) else ""
    if stranger:
        return plan(Action.REFUSED, stranger)
    baseline = live.map or last_good
    if baseline is None:
        return plan(Action.REPAIR, live.damage)
    same = fresh.content == baseline.content
    diff = diff_maps(baseline, fresh)
    moved = diff.moved_share
    # Whom an outage moves has to move; the guard is against faults of measurement.
    if diff.unforced_share > guards.max_moved_share and not (guards.force or guards.provisional):
        return plan(
            Action.REFUSED,
            f"it moves {diff.unforced_share:.1%} of the weight between origins that are up, more than the "
            f"{guards.max_moved_share:.0%} allowed at once; look at `isochrone map diff`, then publish it with --force",
            moved,
        )
    if live.damage:
        return plan(Action.REPAIR, live.damage, moved)
    age = now - baseline.built_at
    if same or (guards.patient and same_routing(baseline, fresh)):
        what = "the content is the same" if same else "the routing is the same"
        if age < guards.refresh_seconds:
            return plan(Action.NOTHING, f"{what} as that of {live.version}", moved)
        return plan(Action.REFRESH, f"{what}, and {live.version} is {age:.0f} s old", moved)
    return plan(Action.REPLACE, f"it moves {moved:.1%} of the weight", moved)


def plan_rollback(data: bytes, live: Live) -> Plan:
    """The plan for making an older map live again; never guarded: it is what a person does when the guards were not enough.

    Raises:
        MapError: `data` is no latency map.
    """
    older = sound(data)
    manifest = describe(data, older)  # a canary ends with the map that it was compared with
    moved = diff_maps(live.map, older).moved_share if live.map else None
    if live.version == older.version and not live.damage:
        return Plan(
            action=Action.NOTHING,
            reason="it is live already",
            manifest=manifest,
            data=data,
            live=live,
            moved=0.0,
        )
    reason = "nothing readable is live" if moved is None else f"it moves {moved:.1%} of the weight back"
    return Plan(action=Action.ROLL_BACK, reason=reason, manifest=manifest, data=data, live=live, moved=moved)


def same_routing(old: LatencyMap, new: LatencyMap) -> bool:
    """Whether both send every client of a measured cell to the same origin, and promise the same.

    Figures of round-trip times, the order among the fallbacks, and what is inferred for places without samples change a
    little with every measurement; they are no reason to write to KV, and come along when the map is published next.
    """
    if old.origins != new.origins or old.grid_step != new.grid_step:
        return False
    return _told(old) == _told(new)


def _told(live: LatencyMap) -> dict[tuple[str, int], int]:
    """The first choice of every cell that rests on samples or on a person's word."""
    firsts = [live.order(colour)[0] for colour in range(live.colours)]
    flags = live.sections[b"FLAG"]
    return {
        (kind, key): firsts[colour]
        for kind in (*KINDS, "default")
        for key, colour in live.items(kind)
        if flags[colour] & OVERRIDE or not flags[colour] & INFERRED
    }


def _stranger(live: Live, own: Collection[str] | None) -> str:
    """Why what is live is not this controller's to replace; "" when it is."""
    if own is None or live.version in own:
        return ""
    if live.manifest is None:  # damaged: whoever has published here before may mend it
        return (
            ""
            if own
            else f"{live.damage}, and this controller has never published here; start it with --take-over if it shall"
        )
    return (
        f"{live.version} is live and this controller did not publish it: another controller writes here, or a map was published or "
        "rolled back by hand; start this one with --take-over if it shall go on"
    )
