"""What an agent measured and the control plane has not acknowledged: one file for each batch, its body as it will travel.

Files and not a database: the name in the folder is the commit (written aside, synced, renamed), and a file can be removed on a disk
that is full, where a database's journal can not grow. A call that returns has synced.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from pathlib import Path

BLOCK_BYTES = 4096  # what a small file takes on the disk
KEPT_REFUSED = 20  # refused batches that stay for a look
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_NAME = re.compile(r"(\d{16})-([0-9a-f]{32})-(\d{1,6})\.batch\Z")


class SpoolError(Exception):
    """The spool can't be used at all; one sentence."""


class Entry(NamedTuple):
    """A batch in the spool."""

    number: int  # grows with each batch
    id: str
    samples: int
    bytes: int  # that it takes on the disk

    @property
    def name(self) -> str:
        """Its file's name."""
        return f"{self.number:016d}-{self.id}-{self.samples}.batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What became of samples that did not reach the control plane, since the spool was made."""

    dropped: int = 0  # the oldest, when the spool was full
    refused: int = 0  # by the control plane
    damaged: int = 0  # on the disk
    unkept: int = 0  # there was no room on the disk, nor any more in memory
    round_began: float = 0.0  # Unix time of the last round


class Spool:
    """The batches of one agent, oldest first. One process at a time; calls block, so make them in a thread, one at a time."""

    def __init__(self, folder: Path, max_bytes: int, lock: int) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        self._lock = lock
        self._entries: dict[int, Entry] = {}
        self.bytes = 0
        for path in folder.iterdir():
            if path.suffix == ".new":
                path.unlink()  # a write that was not finished: its samples never counted
            elif found := _NAME.match(path.name):
                self._note(int(found[1]), found[2], int(found[3]), path.stat().st_size)
        self._entries = dict(sorted(self._entries.items()))
        self._next = max(self._entries, default=0) + 1
        self.counts = _load_counts(folder / "state.json")

    @classmethod
    def open(cls, folder: Path, max_bytes: int) -> Self:
        """The spool in a folder, which is made when it is not there.

        Raises:
            SpoolError: another agent uses it, or the folder can't be used.
        """
        try:
            (folder / "refused").mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return cls(folder, max_bytes, lock)
            except BaseException:
                os.close(lock)
                raise
        except BlockingIOError:
            raise SpoolError(
                f"{folder}: another agent uses this spool; stop it or give this one another spool_dir"
            ) from None
        except OSError as error:
            raise SpoolError(f"{folder}: can't be used as spool ({error.strerror}); see spool_dir") from None

    def close(self) -> None:
        """Let another process have it."""
        os.close(self._lock)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def samples(self) -> int:
        """In all batches."""
        return sum(entry.samples for entry in self._entries.values())

    def add(self, batch: str, samples: int, body: bytes) -> int:
        """Keep a batch. When this returns, it is on the disk. Returns how many older samples had to go for it.

        Raises:
            OSError: it was not kept, e.g. because the disk is full.
        """
        size = _on_disk(len(body))
        dropped = 0
        while self._entries and self.bytes + size > self._max_bytes:
            oldest = next(iter(self._entries.values()))
            self.remove(oldest)
            dropped += oldest.samples
        if dropped:
            self.count(dropped=dropped)
        entry = Entry(self._next, batch, samples, size)
        _write(self.folder / entry.name, body)
        self._next += 1
        self._entries[entry.number] = entry
        self.bytes += size
        return dropped

    def oldest(self) -> Entry | None:
        """The batch that is sent next."""
        return next(iter(self._entries.values()), None)

    def read(self, entry: Entry) -> bytes:
        """Its body. Raises OSError."""
        return (self.folder / entry.name).read_bytes()

    def remove(self, entry: Entry) -> None:
        """It is acknowledged, or dropped. Works on a full disk."""
        if self._entries.pop(entry.number, None) is not None:
            self.bytes -= entry.bytes
            with contextlib.suppress(
                OSError
            ):  # a file that stays is sent again after a restart, and known there
                (self.folder / entry.name).unlink()

    def put_aside(self, entry: Entry, *, damaged: bool = False) -> None:
        """It will never be taken: moved to `refused/`, of which the last few stay for a look."""
        if self._entries.pop(entry.number, None) is None:
            return
        self.bytes -= entry.bytes
        aside = self.folder / "refused"
        with contextlib.suppress(OSError):  # e.g. it is gone already
            (self.folder / entry.name).rename(aside / entry.name)
            for old in sorted(aside.iterdir())[:-KEPT_REFUSED]:
                old.unlink()
        if damaged:
            self.count(damaged=entry.samples)
        else:
            self.count(refused=entry.samples)

    def count(
        self,
        *,
        dropped: int = 0,
        refused: int = 0,
        damaged: int = 0,
        unkept: int = 0,
        round_began: float | None = None,
    ) -> None:
        """Add to the counters. They are kept across restarts as far as the disk lets them."""
        was = self.counts
        self.counts = Counts(
            dropped=was.dropped + dropped,
            refused=was.refused + refused,
            damaged=was.damaged + damaged,
            unkept=was.unkept + unkept,
            round_began=was.round_began if round_began is None else round_began,
        )
        with contextlib.suppress(OSError):
            _write(self.folder / "state.json", json.dumps(asdict(self.counts)).encode())

    def keep_plan(self, body: bytes) -> None:
        """The last good plan: with it a restarted agent goes on while the control plane is away. Raises OSError."""
        _write(self.folder / "plan.json", body)

    def plan(self) -> bytes | None:
        """The plan that was kept; None when there is none to be read."""
        try:
            return (self.folder / "plan.json").read_bytes()
        except OSError:
            return None

    def _note(self, number: int, batch: str, samples: int, size: int) -> None:
        self._entries[number] = Entry(number, batch, samples, _on_disk(size))
        self.bytes += _on_disk(size)


def _on_disk(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def _write(path: Path, body: bytes) -> None:
    """All of it under its name, durably, or nothing."""
    aside = path.with_name(path.name + ".new")
    try:
        with aside.open("wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _load_counts(path: Path) -> Counts:
    try:
        counts = Counts(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):  # never written, or by another version
        return Counts()
    began = counts.round_began
    if not isinstance(began, int | float) or not all(
        isinstance(value, int) for name, value in asdict(counts).items() if name != "round_began"
    ):
        return Counts()
    return counts
