"""Samples into the store, beside plain `executemany`; and how long others wait while old samples are forgotten.

Rate: batches of `Sample` objects, each batch a transaction that is on the disk (synchronous=FULL) before the next begins. The
baseline is the least that sqlite3 can do with the same objects: one table without an index, names as text, the same batches
and durability. Both run in turn, each run on a new file.

Retention: half of a full store is forgotten and given back to the system while a writer adds a batch and a reader asks for
the newest one, each every 20 ms, on threads of their own. Told are their longest waits, beside those with nothing to forget and those
with one DELETE and one VACUUM in place of the steps.

.venv/bin/python bench/store.py [--json] [--quick] [--folder PATH]
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import statistics
import tempfile
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _machine import bar, machine
from isochrone.model import Outcome, Sample
from isochrone.store import retention
from isochrone.store.sqlite import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCH = 5_000  # samples: what an agent measures in ten seconds at its default cap
BEAT_SECONDS = 0.02
NOW = 1_790_000_000.0
ORIGINS, COUNTRIES = [f"region-{n}" for n in range(36)], ["DE", "FR", "US", "BR", "IN", "SG", ""]


def samples(count: int, begin: float = NOW) -> list[Sample]:
    """As agents send them: nearly in order of time, of many origins and networks, one in twenty without an answer."""
    rng = random.Random(1)
    made = []
    for number in range(count):
        ok = rng.random() > 0.05
        made.append(
            Sample(
                begin + number * 0.002 + rng.random(), rng.choice(ORIGINS), rng.randrange(1, 400_000), rng.choice(COUNTRIES),
                rng.uniform(1, 250) if ok else None, "icmp", Outcome.OK if ok else Outcome.TARGET_FAILED, "FRA", "EU", 50.1, 8.7,
            )
        )  # fmt: skip
    return made


def ours(folder: Path, batches: list[list[Sample]]) -> float:
    """Seconds for all batches."""
    with Store.open(folder / "ours.db") as store:
        begun = time.perf_counter()
        for batch in batches:
            store.add_samples(batch)
        return time.perf_counter() - begun


def plain(folder: Path, batches: list[list[Sample]]) -> float:
    """The same with sqlite3 alone."""
    with closing(sqlite3.connect(folder / "plain.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE samples (a, b, c, d, e, f, g, h, i, j, k)")
        begun = time.perf_counter()
        for batch in batches:
            connection.execute("BEGIN")
            connection.executemany("INSERT INTO samples VALUES (?,?,?,?,?,?,?,?,?,?,?)", [
                (
                    s.timestamp, s.origin, s.asn, s.country, s.colo, s.continent, s.method, s.outcome.value,
                    s.rtt_ms, s.latitude, s.longitude,
                )
                for s in batch
            ])  # fmt: skip
            connection.execute("COMMIT")
        return time.perf_counter() - begun


@contextmanager
def fresh(folder: Path | None) -> Iterator[Path]:
    """A folder of its own for one run."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="isochrone-bench-") as made:
        yield Path(made)


def rates(count: int, rounds: int, folder: Path | None) -> dict[str, Any]:
    """Samples a second of both, in turn."""
    made = samples(count)
    batches = [made[at : at + BATCH] for at in range(0, count, BATCH)]
    runs: dict[str, list[float]] = {"isochrone": [], "plain_executemany": []}
    for _ in range(rounds):
        for name, run in (("isochrone", ours), ("plain_executemany", plain)):
            with fresh(folder) as own:
                runs[name].append(round(count / run(own, batches)))
    return {
        name: {"samples_per_second": statistics.median(found), "runs": found} for name, found in runs.items()
    }


