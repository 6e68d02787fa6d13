"""The world that the lab replays: origins, client networks and the real round-trip times between them.

Every party has loopback addresses of its own, so that a packet's source address tells whose it is:

| address      | who                                                            |
|--------------|----------------------------------------------------------------|
| 127.1.<o>.1  | the agent in the region of origin `o`: probes come from here   |
| 127.2.<a>.1  | client network `a`: its probe target answers here, its clients come from here |
| 127.3.<o>.1  | origin `o` as the world sees it: HTTPS (TCP), and HTTP/3 behind the delay |
| 127.4.<o>.1  | origin `o` without any delay (HTTP/3 only)                     |

`o` and `a` are the index of the party, counted from 1.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


class WorldError(ValueError):
    """The world's file says something that cannot be."""


@dataclass(frozen=True, slots=True)
class WorldOrigin:
    """One region that serves; latitude and longitude in degrees."""

    id: str
    city: str
    country: str  # ISO 3166 alpha-2
    latitude: float
    longitude: float
    index: int  # 1..254, the number inside its addresses

    @property
    def agent_address(self) -> str:
        """Where its agent's probes come from."""
        return f"127.1.{self.index}.1"

    @property
    def service_address(self) -> str:
        """Where clients and the edge find it."""
        return f"127.3.{self.index}.1"

    @property
    def direct_address(self) -> str:
        """Where its HTTP/3 server answers without delay."""
        return f"127.4.{self.index}.1"


@dataclass(frozen=True, slots=True)
class WorldClient:
    """One network whose users ask; latitude and longitude in degrees."""

    asn: int
    city: str
    country: str  # ISO 3166 alpha-2
    continent: str  # AF, AS, EU, NA, OC, SA
    colo: str  # IATA code of the nearest Cloudflare colo
    latitude: float
    longitude: float
    index: int  # 1..254, the number inside its address

    @property
    def address(self) -> str:
        """Where its probe target answers and where its clients come from."""
        return f"127.2.{self.index}.1"


@dataclass(frozen=True)
class World:
    """Who is there and how far apart: `rtt_ms[client][origin]`, in the order of `clients` and `origins`."""

    origins: tuple[WorldOrigin, ...]
    clients: tuple[WorldClient, ...]
    rtt_ms: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        """Raises `WorldError` when the parts do not fit together."""
        if not self.origins or not self.clients:
            raise WorldError("a world needs at least one origin and one client network")
        if len(self._origin_at) != len(self.origins):
            raise WorldError("two origins have one id")
        if len(self._client_at) != len(self.clients):
            raise WorldError("two client networks have one ASN")
        if len(self.rtt_ms) != len(self.clients) or any(len(r) != len(self.origins) for r in self.rtt_ms):
            raise WorldError("every client network needs one round-trip time to every origin")
        if not all(0 < rtt < 10_000 for row in self.rtt_ms for rtt in row):
            raise WorldError("round-trip times must lie between 0 and 10000 ms")
        for kind, parties in (("origin", self.origins), ("client network", self.clients)):
            indexes = {party.index for party in parties}
            if len(indexes) != len(parties) or min(indexes) < 1 or max(indexes) > 254:
                raise WorldError(f"each {kind} needs an index of its own between 1 and 254")

    @cached_property
    def _origin_at(self) -> dict[str, int]:
        return {origin.id: at for at, origin in enumerate(self.origins)}

    @cached_property
    def _client_at(self) -> dict[int, int]:
        return {client.asn: at for at, client in enumerate(self.clients)}

    def origin(self, origin: str) -> WorldOrigin:
        """The origin with this id; raises `KeyError`."""
        return self.origins[self._origin_at[origin]]

    def client(self, asn: int) -> WorldClient:
        """The client network with this ASN; raises `KeyError`."""
        return self.clients[self._client_at[asn]]

    def true_rtt(self, asn: int, origin: str) -> float:
        """The replayed round-trip time in ms; raises `KeyError`."""
        return self.rtt_ms[self._client_at[asn]][self._origin_at[origin]]

    def ranking(self, asn: int) -> tuple[str, ...]:
        """Ids of all origins, nearest in time first; raises `KeyError`."""
        row = self.rtt_ms[self._client_at[asn]]
        return tuple(o.id for _, o in sorted(zip(row, self.origins, strict=True), key=lambda pair: pair[0]))

    def best(self, asn: int) -> str:
        """The id of the origin nearest in time; raises `KeyError`."""
        return self.ranking(asn)[0]

    def regret(self, asn: int, origin: str) -> float:
        """How many ms farther than the best this origin is; raises `KeyError`."""
        return self.true_rtt(asn, origin) - min(self.rtt_ms[self._client_at[asn]])

    def subset(self, *, origins: int | None = None, clients: int | None = None) -> World:
        """The world of the first so many origins and client networks (None: all); addresses stay the same.

        The file is ordered so that every prefix is spread over the globe. Raises `WorldError` for a count
        that the world cannot give.
        """
        wanted_origins = len(self.origins) if origins is None else origins
        wanted_clients = len(self.clients) if clients is None else clients
        for wanted, there, what in (
            (wanted_origins, len(self.origins), "origins"),
            (wanted_clients, len(self.clients), "client networks"),
        ):
            if not 1 <= wanted <= there:
                raise WorldError(f"{wanted} {what} asked for, the world has 1 to {there}")
        return World(
            origins=self.origins[:wanted_origins],
            clients=self.clients[:wanted_clients],
            rtt_ms=tuple(row[:wanted_origins] for row in self.rtt_ms[:wanted_clients]),
        )


def parse_world(text: str) -> World:
    """A world from the text of its JSON file; raises `WorldError`."""
    try:
        document: dict[str, Any] = json.loads(text)
        origins = tuple(
            WorldOrigin(
                id=str(row["id"]),
                city=str(row["city"]),
                country=str(row["country"]),
                latitude=float(row["latitude"]),
                longitude=float(row["longitude"]),
                index=at,
            )
            for at, row in enumerate(document["origins"], 1)
        )
        clients = tuple(
            WorldClient(
                asn=int(row["asn"]),
                city=str(row["city"]),
                country=str(row["country"]),
                continent=str(row["continent"]),
                colo=str(row["colo"]),
                latitude=float(row["latitude"]),
                longitude=float(row["longitude"]),
                index=at,
            )
            for at, row in enumerate(document["clients"], 1)
        )
        rtt_ms = tuple(tuple(float(rtt) for rtt in row["rtt_ms"]) for row in document["clients"])
    except WorldError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise WorldError(f"the world's file is damaged: {error!r}") from error
    return World(origins=origins, clients=clients, rtt_ms=rtt_ms)


def load_world(path: Path | None = None) -> World:
    """The world of January 2023 that comes with the package, or one from another file; raises `WorldError`."""
    source = files("isochrone.lab") / "data" / "mesh_2023.json" if path is None else path
    return parse_world(source.read_text(encoding="utf-8"))
