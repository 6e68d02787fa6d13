"""What single servers do, or do not: pure checks of how they answered, whatever they said."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import TYPE_CHECKING

from isochrone.nameserver import NameServer, Transport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isochrone.model import Finding
    from isochrone.verification.dns_answer import Answer
    from isochrone.verification.dns_promise import Bounds, Promise

_UNHEARD = frozenset({"silent", "unreachable", "mismatch"})  # by UDP: then TCP says nothing new
_NAMED = 3  # questions named as evidence


def server_findings(promise: Promise, answers: Sequence[Answer], bounds: Bounds) -> list[Finding]:
    """What is wrong with single servers: one finding for each server and kind."""
    grouped: dict[tuple[NameServer, str], list[Answer]] = defaultdict(list)
    times: dict[NameServer, list[float]] = defaultdict(list)
    for answer in answers:
        if answer.trouble:
            grouped[answer.server, answer.trouble].append(answer)
        elif answer.rtt_ms is not None:
            times[answer.server].append(answer.rtt_ms)
    findings = []
    heard = {server for server in times if server.transport is Transport.UDP}
    for (server, kind), failed in grouped.items():
        only_tcp_fails = server.authoritative and server.plain and server.transport is Transport.TCP
        if only_tcp_fails and kind in _UNHEARD | {"silent"}:
            twin = server.by(Transport.UDP)
            if twin in heard:
                findings.append(promise.found("no_tcp", failed[0].detail, server))
            elif (twin, "truncated") not in grouped and not any((twin, k) in grouped for k in _UNHEARD):
                findings.append(promise.found(kind, failed[0].detail, server))
            continue
        asked = list(dict.fromkeys(str(answer.question) for answer in failed))
        names = ", ".join(asked[:_NAMED]) + (", ..." if len(asked) > _NAMED else "")
        findings.append(promise.found(kind, f"{names}: {failed[0].detail}", server))
    for server, rtts in times.items():
        median = statistics.median(rtts)
        if median > bounds.slow_ms:
            findings.append(
                promise.found(
                    "slow",
                    f"median {median:.0f} ms of {len(rtts)} answers, above {bounds.slow_ms:g} ms",
                    server,
                )
            )
    return findings
