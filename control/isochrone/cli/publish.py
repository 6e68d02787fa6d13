"""`isochrone publish` and `isochrone rollback`: the plan is shown; KV changes only with --apply."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from isochrone.cli import Failure
from isochrone.cli.check import settings_of
from isochrone.publishing.kv import Kv
from isochrone.publishing.kv_errors import KvError
from isochrone.publishing.plan import Action, Guards, Plan, plan_publish
from isochrone.publishing.publish import (
    Published,
    PublishError,
    UnknownVersionError,
    apply,
    look,
    rollback_plan,
)
from isochrone_edge.latency_map import MapError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from isochrone.settings import Settings

Result = TypeVar("Result")


@click.command("publish")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-c", "--config", default="isochrone.toml", show_default=True, help="The configuration file.")
@click.option("--apply", "write", is_flag=True, help="Write to KV; without it the plan is only shown.")
@click.option(
    "--force", is_flag=True, help="Publish even when more of the weight moves than is allowed at once."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def publish_command(file: Path, config: str, *, write: bool, force: bool, as_json: bool) -> None:
    """Publish a latency map to Workers KV. Exit 1 when it is refused."""
    settings = settings_of(config)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise Failure(f"{file}: can't be read: {error.strerror}") from None
    guards = Guards(
        max_moved_share=settings.publishing.max_moved_share,
        refresh_seconds=settings.publishing.refresh_seconds,
        force=force,
    )

    async def work(kv: Kv) -> tuple[Plan, Published | None]:
        plan = plan_publish(data, await look(kv), now=time.time(), guards=guards)
        return plan, await _applied(kv, plan, settings) if write and plan.writes else None

    try:
        plan, published = asyncio.run(with_kv(settings, config, work))
    except MapError as error:
        raise Failure(f"{file}: {error}") from None
    _show(plan, published, write=write, as_json=as_json)
    if plan.action is Action.REFUSED:
        raise Failure(f"refused: {plan.reason}", 1)


@click.command("rollback")
@click.argument("version", required=False)
@click.option("-c", "--config", default="isochrone.toml", show_default=True, help="The configuration file.")
@click.option("--apply", "write", is_flag=True, help="Write to KV; without it the plan is only shown.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def rollback_command(version: str | None, config: str, *, write: bool, as_json: bool) -> None:
    """Make an older map live again: VERSION, or the newest one older than the live map.

    A daemon that publishes to the same namespace leaves the map alone from then on, until it is started with --take-over.
    """
    settings = settings_of(config)

    async def work(kv: Kv) -> tuple[Plan, Published | None]:
        plan = await rollback_plan(kv, None if version == "previous" else version)
        return plan, await _applied(kv, plan, settings) if write and plan.writes else None

    try:
        plan, published = asyncio.run(with_kv(settings, config, work))
    except UnknownVersionError as error:
        raise Failure(str(error), 1) from None
    _show(plan, published, write=write, as_json=as_json)


async def with_kv(settings: Settings, config: str, work: Callable[[Kv], Awaitable[Result]]) -> Result:
    """Do some work on the configured namespace; what goes wrong there ends the command with one sentence."""
    if settings.kv is None:
        raise Failure(
            f"{config}: kv: missing; give account_id and namespace_id, and the token in CLOUDFLARE_API_TOKEN"
        )
    try:
        async with Kv.of(settings.kv) as kv:
            return await work(kv)
    except KvError as error:
        raise Failure(str(error), 1 if error.temporary else 2) from None
    except UnknownVersionError:
        raise
    except PublishError as error:
        raise Failure(str(error), 1) from None


async def _applied(kv: Kv, plan: Plan, settings: Settings) -> Published:
    return await apply(kv, plan, keep=settings.publishing.keep_maps)


def _show(plan: Plan, published: Published | None, *, write: bool, as_json: bool) -> None:
    if as_json:
        document = plan.document() | {"applied": published is not None}
        if published is not None:
            document |= {
                "confirmed": published.confirmed,
                "deleted": list(published.deleted),
                "warnings": list(published.warnings),
            }
        click.echo(json.dumps(document))
        return
    live = plan.live.version or ("a damaged manifest" if plan.live.raw else "nothing")
    click.echo(f"map   {plan.manifest.version}: {len(plan.data):,} bytes, {plan.manifest.cells:,} cells")
    click.echo(f"live  {live}")
    if plan.action is not Action.REFUSED:
        click.echo(f"plan  {plan.action.value.replace('_', ' ')}: {plan.reason}")
    if published is not None:
        click.echo(
            f"done  {published.version} is live"
            + ("" if published.confirmed else "; KV may serve the older one for a minute")
        )
        if published.deleted:
            click.echo(f"      deleted {', '.join(published.deleted)}")
        for warning in published.warnings:
            click.echo(f"isochrone: {warning}", err=True)
    elif plan.writes and not write:
        click.echo("nothing was written; add --apply")
