"""sendmmsg(2) and recvmmsg(2): many datagrams in one system call, into numpy arrays. 64-bit Linux.

Python's own sendto and recvmsg build and take apart several objects for each packet, which costs more than the kernel's work.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import socket

    from numpy.typing import NDArray

#: struct mmsghdr as eight words: name, name length, iovec, iovec length, control, control length, flags, message length.
_WORDS = 8
_NAME, _NAME_LENGTH, _IOVEC, _IOVEC_LENGTH, _CONTROL, _CONTROL_LENGTH, _FLAGS, _LENGTH = range(_WORDS)
_DONT_WAIT = 0x40
_CONTROL_HEADER = struct.Struct("=QII")  # struct cmsghdr: length with this header, level, type
_libc: Any = None
if sys.platform == "linux" and sys.maxsize > 2**32 and sys.byteorder == "little":
    _libc = ctypes.CDLL(None, use_errno=True)

AVAILABLE = _libc is not None and hasattr(_libc, "sendmmsg") and hasattr(_libc, "recvmmsg")


class Messages:
    """Room for `count` datagrams of `size` bytes with their addresses, and `control` bytes of ancillary data each.

    `data`, `names` and `ancillary` are uint8 arrays of one row for each datagram.
    """

    def __init__(self, count: int, size: int, *, name: int, control: int = 0) -> None:
        self.count = count
        self.data: NDArray[np.uint8] = np.zeros((count, size), np.uint8)
        self.names: NDArray[np.uint8] = np.zeros((count, name), np.uint8)
        self.ancillary: NDArray[np.uint8] = np.zeros((count, control), np.uint8)
        self._vectors = np.zeros((count, 2), np.uint64)
        self._headers = np.zeros((count, _WORDS), np.uint64)
        rows = np.arange(count, dtype=np.uint64)
        self._vectors[:, 0] = self.data.ctypes.data + rows * np.uint64(size)
        self._vectors[:, 1] = size
        self._headers[:, _NAME] = self.names.ctypes.data + rows * np.uint64(name)
        self._headers[:, _IOVEC] = self._vectors.ctypes.data + rows * np.uint64(16)
        self._headers[:, _IOVEC_LENGTH] = 1
        if control:
            self._headers[:, _CONTROL] = self.ancillary.ctypes.data + rows * np.uint64(control)
        self._headers[:, _NAME_LENGTH] = name
        self._reset = self._headers.copy()

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Bytes received in each row."""
        return self._headers[:, _LENGTH].view(np.int64) & 0xFFFFFFFF

    def control_messages(self, row: int) -> list[tuple[int, int, bytes]]:
        """The ancillary data of a row as `recvmsg` gives it."""
        told = self.ancillary[row].tobytes()
        found: list[tuple[int, int, bytes]] = []
        at = 0
        while at + _CONTROL_HEADER.size <= len(told):
            length, level, kind = _CONTROL_HEADER.unpack_from(told, at)
            if length < _CONTROL_HEADER.size:
                break
            found.append((level, kind, told[at + _CONTROL_HEADER.size : at + length]))
            at += (length + 7) & ~7
        return found

    def send(self, opened: socket.socket, start: int, stop: int) -> int:
        """Send rows `start` to `stop`; how many went out before one could not. Raises OSError when the first could not."""
        return self._call(_libc.sendmmsg, opened, start, stop - start, _DONT_WAIT)

    def receive(self, opened: socket.socket, flags: int = 0) -> int:
        """Receive what is there, at most `count`; how many. Raises BlockingIOError when there is nothing."""
        self._headers[:] = self._reset
        self._headers[:, _CONTROL_LENGTH] = self.ancillary.shape[1]
        self.ancillary[:] = 0  # the kernel writes only what there is
        return self._call(_libc.recvmmsg, opened, 0, self.count, _DONT_WAIT | flags, None)

    def _call(self, function: Any, opened: socket.socket, start: int, count: int, *rest: Any) -> int:
        first = ctypes.c_void_p(self._headers.ctypes.data + start * _WORDS * 8)
        while True:
            done = function(opened.fileno(), first, count, *rest)
            if done >= 0:
                return int(done)
            number = ctypes.get_errno()
            if number != 4:  # EINTR
                raise OSError(number, os.strerror(number))
