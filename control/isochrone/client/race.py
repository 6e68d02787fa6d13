"""Happy eyeballs (RFC 8305): addresses of both families in turn, each given a head start over the next."""

from __future__ import annotations

import asyncio
import ipaddress
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

HEAD_START = 0.25  # seconds, section 5's Connection Attempt Delay

T = TypeVar("T")


def interleaved(addresses: Iterable[str]) -> tuple[str, ...]:
    """IPv6 first, then the families in turn (section 4); the order within a family stays. Each address once."""
    unique = tuple(dict.fromkeys(addresses))
    six = [a for a in unique if ipaddress.ip_address(a).version == 6]
    four = [a for a in unique if ipaddress.ip_address(a).version == 4]
    return tuple(a for a in chain.from_iterable(zip_longest(six, four)) if a is not None)


async def race(
    addresses: Sequence[str],
    attempt: Callable[[str], Awaitable[T]],
    *,
    abandon: Callable[[T], object],
    head_start: float = HEAD_START,
) -> T:
    """What the first good attempt gave; the others are cancelled, and `abandon` gets what one of them had won too late.

    The next address is tried when the last one failed or its head start is over. `attempt` bounds its own time.
    Raises the last failure when all fail, ValueError when there is no address.
    """
    if not addresses:
        raise ValueError("no address to try")
    waiting = list(addresses)
    running: set[asyncio.Future[T]] = set()
    failure: BaseException | None = None
    won: list[T] = []
    try:
        while (waiting or running) and not won:
            if waiting:
                running.add(asyncio.ensure_future(attempt(waiting.pop(0))))
            done, running = await asyncio.wait(
                running, timeout=head_start if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                error = task.exception()
                failure = error or failure
                if error is None:
                    won.append(task.result())
    finally:
        for task in running:
            task.cancel()
        for late in await asyncio.gather(*running, return_exceptions=True):
            if not isinstance(late, BaseException):
                abandon(late)
    for late in won[1:]:
        abandon(late)
    if won:
        return won[0]
    raise failure or ValueError("no address to try")
