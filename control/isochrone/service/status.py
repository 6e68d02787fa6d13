"""What `/status` tells, as one JSON document."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from isochrone.model import Standing
from isochrone.service.verifying import DNS, HEALTH

if TYPE_CHECKING:
    from isochrone.model import Origin
    from isochrone.service.daemon import Daemon
    from isochrone_edge.latency_map import LatencyMap


def document(daemon: Daemon, window_counts: dict[str, int], open_findings: dict[str, int]) -> dict[str, Any]:
    """The document; times are Unix seconds, ages seconds."""
    now = daemon.clock()
    tally = daemon.measuring.tally
    chosen = daemon.choosing.document(now)
    return {
        "isochrone": version("isochrone"),
        "site": daemon.settings.site,
        "pid": daemon.pid,
        "now": round(now, 3),
        "started_at": round(daemon.started_at, 3),
        "uptime_seconds": round(now - daemon.started_at, 3),
        "healthy": not daemon.stale(),
        "problem": daemon.stale(),
        "map": _map(daemon.publisher.live, now),
        "built": None
        if daemon.maps.built is None
        else _map(daemon.maps.built.map, now) | {"samples": daemon.maps.built.samples},
        "kv": daemon.publisher.state.document(),
        "findings": {"open": sum(open_findings.values()), **open_findings},  # the history is under /findings
        "edge": daemon.edge.document() if daemon.edge is not None else None,
        "origins": [_origin(daemon, origin) for origin in daemon.origins],
        "samples": {
            "stored": sum(window_counts.values()),  # within the window
            "window": {"total": sum(window_counts.values()), **window_counts},
            "since_start": {"total": tally.outcomes.total(), **tally.outcomes},
            "missed": tally.missed,
            "last_round": tally.last_round,
            "reasons": dict(tally.reasons.most_common(20)),
        },
        "agents": daemon.agents.document(now),
        "targets": chosen["listed"],
        "asns": chosen["asns"],
        "selection": chosen,
        "jobs": {name: record.document(now) for name, record in sorted(daemon.jobs.records.items())},
        "doubted": dict(daemon.verifying.doubted),  # rounds whose silence was taken for our own fault
        "counters": {
            "rounds": tally.rounds,
            "builds": daemon.maps.builds,
            "publishes": daemon.publisher.state.publishes,
        },
    }


def _map(live: LatencyMap | None, now: float) -> dict[str, Any]:
    if live is None:
        return {"version": None}
    return {
        "version": live.version,
        "built_at": live.built_at,
        "age_seconds": round(now - live.built_at, 3),
        "bytes": live.size,
        "cells": live.cells,
        "colours": live.colours,
        "content": live.content,
        "alt_svc": [origin["id"] for origin in live.origins if isinstance(origin.get("alt_svc"), dict)],
    }


def _origin(daemon: Daemon, origin: Origin) -> dict[str, Any]:
    verifying = daemon.verifying
    told: dict[str, Any] = {
        "id": origin.id,
        "host": origin.host,
        "state": verifying.state(origin),
        "health": _standing(daemon, origin, HEALTH),
        "dns": None if verifying.names is None else _standing(daemon, origin, DNS),
        "endpoint": None,
    }
    if origin.alt_svc is not None:
        authority = origin.alt_svc.authority
        standing = _standing(daemon, origin, authority)
        told["endpoint"] = {"authority": authority, **standing, "offered": verifying.offered(origin)}
    return told


def _standing(daemon: Daemon, origin: Origin, endpoint: str) -> dict[str, Any]:
    standing = daemon.verifying.standings.get((origin.id, endpoint), Standing())
    findings = daemon.verifying.findings.get((origin.id, endpoint), ())
    return {
        "offered": standing.offered,
        "proved": standing.proved,
        "good": standing.good,
        "failed": standing.failed,
        "changed_at": standing.changed_at,
        "checked_at": standing.checked_at,
        "findings": [
            {"check": f.check, "severity": f.severity.value, "evidence": f.evidence, "advice": f.advice}
            for f in findings
        ],
    }
