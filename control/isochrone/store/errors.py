"""What can go wrong with the store, in one sentence each."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

Kind = Literal[
    "locked", "disk_full", "not_a_database", "newer_schema", "missing", "unreadable", "closed", "other"
]


class StoreError(Exception):
    """The store can't do what was asked; nothing of the failed call was kept.

    `kind` says why: "locked" (another daemon has it), "disk_full", "not_a_database" (a foreign or damaged file),
    "newer_schema", "missing" (a reader found no file), "unreadable" (permissions or a failing disk), "closed", "other".
    """

    def __init__(self, path: Path, kind: Kind, sentence: str) -> None:
        self.path = path
        self.kind = kind
        super().__init__(f"{path}: {sentence}")


def explain(path: Path, error: sqlite3.Error | OSError) -> StoreError:
    """An error of SQLite or of the system as a StoreError."""
    if isinstance(error, OSError):
        return StoreError(
            path,
            "unreadable",
            f"can't be opened ({error.strerror}); check service.state_dir and its permissions",
        )
    # The extended code holds the primary one in its low byte.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return StoreError(
            path, "disk_full", "the disk is full, nothing was stored; make room and it goes on by itself"
        )
    if code in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
        return StoreError(
            path,
            "not_a_database",
            f"not an intact isochrone database ({error}); move it away to begin a new one",
        )
    if code in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM}:
        return StoreError(
            path, "unreadable", f"can't be opened or written ({error}); check the disk and its permissions"
        )
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return StoreError(path, "locked", "another program keeps it locked; end that program or try again")
    if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
        return StoreError(path, "closed", "the store is closed")
    return StoreError(path, "other", f"the database refused: {error}")
