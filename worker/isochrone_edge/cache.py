"""What may be kept at the edge, for how long, and under which key (RFC 9111, as far as a shared cache needs). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from hashlib import sha256

from .headers import HOP_BY_HOP, nominated

#: kept without the origin saying so; other statuses need an explicit lifetime
_BY_DEFAULT = frozenset({200, 203, 301, 308})
_EXPLICIT = _BY_DEFAULT | {204, 302, 307, 404, 410}
#: in `Vary`: everything, and what the edge sets on the way to an origin, or takes out
_SET = HOP_BY_HOP | {
    "*", "via", "traceparent", "tracestate", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto",
}  # fmt: skip
MAX_BYTES = (
    8 * 1024 * 1024
)  # an answer of unknown length is not kept either: the copy is made beside a live stream
ORIGINAL = (
    "x-isochrone-kept-cache-control"  # the origin's own Cache-Control, put back before a client sees the copy
)
VARIANT = "x-isochrone-kept-variant"  # what the copy was chosen by
KEPT_AT = "x-isochrone-kept-at"  # Unix seconds
VARY = "x-isochrone-kept-vary"  # the origin's own Vary: caches differ in what they make of it
GENERATION = "x-isochrone-kept-generation"  # what other variants are found by: they go with the first copy
ENDED_AT = "x-isochrone-ended-at"  # Unix seconds: no copy, but that there is none which is older
ENDED_SECONDS = (
    300  # for which that is known: an answer that takes longer may be kept though a write has ended it
)
#: which need the whole answer from the origin, or a check that only it can make
_FOR_THE_ORIGIN = frozenset({"authorization", "range", "upgrade", "if-match", "if-unmodified-since"})
_TAG = re.compile(
    r'(?:W/)?("[^"]*")'
)  # of two tags only what is in quotes is compared (RFC 9110 section 8.8.3.2)
BOOKKEEPING = (ORIGINAL, VARIANT, KEPT_AT, VARY, GENERATION, ENDED_AT)
HELD_FROM = 16384  # bytes, as of the bodies that are watched: a smaller answer is held by the runtime anyway
HELD_BYTES = 16 * 1024 * 1024  # of an isolate's answers on their way to clients, while their copies are made
HELD_SECONDS = 900.0  # then they are taken for gone: the runtime may have ended their request
_QUOTED = re.compile(r'"([^"]*)"')


def directives(field: str | None) -> dict[str, str]:
    """A Cache-Control field as name -> argument ("" without one). The first of a repeated directive counts."""
    found: dict[str, str] = {}
    text = _QUOTED.sub(lambda quoted: quoted[1].replace(",", ";"), field or "")
    for part in text.split(","):
        name, _, argument = part.strip().partition("=")
        if name:
            found.setdefault(name.strip().lower(), argument.strip())
    return found


def may_answer(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a copy may answer this request at all, and its answer be kept."""
    if method != "GET" or not _FOR_THE_ORIGIN.isdisjoint(headers):
        return False
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        return False  # a body may change the answer, and is no part of the key
    if nominated(headers.get("connection")):
        return False  # what the origin does not see tells nothing of its answers
    wanted = directives(headers.get("cache-control"))
    return not ("no-store" in wanted or "no-cache" in wanted or wanted.get("max-age") == "0")


def ends_copies(method: str, status: int) -> bool:
    """Whether what was kept under this URL is out of date now (RFC 9111 section 4.4)."""
    return method not in ("GET", "HEAD", "OPTIONS", "TRACE") and 200 <= status < 400


def lifetime(status: int, headers: Mapping[str, str], limit: int, now: float, *, cookie: bool = False) -> int:
    """For how many seconds this answer, which came `now`, may be kept; 0: not at all.

    `limit` (CACHE_TTL_SECONDS) is for answers that name no lifetime, and the longest for those that do. With `cookie` the
    request had one: the answer may be for its sender alone, and is kept only when it names a lifetime, or says `public`.
    RFC 9111 section 3 would allow it otherwise too.
    """
    if status not in _EXPLICIT or "set-cookie" in headers:
        return 0
    for name in headers.get("vary", "").lower().split(","):
        # What the edge sets differs from what the client has said: a copy can't be chosen by it.
        if name.strip() in _SET or name.strip().startswith("x-isochrone-"):
            return 0
    if (
        "content-encoding" in headers
    ):  # runtimes differ in whether a kept body is still encoded when it comes back
        return 0
    said = directives(headers.get("cache-control"))
    if said.keys() & {"private", "no-store", "no-cache"}:
        return 0
    length = headers.get("content-length", "")
    if status != 204 and not (length.isascii() and length.isdecimal() and int(length) <= MAX_BYTES):
        return 0
    for name in ("s-maxage", "max-age"):
        if name in said:
            seconds = int(said[name][:19]) if said[name].isascii() and said[name].isdecimal() else 0
            return min(limit, max(0, seconds - _age(headers, now)))
    if cookie and "public" not in said:
        return 0
    return limit if status in _BY_DEFAULT and "expires" not in headers else 0


