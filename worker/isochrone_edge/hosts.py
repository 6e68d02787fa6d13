"""Which hosts are ours, and which are hosts at all. Pure."""

from __future__ import annotations


def host_allowed(host: str, site: frozenset[str]) -> bool:
    """Whether a request for this host is ours: listed in `site` (any when it is empty), and a host at all."""
    if len(host) > 260 or not host:
        return False
    name, port = host.lower(), ""
    if name.startswith("["):
        name, bracket, rest = name.partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            return False
        port, name = rest[1:], name[1:]
        good = all(c in "0123456789abcdef:." for c in name)
    else:
        name, _, port = name.partition(":")
        good = all(c.isascii() and (c.isalnum() or c in "-._") for c in name)
    if not good or not name or (port and not (port.isascii() and port.isdecimal() and int(port) < 65536)):
        return False
    return not site or host.lower() in site or name in site


def is_address(host: str) -> bool:
    """Whether a host, with or without a port, is an IP address, or would be read as one (a last label that is a number)."""
    name = host if host.startswith("[") else host.partition(":")[0].rstrip(".").rpartition(".")[2].lower()
    return (
        name.startswith("[")
        or name.isdecimal()
        or (name.startswith("0x") and not name[2:].strip("0123456789abcdef"))
    )
