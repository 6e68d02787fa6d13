"""`isochrone agent`: measures from one origin's region for a control plane elsewhere."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from typing import TYPE_CHECKING

import click

from isochrone.agents.client import ControlPlaneError, TrustError
from isochrone.agents.plan import PlanError
from isochrone.agents.settings import load
from isochrone.agents.spool import Spool, SpoolError
from isochrone.cli import Failure
from isochrone.service.agent_process import AgentProcess
from isochrone.service.logs import set_up
from isochrone.settings import SettingsError

if TYPE_CHECKING:
    from isochrone.agents.settings import AgentSettings

log = logging.getLogger(__name__)


@click.command("agent")
@click.option("-c", "--config", default="agent.toml", show_default=True, help="The agent's configuration.")
@click.option("--once", is_flag=True, help="One round, everything sent, then end.")
@click.option("--new-token", is_flag=True, help="Print a new token and its SHA-256, and do nothing else.")
@click.option("-v", "--verbose", is_flag=True, help="Tell more.")
def agent_command(config: str, *, once: bool, new_token: bool, verbose: bool) -> None:
    """Probe from this region until SIGTERM. What was measured waits on disk until the control plane has it.

    With --once, exit 1 when there was no plan or not everything was handed over, be it for a signal or a full disk.
    """
    if new_token:
        token = secrets.token_urlsafe(32)
        click.echo(f"token         {token}")
        click.echo(f"token_sha256  {hashlib.sha256(token.encode()).hexdigest()}")
        return
    try:
        settings, token = load(config)
    except SettingsError as error:
        raise Failure(str(error).replace("\n", "\nisochrone: ")) from None
    set_up(logging.DEBUG if verbose else logging.INFO)
    try:
        spool = Spool.open(settings.spool_dir, settings.spool_max_bytes)
    except SpoolError as error:
        raise Failure(str(error)) from None
    try:
        asyncio.run(_run(settings, token, spool, once=once))
    except TrustError as error:
        raise Failure(f"{config}: {error}") from None
    except (ControlPlaneError, PlanError) as error:
        raise Failure(str(error), 1) from None
    finally:
        spool.close()
    log.info("ended")


async def _run(settings: AgentSettings, token: str, spool: Spool, *, once: bool) -> None:
    process = AgentProcess(settings, token, spool)
    if not once:
        await process.run()
        return
    before = spool.counts
    done = await process.once()
    after = spool.counts
    if after.refused > before.refused:
        raise Failure("the control plane refused what was measured; see the reason above", 1)
    lost, had_lost = (counts.dropped + counts.damaged + counts.unkept for counts in (after, before))
    if process.unspooled or lost > had_lost:
        raise Failure("samples were lost on this host's disk; see the reason above", 1)
    if done is None or len(spool):
        raise Failure(f"stopped before everything was handed over; {len(spool)} batches wait in the spool", 1)
