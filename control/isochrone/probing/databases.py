"""MaxMind databases that give an address its ASN and place: the last good ones, read anew when a file has changed.

A database is read from a private copy: a file that somebody writes over in place would otherwise change, or end, under the memory
map. Not safe for several threads at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

import geoip2.database
import maxminddb
from geoip2.errors import GeoIP2Error

from isochrone.model import Target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

log = logging.getLogger(__name__)

QUIET_SECONDS = 1.0  # a file written to more lately than this is perhaps not complete
_TRIALS = [str(IPv4Address((first << 24) + 0x010101)) for first in range(1, 224)]  # x.1.1.1

_Print = tuple[int, int, int, int]


class TargetsError(Exception):
    """Targets or a database can't be had at all; one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseState:
    """A database in use."""

    name: str  # the key in `[probing]`
    path: str
    kind: str  # as the file names it, e.g. "GeoLite2-ASN"
    built_at: float  # Unix time: the file's build epoch
    problem: str = ""  # why a newer file, or the lack of one, was passed over


class Annotator:
    """ASN and place of an address, by the databases that are given. Close it after use.

    Raises from its constructor: TargetsError.
    """

    def __init__(self, asn_database: Path | None = None, country_database: Path | None = None) -> None:
        self._asn: _Database | None = None
        self._country: _Database | None = None
        try:
            if asn_database is not None:
                self._asn = _Database("asn_database", asn_database, ("ASN",))
            if country_database is not None:
                self._country = _Database(
                    "country_database", country_database, ("Country", "City", "Enterprise")
                )
        except BaseException:
            self.close()
            raise

    def __call__(self, target: Target) -> Target:
        """The target with what it did not state itself; unchanged where the databases don't know."""
        asn, country, continent = target.asn, target.country, target.continent
        if self._asn is not None and not asn:
            with contextlib.suppress(GeoIP2Error, ValueError, maxminddb.InvalidDatabaseError):
                asn = self._asn.reader.asn(target.address).autonomous_system_number or 0
        if self._country is not None and not (country and continent):
            with contextlib.suppress(GeoIP2Error, ValueError, TypeError, maxminddb.InvalidDatabaseError):
                found = self._country.reader.country(target.address)
                country = country or found.country.iso_code or ""
                continent = continent or found.continent.code or ""
        if (asn, country, continent) == (target.asn, target.country, target.continent):
            return target
        # `dataclasses.replace` takes eight times as long, for each of many thousand targets.
        return Target(
            target.address,
            target.port,
            asn,
            country,
            target.colo,
            continent,
            target.latitude,
            target.longitude,
        )

    def refresh(self, now: float) -> bool:
        """Read anew what has changed, at the Unix time `now`. Whether anything was.

        A file that can't be used leaves the one before in use; that is logged once, and stays in `states`.
        """
        changed = [database.refresh(now) for database in self._databases()]
        return any(changed)

    def states(self) -> tuple[DatabaseState, ...]:
        """The databases in use."""
        return tuple(database.state for database in self._databases())

    def close(self) -> None:
        """Let go of them."""
        for database in self._databases():
            database.reader.close()

    def _databases(self) -> Iterator[_Database]:
        yield from (database for database in (self._asn, self._country) if database is not None)


class _Database:
    """One file, as it was when it was good the last time."""

    def __init__(self, name: str, path: Path, kinds: tuple[str, ...]) -> None:
        self._path = path
        self._kinds = kinds
        self.reader, self._good = _read(path, kinds)
        self._seen = self._good  # the last that was read, good or not
        self.state = _state(name, path, self.reader)

    def refresh(self, now: float) -> bool:
        """Read it anew if it has changed and is quiet. Whether it was."""
        try:
            status = self._path.stat()
        except OSError as error:
            self._passed_over(f"{self._path}: can't be read ({error.strerror})")
            return False
        seen = _print(status)
        if seen == self._good:
            self.state = replace(self.state, problem="")
        if seen == self._seen or 0 <= now - status.st_mtime < QUIET_SECONDS:
            return False
        self._seen = seen
        try:
            reader, self._seen = _read(self._path, self._kinds)
        except TargetsError as error:
            self._passed_over(str(error))
            return False
        self.reader.close()
        self.reader, self._good = reader, self._seen
        self.state = _state(self.state.name, self._path, reader)
        log.info("%s: read anew (%s)", self._path, self.state.kind)
        return True

    def _passed_over(self, problem: str) -> None:
        if problem != self.state.problem:
            log.warning("%s; the one read before stays in use", problem)
            self.state = replace(self.state, problem=problem)


def _read(path: Path, kinds: tuple[str, ...]) -> tuple[geoip2.database.Reader, _Print]:
    """A reader of the file as it is now.

    Raises:
        TargetsError: it can't be read, is being written, is damaged, or is of another type.
    """
    try:
        with (
            path.open("rb") as file,
            tempfile.NamedTemporaryFile(prefix="isochrone-", suffix=".mmdb") as copy,
        ):
            before = _print(os.fstat(file.fileno()))
            shutil.copyfileobj(file, copy, 1 << 20)
            copy.flush()
            if _print(os.fstat(file.fileno())) != before:
                raise TargetsError(f"{path}: is being written")
            reader = geoip2.database.Reader(copy.name)  # the map outlives the name
    except (OSError, maxminddb.InvalidDatabaseError, ValueError) as error:
        raise TargetsError(f"{path}: not a readable MaxMind database ({error})") from None
    try:
        kind = reader.metadata().database_type
        if not any(wanted in kind for wanted in kinds):
            raise TargetsError(
                f"{path}: a database of type {kind!r}, where one of type {kinds[0]!r} is needed"
            )
        _try(reader, path)
    except BaseException:
        reader.close()
        raise
    return reader, before


def _try(reader: geoip2.database.Reader, path: Path) -> None:
    """A few look-ups: metadata may be whole where what it describes is not."""
    look_up = reader.asn if "ASN" in reader.metadata().database_type else reader.country
    for address in _TRIALS:
        try:
            look_up(address)
        except GeoIP2Error:
            continue
        except (maxminddb.InvalidDatabaseError, ValueError, TypeError, AttributeError) as error:
            raise TargetsError(f"{path}: a damaged MaxMind database ({error})") from None


def _state(name: str, path: Path, reader: geoip2.database.Reader) -> DatabaseState:
    about = reader.metadata()
    return DatabaseState(
        name=name, path=str(path), kind=about.database_type, built_at=float(about.build_epoch)
    )


def _print(status: os.stat_result) -> _Print:
    """By this a changed file is known, replaced or written over."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
