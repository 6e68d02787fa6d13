"""Old samples go and the file shrinks, in small steps between which readers and writers have their turn."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from isochrone.store.engine import Engine

STEP_ROWS = 4_000  # of one transaction: some ten milliseconds
STEP_PAGES = 500  # 2 MB
SLACK = 0.1  # share of the file that may stay empty: the next samples fill it


def forget(store: Engine, before: float, *, stop: Callable[[], bool] = lambda: False) -> int:
    """Delete the samples older than `before`, in Unix seconds. Returns how many samples went.

    Whatever ends it midway, the oldest are gone and the rest is whole. `stop` is asked between steps.
    """
    gone = 0
    done = False
    while not done and not stop():
        began = time.monotonic()
        with store.transaction() as connection:
            last = connection.execute(
                "SELECT timestamp FROM samples WHERE timestamp < ? ORDER BY timestamp LIMIT 1 OFFSET ?",
                (before, STEP_ROWS - 1),
            ).fetchone()
            if last is None:
                gone += connection.execute("DELETE FROM samples WHERE timestamp < ?", (before,)).rowcount
                done = True
            else:
                gone += connection.execute("DELETE FROM samples WHERE timestamp <= ?", last).rowcount
        _give_way(began)
    return gone


def compact(store: Engine, *, stop: Callable[[], bool] = lambda: False) -> int:
    """Give empty pages back to the system until no more than `SLACK` of the file is empty. Returns how many bytes went."""
    before = store.file_bytes()
    while store.empty_share() > SLACK and not stop():
        began = time.monotonic()
        if not store.shrink(STEP_PAGES):
            break
        _give_way(began)
    return max(0, before - store.file_bytes())


def _give_way(began: float) -> None:
    """As long a pause as the step took: a lock that is free for a moment only goes to whoever just had it."""
    time.sleep(time.monotonic() - began)
