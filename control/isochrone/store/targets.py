"""What is known of targets (`isochrone.probing.selection`), kept over restarts. Raises StoreError and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isochrone.model import TargetKey, TargetState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isochrone.store.engine import Engine


def target_states(store: Engine) -> dict[TargetKey, TargetState]:
    """All that was saved, also of targets that are in no list any more."""
    with store.reader() as connection:
        rows = connection.execute(
            "SELECT address, port, active, answered, good, silent, falls, retry_at FROM target_states"
        ).fetchall()
    return {
        (address, port): TargetState(
            active=bool(active), answered=bool(answered), good=good, silent=silent, falls=falls, retry_at=retry_at
        )
        for address, port, active, answered, good, silent, falls, retry_at in rows
    }  # fmt: skip


def save_target_states(store: Engine, states: Mapping[TargetKey, TargetState]) -> None:
    """Store these; others are left as they are."""
    with store.transaction() as connection:
        connection.executemany(
            "INSERT INTO target_states VALUES (?,?,?,?,?,?,?,?) ON CONFLICT (address, port) DO UPDATE SET"
            " active = excluded.active, answered = excluded.answered, good = excluded.good,"
            " silent = excluded.silent, falls = excluded.falls, retry_at = excluded.retry_at",
            [
                (address, port, int(s.active), int(s.answered), s.good, s.silent, s.falls, s.retry_at)
                for (address, port), s in states.items()
            ],
        )
