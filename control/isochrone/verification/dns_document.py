"""What a round of DNS checks tells, as one JSON document: `isochrone verify dns --json` and the daemon's `GET /resolution`. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from isochrone.verification.dns import DnsCheck
    from isochrone.verification.dns_plan import PlanEntry


def document(
    site: str, checks: Sequence[DnsCheck], now: float, *, offered: Mapping[str, bool] | None = None
) -> dict[str, Any]:
    """The document; `plan` has one entry for each regional name. Times are Unix seconds, `ttl` and `seconds` seconds.

    Args:
        site: the public host.
        checks: of the round.
        now: when it was made.
        offered: by id of the origin, whether its endpoint is offered at present; None where nobody knows.
    """
    return {
        "site": site,
        "checked_at": now,
        "checks": [
            {
                "origin": check.origin, "name": check.name, "outcome": check.outcome.value, "answers": check.answers,
                "seconds": round(check.seconds, 3),
            }
            for check in checks
        ],
        "findings": [asdict(finding) for check in checks for finding in check.findings],
        "plan": [_entry(check.plan, offered) for check in checks],
    }  # fmt: skip


def max_age(plan: Iterable[PlanEntry], now: float) -> int:
    """Seconds for which a cache may keep the document: until the first of its addresses is out of date; 0 when none is good."""
    left = [entry.valid_until - now for entry in plan if entry.proved]
    return max(0, int(min(left, default=0.0)))


def _entry(plan: PlanEntry, offered: Mapping[str, bool] | None) -> dict[str, Any]:
    return {
        "origin": plan.origin,
        "name": plan.name,
        "authority": plan.authority,
        "proved": plan.proved,
        "why": plan.why,
        "offered": offered.get(plan.origin) if offered is not None and plan.authority else None,
        "addresses": plan.addresses,
        "ipv4": [address for address in plan.addresses if ":" not in address],
        "ipv6": [address for address in plan.addresses if ":" in address],
        "ttl": plan.ttl,
        "checked_at": plan.checked_at,
        "valid_until": plan.valid_until,
        "https": [asdict(record) for record in plan.https],
    }
