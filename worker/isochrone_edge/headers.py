"""Header fields on their way through: what goes, what comes, what the edge adds. Pure; names in lower case."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .hop import KEPT, PSEUDONYM, forwarded_for, is_token, version_of, via

if TYPE_CHECKING:
    from .trace import Trace

#: RFC 9110 section 7.6.1 and RFC 9112: of one connection only, whether or not `Connection` names them
HOP_BY_HOP = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade",
    }
)  # fmt: skip
#: what workerd takes out by itself, or writes anew for the next connection
_RUNTIME = frozenset({"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"})
_NOT_FORWARDED = HOP_BY_HOP | {"host", "content-length"}
#: with one of these a request is more than its method, URL and fields
WITH_BODY = frozenset({"content-length", "transfer-encoding", "upgrade", "expect"})
#: how names that need a closer look begin in a JSON text
_MARKS = (
    '"x-isochrone-', '"proxy-', '"content-length"', '"transfer-encoding"', '"upgrade"', '"expect"', '"te"',
    '"keep-alive"', '"trailer"',
)  # fmt: skip
OURS = "x-isochrone-"
BUDGET = "x-isochrone-budget-ms"


def nominated(connection: str | None) -> list[str]:
    """The fields that a `Connection` field says end here."""
    if not connection:
        return []
    names = (name.strip().lower() for name in connection.split(","))
    return [name for name in names if name and name not in _RUNTIME and name not in KEPT and is_token(name)]


def dropped_from_request(headers: Mapping[str, str], method: str = "GET") -> list[str]:
    """The client's fields that must not reach the origin."""
    names = [n for n in headers if n.startswith(OURS) or (n.startswith("proxy-") and n in HOP_BY_HOP)]
    if "upgrade" in headers and method != "GET":
        names.append("upgrade")  # the runtime would make a WebSocket's GET of it
    if "connection" in headers:
        names += [n for n in nominated(headers["connection"]) if n in headers and n not in names]
    return names


def to_origin(headers: Mapping[str, str]) -> dict[str, str]:
    """The client's fields of a request without a body, as far as the origin shall see them."""
    kept = {n: v for n, v in headers.items() if n not in _NOT_FORWARDED and not n.startswith(OURS)}
    if "connection" in headers:
        for name in nominated(headers["connection"]):
            kept.pop(name, None)
    return kept


def peek(text: str, name: str) -> str | None:
    """One field of a JSON object of fields, without reading the others. None: not there."""
    start = text.find(f'"{name}":"')
    if start < 0:
        return None
    start += len(name) + 4
    end = text.find('"', start)
    value = text[start:end]
    return value if "\\" not in value else str(json.loads(text)[name])


def is_plain(text: str) -> bool:
    """Whether a request's fields, as JSON text, can go to the origin as they are, with ours after them.

    What only looks like one of the names, since it stands in a value, makes the answer False: never the other way, for
    a quote within a value is escaped.
    """
    if not text.isascii():
        return False
    for mark in _MARKS:
        if mark in text:
            return False
    return '"connection":' not in text or '"connection":"keep-alive"' in text.lower()


def added(
    text: str, *, colour: int, origin: str, version: str, trace: Trace, front: str, protocol: str | None
) -> str:
    """The fields that the edge sets on the way to an origin, as members of a JSON object.

    `text` are the client's own fields as JSON; `front` tells of its scheme and host. The origin's id and the version
    are known to be safe in quotes.
    """
    ours = (
        f'"x-isochrone-colour":"{colour}","x-isochrone-origin":"{origin}","x-isochrone-map":"{version}",'
        f'"traceparent":"{trace.parent}",{front},'
    )
    decision = f"colour:{colour};map:{version}"
    if trace.others:
        ours += f'"tracestate":{json.dumps(trace.state(decision))},'
    else:
        ours += f'"tracestate":"{trace.state(decision)}",'
    client = peek(text, "cf-connecting-ip")
    if client is not None:
        listed = forwarded_for(client, peek(text, "x-forwarded-for"))
        if listed:
            ours += f'"x-forwarded-for":{json.dumps(listed)},'
    before = peek(text, "via")
    if before is None:
        return f'{ours}"via":"{version_of(protocol)} {PSEUDONYM}"'
    return f'{ours}"via":{json.dumps(via(before, protocol))}'


def budget_seconds(headers: Mapping[str, str], limit: float) -> float:
    """The request's budget: a client may only shorten it (`X-Isochrone-Budget-Ms`)."""
    text = headers.get(BUDGET)
    if text is None or not (text.isascii() and text.isdecimal()) or len(text) > 9:
        return limit
    return min(limit, int(text) / 1000)


def may_keep(headers: Mapping[str, str], limit: int) -> bool:
    """Whether a request's body is known to be small enough to be kept for another try."""
    length = headers.get("content-length", "")
    return length.isascii() and length.isdecimal() and len(length) < 10 and int(length) <= limit


def cookie(headers: Mapping[str, str], name: str) -> str | None:
    """The value of one cookie; the first when it is there twice (RFC 6265 section 5.4)."""
    for pair in headers.get("cookie", "").split(";"):
        key, equals, value = pair.strip().partition("=")
        if equals and key == name:
            return value
    return None


def one_cookie_field(fields: str) -> str:
    """A request's fields (JSON) with the pairs of several Cookie fields between semicolons (RFC 6265 section 4.2.1).

    The runtime has joined them with commas, as all others. A comma within a value stays, unless a pair follows it.
    """
    value = peek(fields, "cookie")
    if (
        value is None or ", " not in value or "\ufffd" in value
    ):  # bytes that are no UTF-8 can't be written anew
        return fields
    first, *others = value.split(", ")
    for part in others:
        name, equals, _ = part.partition("=")
        first += f"; {part}" if equals and is_token(name) else f", {part}"
    return json.dumps({**json.loads(fields), "cookie": first}, ensure_ascii=False, separators=(",", ":"))
