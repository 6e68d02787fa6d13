"""The log: one JSON line for each failure, each slow request, and a share of the others. Pure."""

from __future__ import annotations

import json


def line(
    event: str,
    *,
    reason: str,
    trace_id: str,
    method: str,
    path: str,
    status: int,
    colour: int,
    map_version: str,
    origin: str,
    tries: int,
    edge_ms: float,
    origin_ms: float,
    asn: int | None = None,
    country: str | None = None,
    colo: str | None = None,
) -> str:
    """One line. `event` is failure, failover, slow, sampled or cut; the query is left out: it may hold secrets."""
    return json.dumps(
        {
            "event": event,
            "reason": reason,
            "trace_id": trace_id,
            "method": method,
            "path": path.partition("?")[0][:256],
            "status": status,
            "colour": colour,
            "map": map_version,
            "origin": origin,
            "tries": tries,
            "edge_ms": round(edge_ms, 1),
            "origin_ms": round(origin_ms, 1),
            "asn": asn,
            "country": country,
            "colo": colo,
        },
        separators=(",", ":"),
    )
