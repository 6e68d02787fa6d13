"""What verification knows, for programs: `GET /findings` (the history) and `GET /resolution` (names resolved ahead)."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from aiohttp import web

from isochrone.store.errors import StoreError
from isochrone.store.findings import history
from isochrone.verification.dns_document import document, max_age

if TYPE_CHECKING:
    from isochrone.service.daemon import Daemon

LIMIT = 1_000
LARGEST_LIMIT = 10_000
_FLAGS = {"": True, "1": True, "true": True, "0": False, "false": False}
_PARAMETERS = ("open", "origin", "check", "limit")


class Promises:
    """The two answers. Reads the daemon's state, changes nothing."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def routes(self) -> list[web.RouteDef]:
        """Where they are."""
        return [web.get("/findings", self._findings), web.get("/resolution", self._resolution)]

    async def _findings(self, request: web.Request) -> web.Response:
        """`?open`, `?origin=ID`, `?check=ID` and `?limit=N` narrow it."""
        query = request.query
        strange = sorted(set(query) - set(_PARAMETERS))
        if strange:
            return _problem(400, f"there is no parameter {strange[0]!r}; known are {', '.join(_PARAMETERS)}")
        only_open = _FLAGS.get(query.get("open", "0").lower())
        if only_open is None:
            return _problem(400, f"open is {query['open']!r}; give 1 or 0")
        limit = query.get("limit", str(LIMIT))
        if not (
            limit.isascii() and limit.isdecimal() and len(limit) <= 5 and 1 <= int(limit) <= LARGEST_LIMIT
        ):
            return _problem(400, f"limit is {limit!r}; give a number from 1 to {LARGEST_LIMIT}")
        try:
            found = await asyncio.to_thread(
                history, self._daemon.store, only_open=only_open,
                origin=query.get("origin", ""), check=query.get("check", ""), limit=int(limit),
            )  # fmt: skip
        except StoreError as error:
            return _problem(503, str(error))
        told = {
            "site": self._daemon.settings.site,
            "now": round(self._daemon.clock(), 3),
            "findings": [seen.document() for seen in found],
        }
        return web.json_response(told, headers={"Cache-Control": "no-store"})

    async def _resolution(self, request: web.Request) -> web.Response:  # noqa: ARG002  aiohttp's signature
        """The last round's, with the promises as they are now."""
        verifying = self._daemon.verifying
        if verifying.names is None:
            return _problem(404, "DNS is not checked: there is no [dns] section in the configuration")
        if not verifying.resolved_at:
            return _problem(503, "the first round of DNS checks is not over yet; ask again", retry=5)
        offered = {origin.id: verifying.offered(origin) for origin in verifying.origins}
        told = document(
            self._daemon.settings.site, verifying.resolved, verifying.resolved_at, offered=offered
        )
        age = max_age((check.plan for check in verifying.resolved), self._daemon.clock())
        return web.json_response(told, headers={"Cache-Control": f"max-age={age}"})


def _problem(status: int, detail: str, *, retry: int = 0) -> web.Response:
    """RFC 9457."""
    headers: dict[str, Any] = {"Cache-Control": "no-store"} | ({"Retry-After": str(retry)} if retry else {})
    return web.Response(
        status=status, text=json.dumps({"status": status, "detail": detail}) + "\n",
        content_type="application/problem+json", headers=headers,
    )  # fmt: skip
