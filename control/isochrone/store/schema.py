"""The tables, and how a file written by an older version is brought up to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3

#: One tuple of statements for each schema version, the first making version 1 from an empty file. A released entry is
#: never changed: a change of the tables is a new entry. The SQL stays portable (no SQLite-only types or clauses).
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # Origins and methods are numbers in samples; country, colo and continent are the map format's `letters`.
        "CREATE TABLE names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
        """CREATE TABLE samples (
            timestamp REAL NOT NULL,
            origin INTEGER NOT NULL,
            asn INTEGER NOT NULL,
            country INTEGER NOT NULL,
            colo INTEGER NOT NULL,
            continent INTEGER NOT NULL,
            method INTEGER NOT NULL,
            outcome INTEGER NOT NULL,
            rtt_ms REAL,
            latitude REAL,
            longitude REAL
        )""",
        # Samples arrive nearly in order, so that this index grows at its right edge and costs little.
        "CREATE INDEX samples_by_time ON samples (timestamp)",
        """CREATE TABLE standings (
            origin TEXT NOT NULL,
            endpoint TEXT NOT NULL,
            offered INTEGER NOT NULL,
            proved INTEGER NOT NULL,
            good INTEGER NOT NULL,
            failed INTEGER NOT NULL,
            changed_at REAL NOT NULL,
            checked_at REAL NOT NULL,
            PRIMARY KEY (origin, endpoint)
        )""",
        """CREATE TABLE findings (
            found_at REAL NOT NULL,
            check_id TEXT NOT NULL,
            subject TEXT NOT NULL,
            severity TEXT NOT NULL,
            evidence TEXT NOT NULL,
            advice TEXT NOT NULL,
            source TEXT NOT NULL,
            details TEXT NOT NULL
        )""",
        "CREATE INDEX findings_by_time ON findings (found_at)",
        """CREATE TABLE publications (
            id INTEGER PRIMARY KEY,
            published_at REAL NOT NULL,
            version TEXT NOT NULL,
            sha256 TEXT NOT NULL,
            published_by TEXT NOT NULL,
            detail TEXT NOT NULL
        )""",
        "CREATE TABLE state (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    ),
    (
        # What remote agents were told, and what was taken from them; see agent_batches.py.
        """CREATE TABLE agent_batches (
            origin TEXT NOT NULL,
            id TEXT NOT NULL,
            accepted_at REAL NOT NULL,
            samples INTEGER NOT NULL,
            PRIMARY KEY (origin, id)
        )""",
        "CREATE INDEX agent_batches_by_time ON agent_batches (accepted_at)",
        """CREATE TABLE agent_load (
            origin TEXT NOT NULL,
            plan TEXT NOT NULL,
            begins REAL NOT NULL,
            samples INTEGER NOT NULL,
            PRIMARY KEY (origin, plan, begins)
        )""",
        "CREATE TABLE agent_plans (id TEXT PRIMARY KEY, current_at REAL NOT NULL, body BLOB NOT NULL)",
    ),
    (
        # What is known of targets; see targets.py.
        """CREATE TABLE target_states (
            address TEXT NOT NULL,
            port INTEGER NOT NULL,
            active INTEGER NOT NULL,
            answered INTEGER NOT NULL,
            good INTEGER NOT NULL,
            silent INTEGER NOT NULL,
            falls INTEGER NOT NULL,
            retry_at REAL NOT NULL,
            PRIMARY KEY (address, port)
        )""",
    ),
    (
        # Findings from their first sight to their last, in place of one row for each sight; see findings.py.
        """CREATE TABLE finding_history (
            id INTEGER PRIMARY KEY,
            job TEXT NOT NULL,
            origin TEXT NOT NULL,
            check_id TEXT NOT NULL,
            subject TEXT NOT NULL,
            severity TEXT NOT NULL,
            evidence TEXT NOT NULL,
            advice TEXT NOT NULL,
            source TEXT NOT NULL,
            details TEXT NOT NULL,
            first_seen REAL NOT NULL,
            last_seen REAL NOT NULL,
            seen INTEGER NOT NULL,
            ended_at REAL
        )""",
        "CREATE INDEX finding_history_by_end ON finding_history (ended_at, last_seen)",
        """INSERT INTO finding_history (job, origin, check_id, subject, severity, evidence, advice, source, details,
            first_seen, last_seen, seen, ended_at)
            SELECT '', '', check_id, subject, min(severity), min(evidence), min(advice), min(source), min(details),
            min(found_at), max(found_at), count(*), max(found_at) FROM findings GROUP BY check_id, subject""",
        "DROP TABLE findings",
    ),
    (
        # Samples are numbered as they come, no number twice, so that a reader can go on from where it was.
        """CREATE TABLE numbered_samples (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            timestamp REAL NOT NULL,
            origin INTEGER NOT NULL,
            asn INTEGER NOT NULL,
            country INTEGER NOT NULL,
            colo INTEGER NOT NULL,
            continent INTEGER NOT NULL,
            method INTEGER NOT NULL,
            outcome INTEGER NOT NULL,
            rtt_ms REAL,
            latitude REAL,
            longitude REAL
        )""",
        """INSERT INTO numbered_samples
            (timestamp, origin, asn, country, colo, continent, method, outcome, rtt_ms, latitude, longitude)
            SELECT timestamp, origin, asn, country, colo, continent, method, outcome, rtt_ms, latitude, longitude
            FROM samples ORDER BY timestamp""",
        "DROP INDEX samples_by_time",
        "DROP TABLE samples",
        "ALTER TABLE numbered_samples RENAME TO samples",
        "CREATE INDEX samples_by_time ON samples (timestamp)",
    ),
)

VERSION = len(MIGRATIONS)


def version_of(connection: sqlite3.Connection) -> int:
    """The schema version of a file; 0 for an empty one."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring an older file up to `VERSION`, all of it or nothing. The connection is in autocommit mode."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statements in MIGRATIONS[version_of(connection) :]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
