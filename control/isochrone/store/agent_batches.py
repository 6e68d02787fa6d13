"""What was taken from remote agents: each batch once, however often it is sent.

A batch's samples, its id and its share of the origin's load go to disk in one transaction: either all of it is there or nothing.
"""

from __future__ import annotations

import zlib
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from isochrone.model import Sample
    from isochrone.store.sqlite import Store


class Allowance(NamedTuple):
    """How many samples an origin may have by one plan within each span of time, counted by when they were measured."""

    plan: str  # its id
    width: float  # seconds of a span
    samples: int  # at most, in each


class TooManyError(Exception):
    """The batch would bring the origin above its allowance; nothing of it was stored."""

    def __init__(self, begins: float, allowance: Allowance) -> None:
        self.begins = begins
        self.allowance = allowance
        super().__init__(
            f"more than {allowance.samples} samples within the {allowance.width:g} s from {begins:.0f} on"
        )


def is_known(store: Store, origin: str, batch: str) -> bool:
    """Whether this batch is stored already. Raises StoreError."""
    with store.reader() as connection:
        return _is_known(connection, origin, batch)


def accept(
    store: Store, origin: str, batch: str, samples: Sequence[Sample], *, now: float, allowance: Allowance
) -> bool:
    """Store a batch and its id together. When this returns, both are on disk.

    Args:
        store: where to.
        origin: whose agent sent it.
        batch: its id; unique for the origin.
        samples: its samples, all of this origin.
        now: Unix seconds.
        allowance: how many samples the origin may have in each span.

    Returns:
        True; False when a batch with this id was stored before, and nothing was done.

    Raises:
        TooManyError: the origin would be above its allowance.
        StoreError: it could not be stored.
    """
    with store.transaction() as connection:
        if _is_known(connection, origin, batch):
            return False
        spans = Counter(sample.timestamp // allowance.width * allowance.width for sample in samples)
        for begins, count in spans.items():
            (total,) = connection.execute(
                "INSERT INTO agent_load VALUES (?,?,?,?) ON CONFLICT (origin, plan, begins)"
                " DO UPDATE SET samples = samples + excluded.samples RETURNING samples",
                (origin, allowance.plan, begins, count),
            ).fetchone()
            if total > allowance.samples:
                raise TooManyError(begins, allowance)
        stored, ids = store.insert(connection, samples)
        connection.execute("INSERT INTO agent_batches VALUES (?,?,?,?)", (origin, batch, now, stored))
    store.learnt(ids)
    return True


def last_accepted(store: Store) -> dict[str, float]:
    """Origin -> when its last batch was stored, in Unix seconds."""
    with store.reader() as connection:
        rows = connection.execute("SELECT origin, max(accepted_at) FROM agent_batches GROUP BY origin")
        return {origin: float(at) for origin, at in rows}


def save_plan(store: Store, plan: str, body: bytes, now: float) -> None:
    """Keep a plan that is about to be handed out, or that it is still handed out at `now`."""
    with store.transaction() as connection:
        updated = connection.execute("UPDATE agent_plans SET current_at = ? WHERE id = ?", (now, plan))
        if not updated.rowcount:
            connection.execute("INSERT INTO agent_plans VALUES (?,?,?)", (plan, now, zlib.compress(body)))


def plan_body(store: Store, plan: str) -> bytes | None:
    """A plan that was handed out; None when there was none or it is forgotten."""
    with store.reader() as connection:
        row = connection.execute("SELECT body FROM agent_plans WHERE id = ?", (plan,)).fetchone()
    return None if row is None else zlib.decompress(row[0])


def forget(store: Store, before: float) -> None:
    """Let go of ids accepted, spans begun and plans last handed out before that Unix time.

    `before` must lie so far back that samples as old as these are refused for their age: then no batch can come again after its
    id was forgotten.
    """
    with store.transaction() as connection:
        connection.execute("DELETE FROM agent_batches WHERE accepted_at < ?", (before,))
        connection.execute("DELETE FROM agent_load WHERE begins < ?", (before,))
        connection.execute("DELETE FROM agent_plans WHERE current_at < ?", (before,))


def _is_known(connection: sqlite3.Connection, origin: str, batch: str) -> bool:
    found = connection.execute(
        "SELECT 1 FROM agent_batches WHERE origin = ? AND id = ?", (origin, batch)
    ).fetchone()
    return found is not None
