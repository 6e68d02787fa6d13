"""The nouns of the control plane: plain frozen values, no I/O, no clock.

Times are Unix seconds (float), round-trip times are milliseconds (float) unless a name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

#: how a round-trip time is measured; `isochrone.probing.methods` makes the prober
Method = Literal["icmp", "tcp", "quic", "quic-vn", "http", "h1", "h2", "h3"]


class Outcome(StrEnum):
    """What became of one probe. Only the first two say anything about the network."""

    OK = "ok"
    TARGET_FAILED = "target_failed"
    PROBER_FAILED = "prober_failed"  # DNS, no route, no socket, late scheduler: never demotes an origin


class Level(StrEnum):
    """Kinds of cell, finest first; the values are those of `map lookup --json`."""

    ASN_COUNTRY = "asn_country"
    ASN = "asn"
    COUNTRY_GRID = "country_grid"
    GRID = "grid"
    COLO = "colo"
    COUNTRY = "country"
    CONTINENT = "continent"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class AltSvcEndpoint:
    """A regional HTTP/3 authority that clients may be pinned to (RFC 7838 section 3)."""

    authority: str  # host:port
    max_age: int  # seconds a client may keep to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """One regional deployment of the service."""

    id: str
    host: str  # host or host:port; the edge forwards to https://host
    latitude: float
    longitude: float
    weight: float = 1.0
    alt_svc: AltSvcEndpoint | None = None
    addresses: tuple[str, ...] = ()  # where host answers; empty: resolve it
    source_address: str | None = None  # what its agent binds to; empty: the system's choice
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """An address inside an ASN that answers probes."""

    address: str
    port: int
    asn: int
    country: str = ""  # ISO 3166 alpha-2, empty when unknown
    colo: str = ""  # IATA code of the colo that serves these clients
    continent: str = ""
    latitude: float | None = None
    longitude: float | None = None


TargetKey: TypeAlias = tuple[str, int]  # address and port


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """What is known of a target; see `isochrone.probing.selection`."""

    active: bool = False  # probed in every round
    answered: bool = False  # it has answered at least once
    good: int = 0  # rounds in a row in which it answered, up to a bound
    silent: int = 0  # rounds in a row in which it did not, up to a bound
    falls: int = 0  # times given up or tried in vain, since that was forgiven
    retry_at: float = 0.0  # Unix time of the next trial of one that is given up; else 0

    @property
    def given_up(self) -> bool:
        """Whether it is only tried now and then."""
        return self.retry_at > 0.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured round-trip time."""

    timestamp: float
    origin: str
    asn: int
    country: str
    rtt_ms: float | None  # None unless outcome is ok
    method: str = ""
    outcome: Outcome = Outcome.OK
    colo: str = ""
    continent: str = ""
    latitude: float | None = None
    longitude: float | None = None


class Severity(StrEnum):
    """How bad a finding is: an error withdraws a promise, a warning will become one, info only tells."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing verification saw."""

    check: str  # stable id, e.g. "http3.certificate_name"
    subject: str  # what it is about, e.g. "fra-1 203.0.113.7:443"
    severity: Severity
    evidence: str
    advice: str
    source: str = ""  # e.g. "RFC 9114 section 3.3"
    details: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a row of checks has earned: whether something may be offered now, and the rows that decide on it next."""

    offered: bool = False
    proved: bool = False  # it has passed a check at least once
    good: int = 0  # good checks in a row, up to now
    failed: int = 0  # failed checks in a row, up to now
    changed_at: float = 0.0  # Unix time at which `offered` last changed; 0 when it never did
    checked_at: float = 0.0  # Unix time of the last check that said anything
