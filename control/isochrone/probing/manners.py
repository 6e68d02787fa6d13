"""Which addresses may be probed: never those that somebody asked us to leave alone, and no special-purpose ones outside a lab.

The tables are the IANA special-purpose registries (RFC 6890) and multicast, written out: what Python's `ipaddress` counts as
private has changed between versions.
"""

from __future__ import annotations

from bisect import bisect_right
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from ipaddress import IPv4Network

_KINDS_4 = {
    "0.0.0.0/8": "this network", "10.0.0.0/8": "private", "100.64.0.0/10": "shared by a carrier's NAT",
    "127.0.0.0/8": "loopback", "169.254.0.0/16": "link-local", "172.16.0.0/12": "private",
    "192.0.0.0/24": "reserved for protocols", "192.0.2.0/24": "documentation", "192.88.99.0/24": "6to4 relays",
    "192.168.0.0/16": "private", "198.18.0.0/15": "benchmarking", "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation", "224.0.0.0/4": "multicast", "240.0.0.0/4": "reserved",
}  # fmt: skip
_KINDS_6 = {
    "::/128": "unspecified", "::1/128": "loopback", "::ffff:0:0/96": "an IPv4 address in disguise",
    "64:ff9b:1::/48": "local translation", "100::/64": "discard-only", "2001::/23": "reserved for protocols",
    "2001:db8::/32": "documentation", "2002::/16": "6to4", "3fff::/20": "documentation", "5f00::/16": "segment routing",
    "fc00::/7": "private", "fe80::/10": "link-local", "ff00::/8": "multicast",
}  # fmt: skip
#: version -> (first address, last address, kind), in order; none overlap
_RANGES = {
    version: sorted(
        (int(network.network_address), int(network.broadcast_address), kind)
        for network, kind in ((ip_network(text), kind) for text, kind in kinds.items())
    )
    for version, kinds in ((4, _KINDS_4), (6, _KINDS_6))
}
_FIRSTS = {version: [first for first, _, _ in ranges] for version, ranges in _RANGES.items()}
_NAT64 = IPv6Network("64:ff9b::/96")  # RFC 6052: the IPv4 address stands in the last four bytes
_GLOBAL_6 = IPv6Network("2000::/3")


class Manners:
    """`never_probe`: CIDRs that are left alone, in a lab too. `lab`: special-purpose addresses may be probed."""

    def __init__(self, never_probe: Iterable[str] = (), *, lab: bool = False) -> None:
        self._lab = lab
        self._never: dict[int, dict[int, set[int]]] = {4: {}, 6: {}}  # version -> prefix length -> networks
        for text in never_probe:
            network = ip_network(text, strict=False)
            by_length = self._never[network.version].setdefault(network.prefixlen, set())
            by_length.add(int(network.network_address))

    def refusal(self, address: str) -> str | None:
        """Why it may not be probed, in words; None when it may."""
        try:
            parsed = ip_address(address)
        except ValueError:
            return f"not probed: {address} is not an IP address"
        meant = _meant(parsed)
        listed = self._listed(meant)
        if listed is not None:
            return f"not probed: {address} is in never_probe ({listed})"
        kind = None if self._lab else special(meant)
        return f"not probed: {address} is {kind}; only a configuration with lab = true may" if kind else None

    def _listed(self, address: IPv4Address | IPv6Address) -> IPv4Network | IPv6Network | None:
        number, bits = int(address), address.max_prefixlen
        for length, networks in self._never[address.version].items():
            base = number >> (bits - length) << (bits - length)
            if base in networks:
                return ip_network((base, length)) if address.version == 4 else IPv6Network((base, length))
        return None


def special(address: IPv4Address | IPv6Address) -> str | None:
    """What kind of special-purpose address it is, in words; None when it is a global unicast address."""
    version, number = address.version, int(address)
    at = bisect_right(_FIRSTS[version], number) - 1
    if at >= 0 and number <= _RANGES[version][at][1]:
        return _RANGES[version][at][2]
    if isinstance(address, IPv6Address) and address not in _GLOBAL_6:
        return "reserved"
    return None


def _meant(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The address whose host would answer."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
        if address.scope_id is not None:  # the zone says where, not whom
            return IPv6Address(int(address))
    return address
