"""The file beneath the store: opening, locking, transactions. What is in it is `sqlite.py`'s affair."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from isochrone.store import schema
from isochrone.store.errors import StoreError, explain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

log = logging.getLogger(__name__)

BUSY_MS = 5_000  # how long a call waits for a short lock, e.g. of the sqlite3 shell
_SHRINKABLE = "PRAGMA auto_vacuum = INCREMENTAL"


class Engine:
    """One open SQLite file: one writer at a time, readers beside it."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock_file: int | None) -> None:
        self.path = path
        self._connection = connection
        self._lock_file = lock_file
        self._mutex = threading.Lock()

    @classmethod
    def open(cls, path: str | Path, *, read_only: bool = False) -> Self:
        """The store in the file `path`, made (with its folder) when it is not there.

        A writer holds `<path>.lock` until it is closed or its process ends, however it ends. With `read_only` nothing is
        locked or made, so that a command can look at the store of a running daemon.

        Raises:
            StoreError: "locked", "not_a_database", "newer_schema", "missing" or "unreadable".
        """
        path = Path(path)
        lock_file: int | None = None
        connection: sqlite3.Connection | None = None
        try:
            if read_only:
                if not path.is_file():
                    raise StoreError(
                        path,
                        "missing",
                        "there is no store yet; has the daemon run with this service.state_dir?",
                    )
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                lock_file = _lock(path)
            connection = _connect(path, read_only=read_only)
            found = schema.version_of(connection)
            if found > schema.VERSION:
                raise StoreError(
                    path, "newer_schema",
                    f"written by a newer isochrone (schema {found}, this one knows {schema.VERSION}); upgrade this one",
                )  # fmt: skip
            if found < schema.VERSION:
                if read_only:
                    raise StoreError(
                        path,
                        "missing",
                        f"schema {found} is older than this isochrone; start the daemon to migrate it",
                    )
                schema.migrate(connection)
            connection.execute("SELECT count(*) FROM state").fetchone()  # a damaged file shows itself now
            if not read_only:
                _make_shrinkable(connection)
            return cls(path, connection, lock_file)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if lock_file is not None:
                os.close(lock_file)
            if isinstance(error, sqlite3.Error | OSError):
                raise explain(path, error) from None
            raise

    def close(self) -> None:
        """End it; a second call does nothing."""
        with self._mutex:
            self._connection.close()
            if self._lock_file is not None:
                os.close(self._lock_file)
                self._lock_file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing; the commit waits for the disk."""
        with self._mutex:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException as error:
                with contextlib.suppress(sqlite3.Error):  # a full disk has rolled back already
                    self._connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise explain(self.path, error) from None
                raise

    @contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """A connection of its own: under the write-ahead log it neither waits for the writer nor holds it up."""
        connection: sqlite3.Connection | None = None
        try:
            connection = _connect(self.path, read_only=True)
            yield connection
        except (sqlite3.Error, OSError) as error:
            raise explain(self.path, error) from None
        finally:
            if connection is not None:
                connection.close()

    # What retention needs; everything here is SQLite's own.

    def file_bytes(self) -> int:
        """Size of what is stored, empty pages included."""
        with self.reader() as connection:
            return _pragma(connection, "page_count") * _pragma(connection, "page_size")

    def empty_share(self) -> float:
        """Share of the file that is empty."""
        with self.reader() as connection:
            return _pragma(connection, "freelist_count") / max(1, _pragma(connection, "page_count"))

    def shrink(self, pages: int) -> bool:
        """Give up to so many empty pages back to the system. Whether there were any."""
        with self._mutex:
            try:
                before = _pragma(self._connection, "freelist_count")
                # A transaction of its own. As a script, for `execute` would end it after its first page.
                self._connection.executescript(f"PRAGMA incremental_vacuum({int(pages)})")
                return _pragma(self._connection, "freelist_count") < before
            except sqlite3.Error as error:
                raise explain(self.path, error) from None


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    return int(value)


def _make_shrinkable(connection: sqlite3.Connection) -> None:
    """Once, for a file from before files could shrink; without room on the disk it stays as it is."""
    if _pragma(connection, "auto_vacuum") == 0:
        log.info(
            "the store is rewritten once, so that its file can shrink; that takes a while when it is large"
        )
        with contextlib.suppress(sqlite3.Error):
            connection.execute(_SHRINKABLE)
            connection.execute("VACUUM")


def _connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    mode = "ro" if read_only else "rwc"
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=BUSY_MS / 1000,
    )
    try:
        if not read_only:
            connection.execute(_SHRINKABLE)  # of an empty file only; before its first page is written
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def _lock(path: Path) -> int:
    """An exclusive lock that the system takes back when this process ends, however it ends."""
    lock_path = path.with_name(path.name + ".lock")
    lock_file = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock_file, 32).decode("ascii", "replace").strip()
        os.close(lock_file)
        who = f"process {holder}" if holder else "another process"
        raise StoreError(
            path,
            "locked",
            f"already in use by {who}; stop that daemon or give this one another service.state_dir",
        ) from None
    os.ftruncate(lock_file, 0)
    os.pwrite(lock_file, f"{os.getpid()}\n".encode("ascii"), 0)
    return lock_file
