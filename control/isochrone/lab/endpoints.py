"""Where the parts of a running lab are found, and the port they share."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from isochrone.lab.authority import Certificate
    from isochrone.lab.relay_flow import Address
    from isochrone.lab.world import World

PUBLIC_HOST = "www.isochrone.test"
ORIGIN_DOMAIN = "origins.isochrone.test"
TARGET_DOMAIN = "targets.isochrone.test"
TARGETS_ADDRESS = "127.5.0.1"  # the real server behind the relays of all targets
PORTS = range(20_000, 32_000)  # below Linux's ephemeral ports: nobody is given one of these by chance
TRIES = 200


class LabError(Exception):
    """The small internet cannot run, or not do what was asked."""


@dataclass(frozen=True, slots=True)
class OriginEndpoint:
    """Where one origin is found."""

    id: str
    host: str  # its regional host name
    https: Address  # HTTP/1.1 over TLS, TCP, no delay
    http3: Address  # HTTP/3 behind the relay: as far away as it is in the world
    http3_direct: Address  # HTTP/3 without delay
    agent_address: str  # what its agent binds to
    certificate: Certificate  # valid for the public host and the regional host

    @property
    def authority(self) -> str:
        """`host:port`, for Alt-Svc and for https URLs: TCP and UDP have the same port."""
        return f"{self.host}:{self.https[1]}"


@dataclass(frozen=True, slots=True)
class TargetEndpoint:
    """What agents probe inside one network; the certificate is valid for the address and for `host`."""

    asn: int
    address: Address  # QUIC, ALPN h3, behind the relay
    host: str


def _free(candidate: int, kind: socket.SocketKind, hosts: Iterable[str]) -> bool:
    for host in hosts:
        with socket.socket(socket.AF_INET, kind) as sock:
            if kind == socket.SOCK_STREAM:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
            try:
                sock.bind((host, candidate))
            except OSError:
                return False
    return True


def reserve_port(world: World, port: int | None) -> socket.socket:
    """Finds a port that is free on every address of the world (`port` None: any); raises `LabError`.

    The socket returned is bound to it and keeps other labs off: close it at the end.
    """
    services = [origin.service_address for origin in world.origins]
    relayed = [*services, *(o.direct_address for o in world.origins), *(c.address for c in world.clients)]
    for candidate in random.sample(PORTS, TRIES) if port is None else [port]:
        holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            holder.bind((TARGETS_ADDRESS, candidate))
        except OSError:
            holder.close()
            continue
        if _free(candidate, socket.SOCK_STREAM, services) and _free(candidate, socket.SOCK_DGRAM, relayed):
            return holder
        holder.close()
    raise LabError(
        f"found no port that is free on all {len(relayed)} addresses in {TRIES} tries"
        if port is None
        else f"port {port} is taken on one of the lab's addresses; leave it out to have a free one chosen"
    )


def relay_commands(world: World, port: int) -> Iterator[dict[str, Any]]:
    """What the relays' process must be told: one relay for each target, one for each origin's HTTP/3 endpoint."""
    for client in world.clients:
        yield {
            "op": "listen",
            "name": target_relay(client.asn),
            "address": [client.address, port],
            "server": [TARGETS_ADDRESS, port],
            "rtt_ms": {o.agent_address: world.true_rtt(client.asn, o.id) for o in world.origins},
        }
    for origin in world.origins:
        yield {
            "op": "listen",
            "name": origin_relay(origin.id),
            "address": [origin.service_address, port],
            "server": [origin.direct_address, port],
            "rtt_ms": {c.address: world.true_rtt(c.asn, origin.id) for c in world.clients},
        }


def target_relay(asn: int) -> str:
    """The name of the relay before the target of a network."""
    return f"target {asn}"


def origin_relay(origin: str) -> str:
    """The name of the relay before an origin's HTTP/3 endpoint."""
    return f"origin {origin}"
