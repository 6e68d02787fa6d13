"""What an endpoint's answer must look like. Pure: an answer in, what is wrong with it out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from isochrone.client.alt_svc import AltSvcError, parse_alt_svc
from isochrone.verification.http3_session import Trouble

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isochrone.settings import Verification
    from isochrone.verification.http3_exchange import Answer

MISDIRECTED = "421"  # RFC 9110 section 15.5.20


def region_of(answer: Answer, settings: Verification, site: str) -> str:
    """The region that answered, by the health document where one is agreed on, else by the header field.

    Raises Trouble when the answer does not say, or is no good answer.
    """
    asked = f"GET https://{site}{settings.path}"
    status = answer.status or "none"
    if status == MISDIRECTED:
        raise Trouble("misdirected", f"{asked} was answered with 421 Misdirected Request")
    if status.startswith("5"):
        raise Trouble("server_error", f"{asked} was answered with status {status}")
    if not status.startswith("2"):
        raise Trouble("status", f"{asked} was answered with status {status}")
    if settings.region_member:
        return _documented(answer.body, settings.region_member)
    name = settings.region_header.lower()
    region = answer.headers.get(name)
    if not region:
        raise Trouble("no_region", f"the answer has no {name} header field")
    return region


def _documented(body: bytes, member: str) -> str:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        raise Trouble("document", f"the health document is no JSON: it begins with {body[:40]!r}") from None
    region = document.get(member) if isinstance(document, dict) else None
    if not isinstance(region, str):
        raise Trouble("document", f"the health document has no text {member!r}")
    return region


def alt_svc_troubles(answer: Answer, *, site: str, host: str, port: int) -> Iterator[Trouble]:
    """Whether the endpoint's own Alt-Svc leads clients away from it. `host` and `port` are the endpoint's own.

    An alternative without a host means the public host itself (RFC 7838 section 3), which is where the balancer stands.
    """
    value = answer.headers.get("alt-svc")
    if value is None:
        return
    try:
        alternatives = parse_alt_svc(value)
    except AltSvcError as error:
        yield Trouble("alt_svc_malformed", str(error))
        return
    if not alternatives:
        yield Trouble("alt_svc_clear", "the answer says Alt-Svc: clear")
    for other in alternatives:
        where = (other.host or site).lower().rstrip("."), other.port
        if where == (host.lower(), port):
            continue
        kind = "alt_svc_back" if where[0] == site.lower() else "alt_svc_elsewhere"
        yield Trouble(kind, f"the answer says Alt-Svc: {value}")
        return
