"""The daemon's HTTP API: `/` for eyes, `/status` for commands, `/metrics` for Prometheus, `/healthz` for supervisors.

`/findings` and `/resolution` are in `promises.py`.
"""

from __future__ import annotations

import errno
import json
import socket
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from isochrone.service.agents_api import AgentsApi, tls_of
from isochrone.service.metrics import registry
from isochrone.service.page import PAGE
from isochrone.service.promises import Promises

if TYPE_CHECKING:
    import ssl

    from isochrone.service.daemon import Daemon
    from isochrone.settings import Service


POLICY = "default-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; frame-ancestors 'none'"


class ListenError(Exception):
    """The address of `service.listen` or `service.agents_listen` can't be had; one sentence."""

    def __init__(self, listen: str, error: OSError, key: str = "service.listen") -> None:
        why = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        super().__init__(
            f"{key}: can't listen on {listen} ({why}); stop the other program or choose another port"
        )


def try_listen(listen: str, key: str = "service.listen") -> None:
    """Whether the address could be had now. It is let go again.

    Raises:
        ListenError: the address is in use, not this host's, or forbidden.
    """
    host, _, port = listen.rpartition(":")
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                trial.bind(address)
    except OSError as error:
        raise ListenError(listen, error, key) from None


class Api:
    """Serves while it is started. Reads the daemon's state, changes nothing; agents are answered by agents_api.py.

    Raises CertificateError from its constructor.
    """

    def __init__(self, daemon: Daemon, service: Service) -> None:
        self._daemon = daemon
        self._registry = registry(daemon)
        app = web.Application()
        app.router.add_get("/", self._page)
        app.router.add_get("/status", self._status)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.add_routes(Promises(daemon).routes())
        self._sites = [_Site("service.listen", service.listen, app)]
        if daemon.agents.origins:
            tls = tls_of(service.certificate, service.key)
            if service.agents_listen is not None:
                app = web.Application()
                self._sites.append(_Site("service.agents_listen", service.agents_listen, app, tls))
            AgentsApi(daemon.agents).add_to(app)

    async def start(self) -> None:
        """Listen.

        Raises:
            ListenError: the address is in use, not this host's, or forbidden.
        """
        try:
            for site in self._sites:
                await site.start()
        except ListenError:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End it; answers under way get a second."""
        for site in self._sites:
            await site.runner.cleanup()

    @property
    def address(self) -> str:
        """ADDRESS:PORT of `service.listen`, with the port that was chosen once started."""
        return self._sites[0].address

    async def _page(self, request: web.Request) -> web.Response:  # noqa: ARG002  aiohttp's signature, here and below
        return web.Response(text=PAGE, content_type="text/html", headers={"Content-Security-Policy": POLICY})

    async def _status(self, request: web.Request) -> web.Response:  # noqa: ARG002  aiohttp's signature, here and below
        return web.Response(
            text=json.dumps(await self._daemon.document()) + "\n", content_type="application/json"
        )

    async def _metrics(self, request: web.Request) -> web.Response:  # noqa: ARG002
        return web.Response(
            body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4}
        )

    async def _healthz(self, request: web.Request) -> web.Response:  # noqa: ARG002
        problem = self._daemon.stale()
        return web.Response(text=(problem or "ok") + "\n", status=503 if problem else 200)


class _Site:
    """An application on an address of its own."""

    def __init__(
        self, key: str, listen: str, app: web.Application, tls: ssl.SSLContext | None = None
    ) -> None:
        self.address = listen
        self._key = key
        self._tls = tls
        # Bodies are unpacked by whom they are for, within bounds.
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, auto_decompress=False)

    async def start(self) -> None:
        host, _, port = self.address.rpartition(":")
        await self.runner.setup()
        try:
            await web.TCPSite(self.runner, host.strip("[]"), int(port), ssl_context=self._tls).start()
        except OSError as error:
            raise ListenError(self.address, error, self._key) from None
        self.address = f"{host}:{self.runner.addresses[0][1]}"
