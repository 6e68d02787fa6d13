"""`--origins FILE`: the origins of a map from TOML, CSV or JSON, for work that needs no whole configuration.

- TOML: `[[origins]]` as in isochrone.toml; a whole isochrone.toml works, of it `origins`, `site` and `[alt_svc]` are read.
- CSV: a header with `id,latitude,longitude` and, if wanted, `host,weight,alt_svc,draining`; other columns are ignored.
- JSON: a list of objects with the same keys, or an object that has it as `origins`; other keys are ignored.

`host` may be left out: such a map can be looked up and judged, and not be published.
"""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, ValidationError

from isochrone.checks import Problems, authority, parse_toml, read_text, tell
from isochrone.model import AltSvcEndpoint, Origin
from isochrone.settings import AltSvc, Host, OriginSettings, Section, SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

ORIGINS_MAX = 256  # the map format counts them in one byte
_JSON = re.compile(r"\{|\[\s*[{\]]")  # no TOML document begins so
REQUIRED = ("id", "latitude", "longitude")
KNOWN = (*REQUIRED, "host", "weight", "alt_svc", "draining")  # of CSV and JSON


class _Entry(OriginSettings):
    """An origin that needs no host."""

    host: Annotated[str, AfterValidator(lambda value: authority(value) if value else "")] = ""


class _Document(Section):
    """What is read of the file."""

    origins: tuple[_Entry, ...]
    site: Host | None = None
    alt_svc: AltSvc = AltSvc()


@dataclass(frozen=True, slots=True)
class OriginsFile:
    """The origins of a file in its order, and the public host name when it gives one."""

    origins: tuple[Origin, ...]
    site: str = ""


def load_origins(path: str | Path) -> OriginsFile:
    """The origins in `path`.

    Raises:
        SettingsError: with every problem of the file.
    """
    path = Path(path)
    problems: Problems = []
    document, lines = _read(path, problems)
    parsed: _Document | None = None
    if document is not None:
        try:
            parsed = _Document.model_validate(document)
        except ValidationError as error:
            problems += tell(error, _Document)
        problems += _across(document)
    if problems or parsed is None:
        raise SettingsError(path, [_placed(problem, lines) for problem in problems])
    settings = parsed.alt_svc
    return OriginsFile(
        tuple(
            Origin(
                id=o.id, host=o.host, latitude=o.latitude, longitude=o.longitude, weight=o.weight,
                alt_svc=AltSvcEndpoint(o.alt_svc, settings.max_age_seconds) if o.alt_svc and settings.enabled else None,
                addresses=o.addresses, source_address=o.source_address, draining=o.draining,
            )
            for o in parsed.origins
        ),
        parsed.site or "",
    )  # fmt: skip


def _read(path: Path, problems: Problems) -> tuple[dict[str, Any] | None, Sequence[int]]:
    """The document, and for CSV the line of each entry; None and a problem when there is none."""
    text = read_text(path, "--origins", problems)
    if text is None:
        return None, ()
    kind = path.suffix.lower()
    start = text.lstrip()
    if not start:
        problems.append("empty; give at least one origin, as TOML, CSV or JSON")
        return None, ()
    if kind == ".json" or (kind not in {".toml", ".csv"} and _JSON.match(start)):
        return _json(text, problems), ()
    if kind == ".csv" or (kind != ".toml" and _is_csv(start)):
        return _csv(text, problems)
    return _toml(text, problems), ()


def _is_csv(text: str) -> bool:
    """A first line with commas and the name `id` among them is a header: TOML has no such line."""
    return "id" in [name.strip().strip('"').lower() for name in text.split("\n", 1)[0].split(",")]


def _toml(text: str, problems: Problems) -> dict[str, Any] | None:
    document = parse_toml(text, problems)
    if document is None:
        return None
    return {key: document[key] for key in ("origins", "site", "alt_svc") if key in document}


def _json(text: str, problems: Problems) -> dict[str, Any] | None:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        problems.append(f"not valid JSON: {error}")
        return None
    except (ValueError, RecursionError):
        problems.append(
            "not valid JSON: a number has too many digits, or lists and objects are nested too deeply"
        )
        return None
    entries = document.get("origins") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        problems.append("holds no list of origins; give a list of objects with id, latitude and longitude")
        return None
    return {"origins": [_known(entry) if isinstance(entry, dict) else entry for entry in entries]}


def _csv(text: str, problems: Problems) -> tuple[dict[str, Any] | None, Sequence[int]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    entries: list[dict[str, Any]] = []
    lines: list[int] = []
    header: list[str] = []
    try:
        for row in reader:
            if not any(cell.strip() for cell in row):
                continue
            if not header:
                header = [name.strip().lower() for name in row]
                continue
            if len(row) != len(header):
                problems.append(
                    f"line {reader.line_num}: {len(row)} fields, and the header has {len(header)}"
                )
                continue
            cells = {name: cell.strip() for name, cell in zip(header, row, strict=True)}
            entries.append(_known({name: cell for name, cell in cells.items() if cell}))
            lines.append(reader.line_num)
    except csv.Error as error:
        problems.append(f"line {reader.line_num}: not valid CSV: {error}")
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        problems.append(f"the header lacks {', '.join(missing)}; it must have id, latitude and longitude")
        return None, ()
    return (None, ()) if problems and not entries else ({"origins": entries}, lines)


def _known(entry: dict[str, Any]) -> dict[str, Any]:
    """Without what other tools keep in the same file, and without nulls."""
    return {key: value for key, value in entry.items() if key in KNOWN and value is not None}


def _across(document: dict[str, Any]) -> Problems:
    """Too few or too many origins; ids and affinity endpoints that more than one of them has."""
    problems: Problems = []
    entries = document.get("origins")
    if isinstance(entries, list) and not entries:
        problems.append("origins: none is given; a map needs at least one")
    if isinstance(entries, list) and len(entries) > ORIGINS_MAX:
        problems.append(f"origins: {len(entries)} are given, and a map holds at most {ORIGINS_MAX}")
    for key, what in (("id", "id"), ("alt_svc", "affinity endpoint")):
        seen: dict[str, int] = {}
        for index, entry in enumerate(entries if isinstance(entries, list) else []):
            value = entry.get(key) if isinstance(entry, dict) else None
            if isinstance(value, str) and seen.setdefault(value, index) != index:
                problems.append(
                    f"origins[{index}].{key}: {value!r} is already the {what} of origins[{seen[value]}]; give each origin its own"
                )
    return problems


def _placed(problem: str, lines: Sequence[int]) -> str:
    """`origins[2].latitude` of a CSV file is `line 4, latitude`."""
    for index in reversed(range(len(lines))):
        problem = problem.replace(f"origins[{index}].", f"line {lines[index]}, ").replace(
            f"origins[{index}]", f"line {lines[index]}"
        )
    return problem
