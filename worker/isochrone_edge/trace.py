"""W3C Trace Context: a trace continued or begun, with what the edge decided in `tracestate`. Pure."""

from __future__ import annotations

import re

from .record import Record

#: version 00, and later ones as far as they begin like it (section 3.2.4)
_PARENT = r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?\Z"
_NO_TRACE, _NO_PARENT = "0" * 32, "0" * 16
_NOT_ZERO = 1 << 64 | 1  # neither id may be all zeros
KEY = "isochrone"  # of our entry in tracestate
_STATE_LIMIT = 512  # characters that every participant must propagate (section 3.3.1.5)
_ENTRIES = 32


class Trace(Record):
    """What goes to the origin, and the id that ties log, answer and origin together."""

    id: str
    parent: str  # the traceparent field
    others: str = ""  # the client's tracestate, when its traceparent was valid
    sampled: bool = False  # this hop tells of it in the log

    def state(self, decision: str) -> str:
        """The tracestate field, with what the edge decided in front: no comma, no equals sign."""
        ours = f"{KEY}={decision}"
        return _state(ours, self.others) if self.others else ours


def begun(entropy: int) -> str:
    """The traceparent of a trace that begins here, and that nobody records: what most requests get."""
    digits = f"{entropy | _NOT_ZERO:048x}"
    return f"00-{digits[:32]}-{digits[32:]}-00"


def trace(parent: str | None, state: str | None, entropy: int, *, sampled: bool) -> Trace:
    """The trace as it goes on from here.

    A valid `parent` keeps its trace id and its flags and gets this hop's own id; otherwise a trace begins.

    Args:
        parent: the client's traceparent field.
        state: the client's tracestate field; dropped when the parent is not valid (section 3.3).
        entropy: 192 random bits.
        sampled: whether this hop records it (a line in the log); a trace that begins here says so in its flags.
    """
    digits = f"{entropy | _NOT_ZERO:048x}"
    hop = digits[32:]
    if parent is not None:
        match = re.match(_PARENT, parent)
        if (
            match is not None
            and match[2] != _NO_TRACE
            and match[3] != _NO_PARENT
            and (match[1] != "00" or len(parent) == 55)
        ):
            return Trace(match[2], f"00-{match[2]}-{hop}-{match[4]}", state or "", sampled)
    identity = digits[:32]
    return Trace(identity, f"00-{identity}-{hop}-{'01' if sampled else '00'}", "", sampled)


def _state(ours: str, state: str) -> str:
    others = [e for e in (part.strip() for part in state.split(",")) if e and not e.startswith(KEY + "=")]
    others = others[: _ENTRIES - 1]
    while others and len(ours) + sum(len(e) + 1 for e in others) > _STATE_LIMIT:
        # Long entries go first, then the oldest: what the section recommends.
        long = [e for e in others if len(e) > 128]
        others.remove(long[-1] if long else others[-1])
    return ",".join([ours, *others])
