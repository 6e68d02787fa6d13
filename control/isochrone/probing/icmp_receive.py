"""The answers to a burst of echo requests, taken from the socket many at a time and matched without a loop."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from isochrone.probing import icmp_packet, mmsg
from isochrone.probing.icmp_socket import error_in
from isochrone.probing.stamps import MSG_ERRQUEUE, ORIGIN_TIMESTAMPING, SO_TIMESTAMPNS, clocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from isochrone.probing.icmp_packet import Answer
    from isochrone.probing.icmp_socket import IcmpSocket

_BATCH = 512
_DATA_BYTES = (
    128  # an echo reply with an IPv4 header that has options, or an error with the beginning of a request
)
_CONTROL_BYTES = 128
_QUEUE_BYTES = 192
#: A departure's entry: SO_TIMESTAMPNS (32 bytes), SO_TIMESTAMPING (64), a header (16), struct sock_extended_err.
_ORIGIN_AT, _NUMBER_AT = 116, 124
_NAME = {4: (16, 4), 6: (28, 8)}  # bytes of a socket address, where the address begins in it
#: struct cmsghdr of SO_TIMESTAMPNS: length 32, SOL_SOCKET, type; a struct timespec follows.
_STAMP_HEADER = np.frombuffer(struct.pack("=QII", 32, 1, SO_TIMESTAMPNS), np.uint8)
_MAX_ROUNDS = 16


class Receiver:
    """Writes into `arrived` (`time.monotonic()` seconds, one for each request, by sequence number)."""

    def __init__(
        self,
        opened: IcmpSocket,
        packed: NDArray[np.uint8],
        token: bytes,
        arrived: NDArray[np.float64],
        *,
        on_error: Callable[[Answer], None],
        on_departures: Callable[[NDArray[np.int64], NDArray[np.float64]], None],
    ) -> None:
        self.received = 0  # requests answered so far
        self._opened = opened
        self._packed = packed
        self._token = np.frombuffer(token, np.uint32)
        self._arrived = arrived
        self._on_error = on_error
        self._on_departures = on_departures
        self._name_bytes, self._address_at = _NAME[opened.version]
        self._packed_words = np.ascontiguousarray(packed).view(np.uint32)
        self._queue = mmsg.Messages(_BATCH, _DATA_BYTES, name=self._name_bytes, control=_QUEUE_BYTES)
        self._in = mmsg.Messages(_BATCH, _DATA_BYTES, name=self._name_bytes, control=_CONTROL_BYTES)
        # The same bytes as numbers of two and of four.
        self._halves = self._in.data.view(">u2")
        self._words = self._in.data.view(np.uint32)
        begin = self._address_at // 4
        self._senders = self._in.names.view(np.uint32)[:, begin : begin + self._packed_words.shape[1]]

    def drain(self) -> None:
        """Take what has arrived."""
        for _ in range(_MAX_ROUNDS):
            try:
                count = self._in.receive(self._opened.socket)
            except OSError:  # nothing there, or an error that waits in the queue
                break
            self._take(count)
            if count < _BATCH:
                break
        self.told()

    def told(self) -> bool:
        """Hand out what waits in the error queue; whether there were errors."""
        errors = False
        while True:
            try:
                count = self._queue.receive(self._opened.socket, MSG_ERRQUEUE)
            except OSError:
                return errors
            ancillary = self._queue.ancillary[:count]
            left = (ancillary[:, :16] == _STAMP_HEADER).all(axis=1) & (
                ancillary[:, _ORIGIN_AT] == ORIGIN_TIMESTAMPING
            )
            if left.any():
                numbers = np.ascontiguousarray(ancillary[left, _NUMBER_AT : _NUMBER_AT + 4]).view(np.uint32)
                self._on_departures(numbers[:, 0].astype(np.int64), _times(ancillary[left]))
            for row in np.flatnonzero(~left).tolist():
                errors = True
                self._error(row)

    def _error(self, row: int) -> None:
        at = self._address_at
        answer = error_in(
            self._opened,
            self._queue.data[row, : self._queue.lengths[row]].tobytes(),
            self._queue.control_messages(row),
            self._queue.names[row, at : at + self._packed.shape[1]].tobytes(),
        )
        if answer is not None:
            self._on_error(answer)

    def _take(self, count: int) -> None:
        if not self._opened.ip_header:
            self._match(slice(0, count), 0)
            return
        words = self._in.data[:count, 0] & 0xF
        if (words == 5).all():  # no options, as nearly always
            self._match(slice(0, count), 20)
            return
        for length in np.unique(words).tolist():
            self._match(np.flatnonzero(words == length), length * 4)

    def _match(self, rows: slice | NDArray[np.int64], offset: int) -> None:
        """Find the requests of those rows, whose ICMP message begins at `offset`, a multiple of four."""
        halves, words = self._halves[rows], self._words[rows]
        kind = self._in.data[rows, offset]
        begin = (offset + icmp_packet.HEADER.size) // 4
        good = (
            (kind == icmp_packet.ECHO_REPLY[self._opened.version])
            & (halves[:, offset // 2 + 2] == self._opened.ident)
            & (words[:, begin] == self._token[0])
            & (words[:, begin + 1] == self._token[1])
            & (self._in.lengths[rows] >= offset + icmp_packet.HEADER.size + icmp_packet.TOKEN_BYTES)
        )
        if self._opened.raw and not good.all():
            self._others(rows, kind != icmp_packet.ECHO_REPLY[self._opened.version])
        sequence = halves[:, offset // 2 + 3].astype(np.int64)
        good &= sequence < len(self._packed)
        sequence = sequence[good]
        fresh = np.isnan(self._arrived[sequence])
        for column in range(self._packed_words.shape[1]):
            fresh &= self._senders[rows][good][:, column] == self._packed_words[sequence, column]
        sequence, stamps = sequence[fresh], _times(self._in.ancillary[rows])[good][fresh]
        self._arrived[sequence[::-1]] = stamps[::-1]  # of duplicates in the same read the first counts
        self.received += len(sequence)

    def _others(self, rows: slice | NDArray[np.int64], chosen: NDArray[np.bool_]) -> None:
        """What came that is no reply: errors about our requests among it."""
        numbers = np.arange(self._in.count)[rows][chosen]
        at = self._address_at
        for row in numbers.tolist():
            data = self._in.data[row, : self._in.lengths[row]].tobytes()
            sender = self._in.names[row, at : at + self._packed.shape[1]].tobytes()
            answer = icmp_packet.parse(
                self._opened.version, data, ip_header=self._opened.ip_header, sender=sender
            )
            if answer is not None and answer.refusal and answer.ident == self._opened.ident:
                self._on_error(answer)


def _times(ancillary: NDArray[np.uint8]) -> NDArray[np.float64]:
    """`time.monotonic()` of each row's stamp; now, where the kernel did not say."""
    stamped = (ancillary[:, :16] == _STAMP_HEADER).all(axis=1)
    parts = np.ascontiguousarray(ancillary[:, 16:32]).view(np.int64)
    monotonic, wall = clocks()
    late = wall - (parts[:, 0] + parts[:, 1] * 1e-9)
    return np.where(stamped & (late >= 0) & (late < 60), monotonic - late, monotonic)
