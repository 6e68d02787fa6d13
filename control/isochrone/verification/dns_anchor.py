"""Trust anchors of DNSSEC, and what must be asked to get from them to a name. Pure but for reading a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dns.exception
import dns.name
import dns.rdataset
import dns.rdatatype
import dns.zonefile

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class TrustAnchorError(Exception):
    """The trust anchor can't be used; one sentence."""


def load_anchors(path: Path) -> dict[dns.name.Name, dns.rdataset.Rdataset]:
    """The trust anchors of a file: DS or DNSKEY records in zone file format, names absolute.

    Raises:
        TrustAnchorError: it can't be read, or holds none.
    """
    try:
        text = path.read_text(encoding="utf-8")
        rrsets = dns.zonefile.read_rrsets(text, rdtype=None, default_ttl=0, rdclass=None)
    except (OSError, UnicodeDecodeError) as error:
        raise TrustAnchorError(f"{path}: can't be read ({error})") from None
    except dns.exception.DNSException as error:
        raise TrustAnchorError(f"{path}: not in zone file format ({error})") from None
    anchors = {
        r.name: r.to_rdataset() for r in rrsets if r.rdtype in {dns.rdatatype.DS, dns.rdatatype.DNSKEY}
    }
    if not anchors:
        raise TrustAnchorError(f"{path}: holds no DS or DNSKEY record")
    return anchors


def ancestors(name: dns.name.Name) -> list[dns.name.Name]:
    """The name itself and all above it, the root last."""
    return [dns.name.Name(name.labels[start:]) for start in range(len(name.labels))]


def wanted(
    name: dns.name.Name, anchors: Iterable[dns.name.Name], signers: Iterable[dns.name.Name]
) -> list[tuple[dns.name.Name, str]]:
    """What must be asked to judge answers for `name`: keys and delegations from its nearest anchor down, or its signers' keys."""
    zones = ancestors(name)
    top = next((depth for depth, zone in enumerate(zones) if zone in set(anchors)), None)
    if top is None:
        return [(zone, "DNSKEY") for zone in set(signers)]
    asked = [(zone, rdtype) for zone in zones[:top] for rdtype in ("DNSKEY", "DS", "SOA")]
    return [*asked, (zones[top], "DNSKEY")]
