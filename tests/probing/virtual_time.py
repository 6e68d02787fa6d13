"""An event loop whose time jumps to the next timer: a day passes in seconds, and every timer is exact."""

from __future__ import annotations

import asyncio
import selectors
from datetime import datetime

EPOCH = 1_790_000_000.0  # Unix time at which the loop's time is 0
#: Modules of the scheduler that ask the system for the time of day.
ASKING = (
    "apscheduler.schedulers.base",
    "apscheduler.executors.base",
    "apscheduler.triggers.interval",
    "isochrone.service.schedule",
)


class _Jumping(selectors.DefaultSelector):
    """Never waits: where the loop would, its time moves on instead."""

    loop: VirtualLoop

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("nothing will ever happen again")
        if not ready and timeout > 0:
            self.loop.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Work for threads is done at once, taking no time."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _Jumping()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def unix(self) -> float:
        """The time of day that goes with it."""
        return EPOCH + self.now

    def sleep_through(self, seconds: float) -> None:
        """As when the host is suspended: all timers are late."""
        self.now += seconds

    def run_in_executor(self, executor, func, *args):
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001
            done.set_exception(error)
        return done


def adopt(monkeypatch, loop: VirtualLoop) -> None:
    """The scheduler's time of day is the loop's."""

    class Virtual(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.fromtimestamp(loop.unix(), tz)

    for module in ASKING:
        monkeypatch.setattr(f"{module}.datetime", Virtual)
