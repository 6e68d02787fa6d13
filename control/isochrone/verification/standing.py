"""When a promise is made, withdrawn and made again: rise and fall. Pure.

One failed check must not move anybody, and one good check must not bring back what flaps: withdrawn after `fall` failed checks
in a row, offered again after `rise` good ones. What has never been proved is offered after its first good check, so that a start
does not take `rise` intervals; what the prober could not check changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from isochrone.model import Outcome, Standing

if TYPE_CHECKING:
    from collections.abc import Iterable


def step(standing: Standing, outcome: Outcome, *, now: float, rise: int, fall: int) -> Standing:
    """The standing after one more check at `now` (Unix seconds)."""
    if outcome is Outcome.PROBER_FAILED:
        return standing
    if outcome is Outcome.OK:
        good, failed = standing.good + 1, 0
        offered = standing.offered or not standing.proved or good >= rise
    else:
        good, failed = 0, standing.failed + 1
        offered = standing.offered and failed < fall
    return replace(
        standing,
        offered=offered,
        proved=standing.proved or outcome is Outcome.OK,
        good=good,
        failed=failed,
        checked_at=now,
        changed_at=now if offered != standing.offered else standing.changed_at,
    )


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """One outcome for several checks of one thing, e.g. of each address of an endpoint.

    A failure counts wherever it was seen; with none, one good check is enough beside some that could not be made.
    """
    seen = set(outcomes)
    if Outcome.TARGET_FAILED in seen:
        return Outcome.TARGET_FAILED
    return Outcome.OK if Outcome.OK in seen else Outcome.PROBER_FAILED