def waits(store: Store, work: Callable[[], object], least_seconds: float) -> dict[str, Any]:
    """The longest waits of a writer and a reader, in ms, while `work` is done (for `least_seconds` at least)."""
    ended = threading.Event()
    longest: dict[str, list[float]] = {"writer": [], "reader": []}
    batch = samples(200, NOW + 1e7)

    def beat(name: str, act: Callable[[], object]) -> None:
        while not ended.is_set():
            begun = time.perf_counter()
            act()
            longest[name].append(time.perf_counter() - begun)
            time.sleep(BEAT_SECONDS)

    threads = [
        threading.Thread(target=beat, args=("writer", lambda: store.add_samples(batch))),
        threading.Thread(target=beat, args=("reader", store.last_sample_at)),
    ]
    for thread in threads:
        thread.start()
    begun = time.perf_counter()
    work()
    seconds = time.perf_counter() - begun
    time.sleep(max(0.0, least_seconds - seconds))
    ended.set()
    for thread in threads:
        thread.join()
    return {
        "seconds": round(seconds, 3),
        **{
            f"{name}_ms": {
                "longest": round(max(found) * 1000, 1),
                "median": round(statistics.median(found) * 1000, 1),
            }
            for name, found in longest.items()
        },
    }


def at_once(store: Store, before: float) -> None:
    """What retention would be without steps."""
    with store.transaction() as connection:
        connection.execute("DELETE FROM samples WHERE timestamp < ?", (before,))
    with store._mutex:  # noqa: SLF001  no transaction may be open around it
        store._connection.execute("VACUUM")  # noqa: SLF001


def in_steps(store: Store, before: float) -> None:
    """As the daemon does it every hour."""
    retention.forget(store, before)
    retention.compact(store)


def cleaning(count: int, folder: Path | None) -> dict[str, Any]:
    """Waits of others during both ways, and with nothing to forget."""
    made = samples(count)
    before = NOW + count * 0.001
    found: dict[str, Any] = {}
    for name, work in (
        ("nothing", lambda *_: None),
        ("steps", in_steps),
        ("one_delete_and_vacuum", at_once),
    ):
        with fresh(folder) as own, Store.open(own / "isochrone.db") as store:
            store.add_samples(made)
            full = store.file_bytes()
            found[name] = waits(store, lambda work=work, store=store: work(store, before), 3.0)
            found[name] |= {
                "bytes_before": full, "bytes_after": store.file_bytes(), "empty_share": round(store.empty_share(), 3),
            }  # fmt: skip
    return found


def bench(*, quick: bool, folder: Path | None) -> dict[str, Any]:
    """The document."""
    count = 100_000 if quick else 500_000
    stored = rates(count, 3 if quick else 5, folder)
    cleaned = cleaning(200_000 if quick else 1_000_000, folder)
    a, b = (stored[name]["samples_per_second"] for name in ("isochrone", "plain_executemany"))
    steps = cleaned["steps"]
    return {
        "benchmark": "store",
        "machine": machine(),
        "compared": f"{count:,} samples in batches of {BATCH:,}, every batch on the disk before the next; in turn, medians",
        "rate": stored,
        "retention": cleaned,
        "bars": [
            bar("samples a second in batches", a, 50_000, "higher"),
            bar("samples a second, share of plain executemany's", a / b, 0.5, "higher"),
            bar("longest wait of a writer while half is forgotten, ms", steps["writer_ms"]["longest"], 500),
            bar("longest wait of a reader while half is forgotten, ms", steps["reader_ms"]["longest"], 500),
            bar("share of the file that stays empty", steps["empty_share"], 0.1),
        ],
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--folder", type=Path, help="where the files are made; the system's place for temporary ones"
    )
    arguments = parser.parse_args()
    document = bench(quick=arguments.quick, folder=arguments.folder)
    if arguments.json:
        print(json.dumps(document, indent=2))
        return
    for line in document["bars"]:
        print(f"{'ok  ' if line['ok'] else 'MISS'} {line['name']}: {line['value']} (bar {line['bar']})")
    for name, told in document["retention"].items():
        print(
            f"{name}: {told['seconds']} s, writer {told['writer_ms']} ms, reader {told['reader_ms']} ms,"
            f" {told['bytes_before']:,} -> {told['bytes_after']:,} bytes"
        )


if __name__ == "__main__":
    main()
