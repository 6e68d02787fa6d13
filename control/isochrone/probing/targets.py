"""Whom to probe: targets of the configuration and of a CSV file, completed by MaxMind databases where these are given.

CSV columns: `address` (or `ip`), and as far as known `port`, `asn`, `country`, `colo`, `continent`, `latitude`, `longitude`. The
header is required, other columns are ignored. A row that is wrong is left out and told; what the file states outranks a database.
"""

from __future__ import annotations

import csv
import socket
from contextlib import closing
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING

from isochrone.model import Target
from isochrone.probing.databases import Annotator, DatabaseState, TargetsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from isochrone.settings import Settings

CONTINENTS = frozenset({"AF", "AN", "AS", "EU", "NA", "OC", "SA"})
ASN_MAX = 4_294_967_294
DEFAULT_PORT = 443
FIRST_LINES = 3  # places told for each kind of bad row


class _BadRow(Exception):
    """Why a row can't be used."""


@dataclass(frozen=True, slots=True)
class TargetList:
    """Targets, each address and port once, and one sentence for each kind of row that was left out."""

    targets: tuple[Target, ...]
    problems: tuple[str, ...] = ()
    databases: tuple[DatabaseState, ...] = ()  # those that were asked


def load_targets(settings: Settings, annotate: Annotator | None = None) -> TargetList:
    """All targets that the settings name, annotated. A target whose ASN nobody knows is left out and told.

    Without `annotate` the databases of the settings are opened for this once.

    Raises:
        TargetsError: the file or a database can't be used at all.
    """
    if annotate is None:
        with closing(Annotator(settings.probing.asn_database, settings.probing.country_database)) as opened:
            return load_targets(settings, opened)
    problems = _Problems()
    found: dict[tuple[str, int], Target] = {}
    for where, target in _stated(settings, problems):
        complete = annotate(target)
        if not complete.asn:
            problems.add("no ASN is stated and no database knows one", where)
        elif (complete.address, complete.port) in found:
            problems.add("the same address and port again", where)
        else:
            found[complete.address, complete.port] = complete
    return TargetList(tuple(found.values()), problems.sentences(), annotate.states())


def usable(targets: TargetList) -> TargetList:
    """Without those whose samples would be set aside as nobody's: their ASN is reserved."""
    from isochrone.settings import is_unusable_asn

    good = tuple(target for target in targets.targets if not is_unusable_asn(target.asn))
    bad = [target for target in targets.targets if is_unusable_asn(target.asn)]
    if not bad:
        return targets
    first = ", ".join(f"{target.address} in AS{target.asn}" for target in bad[:FIRST_LINES])
    more = ", ..." if len(bad) > FIRST_LINES else ""
    told = f"{len(bad)} target{'s' if len(bad) > 1 else ''} left out: the ASN is reserved (documentation or special use)"
    return replace(targets, targets=good, problems=(*targets.problems, f"{told} ({first}{more})"))


def read_csv(path: Path) -> TargetList:
    """The targets of a CSV file as they stand there; `asn` is 0 where the file does not say.

    Raises:
        TargetsError: the file can't be read or has no usable header.
    """
    problems = _Problems()
    return TargetList(tuple(target for _, target in _rows(path, problems)), problems.sentences())


def _stated(settings: Settings, problems: _Problems) -> Iterator[tuple[str, Target]]:
    for index, target in enumerate(settings.model_targets()):
        yield f"targets[{index}]", target
    if settings.targets_file is not None:
        yield from _rows(settings.targets_file, problems)


def _rows(path: Path, problems: _Problems) -> Iterator[tuple[str, Target]]:
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as lines:
            header = [name.strip(' "\n').lower() for name in next(lines, "").split(",")]
            place = {name: number for number, name in enumerate(header)}
            if "address" not in place and "ip" in place:
                place["address"] = place["ip"]
            if "address" not in place:
                raise TargetsError(
                    f"{path}: the first line must name the columns, an address (or ip) column among them"
                )
            for number, line in enumerate(lines, 2):
                if not line.strip():
                    continue
                where = f"{path.name}:{number}"
                try:
                    row = _fields(line)
                    if len(row) != len(header):
                        raise _BadRow(f"not the header's {len(header)} fields")
                    yield where, _target({name: row[column].strip() for name, column in place.items()})
                except _BadRow as bad:
                    problems.add(str(bad), where)
    except OSError as error:
        raise TargetsError(
            f"{path}: can't be read ({error.strerror}); name a readable file in targets_file"
        ) from None


def _fields(line: str) -> list[str]:
    """One line is one row: an unbalanced quote must not swallow the rest of the file."""
    if '"' not in line:
        return line.rstrip("\n").split(",")
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error:
        raise _BadRow("the quotes are unbalanced") from None


def _target(row: Mapping[str, str]) -> Target:
    address = _address(row["address"])
    country, colo, continent = (row.get(name, "").upper() for name in ("country", "colo", "continent"))
    if country and not (len(country) == 2 and country.isascii() and country.isalpha()):
        raise _BadRow("the country is not a two-letter ISO 3166 code")
    if colo and not (len(colo) == 3 and colo.isascii() and colo.isalpha()):
        raise _BadRow("the colo is not a three-letter IATA code")
    if continent and continent not in CONTINENTS:
        raise _BadRow("the continent is none of AF, AN, AS, EU, NA, OC, SA")
    latitude, longitude = _degrees(row.get("latitude", ""), 90), _degrees(row.get("longitude", ""), 180)
    asn = _whole(row.get("asn", "").upper().removeprefix("AS"), 0, 1, ASN_MAX, "the ASN")
    port = _whole(row.get("port", ""), DEFAULT_PORT, 1, 65_535, "the port")
    if latitude is None or longitude is None:
        latitude = longitude = None  # one alone is no place
    return Target(address, port, asn, country, colo, continent, latitude, longitude)


def _address(text: str) -> str:
    """As it is usually written. Most are plain IPv4, which the system reads ten times as fast as Python."""
    try:
        socket.inet_pton(socket.AF_INET, text)
    except (OSError, ValueError):  # a NUL or a surrogate in the text is a ValueError
        try:
            return str(ip_address(text))
        except ValueError:
            raise _BadRow("the address is not an IP address") from None
    return text


def _whole(text: str, default: int, low: int, high: int, what: str) -> int:
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and low <= int(text) <= high):
        raise _BadRow(f"{what} is not a number from {low} to {high}")
    return int(text)


def _degrees(text: str, limit: float) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not -limit <= value <= limit:
        raise _BadRow(f"a coordinate is not a number of degrees within {limit:g}")
    return value


class _Problems:
    """Kinds of bad rows, how many of each, and where the first ones are."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[int, list[str]]] = {}

    def add(self, kind: str, where: str) -> None:
        count, first = self._kinds.get(kind, (0, []))
        self._kinds[kind] = (count + 1, first if len(first) >= FIRST_LINES else [*first, where])

    def sentences(self) -> tuple[str, ...]:
        return tuple(
            f"{count} target{'s' if count > 1 else ''} left out: {kind} ({_listed(first, count)})"
            for kind, (count, first) in self._kinds.items()
        )


def _listed(first: Iterable[str], count: int) -> str:
    shown = list(first)
    return ", ".join(shown) + (", ..." if count > len(shown) else "")
