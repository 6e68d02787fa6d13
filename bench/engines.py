"""numpy or DuckDB for the aggregation of samples: both on the same gzip files, each a process of its own, in turn.

    .venv/bin/python bench/engines.py [--json] [--quick]

DuckDB's work is the smaller one: a plain 25th percentile and a count for each (ASN, country, square, origin). Ours weighs
samples by their age, tells the spread and where each network is, and counts every bad row by its kind and line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from _machine import bar, machine
from map import Ran, run
from synthetic import Scale, World, write

ROUNDS = 3
FULL, QUICK = Scale(samples=20_000_000), Scale(asns=20_000, samples=2_000_000)

NUMPY = """
import sys
from isochrone.estimation.aggregate import aggregate
from isochrone.estimation.origins_file import load_origins
from isochrone.estimation.samples import Rejects
from isochrone.estimation.samples_csv import read_samples
from isochrone.settings import Estimation
now, origins_file, *files = sys.argv[1:]
origins = load_origins(origins_file).origins
parts = read_samples(files, [o.id for o in origins], now=float(now), rejects=Rejects())
print(len(aggregate(parts, origins, Estimation(), float(now)).asn))
"""

DUCKDB = """
import sys
import duckdb
now, origins_file, *files = sys.argv[1:]
database = duckdb.connect()
database.execute("SET threads = 2; SET enable_progress_bar = false")
rows = database.execute(
    '''SELECT asn, country, floor(latitude / 2) AS y, floor(longitude / 2) AS x, origin,
        quantile_disc(rtt_ms, 0.25), count(*)
    FROM read_csv(?, header = true, delim = ',', types = {'timestamp': 'DOUBLE', 'asn': 'UINTEGER', 'rtt_ms': 'FLOAT',
        'latitude': 'FLOAT', 'longitude': 'FLOAT'})
    WHERE outcome = 'ok' AND rtt_ms > 0 AND timestamp BETWEEN ? - 86400 AND ? GROUP BY ALL''',
    [files, float(now), float(now)],
).fetchnumpy()
print(len(rows["asn"]))
"""


def told(runs: list[Ran]) -> dict[str, Any]:
    """Medians of an engine's runs."""
    return {
        "seconds": round(statistics.median(ran.seconds for ran in runs), 2),
        "cpu_seconds": round(statistics.median(ran.cpu_seconds for ran in runs), 2),
        "peak_memory_mb": round(max(ran.memory_mb for ran in runs)),
        "groups": int(runs[0].output),
        "seconds_each": [round(ran.seconds, 2) for ran in runs],
    }


def main() -> None:
    """Both, in turn; print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    scale = QUICK if arguments.quick else FULL
    runs: dict[str, list[Ran]] = {"numpy": [], "duckdb": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write(World(scale), folder, files=4)
        for _ in range(ROUNDS):
            for engine, program in (("numpy", NUMPY), ("duckdb", DUCKDB)):
                command = [sys.executable, "-c", program, str(scale.now), str(folder / "origins.csv")]
                runs[engine].append(run([*command, *map(str, files)]))
    engines = {engine: told(ran) for engine, ran in runs.items()}
    numpy, duckdb = engines["numpy"], engines["duckdb"]
    document = {
        "benchmark": "engines",
        "machine": machine(),
        "samples": scale.samples,
        "engines": engines,
        "bars": [
            bar("engines_seconds_against_duckdb", numpy["seconds"] / duckdb["seconds"], 1.0),
            bar("engines_memory_against_duckdb", numpy["peak_memory_mb"] / duckdb["peak_memory_mb"], 1.0),
        ],
    }
    print(json.dumps(document, indent=None if arguments.json else 2))


if __name__ == "__main__":
    main()
