"""40,000 targets: reading and annotating them, and choosing whom to probe.

The addresses are drawn at random over the address space; nothing is sent anywhere. ASNs come from a MaxMind database: by default
the tiny one of the tests, which knows few addresses (a file then states the others' ASN), or a full one by --database.

.venv/bin/python bench/targets.py [--json] [--quick] [--database PATH]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from _machine import bar, machine
from isochrone.model import Outcome
from isochrone.probing.selection import Selection, key_of
from isochrone.probing.targets import load_targets
from isochrone.settings import OriginSettings, Probing, Settings

TARGETS = 40_000
DATABASE = Path(__file__).parents[1] / "tests" / "data" / "GeoLite2-ASN-Test.mmdb"
NOW = 1_790_000_000.0


def addresses() -> list[str]:
    """Distinct ones, five in six of them IPv4."""
    rng = random.Random(7)
    found: dict[str, None] = {}
    while len(found) < TARGETS:
        if rng.random() < 5 / 6:
            found[".".join(str(part) for part in (rng.randrange(1, 223), *rng.randbytes(3)))] = None
        else:
            found[f"2a0{rng.randrange(10)}:{rng.randrange(65536):x}::{rng.randrange(1, 65536):x}"] = None
    return list(found)


def settings(folder: Path, *, asn: bool, database: Path | None) -> Settings:
    """A configuration that names a file of the targets."""
    path = folder / f"targets-{asn}.csv"
    rng = random.Random(8)
    with path.open("w") as file:
        file.write("address,port,asn,country,latitude,longitude\n")
        file.writelines(
            f"{address},443,{rng.randrange(1, 12_000) if asn else ''},{rng.choice(['DE', 'FR', 'US', ''])},50.1,8.7\n"
            for address in addresses()
        )
    origin = OriginSettings(id="fra-1", host="fra.example.com", latitude=50.1, longitude=8.7)
    return Settings(
        site="www.example.com", origins=(origin,), targets_file=path, probing=Probing(asn_database=database)
    )


def timed(runs: list[float], work: Any) -> Any:
    """What `work` gives; its seconds are added to `runs`."""
    begun = time.perf_counter()
    result = work()
    runs.append(round(time.perf_counter() - begun, 4))
    return result


def bench(rounds: int, database: Path) -> dict[str, Any]:
    """The document."""
    seconds: dict[str, list[float]] = {name: [] for name in ("stated", "annotated", "choose", "round")}
    with tempfile.TemporaryDirectory(prefix="isochrone-bench-") as name:
        stated = settings(Path(name), asn=True, database=None)
        annotated = settings(Path(name), asn=False, database=database)
        for _ in range(rounds):
            loaded = timed(seconds["stated"], lambda: load_targets(stated))
            known = timed(seconds["annotated"], lambda: load_targets(annotated))
            chosen = timed(
                seconds["choose"],
                lambda loaded=loaded: Selection(loaded.targets, {}, per_asn=16, interval_seconds=300),
            )
            for target in chosen.next_round(NOW):
                chosen.note(key_of(target), Outcome.OK)
            timed(seconds["round"], lambda chosen=chosen: chosen.next_round(NOW + 300))
    medians = {name: statistics.median(runs) for name, runs in seconds.items()}
    return {
        "benchmark": "targets",
        "machine": machine(),
        "compared": f"{TARGETS:,} targets, {len({t.asn for t in loaded.targets}):,} ASNs; "
        f"annotated by {database.name}, which knew {len(known.targets):,} of them",
        "seconds": {name: {"median": medians[name], "runs": runs} for name, runs in seconds.items()},
        "bars": [
            bar("40,000 targets that state their ASN, s", medians["stated"], 2.0),
            bar("40,000 targets annotated by a database, s", medians["annotated"], 2.0),
            bar("choosing among them at the start, s", medians["choose"], 2.0),
            bar("judging a round and choosing the next, s", medians["round"], 1.0),
        ],
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--database", type=Path, default=DATABASE, help="an ASN database in MaxMind format")
    arguments = parser.parse_args()
    document = bench(3 if arguments.quick else 7, arguments.database)
    if arguments.json:
        print(json.dumps(document, indent=2))
        return
    print(document["compared"])
    for line in document["bars"]:
        print(f"{'ok  ' if line['ok'] else 'MISS'} {line['name']}: {line['value']} (bar {line['bar']})")


if __name__ == "__main__":
    main()
