"""One request along its candidates, inside a deadline. Knows no HTTP library: `send` does the sending."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from .breaker import Breaker
from .steer import Origin

#: RFC 9110 section 9.2.2: may be sent again when it is not known whether the first one arrived
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})


class Unreachable(Exception):
    """The origin could not be reached, or ended the connection before it answered."""


class Limits(NamedTuple):
    """Seconds. The budget ends with the first byte of the answer: a body that has begun is never cut."""

    budget: float = 2.5
    each_try: float = 2.0
    tries: int = 4


class Forwarded(NamedTuple):
    """What came of it. `response` is None when no origin answered: `status` (502 or 504) says which way."""

    response: Any
    origin: Origin | None
    tries: int
    status: int
    seconds: float  # spent waiting for origins


async def forward(
    origins: Sequence[Origin],
    send: Callable[[Origin, float], Awaitable[Any]],
    *,
    repeatable: Callable[[], bool],
    breaker: Breaker,
    clock: Callable[[], float],
    limits: Limits,
) -> Forwarded:
    """The first answer along `origins`.

    Args:
        origins: best first.
        send: sends to one origin within so many seconds; raises Unreachable or TimeoutError.
        repeatable: whether the request may be sent once more; asked only after a failure.
        breaker: told of each success and failure, and asked for the order.
        clock: seconds.
        limits: budget and tries.
    """
    began = clock()
    by_id = {origin.id: origin for origin in origins} if breaker.any_ejected() else None
    if by_id is not None:
        origins = [by_id[name] for name in breaker.order(by_id, began)]
    tries, status, now = 0, 502, began
    for origin in origins[: limits.tries]:
        left = began + limits.budget - now
        if left <= 0:
            return Forwarded(None, None, tries, 504, now - began)
        tries += 1
        try:
            response = await send(origin, min(left, limits.each_try))
        except (Unreachable, TimeoutError) as error:
            now = clock()
            breaker.failed(origin.id, now)
            status = 504 if isinstance(error, TimeoutError) else 502
            if not repeatable():
                break
        else:
            breaker.succeeded(origin.id)
            return Forwarded(response, origin, tries, 200, clock() - began)
    return Forwarded(None, None, tries, status, now - began)
