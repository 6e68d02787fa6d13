"""Extracts the small world of the lab from the RIPE Atlas anchor mesh of January 2023.

    .venv/bin/python bench/extract_mesh.py DATA_FOLDER [--out FILE]

DATA_FOLDER holds `rtt/atlas_anchor_mesh_2023-01/` and `coords/`. The same input gives the same bytes.

The rules
- Origins: farthest-first traversal (great circle) over the cloud regions that have RTTs to every client, begun at
  the first region of the file, so that every prefix of the list is spread over the world.
- Clients: anchors outside the clouds with an RTT to every origin, taken in rounds, one for each origin that
  is the best of somebody. In the first round of an origin a client is preferred whose geographically nearest
  origin is at least 3 ms worse than the best one; in later rounds one whose best is at least 3 ms ahead of the second.
  Then: a new continent, a new country, an ASN the data names, the wider margin (up to 20 ms), the lower anchor id.
- The data names ASNs for some anchors only. The others get numbers from 4100001 on, in the order of their anchor
  ids: IANA has given those to nobody, and private-use ones would be refused as a client's.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ORIGINS = 16
CLIENTS = 30
LEFT_OUT = frozenset({"aws:eu-central-1", "aws:us-west-1"})  # measured to some clients only
TELLING_MS = 3.0  # a difference that hysteresis and noise do not hide
MARGIN_CAP_MS = 20.0
UNNAMED_ASN = 4_100_001  # from here on no registry has numbers to give: real-looking, and nobody's
DEFAULT_OUT = Path(__file__).parent.parent / "control/isochrone/lab/data/mesh_2023.json"

Row = dict[str, str]
Point = tuple[float, float]


@dataclass(frozen=True)
class Candidate:
    """An anchor that may become a client, with what the rules ask about it."""

    row: Row
    asn: int
    named: bool  # the data names its ASN
    rtts: tuple[float, ...]
    best: int
    margin_ms: float
    detour_ms: float  # what going to the geographically nearest origin costs


def read(path: Path) -> list[Row]:
    """The rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def where(row: Row) -> Point:
    """Latitude and longitude in degrees."""
    return float(row["latitude"]), float(row["longitude"])


def distance_km(a: Point, b: Point) -> float:
    """Great-circle distance (haversine, mean Earth radius)."""
    lat_a, lon_a, lat_b, lon_b = map(math.radians, (*a, *b))
    h = math.sin((lat_b - lat_a) / 2) ** 2
    h += math.cos(lat_a) * math.cos(lat_b) * math.sin((lon_b - lon_a) / 2) ** 2
    return 2 * 6371.0088 * math.asin(math.sqrt(h))


def region_key(row: Row) -> str:
    """The column of a region in the wide table."""
    return f"{row['provider']}:{row['region']}"


def choose_origins(regions: list[Row]) -> list[Row]:
    """Farthest-first traversal."""
    pool = [row for row in regions if region_key(row) not in LEFT_OUT]
    chosen = [pool.pop(0)]
    while len(chosen) < ORIGINS:
        spot = max(
            pool, key=lambda row: (min(distance_km(where(row), where(c)) for c in chosen), region_key(row))
        )
        pool.remove(spot)
        chosen.append(spot)
    return chosen


def candidates(rows: list[Row], origins: list[Row]) -> list[Candidate]:
    """All anchors with every RTT, ordered by anchor id."""
    keys = [region_key(origin) for origin in origins]
    rows = sorted(rows, key=lambda row: int(row["client_id"]))
    unnamed = [row["client_id"] for row in rows if not row["asn"]]
    found = []
    for row in rows:
        if not all(row[key] for key in keys):
            continue
        rtts = tuple(round(float(row[key]), 3) for key in keys)
        order = sorted(range(len(rtts)), key=rtts.__getitem__)
        nearest = min(range(len(rtts)), key=lambda o: distance_km(where(origins[o]), where(row)))
        number = int(row["asn"] or UNNAMED_ASN + unnamed.index(row["client_id"]))
        found.append(
            Candidate(
                row=row,
                asn=number,
                named=bool(row["asn"]),
                rtts=rtts,
                best=order[0],
                margin_ms=rtts[order[1]] - rtts[order[0]],
                detour_ms=rtts[nearest] - rtts[order[0]],
            )
        )
    return found


