"""The public data as samples: what `bench/quality.py` learns from and judges on.

    .venv/bin/python bench/quality_data.py OUT [--data FOLDER]

Writes for each case OUT/CASE/origins.csv and one or two files of samples, as `isochrone map build` and `isochrone replay`
read them. FOLDER is that of MANIFEST.md; by default $ISOCHRONE_DATA, else `../shared/data` beside the repository.

A client is one anchor. `own_asns` says whether each is a network of its own, with a number that nobody has been given
(from 4100001 on), or whether those of one network share its ASN, where the data names it, as clients in the wild do.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import os
from calendar import timegm
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from isochrone.estimation.colos import known_colos
from isochrone.estimation.physics import distances_km
from isochrone_edge.latency_map import unletters

UNNAMED_ASN = 4_100_001
MESH = "rtt/atlas_anchor_mesh_2023-01"
EU_2023 = "rtt/atlas_anchors_2023_hourly"
EU_2024 = "rtt/atlas_anchors_eu_hourly_2024-08-05"
#: a week's end for the mesh; the hourly data of 2023 does not say its day
MESH_TIME, EU_2023_TIME = timegm((2023, 1, 7, 23, 0, 0)), timegm((2023, 1, 31, 0, 0, 0))
LEFT_OUT = frozenset({"aws:eu-central-1", "aws:us-west-1"})  # measured in one direction only
#: anchors that stand for regions: of that very city name in both years, then those of 2024 only
SIX = {"Warsaw": 6669, "Helsinki": 6248, "Dublin": 6965, "London": 6446, "Milan": 6094, "Madrid": 6604}
TEN = {**SIX, "Frankfurt": 6439, "Paris": 6333, "Amsterdam": 6082, "Stockholm": 6851}
MESH_REGIONS_LEAST = 30  # a client with fewer teaches little
HEADER = "timestamp,origin,asn,country,rtt_ms,colo,continent,latitude,longitude,client\n"
_COUNTRIES = {
    "Netherlands (Kingdom of the)": "NL", "United Kingdom of Great Britain and Northern Ireland": "GB",
    "Republic of Moldova": "MD", "North Macedonia": "MK", "Bosnia and Herzegovina": "BA", "Slovenia": "SI", "Isle of Man": "IM",
}  # fmt: skip

Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class Client:
    """One anchor."""

    id: int
    asn: int
    country: str
    continent: str
    latitude: float
    longitude: float
    colo: str = ""

    def fields(self) -> tuple[str, str]:
        """What stands before and after the round-trip time in its rows."""
        return (
            f"{self.asn},{self.country}",
            f"{self.colo},{self.continent},{self.latitude},{self.longitude},{self.id}",
        )


@dataclass(slots=True)
class Case:
    """Origins as (id, latitude, longitude), and samples as (Unix seconds, origin, client, ms)."""

    origins: list[tuple[str, float, float]]
    learn: list[tuple[float, str, Client, float]] = field(default_factory=list)
    judge: list[tuple[float, str, Client, float]] = field(default_factory=list)


def data_folder() -> Path:
    """Where the data is unless told otherwise."""
    beside = Path(__file__).resolve().parents[2] / "shared/data"
    return Path(os.environ.get("ISOCHRONE_DATA") or beside)


def mesh_directions(data: Path) -> Case:
    """Learn client -> region, judge region -> client: 34 regions, clients measured both ways to all of them."""
    regions = [r for r in _rows(data / MESH / "regions.csv") if _region(r) not in LEFT_OUT]
    column = {int(r["anchor_id"]): i for i, r in enumerate(regions)}
    cloud = {int(r["anchor_id"]) for r in _rows(data / MESH / "regions.csv")}
    there: dict[int, dict[int, float]] = {}
    back: dict[int, dict[int, float]] = {}
    for row in _rows(data / MESH / "rtt_min_week.csv.gz"):
        source, target, rtt = int(row["source_id"]), int(row["target_id"]), float(row["rtt_min_ms"])
        if target in column and source not in cloud:
            there.setdefault(source, {})[column[target]] = rtt
        elif source in column and target not in cloud:
            back.setdefault(target, {})[column[source]] = rtt
    clients = _clients(_rows(data / MESH / "anchors.csv"), "anchor_id", own_asns=True)
    case = Case([(_region(r), float(r["latitude"]), float(r["longitude"])) for r in regions])
    for number in sorted(there.keys() & back.keys()):
        if len(there[number]) == len(back[number]) == len(regions):
            for half, rtt in ((case.learn, there[number]), (case.judge, back[number])):
                half += [
                    (MESH_TIME, case.origins[o][0], clients[number], ms) for o, ms in sorted(rtt.items())
                ]
    return case


def mesh_clients(data: Path, *, own_asns: bool = False) -> Case:
    """Every client with most of the 36 regions to learn from; to be judged, those that have them all."""
    regions = _rows(data / MESH / "regions.csv")
    case = Case([(_region(r), float(r["latitude"]), float(r["longitude"])) for r in regions])
    rows = _rows(data / MESH / "client_x_region_wide.csv")
    clients = _clients(rows, "client_id", own_asns=own_asns)
    for row in rows:
        known = [
            (MESH_TIME, o[0], clients[int(row["client_id"])], float(row[o[0]]))
            for o in case.origins
            if row[o[0]]
        ]
        if len(known) >= MESH_REGIONS_LEAST:
            case.learn += known
        if len(known) == len(regions):
            case.judge += known
    return case


def eu_years(data: Path) -> Case:
    """Learn on a day of 2023, judge on a day of 2024: six regions, clients measured to all of them in both."""
    case = _eu(data, SIX)
    wanted = {(client.id, origin) for _, origin, client, _ in case.judge}
    clients = {client.id: client for _, _, client, _ in case.judge}
    names = {number: name for name, number in SIX.items()}
    for row in _rows(data / EU_2023 / "eu_ipv4.csv.gz"):
        source, name = int(row["source_id"]), names.get(int(row["target_id"]))
        if name is not None and (source, name) in wanted:
            when = EU_2023_TIME + 3600.0 * int(row["hour_index"])
            case.learn.append((when, name, clients[source], float(row["rtt_ms"])))
    both = _complete(case.learn, len(SIX)) & _complete(case.judge, len(SIX))
    case.learn = [sample for sample in case.learn if sample[2].id in both]
    case.judge = [sample for sample in case.judge if sample[2].id in both]
    return case


def eu_day(data: Path) -> Case:
    """A day of 2024, ten regions, clients measured to all of them: to learn from and to judge."""
    case = _eu(data, TEN)
    case.learn = case.judge
    return case


def write(case: Case, folder: Path) -> None:
    """origins.csv, learn.csv and judge.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["id,latitude,longitude\n", *(f"{name},{lat},{lon}\n" for name, lat, lon in case.origins)]
    (folder / "origins.csv").write_text("".join(lines), encoding="utf-8")
    for name, samples in (("learn", case.learn), ("judge", case.judge)):
        text = [HEADER]
        for when, origin, client, rtt in samples:
            before, after = client.fields()
            text.append(f"{when:.0f},{origin},{before},{rtt},{after}\n")
        (folder / f"{name}.csv").write_text("".join(text), encoding="utf-8")


