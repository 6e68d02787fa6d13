"""`isochrone run`: the daemon. Everything is checked before anything starts."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import TYPE_CHECKING

import click

from isochrone.cli import Failure
from isochrone.cli.check import before_start, settings_of
from isochrone.probing.databases import TargetsError
from isochrone.service.agents_api import CertificateError
from isochrone.service.api import ListenError, try_listen
from isochrone.service.daemon import Daemon
from isochrone.service.logs import set_up
from isochrone.store.errors import StoreError
from isochrone.store.sqlite import Store
from isochrone.verification.certificates import TrustStoreError
from isochrone.verification.dns_anchor import TrustAnchorError

if TYPE_CHECKING:
    from isochrone.probing.target_source import TargetSource
    from isochrone.settings import Settings

log = logging.getLogger(__name__)

DATABASE = "isochrone.db"


@click.command("run")
@click.option("-c", "--config", default="isochrone.toml", show_default=True, help="The configuration file.")
@click.option(
    "--take-over", is_flag=True, help="Replace a live map that another controller or a person published."
)
@click.option("-v", "--verbose", is_flag=True, help="Tell more.")
def run_command(config: str, *, take_over: bool, verbose: bool) -> None:
    """Measure, build and publish until SIGTERM. Tells its state on the address of service.listen."""
    settings = settings_of(config)
    targets, problems = before_start(settings)
    if problems or targets is None:
        raise Failure("\nisochrone: ".join(f"{config}: {problem}" for problem in problems))
    set_up(logging.DEBUG if verbose else logging.INFO)
    for problem in (*targets.left_out, *targets.refused):
        log.warning("%s", problem)
    try:
        try_listen(settings.service.listen)  # before anything is written
        if settings.agents and settings.service.agents_listen is not None:
            try_listen(settings.service.agents_listen, "service.agents_listen")
        with Store.open(settings.service.state_dir / DATABASE) as store:
            asyncio.run(_run(settings, targets, store, take_over=take_over))
    except (
        StoreError,
        TrustStoreError,
        TrustAnchorError,
        TargetsError,
        ListenError,
        CertificateError,
    ) as error:
        raise Failure(str(error)) from None
    log.info("ended")


async def _run(settings: Settings, targets: TargetSource, store: Store, *, take_over: bool) -> None:
    daemon = Daemon(settings, targets, store, take_over=take_over)
    await daemon.run()
    if daemon.maps.building:
        # A thread is at work on a map that nobody will see, and Python would wait for it. Nothing of it is acknowledged.
        store.close()
        log.info("ended")
        sys.stderr.flush()
        os._exit(0)
