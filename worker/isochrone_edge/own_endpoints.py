"""`/.isochrone/status` and `/.isochrone/decision`: closed without the secret, 404 to everyone else. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import Any
from urllib.parse import parse_qsl

from .colour import facts_of
from .isolate import Isolate

OWN = "/.isochrone/"
TYPES = {200: "application/json", 404: "text/plain;charset=UTF-8", 405: "text/plain;charset=UTF-8"}
METHODS = ("GET", "HEAD")
_NOT_FOUND = 404, "Not Found"
_NOT_ALLOWED = 405, "Method Not Allowed"
_FACTS = {"asn", "country", "colo", "continent", "latitude", "longitude"}


def answer(
    isolate: Isolate,
    path: str,
    query: str,
    headers: Mapping[str, str],
    now: float,
    client: str = "[]",
    method: str = "GET",
) -> tuple[int, str]:
    """Status and body. `headers` are those of who asks, and `client` its facts, as a JSON list in the order of `Facts`."""
    if not opens(isolate.variables.secret, headers.get("authorization", "")):
        return _NOT_FOUND
    name = path.removeprefix(OWN)
    if name in ("status", "decision") and method not in METHODS:
        return _NOT_ALLOWED
    if name == "status":
        return 200, json.dumps(status(isolate, now))
    if name == "decision":
        return 200, json.dumps(decision(isolate, query, now, client, headers))
    return _NOT_FOUND


def opens(secret: str, authorization: str) -> bool:
    """Whether the Authorization field brings the secret. Digests are compared: neither length nor content shows in time."""
    scheme, _, token = authorization.partition(" ")
    given = sha256(token.encode("utf-8", "replace")).digest()
    wanted = sha256(secret.encode("utf-8", "replace")).digest()
    return compare_digest(given, wanted) and bool(secret) and scheme.lower() == "bearer"


def decision(
    isolate: Isolate, query: str, now: float, client: str = "[]", headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Which origins a client with these facts would get, and why. `session` and `canary=1` may be given too.

    Without any fact it is who asks: then the answer is what a request of this very client gets, by its session and its
    share in the canary, as long as none of the origins is ejected.
    """
    asked = dict(parse_qsl(query))
    asn, asker = asked.get("asn", ""), _FACTS.isdisjoint(asked)
    if asker:
        facts = facts_of(*json.loads(client)[:6])
    else:
        facts = facts_of(
            int(asn) if asn.isascii() and asn.isdigit() and len(asn) < 11 else None,
            asked.get("country"), asked.get("colo"), asked.get("continent"), asked.get("latitude"), asked.get("longitude"),
        )  # fmt: skip
    steering = isolate.steering
    if asked.get("canary") == "1":
        steering = isolate.canary or steering
    elif asker and "canary" not in asked:
        steering = isolate.steering_for(headers or {})
    plan = steering.plan(facts)
    if "session" in asked or asker:
        plan = plan.for_session(asked["session"] if "session" in asked else isolate.session(headers or {}))
    live = steering.map
    rtt_ms = {c.origin: c.rtt_ms for c in live.candidates(plan.colour)} if live is not None else {}
    return {
        "map": plan.version,
        "canary": steering is not isolate.steering,
        "colour": plan.colour,
        "reason": plan.reason,
        "band": plan.band,
        "candidates": [
            {
                "origin": o.id,
                "host": o.host,
                "state": o.state,
                "alt_svc": steering.promise(o, now),
                "weight": o.weight,
                "rtt_ms": rtt_ms.get(o.id),
            }
            for o in plan.origins
        ],
    }


def status(isolate: Isolate, now: float) -> dict[str, Any]:
    """What this isolate knows. Every isolate has its own."""
    live, snapshot, canary = isolate.steering.map, isolate.snapshot, isolate.canary
    return {
        "map": live.version if live else None,
        "age_s": round(now - live.built_at, 1) if live else None,
        "loaded_s_ago": round(now - snapshot.loaded_at, 1) if live else None,
        "looked_s_ago": round(now - snapshot.looked_at, 1) if live else None,
        "cells": live.cells if live else 0,
        "colours": live.colours if live else 0,
        "canary": {"map": canary.version, "share": snapshot.canary_share} if canary else None,
        "problem": isolate.problem(),
        "variables": list(isolate.variables.problems),
        "snapshot": snapshot.counters,
        "requests": isolate.counters,
        "ejected": isolate.breaker.ejected(now),
    }
