"""One request along its candidates, inside a deadline. Knows no HTTP library: `send` does the sending."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from .breaker import Breaker
from .hedge import Hedging
from .record import Record
from .steer import Origin
from .variables import Limits

#: RFC 9110 section 9.2.2: may be sent again when it is not known whether the first one arrived
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
#: Cloudflare's own answers for an origin that it could not connect to: nothing of the request has reached it
NOT_CONNECTED = frozenset({521, 522, 523, 525, 526, 530})


class Unreachable(Exception):
    """The origin could not be reached, or ended the connection before it answered."""

    def __init__(self, message: str = "", *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent  # False: nothing of the request can have reached the origin


class Blameless(Exception):
    """The request's body did not come, or it can't be told whether it did: no origin is to blame.

    `status` is the client's: 400 the body broke off, 408 it stood still (RFC 9110 sections 15.5.1 and 15.5.9), and 502 or
    504 when it isn't known.
    """

    def __init__(self, status: int, reason: str = "client:body") -> None:
        super().__init__(f"{reason}, status {status}")
        self.status, self.reason = status, reason


class Forwarded(Record):
    """What came of it. `response` is None when no origin answered: `status` says which way."""

    response: Any
    origin: Origin | None
    tries: int
    status: int
    seconds: float  # spent waiting for origins
    reason: str = (
        "ok"  # or why the last failed try failed: status, timeout, unreachable, deadline, client:body
    )
    hedged: bool = False


async def forward(
    origins: Sequence[Origin],
    send: Callable[[Origin, float], Awaitable[tuple[int, Any]]],
    *,
    repeatable: Callable[[bool], bool],
    breaker: Breaker,
    clock: Callable[[], float],
    limits: Limits,
    hedging: Hedging | None = None,
    began: float | None = None,
    first: Origin | None = None,
    asks_to_wait: Callable[[Any], bool] | None = None,
) -> Forwarded:
    """The first answer along `origins`.

    A status among `limits.retry_statuses` may be the origin's fault or the request's: it counts against the origin only
    when another one answers the same request well, and never with Retry-After.

    Args:
        origins: best first.
        send: sends to one origin within so many seconds and gives status and answer; raises Unreachable,
            TimeoutError or Blameless. Cancelled, it lets go of the connection.
        repeatable: whether the request may be sent once more, given whether something of it may have reached an
            origin; asked only when it matters.
        breaker: told of each success and failure, and asked for the order.
        clock: seconds.
        limits: budget, tries, and the statuses that count as failures.
        hedging: None: one origin at a time.
        began: when the budget began to run; None: now.
        first: the origin that must be asked first, whatever the breaker has learned meanwhile: it has been already,
            and `send` knows what came of it.
        asks_to_wait: whether an answer that counts as a failure has a Retry-After; None: none has.
    """
    now = clock()
    began = now if began is None else began
    since = began if first is not None else now  # before, it was the edge's own time
    if breaker.any_ejected():
        by_id = {origin.id: origin for origin in origins}
        origins = [by_id[name] for name in breaker.order(by_id, now, trial=repeatable(True))]
    if first is not None:
        origins = [first, *(origin for origin in origins if origin.id != first.id)]
    candidates = list(origins[: limits.tries])
    if hedging is not None:
        hedging.bucket.earn()
        if len(candidates) > 1 and repeatable(True):
            send = _Hedged(send, candidates, hedging, breaker, clock, limits)
    tries, status, reason = 0, 502, "unreachable"
    held: tuple[int, Any, Origin] | None = None  # an answer that counts as a failure, but is one
    suspects: list[str] = []  # origins that gave one
    while candidates:
        left = began + limits.budget - now
        if left <= 0:
            status, reason = 504, "deadline"
            break
        origin = candidates.pop(0)
        tries += 1
        sent, hedged, response = True, False, None
        seconds, asked = min(left, limits.each_try), now
        # A client that gives an origin too little time must not make it look bad to all others.
        blame = not (limits.shortened and seconds < limits.each_try)
        error: Exception | None = None
        try:
            status, response = await send(origin, seconds)
        except (Unreachable, TimeoutError) as caught:
            error = caught
        except Blameless as caught:
            return Forwarded(None, None, tries, caught.status, clock() - since, caught.reason)
        if isinstance(send, _Hedged):
            origin, asked, hedged = send.winner, send.asked, send.hedged
            tries += send.extra
            if send.held is not None:
                held = send.held
                if held[0] not in NOT_CONNECTED and not (asks_to_wait and asks_to_wait(held[1])):
                    suspects.append(held[2].id)
        if isinstance(error, Unreachable):
            status, reason, sent, blame = 502, "unreachable", error.sent, True
        elif error is not None:
            status, reason = 504, "timeout"
        else:
            blame = True
            if status in NOT_CONNECTED:
                reason, sent = "unreachable", False
            elif status in limits.retry_statuses:
                reason, blame = "status", False
                if not (asks_to_wait and asks_to_wait(response)):
                    suspects.append(origin.id)
            else:
                now = clock()
                breaker.succeeded(origin.id, now)
                for suspect in suspects:
                    breaker.failed(suspect, now)
                if hedging is not None:
                    hedging.usual.add(origin.id, now - asked)
                return Forwarded(
                    response,
                    origin,
                    tries,
                    status,
                    now - since,
                    reason if tries > 1 + hedged else "ok",
                    hedged,
                )
            held = status, response, origin
        now = clock()
        if blame:
            breaker.failed(origin.id, now)
        if not repeatable(sent):
            break
    if held is not None:
        return Forwarded(held[1], held[2], tries, held[0], now - since, "status")
    if tries and now - began >= limits.budget:
        status, reason = 504, "deadline"
    return Forwarded(None, None, tries, status, now - since, reason)


class _Hedged:
    """Sends to the first candidate, and after its usual p95 to the next one too: who answers first wins."""

    def __init__(
        self,
        send: Callable[[Origin, float], Awaitable[tuple[int, Any]]],
        candidates: list[Origin],
        hedging: Hedging,
        breaker: Breaker,
        clock: Callable[[], float],
        limits: Limits,
    ) -> None:
        self._send, self._candidates, self._hedging = send, candidates, hedging
        self._breaker, self._clock, self._limits = breaker, clock, limits
        self.winner = candidates[0]
        self.asked = 0.0  # when
        self.hedged = False
        self.extra = 0  # requests beside the first, of the last call
        #: an answer that counts as a failure, while the other origin had not answered yet
        self.held: tuple[int, Any, Origin] | None = None

    async def __call__(self, origin: Origin, seconds: float) -> tuple[int, Any]:
        self.winner, self.asked, self.extra, self.held = origin, self._clock(), 0, None
        usual = self._hedging.usual.p95(origin.id)
        if self.hedged or usual is None or usual >= seconds or not self._candidates:
            return await self._send(origin, seconds)
        tasks = {asyncio.ensure_future(self._send(origin, seconds)): (origin, self.asked)}
        try:
            done, _ = await asyncio.wait(tasks, timeout=usual)
            if not done and self._hedging.bucket.take():
                self.hedged, self.extra = True, 1
                second = self._candidates.pop(0)
                tasks[asyncio.ensure_future(self._send(second, seconds - usual))] = second, self._clock()
            while True:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    self.winner, self.asked = tasks.pop(task)
                    error = task.exception()
                    if not tasks or (error is None and not self._failed(task.result()[0])):
                        return task.result()
                    if error is None:
                        self.held = (*task.result(), self.winner)
                        if task.result()[0] not in NOT_CONNECTED:
                            continue  # whose fault it is shows itself by what the other one answers
                    if not (isinstance(error, TimeoutError) and self._limits.shortened):
                        self._breaker.failed(self.winner.id, self._clock())
        finally:
            for task in tasks:
                task.cancel()

    def _failed(self, status: int) -> bool:
        return status in NOT_CONNECTED or status in self._limits.retry_statuses
