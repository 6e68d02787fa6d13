"""Rate caps as token buckets: for the agent, for each target network and for each target. Pure: the clock is an argument.

A bucket is kept as one number, the time at which it would be full again (the generic cell rate algorithm): in any span of w seconds
at most burst + rate * w probes pass, and a full bucket needs no memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Hashable

    from isochrone.model import Target

PREFIX_4, PREFIX_6 = 24, 48  # the smallest networks that are announced by themselves
_SWEEP_FROM = 4096  # buckets: then those that are full again are forgotten


@dataclass(frozen=True, slots=True)
class Cap:
    """At most `burst` at once and `rate` a second on average. Rate and burst are above 0; burst counts whole probes."""

    rate: float
    burst: int = 1

    def __post_init__(self) -> None:
        if not (self.rate > 0 and self.burst >= 1):
            raise ValueError("a cap needs a rate above 0 and a burst of at least 1")


class Buckets:
    """One bucket of the same cap for each key."""

    def __init__(self, cap: Cap) -> None:
        self._interval = 1 / cap.rate
        self._tolerance = (cap.burst - 1) / cap.rate
        self._full_at: dict[Hashable, float] = {}
        self._sweep_at = _SWEEP_FROM

    def ready_at(self, key: Hashable, now: float) -> float:
        """The earliest time from `now` on at which `take` is within the cap."""
        full_at = self._full_at.get(key)
        return now if full_at is None else max(now, full_at - self._tolerance)

    def take(self, key: Hashable, now: float) -> None:
        """Count one probe at `now`; to be called when `ready_at` has come."""
        self._full_at[key] = max(now, self._full_at.get(key, now)) + self._interval
        if len(self._full_at) >= self._sweep_at:
            self._full_at = {k: at for k, at in self._full_at.items() if at > now}
            self._sweep_at = max(
                _SWEEP_FROM, 2 * len(self._full_at)
            )  # so that a sweep costs each take little

    def __len__(self) -> int:
        return len(self._full_at)


NetworkBy = Literal["prefix", "asn"]


class Limiter:
    """The three caps together; None leaves one out. Networks are prefixes (/24, /48) or ASNs."""

    def __init__(
        self,
        *,
        agent: Cap | None = None,
        network: Cap | None = None,
        target: Cap | None = None,
        network_by: NetworkBy = "prefix",
    ) -> None:
        self._agent = Buckets(agent) if agent is not None else None
        self._network = Buckets(network) if network is not None else None
        self._target = Buckets(target) if target is not None else None
        self._by = network_by

    def network_of(self, target: Target) -> Hashable:
        """What the network's cap is counted by."""
        return network_of(target, self._by)

    def agent_ready_at(self, now: float) -> float:
        """When the agent's own cap allows the next probe, from `now` on."""
        return self._agent.ready_at(None, now) if self._agent is not None else now

    def network_ready_at(self, network: Hashable, now: float) -> float:
        """When that network's cap allows the next probe, from `now` on."""
        return self._network.ready_at(network, now) if self._network is not None else now

    def target_ready_at(self, target: Target, now: float) -> float:
        """When that target's cap allows the next probe, from `now` on."""
        return self._target.ready_at((target.address, target.port), now) if self._target is not None else now

    def ready_at(self, target: Target, now: float) -> float:
        """When all three allow a probe of it, from `now` on."""
        return max(
            self.agent_ready_at(now),
            self.network_ready_at(self.network_of(target), now),
            self.target_ready_at(target, now),
        )

    def take(self, target: Target, now: float) -> None:
        """Count one probe of it at `now`; to be called when `ready_at` has come."""
        if self._agent is not None:
            self._agent.take(None, now)
        if self._network is not None:
            self._network.take(self.network_of(target), now)
        if self._target is not None:
            self._target.take((target.address, target.port), now)


def network_of(target: Target, by: NetworkBy = "prefix") -> Hashable:
    """The target's /24 or /48, or its ASN. A host name is a network of its own."""
    if by == "asn" and target.asn:
        return target.asn
    try:
        address = ip_address(target.address)
    except ValueError:
        return target.address
    length = PREFIX_4 if address.version == 4 else PREFIX_6
    return address.version, int(address) >> (address.max_prefixlen - length)
