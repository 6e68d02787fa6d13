"""One small protocol behind which every method of measuring stands."""

from __future__ import annotations

import asyncio
import errno
import socket
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isochrone.model import Outcome, Target

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """What one probe saw. Times are milliseconds."""

    outcome: Outcome
    rtt_ms: float | None = None  # None unless outcome is ok
    phases: Mapping[str, float] = field(default_factory=dict)  # name -> ms, in the order in which they ended
    detail: str = ""  # why it is not ok, in words
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


class ProberTrouble(Exception):
    """This host could not probe: nothing was learnt about the target."""


def own_fault(error: OSError) -> str:
    """Why this host could not probe, in words."""
    return _OWN_FAULTS.get(error.errno or 0) or f"this host could not send ({error.strerror or error})"


def is_address(text: str) -> bool:
    """Whether it is an IP address already."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


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
