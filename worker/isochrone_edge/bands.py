"""Which of several origins that are near enough a session belongs to: weighted rendezvous hashing. Pure.

Each origin draws a score from the session and its own name alone, so a change of one origin's weight moves only the
sessions that this origin gains or gives up. The weighting is -w / ln(h) (Schindler and Ross, "Weighted rendezvous
hashing"; h uniform in (0, 1)): an origin's share is its weight's share.
"""

from __future__ import annotations

import math
from hashlib import blake2b

_MASK = (1 << 64) - 1


def hashed(text: str) -> int:
    """64 bits of a name or a session key: the same in every isolate and every run."""
    return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "little")


def unit(session: int, salt: int) -> float:
    """A number in (0, 1) that depends on both and looks random (the finalizer of splitmix64)."""
    x = ((session ^ salt) + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _MASK
    return (((x ^ x >> 31) >> 11) + 0.5) / (1 << 53)


def score(session: int, salt: int, weight: float) -> float:
    """How strongly an origin claims a session. `salt` is `hashed(origin id)`; a weight of 0 claims none."""
    return -weight / math.log(unit(session, salt)) if weight > 0 else 0.0