def choose_clients(pool: list[Candidate]) -> list[Candidate]:
    """Rounds over the origins, see the module's rules."""
    chosen: list[Candidate] = []
    served = [0] * ORIGINS
    while len(chosen) < CLIENTS:
        for origin in range(ORIGINS):
            asns = {c.asn for c in chosen}
            countries = {c.row["country"] for c in chosen}
            continents = {c.row["continent"] for c in chosen}
            group = [c for c in pool if c.best == origin and c.asn not in asns]
            if not group or len(chosen) == CLIENTS:
                continue
            first = served[origin] == 0

            def merit(
                c: Candidate,
                first: bool = first,
                countries: set[str] = countries,
                continents: set[str] = continents,
            ) -> tuple[Any, ...]:
                return (
                    (c.detour_ms if first else c.margin_ms) >= TELLING_MS,
                    c.row["continent"] not in continents,
                    c.row["country"] not in countries,
                    c.named,
                    min(c.margin_ms, MARGIN_CAP_MS),
                    -int(c.row["client_id"]),
                )

            chosen.append(max(group, key=merit))
            served[origin] += 1
    return chosen


def nearest_colo(row: Row, colos: list[dict[str, Any]]) -> str:
    """IATA code of the geographically nearest Cloudflare colo."""
    spot = where(row)
    return str(
        min(colos, key=lambda c: (distance_km(spot, (c["latitude"], c["longitude"])), c["IATA_code"]))[
            "IATA_code"
        ]
    )


def extract(data: Path) -> dict[str, Any]:
    """The document of the world."""
    mesh = data / "rtt" / "atlas_anchor_mesh_2023-01"
    origins = choose_origins(read(mesh / "regions.csv"))
    clients = choose_clients(candidates(read(mesh / "client_x_region_wide.csv"), origins))
    colos = json.loads((data / "coords" / "cloudflare_colos_2023.json").read_text(encoding="utf-8"))
    return {
        "source": "RIPE NCC / RIPE Atlas anchor mesh, weekly minimum RTT 2023-01-01..07; see ATTRIBUTION.md",
        "origins": [
            {
                "id": region_key(row).replace(":", "-"),
                "city": row["city"].split(" (")[0],
                "country": row["country"],
                "latitude": float(row["latitude"]),
                "longitude": float(row["longitude"]),
            }
            for row in origins
        ],
        "clients": [
            {
                "asn": c.asn,
                "anchor": int(c.row["client_id"]),
                "city": c.row["city"].split(",")[0],
                "country": c.row["country"],
                "continent": c.row["continent"],
                "colo": nearest_colo(c.row, colos),
                "latitude": float(c.row["latitude"]),
                "longitude": float(c.row["longitude"]),
                "rtt_ms": list(c.rtts),
            }
            for c in clients
        ],
    }


def dump(world: dict[str, Any]) -> str:
    """JSON with one origin or client a line, so that a change shows as one line."""
    lines = ["{", f'"source": {json.dumps(world["source"])},']
    for part, end in (("origins", ","), ("clients", "")):
        rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in world[part])
        lines += [f'"{part}": [', rows, f"]{end}"]
    return "\n".join([*lines, "}"]) + "\n"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Extract the lab's world from the RIPE Atlas anchor mesh.")
    parser.add_argument("data", type=Path, help="the folder with rtt/ and coords/")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(dump(extract(arguments.data)), encoding="utf-8")


if __name__ == "__main__":
    main()
