"""What `isochrone map` reads and writes: maps, clients, weights, the parts of a configuration that a map needs."""

from __future__ import annotations

import contextlib
import csv
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from isochrone.checks import Problems, read_toml, tell
from isochrone.cli import Failure
from isochrone_edge.latency_map import MapError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized

    from isochrone_edge.latency_map import LatencyMap

#: what a value in Workers KV may have
MAP_MAX_BYTES = 25 << 20

Counted = TypeVar("Counted", bound="Sized")


def load_map(path: Path) -> LatencyMap:
    """The map in a file, all its parts looked at, or the command's end."""
    from isochrone.mapping.sound import sound

    try:
        with path.open("rb") as file:
            data = file.read(MAP_MAX_BYTES + 1)
        if len(data) > MAP_MAX_BYTES:
            raise MapError(f"more than {MAP_MAX_BYTES >> 20} MiB, which no value in KV has")
        return sound(data)
    except OSError as error:
        raise Failure(
            f"{path}: can't be read: {error.strerror}; name a file that `isochrone map build` wrote"
        ) from None
    except MapError as error:
        raise Failure(f"{path}: {error}; name a file that `isochrone map build` wrote") from None


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that at any moment either the old or the new one is there, whole."""
    name = ""
    path = Path(os.path.realpath(path))  # a link stays a link: what it leads to is replaced
    if path.exists() and not path.is_file():
        raise Failure(f"{path}: is no ordinary file, and would be lost by being written over; name a file")
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.absolute().parent, prefix=f".{path.name}.", delete=False
        ) as file:
            name = file.name
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~mask)
        Path(name).replace(path)
        folder = os.open(path.absolute().parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException as error:  # Ctrl-C too leaves nothing behind
        if name:
            with contextlib.suppress(OSError):
                Path(name).unlink()
        if not isinstance(error, OSError):
            raise
        raise Failure(
            f"{path}: can't be written: {error.strerror}; what was there before is as it was"
        ) from None


def parts_of_settings(config: Path | None) -> Any:
    """`[estimation]`, `[steering]` and `[[overrides]]`, with defaults when there is no file."""
    from pydantic import ValidationError

    from isochrone.settings import Estimation, OverrideSettings, Section, Settings, Steering

    class Parts(Section):
        estimation: Estimation = Estimation()
        steering: Steering = Steering()
        overrides: tuple[OverrideSettings, ...] = ()

    problems: Problems = []
    document = {} if config is None else read_toml(config, problems)
    parts = None
    if document is not None:
        try:
            parts = Parts.model_validate(
                {
                    name: value
                    for name, value in document.items()
                    if name in Parts.model_fields or name not in Settings.model_fields
                }
            )
        except ValidationError as error:
            problems += tell(error, Parts)
    if problems or parts is None:
        raise Failure("\nisochrone: ".join(f"{config}: {problem}" for problem in problems))
    return parts


def csv_rows(path: Path, wanted: Sequence[Sequence[str]]) -> Iterator[dict[str, str | None]]:
    """The rows of a CSV file by the names of its header, which has to have one name of each group, and each once.

    What is not UTF-8 becomes a bad value. A blank line is a row only where a row has one field.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(path.open(encoding="utf-8-sig", errors="replace", newline=""))
            rows = csv.reader(file)
            names = _header(path, next(rows, []), wanted)
            for row in rows:
                if row or len(names) == 1:
                    yield dict(zip(names, row, strict=False))
        except OSError as error:
            raise Failure(f"{path}: can't be read: {error.strerror}") from None
        except csv.Error as error:
            raise Failure(f"{path}: line {rows.line_num}: {error}") from None


def _header(path: Path, first: Sequence[str], wanted: Sequence[Sequence[str]]) -> list[str]:
    names = [name.strip().lower() for name in first]
    if not all(set(names) & set(group) for group in wanted):
        told = " and ".join(" or ".join(group) for group in wanted)
        found = f"is {','.join(first)[:60]!r}" if any(names) else "names none"
        raise Failure(
            f"{path}: the first line has to name the columns {told}, separated by commas, and {found}"
        )
    twice = [name for group in wanted for name in group if names.count(name) > 1]
    if twice:
        raise Failure(f"{path}: the first line names {', '.join(twice)} more than once; leave one of each")
    return names


def users_of(path: Path) -> Mapping[int, float]:
    """Weights of ASNs from a CSV file with `asn` and `users` (or `users_est`, or `weight`); several rows of one ASN add up."""
    users: dict[int, float] = {}
    columns = ("users", "users_est", "weight")
    for number, row in enumerate(csv_rows(path, (("asn",), columns)), 1):
        weight = next((row[name] for name in columns if name in row), None)
        try:
            asn, share = int(row.get("asn") or ""), float(weight or "")
        except ValueError:
            asn, share = 0, math.nan
        if not 0 <= share < math.inf:
            raise Failure(f"{path}: row {number}: asn and users have to be numbers, not negative")
        users[asn] = users.get(asn, 0.0) + share
    if not users:
        raise Failure(f"{path}: has no row: give the users of at least one ASN")
    return users


def say(what: str) -> None:
    """Progress, on a terminal only: one line that is written over."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{what}", nl=False, err=True)


def counting(parts: Iterable[Counted], what: str) -> Iterator[Counted]:
    """The parts as they come, with progress."""
    seen = 0
    for part in parts:
        seen += len(part)
        say(f"{seen:,} {what}")
        yield part


def set_aside(counts: Mapping[str, int]) -> str:
    """What the estimates did not use, for people; empty when that is nothing."""
    names = ("outside_window", "faster_than_light")
    return ", ".join(f"{counts[name]} {name.replace('_', ' ')}" for name in names if counts.get(name))
