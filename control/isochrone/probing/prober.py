"""One small protocol behind which every method of measuring stands."""

from __future__ import annotations

import asyncio
import errno
import socket
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from isochrone import __version__
from isochrone.model import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from isochrone.model import Target

#: A probe that got no answer in time while our event loop was late by more than this, all told, blames nobody else.
LATE_BOUND = 0.05  # seconds
#: A packet whose departure is known no better than this gives no sample: sending it took so long that we were not running.
SEND_BOUND = 0.0005  # seconds
#: What a probe says of itself where its protocol has room for it.
IDENTITY = f"isochrone/{__version__} latency probe"

#: What the system answers when it is this host that can't probe: no route, no socket, no such source address, a local
#: firewall. Seen at bind, connect or send; a refusal that comes back over the network is the target's.
_OWN_FAULTS = {
    errno.EMFILE: "no socket is left in this process",
    errno.ENFILE: "no socket is left on this host",
    errno.ENOBUFS: "the system is out of buffers",
    errno.ENOMEM: "the system is out of memory",
    errno.ENETUNREACH: "this host has no route to the address",
    errno.EHOSTUNREACH: "this host has no route to the address",
    errno.ENETDOWN: "this host's network is down",
    errno.EADDRNOTAVAIL: "the source address is not one of this host's",
    errno.EADDRINUSE: "no local port is left",
    errno.EAFNOSUPPORT: "this host does not speak the address's family",
    errno.EPERM: "this host forbids the packet",
    errno.EACCES: "this host forbids the packet",
}

NO_PHASES: Mapping[str, float] = MappingProxyType({})


class ProbeResult(NamedTuple):
    """What one probe saw. Times are milliseconds. A tuple, because a batch makes tens of thousands of them."""

    outcome: Outcome
    rtt_ms: float | None = None  # None unless outcome is ok
    phases: Mapping[str, float] = NO_PHASES  # name -> ms, in the order in which they ended
    detail: str = ""  # why it is not ok, in words; of an ok HTTP probe its status
    address: str = ""  # the IP address that was probed


class Prober(Protocol):
    """A method of measuring. Holds no state that one probe leaves for the next."""

    @property
    def method(self) -> str:
        """Its name in samples and on the command line."""

    async def run_once(
        self, target: Target, *, source_address: str | None = None, timeout: float
    ) -> ProbeResult:
        """Probe once, ended after `timeout` seconds. Never raises for anything the network or this host does."""


class BatchProber(Prober, Protocol):
    """A method that also probes thousands of targets in one go, without a task for each."""

    async def run_batch(
        self,
        targets: Sequence[Target],
        *,
        source_address: str | None = None,
        timeout: float,
        rate: float | None = None,
    ) -> list[ProbeResult]:
        """Probe each target once, in order, at most `rate` a second; the results in the targets' order.

        Never raises for anything the network or this host does. Addresses only, no host names.
        """


class Gate(Protocol):
    """Says which addresses may be probed at all."""

    def refusal(self, address: str) -> str | None:
        """Why it may not, in words; None when it may."""


class ProberTrouble(Exception):
    """This host could not probe: nothing was learnt about the target."""


class TargetTrouble(Exception):
    """The network or the target did not answer as it should."""


async def attempt(
    target: Target,
    measure: Callable[[str, float, dict[str, float]], Awaitable[tuple[float, str]]],
    *,
    timeout: float,
    gate: Gate | None,
) -> ProbeResult:
    """One probe from the name to the blame: resolve, ask the gate, `measure(address, deadline, phases)`.

    `measure` gives the round trip in ms and a detail, raises TargetTrouble or ProberTrouble, and lets OSErrors of its own
    system calls through; `deadline` is in `loop.time()`.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    phases: dict[str, float] = {}
    address, rtt, outcome = target.address, None, Outcome.OK
    try:
        if not is_address(target.address):
            address = (await resolve(target.address, timeout=timeout))[0]
            phases["dns"] = (loop.time() - started) * 1000
        refused = gate.refusal(address) if gate is not None else None
        if refused is not None:
            raise ProberTrouble(refused)
        rtt, detail = await measure(address, started + timeout, phases)
    except ProberTrouble as trouble:
        outcome, detail = Outcome.PROBER_FAILED, str(trouble)
    except TargetTrouble as trouble:
        outcome, detail = Outcome.TARGET_FAILED, str(trouble)
    except OSError as error:
        outcome, detail = Outcome.PROBER_FAILED, own_fault(error)
    return ProbeResult(outcome=outcome, rtt_ms=rtt, phases=phases, detail=detail, address=address)


def silence(late: float, timeout: float, what: str = "no answer") -> Exception:
    """Whose fault it is that nothing came in time, when the event loop was late by `late` seconds."""
    if late > LATE_BOUND:
        return ProberTrouble(f"this prober's event loop was late by {late * 1000:.0f} ms")
    return TargetTrouble(f"{what} within {timeout:g} s")


def own_fault(error: OSError) -> str:
    """Why this host could not probe, in words."""
    return _OWN_FAULTS.get(error.errno or 0) or f"this host could not send ({error.strerror or error})"


def is_address(text: str) -> bool:
    """Whether it is an IP address already."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, text.partition("%")[0])
        except (OSError, ValueError):  # a NUL or a surrogate in the text is a ValueError
            continue
        return True
    return False


async def resolve(host: str, *, timeout: float) -> tuple[str, ...]:
    """All addresses of a host name in the system's order, within `timeout` seconds; an address is its own.

    Raises:
        ProberTrouble: the name could not be resolved. Our resolver may be what is broken, so nobody else is blamed.
    """
    if is_address(host):
        return (host,)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except TimeoutError:
        raise ProberTrouble(f"DNS: {host} was not resolved within {timeout:g} s") from None
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ProberTrouble(f"DNS: {host} could not be resolved ({reason})") from None
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))
