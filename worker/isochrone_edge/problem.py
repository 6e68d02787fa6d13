"""The edge's own failures, as `application/problem+json` (RFC 9457). They say nothing of what is inside. Pure."""

from __future__ import annotations

import json

TITLES = {
    400: "The request can't be forwarded",
    408: "The body of the request did not come in time",
    421: "This host is not served here",
    502: "The service can't be reached",
    503: "The service takes no requests now",
    504: "The service did not answer in time",
}
RETRY_AFTER_SECONDS = 5


def problem(status: int, trace_id: str) -> tuple[str, dict[str, str]]:
    """Body and headers of a failure."""
    body = {
        "type": "about:blank",
        "title": TITLES.get(status, "The request failed"),
        "status": status,
        "trace_id": trace_id,
    }
    headers = {"content-type": "application/problem+json", "cache-control": "no-store"}
    if status == 503:
        headers["retry-after"] = str(RETRY_AFTER_SECONDS)
    return json.dumps(body, separators=(",", ":")), headers
