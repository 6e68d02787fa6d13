"""Addresses of one endpoint beside each other: is it a family that does not answer, one address, or all of them? Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isochrone.verification.http3_session import Trouble

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SILENT = frozenset({"unreachable", "port_closed", "udp_blocked"})


def by_family(troubles: Mapping[str, Sequence[Trouble]]) -> dict[str, list[Trouble]]:
    """Address -> its troubles, where silence is told as that of a family or of one address if others answer."""
    silent = {address for address, found in troubles.items() if _silent(found)}
    # What this host could not check says nothing about its family.
    answering = {a for a, found in troubles.items() if a not in silent and not _unknown(found)}
    result: dict[str, list[Trouble]] = {}
    for address, found in troubles.items():
        kind = ""
        if address in silent and any(_family(other) == _family(address) for other in answering):
            kind = "address_unreachable"
        elif address in silent and answering:
            kind = f"{_family(address)}_unreachable"
        result[address] = [
            Trouble(kind, trouble.evidence, trouble.details) if kind and trouble.kind in SILENT else trouble
            for trouble in found
        ]
    return result


def _family(address: str) -> str:
    return "ipv6" if ":" in address else "ipv4"


def _silent(found: Sequence[Trouble]) -> bool:
    return any(trouble.kind in SILENT for trouble in found)


def _unknown(found: Sequence[Trouble]) -> bool:
    return any(trouble.kind == "not_checked" for trouble in found)
