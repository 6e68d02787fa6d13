"""Handshakes of HTTP/1.1, HTTP/2 and HTTP/3 on the same path, side by side.

A handshake's time is from its first packet until a request could be sent: TCP and TLS 1.3, or QUIC.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from isochrone.model import Outcome, Target
from isochrone.probing.http import HttpProber

if TYPE_CHECKING:
    from collections.abc import Sequence

#: QUIC takes one round trip where TCP and TLS take two: beyond this share of their time, and this share of what is slow at all more,
#: something is wrong. The fastest of each are compared: what is slow on a busy host only now and then says nothing about the path.
TCP_SHARE, SLOW_SHARE = 2.0, 0.2


@dataclass(frozen=True, slots=True)
class Timing:
    """Handshakes of one protocol, in milliseconds."""

    samples: int
    min_ms: float
    median_ms: float
    p99_ms: float  # by the nearest rank: of fewer than 100 samples, the largest
    jitter_ms: float  # the standard deviation; 0 of a single sample


def timing(samples: Sequence[float]) -> Timing | None:
    """What the samples (ms) say; None without any."""
    if not samples:
        return None
    ordered = sorted(samples)
    rank = math.ceil(0.99 * len(ordered)) - 1
    return Timing(
        samples=len(ordered),
        min_ms=round(ordered[0], 3),
        median_ms=round(statistics.median(ordered), 3),
        p99_ms=round(ordered[rank], 3),
        jitter_ms=round(statistics.pstdev(ordered), 3),
    )


def slower_than_tcp(timings: dict[str, Timing | None], *, slow_ms: float) -> str:
    """The evidence that QUIC is far slower than TCP on this path; empty when it is not, or is not known.

    `slow_ms`: from when a handshake is slow at all.
    """
    quic = timings.get("h3")
    others = [(name, t) for name in ("h2", "h1") if (t := timings.get(name)) is not None]
    if quic is None or not others:
        return ""
    name, tcp = min(others, key=lambda other: other[1].min_ms)
    if quic.min_ms <= TCP_SHARE * tcp.min_ms + SLOW_SHARE * slow_ms:
        return ""
    return f"the fastest handshake took {quic.min_ms:.1f} ms by QUIC, {tcp.min_ms:.1f} ms by TCP and TLS ({name})"


class TcpHandshakes:
    """Measures what HTTP/1.1 and HTTP/2 take to the same address. The certificate is HTTP/3's business and not looked at here."""

    def __init__(self, site: str, path: str, *, timeout: float) -> None:
        self._probers = {
            "h1": HttpProber("h1", path=path, server_name=site),
            "h2": HttpProber("h2", path=path, server_name=site),
        }
        self._timeout = timeout
        self.samples: dict[str, list[float]] = {name: [] for name in self._probers}
        self._given_up: set[str] = set()

    async def measure(self, address: str, port: int) -> None:
        """One handshake of each, one after the other. What does not answer once is not asked again."""
        for name, prober in self._probers.items():
            if name in self._given_up:
                continue
            result = await prober.run_once(Target(address, port, 0), timeout=self._timeout)
            if result.outcome is Outcome.OK and "tls" in result.phases:
                self.samples[name].append(result.phases["connect"] + result.phases["tls"])
            else:
                self._given_up.add(name)


def table(samples: dict[str, list[float]]) -> dict[str, Timing | None]:
    """Protocol (h1, h2, h3) -> its timing, None where there was no handshake."""
    return {name: timing(values) for name, values in sorted(samples.items())}
