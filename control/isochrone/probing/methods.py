"""All methods by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isochrone.model import Method
    from isochrone.probing.limiter import Limiter
    from isochrone.probing.manners import Manners
    from isochrone.probing.prober import Gate, Prober
    from isochrone.settings import Probing


def make(method: Method, *, gate: Gate | None = None) -> Prober:
    """A prober. `gate` says which addresses it may probe; None lets it probe any."""
    match method:
        case "icmp":
            from isochrone.probing.icmp import IcmpProber

            return IcmpProber(gate=gate)
        case "tcp":
            from isochrone.probing.tcp import TcpProber

            return TcpProber(gate=gate)
        case "quic":
            from isochrone.probing.quic import QuicProber

            return QuicProber(gate=gate)
        case "quic-vn":
            from isochrone.probing.quic_vn import QuicVersionProber

            return QuicVersionProber(gate=gate)
        case "h3":
            from isochrone.probing.http3 import Http3Prober

            return Http3Prober(gate=gate)
        case _:
            from isochrone.probing.http import HttpProber

            return HttpProber(method, gate=gate)


def manners_of(probing: Probing) -> Manners:
    """What the configuration allows to probe."""
    from isochrone.probing.manners import Manners

    return Manners(probing.never_probe, lab=probing.lab)


def probers_of(probing: Probing) -> tuple[Prober, ...]:
    """The probers of the configuration's methods, in its order, each keeping to its manners."""
    gate = manners_of(probing)
    return tuple(make(method, gate=gate) for method in probing.methods)


def limiter_of(probing: Probing) -> Limiter:
    """The caps of the configuration, for one agent."""
    from isochrone.probing.limiter import Cap, Limiter

    return Limiter(
        agent=Cap(probing.agent_rate, probing.agent_burst),
        network=Cap(probing.network_rate, probing.network_burst),
        target=Cap(probing.target_rate, probing.target_burst),
        network_by=probing.network_by,
    )
