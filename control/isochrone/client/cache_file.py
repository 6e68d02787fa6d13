"""The Alt-Svc cache in a file: changed under a lock, replaced as a whole, so that no reader meets half of it."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from isochrone.client.cache import AltSvcCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOCK_SECONDS = 5.0


class CacheFileError(Exception):
    """The file can't be used; one sentence."""


class CacheFile:
    """The cache in `path`; a file that is not there is an empty cache. A link is followed.

    The lock is one on the file's folder: a lock on the file itself would stay with the one that was replaced. curl takes
    none, but replaces the file as a whole too.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(os.path.realpath(path))

    def read(self) -> AltSvcCache:
        """What it holds. Raises CacheFileError when it can't be read."""
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):
                raise CacheFileError(f"{self.path} is not a file; name one for the Alt-Svc cache")
            return AltSvcCache.parse(self.path.read_bytes().decode("utf-8", "surrogateescape"))
        except FileNotFoundError:
            return AltSvcCache()
        except (OSError, ValueError) as error:
            raise CacheFileError(f"{self.path} can't be read: {_why(error)}") from None

    def update(self, change: Callable[[AltSvcCache], object]) -> AltSvcCache:
        """Read, `change`, and write if it is another; under the lock. Raises CacheFileError."""
        try:
            with self._locked():
                cache = self.read()
                before = list(cache.lines)
                change(cache)
                if cache.lines != before:
                    self._replace(cache.text())
        except (OSError, ValueError) as error:
            raise CacheFileError(f"{self.path} can't be written: {_why(error)}") from None
        return cache

    @contextmanager
    def _locked(self) -> Iterator[None]:
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            end = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= end:
                        raise CacheFileError(
                            f"{self.path} has been locked by another process for {LOCK_SECONDS:g} s; try again"
                        ) from None
                    time.sleep(0.01)
                except OSError:
                    break  # a file system without locks: the file is still replaced as a whole
            yield
        finally:
            os.close(folder)

    def _replace(self, text: str) -> None:
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
                with suppress(FileNotFoundError):
                    os.fchmod(handle, stat.S_IMODE(self.path.stat().st_mode))
                file.write(text)
                file.flush()
                os.fsync(handle)
            Path(name).replace(self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
