"""What an agent is to measure: one document, named by its SHA-256, which is its ETag and stands in every batch."""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from isochrone.checks import tell
from isochrone.model import Target
from isochrone.settings import Probing, TargetSettings  # noqa: TC001  pydantic reads them at run time

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


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    isochrone: Literal[1]
    probing: Probing
    targets: tuple[TargetSettings, ...]


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
    targets = {
        (t.address, t.port): Target(
            t.address, t.port, t.asn or 0, t.country, t.colo, t.continent, t.latitude, t.longitude
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
