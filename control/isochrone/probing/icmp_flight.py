"""What is known of a burst of echo requests, and what it comes to in the end."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from isochrone.model import Outcome
from isochrone.probing.prober import NO_PHASES, SEND_BOUND, ProbeResult, ProberTrouble, silence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from isochrone.model import Target


@dataclass(slots=True)
class Flight:
    """What is known of each target of one address family. Times are `time.monotonic()` seconds."""

    indices: list[int]  # in the caller's order
    packed: NDArray[np.uint8]  # addresses, one row each
    token: bytes
    sent: NDArray[np.float64] = field(init=False)
    uncertain: NDArray[np.float64] = field(init=False)  # seconds by which the departure may be wrong
    arrived: NDArray[np.float64] = field(init=False)
    trouble: dict[int, Exception] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.indices)
        self.sent = np.full(count, np.nan)
        self.uncertain = np.zeros(count)
        self.arrived = np.full(count, np.nan)


def judge(
    targets: Sequence[Target],
    flight: Flight,
    results: list[ProbeResult | None],
    timeout: float,
    *,
    late: float,
    lost: int,
) -> None:
    """Write the results of a flight that is over: `late` seconds of our loop, `lost` messages dropped by this host."""
    times = np.maximum(flight.arrived - flight.sent, 0.0) * 1000
    answered = times <= timeout * 1000  # false where there is no answer: not a number
    exact = answered & (flight.uncertain <= SEND_BOUND)
    ok = Outcome.OK
    indices = np.array(flight.indices)
    for index, milliseconds in zip(indices[exact].tolist(), times[exact].tolist(), strict=True):
        results[index] = ProbeResult(ok, milliseconds, NO_PHASES, "", targets[index].address)
    for number in np.flatnonzero(~exact).tolist():
        index = flight.indices[number]
        address, trouble = targets[index].address, flight.trouble.get(number)
        if answered[number]:
            took = flight.uncertain[number] * 1000
            why = f"this host was too busy: {took:.1f} ms passed while the request was sent"
            results[index] = failed(why, address)
        elif isinstance(trouble, ProberTrouble):
            results[index] = failed(str(trouble), address)
        elif trouble is not None:
            results[index] = ProbeResult(outcome=Outcome.TARGET_FAILED, detail=str(trouble), address=address)
        elif lost:
            why = f"this host's receive buffer was full: {lost} ICMP messages were dropped"
            results[index] = failed(why, address)
        else:
            blamed = silence(late, timeout)
            outcome = Outcome.PROBER_FAILED if isinstance(blamed, ProberTrouble) else Outcome.TARGET_FAILED
            results[index] = ProbeResult(outcome=outcome, detail=str(blamed), address=address)


def packed_address(address: str) -> bytes | None:
    """The address as bytes; None when it is none."""
    try:
        return socket.inet_pton(socket.AF_INET, address)
    except (OSError, ValueError):
        pass
    try:
        return socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    except (OSError, ValueError):
        return None


def failed(why: str, address: str) -> ProbeResult:
    """A probe that this host did not make."""
    return ProbeResult(outcome=Outcome.PROBER_FAILED, detail=why, address=address)
