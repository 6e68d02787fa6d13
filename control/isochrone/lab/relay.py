"""UDP relays that make loopback as slow as the world: every datagram is held for half its path's round-trip time.

A relay listens on one address and speaks to one server. The path is known by the **source address** of the peer: an
agent binds to 127.1.<o>.1, a client to 127.2.<a>.1 (see `world`). The relay reaches the server from the same source
address, so the server sees who really asks.

How the delay is kept exact
- It counts from the kernel's time stamp of the datagram's arrival (SO_TIMESTAMPNS), so time spent waiting for
  this process to read it is not added.
- asyncio's epoll rounds timers up to a whole millisecond. Here `select` waits on the epoll's own file descriptor:
  microseconds, and no limit on the number of descriptors. It wakes a little early and polls for the rest.

Measured on two cores shared with other work (load 1 to 3), round trips of 0.8 to 200 ms, echo server behind the relay: median
error +0.07 to +0.2 ms, of which 0.05 to 0.07 ms are the echo's own; `stats` tells how late datagrams left (`late_us_*`).
A core that is busy elsewhere adds its scheduling delay, milliseconds at worst.
"""

from __future__ import annotations

import heapq
import itertools
import random
import select
import socket
import struct
import time
from typing import TYPE_CHECKING

from isochrone.lab.relay_flow import (
    SO_TIMESTAMPNS,
    Address,
    Counters,
    Flow,
    Listener,
    Path,
    RelayError,
    open_socket,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TIMESPEC = struct.Struct("@qq")
MAX_DATAGRAM = 4096  # bytes; QUIC stays below 1500, what is larger is dropped
MAX_PENDING = 1024  # datagrams held per flow and direction; a full queue drops the newest
MAX_HELD = 65_536  # datagrams held in all
MAX_STAMP_AGE_NS = 200_000_000  # an older kernel stamp means that the wall clock was set
BATCH = 64  # datagrams read from one socket before others get their turn
IDLE_S = 30.0  # a flow without traffic is forgotten
SWEEP_S = 1.0
EARLY_NS = 10_000  # what is due within 10 us leaves now
LEAD_NS = 150_000  # an idle core takes 60 to 150 us to wake up: be early and poll for the rest
SLACK = 0.001  # the kernel may stretch select's timeout by a thousandth


class Relays:
    """All relays of a process and their loop. `max_flows` bounds sockets; the least recently used flow gives way."""

    def __init__(self, *, max_flows: int = 4096, idle_s: float = IDLE_S, seed: int = 1) -> None:
        self.counters = Counters()
        self._listeners: dict[str, Listener] = {}
        self._flows: dict[Flow, None] = {}  # ordered by last use, oldest first
        self._max_flows = max_flows
        self._idle_ns = int(idle_s * 1e9)
        self._random = random.Random(seed)  # noqa: S311 - loss, not secrets
        self._queue: list[tuple[int, int, Flow, int, bytes]] = []
        self._ticket = itertools.count()
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._next_sweep = 0
        self.running = True

    def watch(self, descriptor: int, reader: Callable[[], None]) -> None:
        """Calls `reader` whenever `descriptor` can be read."""
        self._readers[descriptor] = reader
        self._epoll.register(descriptor, select.EPOLLIN)

    def listen(
        self, name: str, address: Address, server: Address, rtt_ms: Mapping[str, float], default_rtt_ms: float
    ) -> Address:
        """Begins a relay and returns its address; `rtt_ms` by source address. Raises `RelayError`."""
        if name in self._listeners:
            raise RelayError(f"there is a relay called {name} already")
        try:
            sock = open_socket(address)
        except OSError as error:
            raise RelayError(f"cannot listen on {address[0]}:{address[1]}: {error.strerror}") from error
        paths = {source: Path(int(rtt * 1e6)) for source, rtt in rtt_ms.items()}
        listener = Listener(sock, server, paths, Path(int(default_rtt_ms * 1e6)))
        self._listeners[name] = listener
        self.watch(sock.fileno(), lambda: self._from_peers(listener))
        host, port = sock.getsockname()
        return host, port

    def set_path(
        self, name: str, source: str | None, *, rtt_ms: float | None = None, loss: float | None = None
    ) -> None:
        """Changes the path of one source (None: of all), for flows that exist too. Raises `RelayError`."""
        listener = self._listeners.get(name)
        if listener is None:
            raise RelayError(f"there is no relay called {name}")
        listener.change(source, rtt_ms, loss)

    def stats(self) -> dict[str, int | float]:
        """Counts since the start; `late_us_*` is how long after its due time a datagram left, in microseconds."""
        c = self.counters
        return {
            "relays": len(self._listeners),
            "flows": len(self._flows),
            "held": len(self._queue),
            "forwarded": c.forwarded,
            "lost": c.lost,
            "overflowed": c.overflowed,
            "refused": c.refused,
            "late_us_mean": round(c.late_ns_sum / max(1, c.forwarded) / 1e3, 1),
            "late_us_max": round(c.late_ns_max / 1e3, 1),
        }

    def run(self) -> None:
        """Relays until `running` is false, then closes every socket."""
        waitable = [self._epoll.fileno()]
        while self.running:
            now = self._deliver()
            if now >= self._next_sweep:
                self._sweep(now)
            wake = min(self._queue[0][0], self._next_sweep) if self._queue else self._next_sweep
            pause = (wake - now) * (1 - SLACK) - LEAD_NS
            ready = select.select(waitable, (), (), max(0.0, pause) / 1e9)[0]
            for descriptor, _ in self._epoll.poll(0) if ready else ():
                reader = self._readers.get(descriptor)
                if reader is not None:
                    reader()
        for flow in list(self._flows):
            self._forget(flow)
        for listener in self._listeners.values():
            listener.socket.close()
        self._epoll.close()

    def _from_peers(self, listener: Listener) -> None:
        for _ in range(BATCH):
            try:
                data, stamps, flags, peer = listener.socket.recvmsg(MAX_DATAGRAM, 64)
            except BlockingIOError:
                return
            except OSError:
                continue
            flow = listener.flows.get(peer) or self._begin(listener, peer)
            if flow is not None:
                self._hold(flow, 0, data, stamps, flags)

    def _from_server(self, flow: Flow) -> None:
        for _ in range(BATCH):
            if flow.closed:
                return
            try:
                data, stamps, flags, _peer = flow.socket.recvmsg(MAX_DATAGRAM, 64)
            except BlockingIOError:
                return
            except OSError:  # the server's port is closed: to a peer far away that is silence
                self.counters.refused += 1
                continue
            self._hold(flow, 1, data, stamps, flags)

    def _begin(self, listener: Listener, peer: Address) -> Flow | None:
        if len(self._flows) >= self._max_flows:
            self._forget(next(iter(self._flows)))
        try:
            sock = open_socket((peer[0], 0))
        except OSError:
            self.counters.overflowed += 1
            return None
        sock.connect(listener.server)
        flow = Flow(listener, peer, sock, listener.path(peer[0]))
        listener.flows[peer] = flow
        self._flows[flow] = None
        self.watch(sock.fileno(), lambda: self._from_server(flow))
        return flow

    def _hold(
        self, flow: Flow, way: int, data: bytes, stamps: list[tuple[int, int, bytes]], flags: int
    ) -> None:
        now = time.monotonic_ns()
        flow.seen_ns = now
        self._flows[flow] = self._flows.pop(flow)
        if flow.path.loss and self._random.random() < flow.path.loss:
            self.counters.lost += 1
            return
        full = flow.held[way] >= MAX_PENDING or len(self._queue) >= MAX_HELD
        if full or flags & socket.MSG_TRUNC:
            self.counters.overflowed += 1
            return
        arrived = now
        for _level, kind, payload in stamps:
            if kind == SO_TIMESTAMPNS:
                seconds, nanos = TIMESPEC.unpack(payload)
                age = time.time_ns() - (seconds * 1_000_000_000 + nanos)
                if 0 <= age <= MAX_STAMP_AGE_NS:
                    arrived = now - age
        due = max(arrived + flow.path.rtt_ns // 2, flow.last_due[way])  # never overtakes: order is kept
        flow.last_due[way] = due
        flow.held[way] += 1
        heapq.heappush(self._queue, (due, next(self._ticket), flow, way, data))

    def _deliver(self) -> int:
        queue, counters = self._queue, self.counters
        now = time.monotonic_ns()
        while queue and queue[0][0] <= now + EARLY_NS:
            due, _, flow, way, data = heapq.heappop(queue)
            flow.held[way] -= 1
            if flow.closed:
                continue
            try:
                if way == 0:
                    flow.socket.send(data)
                else:
                    flow.listener.socket.sendto(data, flow.peer)
            except ConnectionRefusedError:
                counters.refused += 1
            except OSError:
                counters.overflowed += 1
            now = time.monotonic_ns()
            late = max(0, now - due)
            counters.forwarded += 1
            counters.late_ns_sum += late
            counters.late_ns_max = max(counters.late_ns_max, late)
        return now

    def _sweep(self, now: int) -> None:
        self._next_sweep = now + int(SWEEP_S * 1e9)
        while self._flows:
            oldest = next(iter(self._flows))
            if now - oldest.seen_ns < self._idle_ns:
                return
            self._forget(oldest)

    def _forget(self, flow: Flow) -> None:
        flow.closed = True
        del self._flows[flow]
        del flow.listener.flows[flow.peer]
        self._readers.pop(flow.socket.fileno(), None)
        flow.socket.close()  # epoll lets go of a closed descriptor by itself
