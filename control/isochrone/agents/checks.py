"""Whether what an agent says can be true. Pure: the time is an argument.

A batch is refused whole, with the first reason: an agent that is wrong once can't be believed for the rest. The one exception is a
few round-trip times that light itself could not have made: there the target's stated place errs more often than the agent (and
anycast is in many places), so that these samples alone are set aside as long as they are few.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from isochrone.estimation.physics import KM_PER_MS, distance_km
from isochrone.model import Origin, Outcome, Sample
from isochrone.store.agent_batches import Allowance

if TYPE_CHECKING:
    from isochrone.agents.plan import Plan
    from isochrone.agents.wire import Batch, Row

FUTURE_SECONDS = 60.0  # a time further ahead than this is no clock's ordinary error
OVER_TIMEOUT_MS = 1000.0  # a round trip may be read that much later than the probe's timeout
LIGHT_SLACK_MS = 2.0  # places are towns, not hosts
SET_ASIDE_SHARE = 0.1  # of the samples whose place is known; above, the batch is refused
SPAN_SECONDS = 600.0  # over which the samples of an origin are counted

Code = Literal[
    "malformed", "too_large", "encoding", "unknown_origin", "unknown_plan", "unknown_target", "unknown_method",
    "time_ahead", "time_past", "rtt_missing", "rtt_unexpected", "rtt_impossible", "faster_than_light", "duplicate", "flood",
]  # fmt: skip


class Refused(Exception):
    """Why a batch is refused; nothing of it is stored. `status` is HTTP's."""

    def __init__(self, code: Code, sentence: str, status: int = 422) -> None:
        super().__init__(sentence)
        self.code: Code = code
        self.status = status


@dataclass(frozen=True, slots=True)
class Checked:
    """What of a batch is to be stored."""

    samples: list[Sample]
    set_aside: int  # samples that no light could have made


def check(batch: Batch, *, origin: Origin, plan: Plan, now: float, max_age: float) -> Checked:
    """The samples of a batch, completed with what the plan knows of their targets.

    Args:
        batch: of the right form.
        origin: whose token it came with.
        plan: the one that the batch names.
        now: Unix seconds.
        max_age: seconds after which a sample is of no use.

    Raises:
        Refused: it can't be true.
    """
    if batch.header.origin != origin.id:
        raise Refused("unknown_origin", f"the batch is not of origin {origin.id!r}, whose token this is")
    methods = set(plan.probing.methods)
    highest = plan.probing.timeout_seconds * 1000 + OVER_TIMEOUT_MS
    samples = []
    for line, row in enumerate(batch.rows, 2):
        target = plan.targets.get((row.address, row.port))
        if target is None:
            raise Refused("unknown_target", f"line {line}: the plan has no such target")
        if row.method not in methods:
            raise Refused("unknown_method", f"line {line}: the plan does not measure by this method")
        _check_time(line, row, now, max_age)
        _check_rtt(line, row, highest)
        samples.append(
            Sample(
                row.at, origin.id, target.asn, target.country, row.rtt_ms, row.method, Outcome(row.outcome),
                target.colo, target.continent, target.latitude, target.longitude,
            )
        )  # fmt: skip
    _check_schedule(batch.rows, plan.probing.interval_seconds)
    believed = _within_light(samples, origin)
    return Checked(believed, len(samples) - len(believed))


def allowance_of(plan: Plan) -> Allowance:
    """How many samples the plan's schedule can bring within a span: a round more than fit into it, and one for restarts."""
    rounds = math.ceil(SPAN_SECONDS / plan.probing.interval_seconds) + 2
    return Allowance(plan.id, SPAN_SECONDS, plan.planned * rounds)


def _check_time(line: int, row: Row, now: float, max_age: float) -> None:
    if row.at > now + FUTURE_SECONDS:
        raise Refused(
            "time_ahead",
            f"line {line}: measured {row.at - now:.0f} s from now; set the clock of the agent's host",
        )
    if row.at < now - max_age:
        raise Refused(
            "time_past",
            f"line {line}: measured {now - row.at:.0f} s ago; older than {max_age:.0f} s is of no use",
        )


def _check_rtt(line: int, row: Row, highest: float) -> None:
    if row.outcome != "ok":
        if row.rtt_ms is not None:
            raise Refused("rtt_unexpected", f"line {line}: a probe that is not ok has no rtt_ms")
    elif row.rtt_ms is None:
        raise Refused("rtt_missing", f"line {line}: a probe that is ok has an rtt_ms")
    elif not 0 < row.rtt_ms <= highest:
        raise Refused(
            "rtt_impossible",
            f"line {line}: rtt_ms must be above 0 and, by the plan's timeout, at most {highest:g}",
        )


def _check_schedule(rows: list[Row], interval: float) -> None:
    """No sample twice, and no target more often than rounds come."""
    if len({(row.at, row.address, row.port, row.method) for row in rows}) < len(rows):
        raise Refused("duplicate", "the same probe (time, address, port, method) stands in the batch twice")
    times = [row.at for row in rows]
    most = math.floor((max(times) - min(times)) / interval) + 2
    (address, port, method), count = Counter((r.address, r.port, r.method) for r in rows).most_common(1)[0]
    if count > most:
        raise Refused(
            "flood",
            f"{count} probes of {address} port {port} by {method}, where the plan's interval of {interval:g} s allows {most}",
        )


def _within_light(samples: list[Sample], origin: Origin) -> list[Sample]:
    """The samples without those faster than light in fibre."""
    placed = [
        (number, s.rtt_ms, s.latitude, s.longitude)
        for number, s in enumerate(samples)
        if s.rtt_ms is not None and s.latitude is not None and s.longitude is not None
    ]
    if not placed:
        return samples
    numbers, rtt_ms, latitude, longitude = (
        np.array(column, np.float64) for column in zip(*placed, strict=True)
    )
    here = np.full(len(placed), origin.latitude), np.full(len(placed), origin.longitude)
    least = distance_km(latitude, longitude, *here) / KM_PER_MS
    wrong = rtt_ms < least - LIGHT_SLACK_MS
    count = int(np.count_nonzero(wrong))
    if count > SET_ASIDE_SHARE * len(placed):
        worst = int(np.argmax(least - rtt_ms))
        raise Refused(
            "faster_than_light",
            f"{count} of {len(placed)} round trips are shorter than light needs, e.g. {rtt_ms[worst]:g} ms where it needs"
            f" {least[worst]:.1f} ms; are the places of the origin and the targets right?",
        )
    if not count:
        return samples
    leave = set(numbers[wrong].astype(int).tolist())
    return [sample for number, sample in enumerate(samples) if number not in leave]
