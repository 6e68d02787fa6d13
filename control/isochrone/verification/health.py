"""Does an origin answer what the edge asks of it? HTTPS to its own host, as the edge's fetch does it.

The edge fetches https://<origin.host><path>: TLS server name and Host are the origin's own host, not the public one.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from isochrone.model import Finding, Outcome, Severity
from isochrone.probing.prober import ProberTrouble, own_fault, resolve
from isochrone.verification.certificates import TrustStoreError

if TYPE_CHECKING:
    from isochrone.model import Origin
    from isochrone.settings import Verification

USER_AGENT = "isochrone-verify"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """What one request to an origin showed. Up means: outcome is ok."""

    origin: str  # its id
    outcome: Outcome
    status: int | None = None  # HTTP status, when there was an answer
    total_ms: float | None = None  # request to answer's header, with connecting
    detail: str = ""  # why it is not ok
    silent: bool = False  # nothing came back in time, in contrast to a wrong answer

    def findings(self) -> tuple[Finding, ...]:
        """None when the origin is up, else one that says why not."""
        if self.outcome is Outcome.OK:
            return ()
        ours = self.outcome is Outcome.PROBER_FAILED
        found = Finding(
            check="health.not_checked" if ours else "health.failed",
            subject=self.origin,
            severity=Severity.WARNING if ours else Severity.ERROR,
            evidence=self.detail,
            advice="look at this controller's own network"
            if ours
            else "look at the origin: the edge would fail to reach it too",
        )
        return (found,)


class HealthChecker:
    """Checks whether origins are up. Each check makes a connection of its own: kept ones would hide that none can be made.

    Raises TrustStoreError from its constructor when settings.trust_store can't be used.
    """

    def __init__(self, settings: Verification) -> None:
        self._settings = settings
        cafile = None if settings.trust_store is None else str(settings.trust_store)
        try:
            self._tls = ssl.create_default_context(cafile=cafile)
        except (OSError, ssl.SSLError):
            raise TrustStoreError(f"{cafile}: holds no certificates in PEM form") from None

    async def check(self, origin: Origin) -> HealthCheck:
        """One request, bounded by settings.timeout_seconds. Up: any status below 400. Never raises for the network."""
        loop = asyncio.get_running_loop()
        started, timeout = loop.time(), self._settings.timeout_seconds
        host = origin.host.rpartition(":")[0] or origin.host
        url = f"https://{origin.host}{self._settings.path}"
        try:
            async with asyncio.timeout(timeout):
                addresses = origin.addresses or await resolve(host, timeout=timeout)
                connector = aiohttp.TCPConnector(resolver=_Known(addresses), ssl=self._tls, force_close=True)
                async with (
                    aiohttp.ClientSession(connector=connector, headers={"User-Agent": USER_AGENT}) as session,
                    session.get(url, allow_redirects=False) as answer,
                ):
                    status, total_ms = answer.status, (loop.time() - started) * 1000
        except TimeoutError:
            return HealthCheck(
                origin=origin.id, outcome=Outcome.TARGET_FAILED, detail=f"no answer within {timeout:g} s",
                silent=True,
            )  # fmt: skip
        except ProberTrouble as trouble:
            return HealthCheck(origin=origin.id, outcome=Outcome.PROBER_FAILED, detail=str(trouble))
        except aiohttp.ClientConnectorCertificateError as error:
            return HealthCheck(
                origin=origin.id,
                outcome=Outcome.TARGET_FAILED,
                detail=f"certificate: {error.certificate_error}",
            )
        except aiohttp.ClientConnectorError as error:
            return _unconnected(origin.id, error.os_error)
        except (aiohttp.ClientError, OSError) as error:
            return HealthCheck(
                origin=origin.id, outcome=Outcome.TARGET_FAILED, detail=f"no valid answer: {error}"
            )
        up = status < 400
        return HealthCheck(
            origin=origin.id, outcome=Outcome.OK if up else Outcome.TARGET_FAILED, status=status, total_ms=total_ms,
            detail="" if up else f"status {status}",
        )  # fmt: skip


#: At a TCP connect these come from this host; EHOSTUNREACH may also come from a router near the origin.
_OWN = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENETUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL, errno.EPERM, errno.EACCES, errno.EAFNOSUPPORT}  # fmt: skip


def _unconnected(origin: str, error: OSError) -> HealthCheck:
    """Refusals and TLS failures are the origin's; want of a socket or a route is ours."""
    if error.errno in _OWN:
        return HealthCheck(origin=origin, outcome=Outcome.PROBER_FAILED, detail=own_fault(error))
    return HealthCheck(
        origin=origin, outcome=Outcome.TARGET_FAILED, detail=f"can't connect: {error.strerror or error}"
    )


class _Known(AbstractResolver):
    """Addresses that are known already, so that aiohttp asks no DNS of its own."""

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """All of them, whatever is asked for."""
        del family
        return [
            ResolveResult(
                hostname=host, host=address, port=port, family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0, flags=socket.AI_NUMERICHOST,
            )
            for address in self._addresses
        ]  # fmt: skip

    async def close(self) -> None:
        """Nothing is held."""
