"""What an agent is to measure: one document, named by its SHA-256, which is its ETag and stands in every batch."""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isochrone.checks import tell
from isochrone.model import Target
from isochrone.probing.prober import is_address
from isochrone.settings import ASN_MAX, Probing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_PLAN_BYTES = 64 << 20

#: What of `[probing]` is an agent's affair.
KEYS = (
    "methods", "interval_seconds", "timeout_seconds", "concurrency", "agent_rate", "agent_burst", "network_rate",
    "network_burst", "network_by", "target_rate", "target_burst", "never_probe", "lab",
)  # fmt: skip


class PlanError(Exception):
    """Not a plan that this version understands; one sentence."""


class _Entry(BaseModel):
    """A target. Without validators in Python: tens of thousands are read while probes are under way."""

    model_config = ConfigDict(extra="forbid", strict=True)

    address: str = Field(max_length=45)
    port: int = Field(ge=1, le=65_535)
    asn: int = Field(0, ge=0, le=ASN_MAX)
    country: str = Field("", pattern=r"^([A-Z]{2})?$")
    colo: str = Field("", pattern=r"^([A-Z]{3})?$")
    continent: str = Field("", pattern=r"^([A-Z]{2})?$")
    latitude: float | None = Field(None, ge=-90, le=90)
    longitude: float | None = Field(None, ge=-180, le=180)


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    isochrone: Literal[1]
    probing: Probing
    targets: tuple[_Entry, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan, read."""

    id: str  # SHA-256 of its document, 64 hex digits
    body: bytes  # the document, JSON
    probing: Probing
    targets: Mapping[tuple[str, int], Target]  # by address and port

    @property
    def planned(self) -> int:
        """Probes of one round."""
        return len(self.targets) * len(self.probing.methods)

    def packed(self) -> bytes:
        """The document in gzip."""
        return gzip.compress(self.body, 6, mtime=0)


def write(probing: Probing, targets: Sequence[Target]) -> Plan:
    """The plan for these targets."""
    document = {
        "isochrone": 1,
        "probing": probing.model_dump(mode="json", include=set(KEYS)),
        "targets": [_entry(target) for target in targets],
    }
    body = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    by_place = {(target.address, target.port): target for target in targets}
    return Plan(identify(body), body, probing, by_place)


def identify(body: bytes) -> str:
    """The id of the plan with this document."""
    return hashlib.sha256(body).hexdigest()


def read(body: bytes) -> Plan:
    """The plan in a document.

    Raises:
        PlanError: it is none, or of a newer version.
    """
    try:
        document = _Document.model_validate_json(body)
    except ValidationError as error:
        problems = tell(error, _Document)
        raise PlanError(f"not a plan that this version understands: {problems[0]}") from None
    for entry in document.targets:
        if not is_address(entry.address):
            raise PlanError(f"a target is {entry.address!r}, which is no IP address")
    targets = {
        (t.address, t.port): Target(
            t.address, t.port, t.asn, t.country, t.colo, t.continent, t.latitude, t.longitude
        )
        for t in document.targets
    }
    return Plan(identify(body), body, document.probing, targets)


def _entry(target: Target) -> dict[str, Any]:
    entry: dict[str, Any] = {"address": target.address, "port": target.port}
    for name in ("asn", "country", "colo", "continent", "latitude", "longitude"):
        value = getattr(target, name)
        if value not in {0, "", None} or (value == 0 and name in {"latitude", "longitude"}):
            entry[name] = value
    return entry
