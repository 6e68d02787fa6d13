"""What a map says, as JSON-able documents: of a client, of every cell. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from isochrone_edge.latency_map import COUNTRY_SHIFT, DEFAULT, KINDS, Facts, LatencyMap, unletters

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: the facts that decide, as columns of a file and as options
FACTS = ("asn", "country", "colo", "continent", "latitude", "longitude")
_WIDTHS = {"country": 2, "colo": 3, "continent": 2}
_LIMITS = {"latitude": 90.0, "longitude": 180.0}


def read_facts(values: Mapping[str, str | None]) -> tuple[Facts, list[str]]:
    """A client's facts from text, and what is wrong with the values. Empty or missing is unknown, and so is what is wrong."""
    facts: dict[str, Any] = {}
    problems = []
    for name in FACTS:
        text = (values.get(name) or "").strip()
        if not text:
            continue
        try:
            facts[name] = _fact(name, text)
        except ValueError as error:
            problems.append(str(error))
    missing = {"latitude", "longitude"} - facts.keys()
    if len(missing) == 1:
        facts = {name: value for name, value in facts.items() if name not in _LIMITS}
        if not problems:
            problems.append(f"{missing.pop()} is missing: a place needs both")
    return Facts(**facts), problems


class Lookup:
    """Answers from one map; the candidates of each colour are made once."""

    def __init__(self, live: LatencyMap) -> None:
        self.map = live
        self._candidates: dict[int, list[dict[str, Any]]] = {}

    def answer(self, facts: Facts) -> dict[str, Any]:
        """Who serves this client, best first, and why."""
        level, colour = self.map.find(facts)
        return {
            "map": self.map.version,
            "asn": facts.asn,
            "country": facts.country,
            "level": level,
            "colour": colour,
            "candidates": self.candidates(colour),
            "reason": self.map.reason(level, colour),
        }

    def cells(self) -> Iterator[dict[str, Any]]:
        """Every cell: its level, its key fields, its colour, its candidates and the reason."""
        for level in (*KINDS, DEFAULT):
            for key, colour in self.map.items(level):
                yield {
                    "level": level,
                    **key_fields(level, key, self.map.grid_step),
                    "colour": colour,
                    "candidates": self.candidates(colour),
                    "reason": self.map.reason(level, colour),
                }

    def candidates(self, colour: int) -> list[dict[str, Any]]:
        """The colour's candidates."""
        known = self._candidates.get(colour)
        if known is None:
            known = self._candidates[colour] = [c._asdict() for c in self.map.candidates(colour)]
        return known


def key_fields(level: str, key: int, grid_step: float = 0) -> dict[str, Any]:
    """A cell's key for people: `asn`, `country`, `colo`, `continent`; of a square its south-west corner and its size."""
    match level:
        case "asn_country":
            return {"asn": key >> 16, "country": unletters(key & 0xFFFF, 2)}
        case "asn":
            return {"asn": key}
        case "colo":
            return {"colo": unletters(key, 3)}
        case "grid" | "country_grid":
            country = {"country": unletters(key >> COUNTRY_SHIFT, 2)} if level == "country_grid" else {}
            row, column = divmod(key & (1 << COUNTRY_SHIFT) - 1, int(360 / grid_step))
            return {
                **country,
                "latitude": row * grid_step - 90,
                "longitude": column * grid_step - 180,
                "degrees": grid_step,
            }
        case "country" | "continent":
            return {level: unletters(key, 2)}
    return {}


def _fact(name: str, text: str) -> int | float | str:
    """The value. Raises ValueError with a sentence when it is none."""
    width = _WIDTHS.get(name)
    if width is not None:
        if len(text) == width and text.isascii() and text.isalnum():
            return text.upper()
        raise ValueError(f"{name} {text[:40]!r} is not a code of {width} letters")
    if name == "asn":
        if text.isascii() and text.isdigit() and int(text[:20]) < 2**32:
            return int(text)
        raise ValueError(f"asn {text[:40]!r} is not a number from 0 to 4294967295")
    limit = _LIMITS[name]
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not -limit <= number <= limit:
        raise ValueError(f"{name} {text[:40]!r} is not a number from -{limit:g} to {limit:g}")
    return number
