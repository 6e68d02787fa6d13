"""The embedded store: one SQLite file in the state directory.

SQLite and not DuckDB: what must survive arrives in small batches, each acknowledged only when it is on disk, while other
threads and `isochrone status` read; that is SQLite's write-ahead log. DuckDB is made for few large appends by one process that
keeps every other out, and would be a 20 MB dependency. The analytics that it is good at are done in numpy over columns read
from here, and SQLite is in the standard library.

A call that returns has committed with `synchronous=FULL`: neither SIGKILL nor a power cut takes back what it stored.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from isochrone.model import Sample, Standing
from isochrone.store.columns import OUTCOMES, ROW, StoredSamples, columns_of
from isochrone.store.engine import Engine
from isochrone_edge.latency_map import letters

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

BLOCK_ROWS = 100_000  # rows turned into numpy at a time: bounds the memory that Python objects take

# An absent number travels as infinity: numpy can't convert None inside a structured row.
_SAMPLES = (
    "SELECT id, timestamp, origin, asn, country, colo, continent, method, outcome,"
    " ifnull(rtt_ms, 9e999), ifnull(latitude, 9e999), ifnull(longitude, 9e999) FROM samples "
)
_OF_TIME = _SAMPLES + "WHERE timestamp >= ? AND timestamp < ? ORDER BY timestamp"
_NEW = _SAMPLES + "WHERE id > ? ORDER BY id"
_OUTCOME_NUMBER = {outcome: number for number, outcome in enumerate(OUTCOMES)}
_OK = OUTCOMES[0]  # nearly every sample's, and enumerations are slow to hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """One version of the map that was made live."""

    published_at: float  # Unix seconds
    version: str
    sha256: str  # of the map's bytes
    published_by: str  # e.g. "daemon", "publish", "rollback"
    detail: str = ""


class Store(Engine):
    """Samples and state that must survive. Safe to use from several threads; one daemon at a time.

    Every method raises StoreError and nothing else.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, lock_file: int | None) -> None:
        super().__init__(path, connection, lock_file)
        self._ids: dict[str, int] = {}

    # Samples

    def add_samples(self, samples: Iterable[Sample]) -> int:
        """Store a batch, all of it or nothing. When this returns, the batch is on disk. Returns its size."""
        with self.transaction() as connection:
            stored, ids = self.insert(connection, samples)
        self.learnt(ids)
        return stored

    def insert(self, connection: sqlite3.Connection, samples: Iterable[Sample]) -> tuple[int, dict[str, int]]:
        """Samples into a transaction that is somebody else's: how many, and the names' numbers for `learnt` after its commit."""
        number = _Numbers(connection, self._ids)
        code = _code
        rows = [
            (
                s.timestamp, number[s.origin], s.asn, code(s.country), code(s.colo), code(s.continent), number[s.method],
                0 if s.outcome is _OK else _OUTCOME_NUMBER[s.outcome], s.rtt_ms, s.latitude, s.longitude,
            )
            for s in samples
        ]  # fmt: skip
        connection.executemany(
            "INSERT INTO samples (timestamp, origin, asn, country, colo, continent, method, outcome, rtt_ms,"
            " latitude, longitude) VALUES (?,?,?,?,?,?,?,?,?,?,?)",
            rows,
        )
        return len(rows), dict(number)

    def learnt(self, ids: dict[str, int]) -> None:
        """Keep what `insert` numbered; only after the commit, for a rolled-back number must not be remembered."""
        self._ids = ids

    def sample_columns(self, since: float = -math.inf, until: float = math.inf) -> StoredSamples:
        """The samples with `since <= timestamp < until`, oldest first. Reads beside a writer without stopping it."""
        rows, names = [np.empty(0, ROW)], dict[int, str]()
        for block, names in self._rows(_OF_TIME, (since, until)):  # noqa: B007  the names are those of all blocks
            rows.append(block)
        return columns_of(np.concatenate(rows), names)

    def sample_blocks(self, since: float = -math.inf) -> Iterator[StoredSamples]:
        """The samples from then on, oldest first, some 100,000 at a time."""
        return (columns_of(*block) for block in self._rows(_OF_TIME, (since, math.inf)))

    def new_sample_blocks(self, after: int) -> Iterator[StoredSamples]:
        """The samples stored after the one with that id, of whatever time, in the order in which they came."""
        return (columns_of(*block) for block in self._rows(_NEW, (after,)))

    def _rows(
        self, query: str, values: tuple[float, ...]
    ) -> Iterator[tuple[NDArray[np.void], dict[int, str]]]:
        with self.reader() as connection:
            connection.execute("BEGIN")  # one state of the store for all that follows
            names = dict(connection.execute("SELECT id, name FROM names"))
            cursor = connection.execute(query, values)
            while rows := cursor.fetchmany(BLOCK_ROWS):
                yield np.array(rows, ROW), names

    def sample_counts(self, since: float = -math.inf) -> dict[str, int]:
        """How many samples there are since then, by outcome; outcomes without any are left out."""
        with self.reader() as connection:
            rows = connection.execute(
                "SELECT outcome, count(*) FROM samples WHERE timestamp >= ? GROUP BY outcome", (since,)
            ).fetchall()
        return {OUTCOMES[outcome].value: count for outcome, count in rows}

    def last_sample_at(self) -> float | None:
        """When the newest sample was measured, in Unix seconds."""
        with self.reader() as connection:
            (newest,) = connection.execute("SELECT max(timestamp) FROM samples").fetchone()
        return None if newest is None else float(newest)

    # Standings

    def standings(self) -> dict[tuple[str, str], Standing]:
        """(origin, endpoint) -> what its checks have earned; see `isochrone.verification.standing`."""
        with self.reader() as connection:
            rows = connection.execute(
                "SELECT origin, endpoint, offered, proved, good, failed, changed_at, checked_at FROM standings"
            ).fetchall()
        return {
            (origin, endpoint): Standing(
                offered=bool(offered), proved=bool(proved), good=good, failed=failed,
                changed_at=changed_at, checked_at=checked_at,
            )
            for origin, endpoint, offered, proved, good, failed, changed_at, checked_at in rows
        }  # fmt: skip

    def save_standings(self, standings: Mapping[tuple[str, str], Standing]) -> None:
        """Store these standings; others are left as they are."""
        with self.transaction() as connection:
            connection.executemany(
                "INSERT INTO standings VALUES (?,?,?,?,?,?,?,?) ON CONFLICT (origin, endpoint) DO UPDATE SET"
                " offered = excluded.offered, proved = excluded.proved, good = excluded.good, failed = excluded.failed,"
                " changed_at = excluded.changed_at, checked_at = excluded.checked_at",
                [
                    (
                        origin,
                        endpoint,
                        int(s.offered),
                        int(s.proved),
                        s.good,
                        s.failed,
                        s.changed_at,
                        s.checked_at,
                    )
                    for (origin, endpoint), s in standings.items()
                ],
            )

    # Publications and state

    def add_publication(self, publication: Publication) -> None:
        """Keep that a version of the map was made live."""
        p = publication
        with self.transaction() as connection:
            connection.execute(
                "INSERT INTO publications (published_at, version, sha256, published_by, detail) VALUES (?,?,?,?,?)",
                (p.published_at, p.version, p.sha256, p.published_by, p.detail),
            )

    def publications(self, limit: int = 20) -> list[Publication]:
        """The last versions made live, newest first."""
        with self.reader() as connection:
            rows = connection.execute(
                "SELECT published_at, version, sha256, published_by, detail FROM publications ORDER BY id DESC LIMIT ?",
                (limit,),
            ).fetchall()
        return [
            Publication(published_at=at, version=version, sha256=sha256, published_by=by, detail=detail)
            for at, version, sha256, by, detail in rows
        ]

    def state(self, name: str) -> str | None:
        """What was last kept under `name`."""
        with self.reader() as connection:
            row = connection.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set_state(self, name: str, value: str | None) -> None:
        """Keep `value` under `name`; None forgets it."""
        with self.transaction() as connection:
            if value is None:
                connection.execute("DELETE FROM state WHERE name = ?", (name,))
            else:
                connection.execute(
                    "INSERT INTO state VALUES (?,?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                    (name, value),
                )


class _Numbers(dict[str, int]):
    """Name -> its number; one that is not known yet is looked up, and given a number when it has none."""

    def __init__(self, connection: sqlite3.Connection, known: Mapping[str, int]) -> None:
        super().__init__(known)
        self._connection = connection

    def __missing__(self, name: str) -> int:
        row = self._connection.execute("SELECT id FROM names WHERE name = ?", (name,)).fetchone()
        if row is None:
            row = self._connection.execute(
                "INSERT INTO names (name) VALUES (?) RETURNING id", (name,)
            ).fetchone()
        self[name] = number = int(row[0])
        return number


@functools.lru_cache(maxsize=4096)
def _code(text: str) -> int:
    return letters(text) or 0