def variant(vary: str | None, headers: Mapping[str, str]) -> str | None:
    """What tells this request's answer from others under the same URL; "" when `Vary` names nothing.

    None: it can't be told, since a field holds bytes that are no UTF-8, which all arrive as the same character.
    """
    names = sorted({name.strip().lower() for name in (vary or "").split(",")} - {""})
    if not names:
        return ""
    if any("\ufffd" in headers.get(name, "") for name in names):
        return None
    text = "\n".join(f"{name}:{headers.get(name, '').strip()}" for name in names)
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def key(url: str, chosen: str = "", generation: str = "") -> str:
    """The key of a copy: the public URL, and for the variants that are not the first one that no public URL has."""
    if not chosen:
        return url
    digest = sha256(f"{url}\n{chosen}\n{generation}".encode()).hexdigest()
    return f"{url[: url.find('/', 8)]}/.isochrone/variant/{digest}"


def kept(
    headers: Mapping[str, str], seconds: int, chosen: str, now: float, generation: str = ""
) -> tuple[dict[str, str], list[str]]:
    """Fields to set on a copy of an answer that came `now` before it is kept, and those to take out."""
    fields = {"cache-control": f"public, max-age={seconds}", KEPT_AT: str(int(now) - _age(headers, now))}
    if generation:
        fields[GENERATION] = generation
    if "cache-control" in headers:
        fields[ORIGINAL] = headers["cache-control"]
    if headers.get("vary"):
        fields[VARY], fields[VARIANT] = headers["vary"], chosen
    # Of the connection, too: no cache may keep it (RFC 9111 section 3.1).
    ends_here = [*HOP_BY_HOP - {"transfer-encoding"}, *nominated(headers.get("connection"))]
    return fields, ["vary", "alt-svc", "age", *ends_here, *BOOKKEEPING]


def given(headers: Mapping[str, str], now: float) -> tuple[dict[str, str], list[str]]:
    """Fields to set on an answer from a copy, and those to take out."""
    at = headers.get(KEPT_AT, "")
    fields = {"age": str(max(0, int(now) - int(at))) if at.isdecimal() else "0"}
    gone = [*BOOKKEEPING, "cf-cache-status"]
    if ORIGINAL in headers:
        fields["cache-control"] = headers[ORIGINAL]
    else:
        gone.append("cache-control")
    if VARY in headers:
        fields["vary"] = headers[VARY]
    return fields, gone


def unchanged(status: int, copy: Mapping[str, str], headers: Mapping[str, str]) -> bool:
    """Whether the client of a conditional request has this copy already: then it gets 304 (RFC 9110 section 13.2.2)."""
    if status != 200:
        return False
    wanted = headers.get("if-none-match")
    if wanted is not None:
        tag = _TAG.fullmatch(copy.get("etag", ""))
        return wanted == "*" or (tag is not None and tag[1] in _TAG.findall(wanted))
    try:
        modified, since = (
            parsedate_to_datetime(fields[name])
            for fields, name in ((copy, "last-modified"), (headers, "if-modified-since"))
        )
        return modified <= since
    except (KeyError, ValueError, TypeError, OverflowError):  # not there, or no date: ignored
        return False


class Held:
    """How many bytes of answers an isolate holds because copies of them are made: a slow client's answer waits in memory."""

    def __init__(self) -> None:
        self._bytes: dict[int, tuple[int, float]] = {}  # by number: how many, until when
        self._number = 0

    def take(self, size: int, now: float) -> int | None:
        """A number to give back, or None: then no copy is made of this answer. 0 for a small one, which counts for nothing."""
        if size < HELD_FROM:
            return 0
        self._bytes = {n: entry for n, entry in self._bytes.items() if entry[1] > now}
        if size + sum(held for held, _ in self._bytes.values()) > HELD_BYTES:
            return None
        self._number += 1
        self._bytes[self._number] = size, now + HELD_SECONDS
        return self._number

    def give_back(self, number: int) -> None:
        """The client has the answer, or has left."""
        self._bytes.pop(number, None)


def _age(headers: Mapping[str, str], now: float) -> int:
    """The age of an answer that came `now`, in seconds (RFC 9111 section 4.2.3)."""
    text = headers.get("age", "").partition(",")[0].strip()
    told = int(text[:10]) if text.isascii() and text.isdecimal() else 0
    try:
        return max(told, int(now - parsedate_to_datetime(headers["date"]).timestamp()))
    except (KeyError, ValueError, TypeError, OverflowError):  # without a date, or with one that is none
        return told
