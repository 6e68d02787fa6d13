"""What this hop adds of itself: where the client is, and that a request has passed here. Pure; of headers.py what the quick way needs."""

from __future__ import annotations

#: a client can't have these removed by naming them in `Connection` (a known way to strip what a proxy added)
KEPT = frozenset({"host", "content-length", "content-type", "cookie", "authorization", "cf-connecting-ip"})
PSEUDONYM = "isochrone"
_PROTOCOLS = frozenset({"HTTP/1.0", "HTTP/1.1", "HTTP/2", "HTTP/3"})


def forwarded_for(client: str, before: str | None) -> str:
    """`X-Forwarded-For` with the client as its last entry; "" when there is nothing to set.

    Cloudflare says who the client is in `CF-Connecting-IP`, and has often appended it to the list already.
    """
    if not client or (before and before.rpartition(",")[2].strip() == client):
        return ""
    return f"{before}, {client}" if before else client


def via(before: str | None, protocol: str | None) -> str:
    """`Via` with this hop appended (RFC 9110 section 7.6.3). `protocol` as `request.cf.httpProtocol`: "HTTP/2"."""
    hop = f"{version_of(protocol)} {PSEUDONYM}"
    return f"{before}, {hop}" if before else hop


def version_of(protocol: str | None) -> str:
    """As `Via` has it."""
    return protocol[5:] if protocol in _PROTOCOLS and protocol else "1.1"


def is_token(text: str) -> bool:
    """Whether it can be a field's or a cookie's name (RFC 9110 section 5.6.2)."""
    return bool(text) and all(c.isascii() and (c.isalnum() or c in "!#$%&'*+-.^_`|~") for c in text)