CASES = {
    "mesh-directions": mesh_directions,
    "mesh-clients": mesh_clients,
    "eu-years": eu_years,
    "eu-day": eu_day,
}


def _eu(data: Path, regions: dict[str, int]) -> Case:
    probes = _rows(data / EU_2024 / "probes.csv")
    countries = {c["country_name"]: c["country_code"] for c in _colos(data)} | _COUNTRIES
    for row in probes:
        row["country"], row["continent"] = countries[row["country"]], "EU"
    clients = _clients(probes, "id", own_asns=True)
    names = {number: name for name, number in regions.items()}
    case = Case([(name, clients[n].latitude, clients[n].longitude) for name, n in regions.items()])
    for row in _rows(data / EU_2024 / "rtt.csv.gz"):
        source, name = int(row["source_id"]), names.get(int(row["target_id"]))
        if name is not None and source in clients and source not in names:
            hour = row["hour_utc"]
            when = float(timegm((int(hour[:4]), int(hour[4:6]), int(hour[6:8]), int(hour[8:]), 0, 0)))
            case.judge.append((when, name, clients[source], float(row["rtt_ms"])))
    whole = _complete(case.judge, len(regions))
    case.judge = [sample for sample in case.judge if sample[2].id in whole]
    return case


def _complete(samples: list[tuple[float, str, Client, float]], origins: int) -> set[int]:
    """The clients that were measured to all origins."""
    seen: dict[int, set[str]] = {}
    for _, origin, client, _ in samples:
        seen.setdefault(client.id, set()).add(origin)
    return {client for client, known in seen.items() if len(known) == origins}


def _clients(rows: list[Row], key: str, *, own_asns: bool) -> dict[int, Client]:
    """The anchors by their number, each with the colo that is nearest."""
    rows = sorted(rows, key=lambda row: int(row[key]))
    colos = known_colos()
    lat, lon = (np.array([float(row[name]) for row in rows]) for name in ("latitude", "longitude"))
    nearest = colos.code[distances_km(lat, lon, colos.latitude, colos.longitude).argmin(axis=1)]
    clients = {}
    for position, row in enumerate(rows):
        own = own_asns or not row["asn"]
        clients[int(row[key])] = Client(
            id=int(row[key]), asn=UNNAMED_ASN + position if own else int(float(row["asn"])),
            country=row["country"], continent=row["continent"],
            latitude=float(row["latitude"]), longitude=float(row["longitude"]),
            colo=unletters(int(nearest[position]), 3),
        )  # fmt: skip
    return clients


def _region(row: Row) -> str:
    return f"{row['provider']}:{row['region']}"


@lru_cache(maxsize=1)
def _colos(data: Path) -> list[dict[str, Any]]:
    colos: list[dict[str, Any]] = json.loads(
        (data / "coords/cloudflare_colos_2023.json").read_text(encoding="utf-8")
    )
    return colos


def _rows(path: Path) -> list[Row]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write the public data as samples.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, default=data_folder())
    arguments = parser.parse_args()
    for name, make in CASES.items():
        case = make(arguments.data)
        write(case, arguments.out / name)
        print(
            f"{arguments.out / name}: {len(case.origins)} origins, {len(case.learn)} + {len(case.judge)} samples"
        )


if __name__ == "__main__":
    main()
