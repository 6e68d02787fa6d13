"""`SmallInternet`: the lab, running. Origins, probe targets and the relays between them, all on loopback.

    async with SmallInternet(load_world().subset(origins=14, clients=24)) as net:
        endpoint = net.origins["aws-us-west-2"]   # where it is, see `OriginEndpoint`
        target = net.targets[43289]               # what agents probe, from `endpoint.agent_address`
        await net.kill_origin("aws-us-west-2")

Three processes are started (relays, targets, and the one that origins are forked from), and each origin is one more.
All of them end with the context, and with this process however it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from isochrone.lab.authority import Authority, Certificate
from isochrone.lab.endpoints import (
    ORIGIN_DOMAIN,
    PUBLIC_HOST,
    TARGET_DOMAIN,
    TARGETS_ADDRESS,
    LabError,
    OriginEndpoint,
    TargetEndpoint,
    origin_relay,
    relay_commands,
    reserve_port,
    target_relay,
)
from isochrone.lab.h3server import IDLE_S
from isochrone.lab.nursery import READY_S, Nursery
from isochrone.lab.process import LabProcessError, LineProcess, Message
from isochrone.lab.world import World, WorldOrigin, load_world

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

__all__ = [
    "PUBLIC_HOST",
    "LabError",
    "LabProcessError",
    "OriginEndpoint",
    "SmallInternet",
    "TargetEndpoint",
]


class SmallInternet:
    """Everything in a world, running while the context lasts.

    `directory` holds certificates and logs (None: a temporary one); `port` is used on every address (None: a free
    one); origins end idle HTTP/3 connections after `idle_s` seconds.
    Entering raises `LabError` or `LabProcessError`.
    """

    def __init__(
        self,
        world: World | None = None,
        *,
        public_host: str = PUBLIC_HOST,
        directory: Path | None = None,
        port: int | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        self.world = load_world() if world is None else world
        self.public_host = public_host
        self._wanted_port = port
        self._idle_s = idle_s
        self._stack = contextlib.ExitStack()
        self._directory = directory
        self._authority: Authority | None = None
        self._origins: dict[str, OriginEndpoint] = {}
        self._targets: dict[int, TargetEndpoint] = {}
        self._parts: tuple[LineProcess, ...] = ()

    @property
    def directory(self) -> Path:
        """Certificates (`ca.pem`, `<origin>.pem`, ...) and logs of the processes."""
        if self._directory is None:
            raise LabError("the small internet is not running")
        return self._directory

    @property
    def ca_pem(self) -> Path:
        """The certificate authority of this run."""
        return self.directory / "ca.pem"

    @property
    def authority(self) -> Authority:
        """Issues certificates of this run, for instance bad ones for `restart_origin`."""
        if self._authority is None:
            raise LabError("the small internet is not running")
        return self._authority

    @property
    def origins(self) -> Mapping[str, OriginEndpoint]:
        """All origins by id, in the world's order, the dead ones too."""
        return self._origins

    @property
    def targets(self) -> Mapping[int, TargetEndpoint]:
        """All probe targets by ASN, in the world's order."""
        return self._targets

    @property
    def hosts(self) -> dict[str, str]:
        """Regional host names and their addresses: what DNS would say."""
        return {origin.host: origin.https[0] for origin in self._origins.values()}

    def alive(self, origin: str) -> bool:
        """Whether the origin's process lives; raises `KeyError` for an unknown id."""
        return self._origins[origin].id in self._nursery.pids

    def pid(self, origin: str) -> int:
        """The process id of a living origin; raises `KeyError`."""
        return self._nursery.pids[origin]

    def pids(self) -> dict[str, int]:
        """All living processes by name: `relays`, `targets`, `nursery`, and each origin's id."""
        return {part.name: part.pid for part in self._parts if part.alive} | self._nursery.pids

    async def __aenter__(self) -> Self:
        if self._directory is None:
            self._directory = Path(
                self._stack.enter_context(tempfile.TemporaryDirectory(prefix="isochrone-lab-"))
            )
        self._directory.mkdir(parents=True, exist_ok=True)
        log = self._directory
        self._relays = LineProcess("relays", "isochrone.lab.relay_main", log=log / "relays.log")
        self._target_server = LineProcess("targets", "isochrone.lab.targets_main", log=log / "targets.log")
        asns = {client.address: client.asn for client in self.world.clients}
        self._nursery = Nursery(log / "origins.log", asns, idle_s=self._idle_s)
        self._parts = (self._nursery.process, self._target_server, self._relays)
        try:
            await self._begin()
        except ExceptionGroup as group:
            await self._end()
            raise group.exceptions[0] from group
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def kill_origin(self, origin: str) -> None:
        """SIGKILL: both of its servers are gone when this returns. Raises `KeyError`, `LabError`."""
        await self._nursery.signal(self._origins[origin].id, "KILL")

    async def freeze_origin(self, origin: str) -> None:
        """SIGSTOP: connections are still accepted by the kernel, nothing answers. Raises `KeyError`, `LabError`."""
        await self._nursery.signal(self._origins[origin].id, "STOP")

    async def thaw_origin(self, origin: str) -> None:
        """SIGCONT: ends `freeze_origin`. Raises `KeyError`, `LabError`."""
        await self._nursery.signal(self._origins[origin].id, "CONT")

    async def restart_origin(self, origin: str, *, certificate: Certificate | None = None) -> None:
        """Brings a killed origin back at the same addresses, with another certificate if given.

        Raises `KeyError`, `LabError`.
        """
        if self.alive(origin):
            raise LabError(f"origin {origin} is alive")
        if certificate is not None:
            self._origins[origin] = replace(self._origins[origin], certificate=certificate)
        await self._nursery.start_origin(self._origins[origin])

    async def set_path(
        self, asn: int, origin: str, *, rtt_ms: float | None = None, loss: float | None = None
    ) -> None:
        """Changes a path, for probes and for clients: round trip in ms, loss as probability per datagram.

        Raises `KeyError` for an unknown end, `LabProcessError` for an impossible value.
        """
        client, region = self.world.client(asn), self.world.origin(origin)
        change = {"op": "path", "rtt_ms": rtt_ms, "loss": loss}
        await self._relays.ask({**change, "name": target_relay(asn), "source": region.agent_address})
        await self._relays.ask({**change, "name": origin_relay(origin), "source": client.address})

    async def set_http3_loss(self, origin: str, loss: float) -> None:
        """Loses HTTP/3 datagrams between this origin and everybody (1.0: UDP is blocked); HTTPS goes on.

        Raises `KeyError` for an unknown id, `LabProcessError` for an impossible value.
        """
        name = origin_relay(self._origins[origin].id)
        await self._relays.ask({"op": "path", "name": name, "source": None, "loss": loss})

    async def relay_stats(self) -> Message:
        """Counts of the relays, see `Relays.stats`."""
        return await self._relays.ask({"op": "stats"})

    async def _begin(self) -> None:
        await asyncio.gather(*(part.start() for part in self._parts))
        world = self.world
        holder = reserve_port(world, self._wanted_port)
        self._stack.callback(holder.close)
        port = holder.getsockname()[1]
        # While the processes import their modules:
        authority = self._authority = Authority(self.directory)
        for origin in world.origins:
            self._origins[origin.id] = self._endpoint(origin, authority, port)
        certificate = authority.issue(
            "targets", TARGET_DOMAIN, f"*.{TARGET_DOMAIN}", *(client.address for client in world.clients)
        )
        for client in world.clients:
            self._targets[client.asn] = TargetEndpoint(
                client.asn, (client.address, port), f"as{client.asn}.{TARGET_DOMAIN}"
            )
        server = {"chain": str(certificate.chain), "key": str(certificate.key)}
        async with asyncio.TaskGroup() as group:
            group.create_task(self._begin_relays(port))
            group.create_task(
                self._target_server.ask({"address": [TARGETS_ADDRESS, port], **server}, timeout=READY_S)
            )
            for origin in world.origins:
                group.create_task(self._nursery.start_origin(self._origins[origin.id]))

    def _endpoint(self, origin: WorldOrigin, authority: Authority, port: int) -> OriginEndpoint:
        host = f"{origin.id}.{ORIGIN_DOMAIN}"
        return OriginEndpoint(
            id=origin.id,
            host=host,
            https=(origin.service_address, port),
            http3=(origin.service_address, port),
            http3_direct=(origin.direct_address, port),
            agent_address=origin.agent_address,
            certificate=authority.issue(origin.id, self.public_host, host),
        )

    async def _begin_relays(self, port: int) -> None:
        for command in relay_commands(self.world, port):
            await self._relays.ask(command, timeout=READY_S)

    async def _end(self) -> None:
        await asyncio.gather(*(part.close() for part in self._parts))
        self._stack.close()
