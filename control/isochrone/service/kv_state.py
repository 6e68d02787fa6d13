"""What is known of KV, for `/status` and metrics."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class KvState:
    """What is known of KV, for `/status`. Times are Unix seconds, 0 for never."""

    state: str = "unknown"  # ok, damaged, held, refused, confirming, or a KvError's code
    problem: str = ""  # one sentence when something is wrong now
    live: str | None = None
    checked_at: float = 0.0
    next_look_at: float = 0.0
    last_damage: str = ""
    last_damage_at: float = 0.0
    publishes: int = 0
    unchanged: int = 0
    refused: int = 0
    held: int = 0
    failures: int = 0
    damaged: int = 0  # how often the live map or manifest was found damaged or gone

    def document(self) -> dict[str, Any]:
        """For `/status`."""
        return asdict(self)
