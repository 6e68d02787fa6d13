"""Overrides from configuration: until it expires, a cell's first choice is what a person says. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isochrone.mapping.lookup import key_fields
from isochrone.model import Level
from isochrone_edge.latency_map import letters

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from isochrone.settings import OverrideSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One cell's first choice. An ASN's holds for its (ASN, country) cells too, but for those that have their own."""

    level: Level
    key: int  # as the map format has it
    origin: str
    reason: str
    expires: float  # Unix seconds


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of an override.

    `applied`, `expired`, `superseded` (a later one of the same cell holds in its place) or `suspended` (its origin is not up:
    nobody is sent to it).
    """

    override: Override
    status: str

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        override = self.override
        return {
            "level": str(override.level),
            "key": override.key,
            "origin": override.origin,
            "reason": override.reason,
            "expires": override.expires,
            "status": self.status,
        }


class UnknownOriginError(ValueError):
    """An override names an origin that is not there."""

    def __init__(self, override: Override, known: Iterable[str]) -> None:
        self.override = override
        super().__init__(
            f"the override of {cell_name(override)} ({override.reason}) names the origin {override.origin!r}, "
            f"which is not there; known are {', '.join(known)}"
        )


def overrides_of(entries: Iterable[OverrideSettings]) -> tuple[Override, ...]:
    """The `[[overrides]]` of isochrone.toml as cells."""
    return tuple(
        Override(level=level, key=key, origin=entry.origin, reason=entry.reason, expires=entry.expires)
        for entry in entries
        for level, key in [_cell(entry)]
    )


def cell_name(override: Override) -> str:
    """Its cell for people: `asn_country 3320 DE`, `colo FRA`."""
    return " ".join(map(str, (override.level, *key_fields(override.level, override.key).values())))


def sort_out(overrides: Sequence[Override], up: Mapping[str, bool], now: float) -> list[Applied]:
    """Which of them hold now: of those of one cell whose origins are up, the last.

    Args:
        overrides: in the order of the configuration.
        up: every origin's id, and whether it is up.
        now: Unix seconds.

    Raises:
        UnknownOriginError: for one that names an origin that is not there; expired ones are not looked at.
    """
    applied: list[Applied] = []
    settled = set()
    for override in reversed(overrides):
        cell = override.level, override.key
        if override.expires <= now:
            status = "expired"
        elif override.origin not in up:
            raise UnknownOriginError(override, up)
        elif not up[override.origin]:
            status = "suspended"
        else:
            status = "superseded" if cell in settled else "applied"
            settled.add(cell)
        applied.append(Applied(override, status))
    return applied[::-1]


def _cell(entry: OverrideSettings) -> tuple[Level, int]:
    if entry.asn is not None:
        country = letters(entry.country)
        return (Level.ASN, entry.asn) if country is None else (Level.ASN_COUNTRY, entry.asn << 16 | country)
    for level in (Level.COUNTRY, Level.COLO, Level.CONTINENT):
        key = letters(getattr(entry, level.value))
        if key is not None:
            return level, key
    raise ValueError("an override names no cell")
