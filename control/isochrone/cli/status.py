"""`isochrone status`: what is live in KV, checked by its checksum, and what a running daemon tells of itself."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import click

from isochrone.cli import Failure
from isochrone.cli.check import settings_of
from isochrone.publishing.kv import Kv
from isochrone.publishing.kv_errors import KvError
from isochrone.publishing.publish import look, versions

if TYPE_CHECKING:
    from isochrone.publishing.plan import Live
    from isochrone.settings import Settings

DAEMON_TIMEOUT_SECONDS = 5.0


@click.command("status")
@click.option("-c", "--config", default="isochrone.toml", show_default=True, help="The configuration file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def status_command(config: str, *, as_json: bool) -> None:
    """Tell what is live, and how the daemon does. Exit 1 when the live map is missing, damaged or can't be read."""
    settings = settings_of(config)
    kv, daemon = asyncio.run(_ask(settings))
    problem = kv["problem"] or ""
    if as_json:
        click.echo(json.dumps({"kv": kv, "daemon": daemon}))
    else:
        _show(kv, daemon, settings)
    if problem:
        raise Failure(problem, kv["exit"])


async def _ask(settings: Settings) -> tuple[dict[str, Any], dict[str, Any] | None]:
    kv, daemon = await asyncio.gather(_kv(settings), _daemon(settings))
    return kv, daemon


async def _kv(settings: Settings) -> dict[str, Any]:
    told: dict[str, Any] = {
        "state": "ok",
        "problem": "",
        "live": None,
        "map": None,
        "versions": [],
        "exit": 0,
    }
    if settings.kv is None:
        return told | {
            "state": "unset",
            "problem": "kv: missing in the configuration: there is no KV to look at",
            "exit": 2,
        }
    try:
        async with Kv.of(settings.kv) as kv:
            live = await look(kv)
            told["versions"] = await versions(kv)
    except KvError as error:
        return told | {"state": error.code, "problem": str(error), "exit": 1 if error.temporary else 2}
    told |= {"live": live.version, "map": _map(live)}
    if live.raw is None:
        return told | {"state": "missing", "problem": "no map is live: nothing was published yet", "exit": 1}
    if live.damage:
        advice = "the edge keeps its last good map; publish again or roll back"
        return told | {"state": "damaged", "problem": f"{live.damage}; {advice}", "exit": 1}
    return told


def _map(live: Live) -> dict[str, Any] | None:
    if live.manifest is None:
        return None
    manifest = live.manifest
    told: dict[str, Any] = {
        "version": manifest.version,
        "built_at": manifest.built_at,
        "age_seconds": round(time.time() - manifest.built_at, 3),
        "sha256": manifest.sha256,
        "cells": manifest.cells,
        "origins": list(manifest.origins),
    }
    if live.map is not None:
        told |= {
            "bytes": live.map.size,
            "colours": live.map.colours,
            "alt_svc": [
                origin["id"] for origin in live.map.origins if isinstance(origin.get("alt_svc"), dict)
            ],
        }
    return told


async def _daemon(settings: Settings) -> dict[str, Any] | None:
    """What the daemon tells; None when none answers there."""
    host, _, port = settings.service.listen.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    timeout = aiohttp.ClientTimeout(total=DAEMON_TIMEOUT_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"http://{host}:{port}/status") as answer,
        ):
            told = await answer.json()
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None
    return told if isinstance(told, dict) and "isochrone" in told else None


def _show(kv: dict[str, Any], daemon: dict[str, Any] | None, settings: Settings) -> None:
    live = kv["map"]
    if live:
        size = f", {live['bytes']:,} bytes, {live['colours']:,} colours" if "bytes" in live else ""
        click.echo(
            f"live     {live['version']}: {live['cells']:,} cells{size}, {_age(live['age_seconds'])} old"
        )
        if "alt_svc" in live:
            click.echo(f"Alt-Svc  {', '.join(live['alt_svc']) or 'offered for no origin'}")
    if kv["versions"]:
        click.echo(f"kept     {', '.join(kv['versions'])}")
    click.echo(f"KV       {kv['state'].replace('_', ' ')}")
    if daemon is None:
        click.echo(f"daemon   does not answer on {settings.service.listen}")
        return
    click.echo(
        f"daemon   process {daemon['pid']}, up {_age(daemon['uptime_seconds'])}, KV {daemon['kv']['state'].replace('_', ' ')}"
    )
    for problem in (daemon["problem"], daemon["kv"]["problem"]):
        if problem:
            click.echo(f"         {problem}")
    if daemon["kv"]["damaged"]:
        click.echo(
            f"         found {daemon['kv']['damaged']} times damaged, last: {daemon['kv']['last_damage']}"
        )
    samples = daemon["samples"]["window"]
    told = ", ".join(f"{count:,} {name}" for name, count in samples.items() if name != "total")
    click.echo(f"samples  {samples['total']:,} in the window" + (f": {told}" if told else ""))
    chosen = daemon["selection"]
    click.echo(
        f"targets  {chosen['active']:,} active, {chosen['spare']:,} spare, {chosen['given_up']:,} given up,"
        f" in {chosen['asns']:,} ASNs"
    )
    for problem in (chosen["problem"], *(database["problem"] for database in chosen["databases"])):
        if problem:
            click.echo(f"         {problem}; what was read before stays in use")
    click.echo(f"findings {_findings(daemon['findings'])}")
    for agent in daemon.get("agents", ()):
        age = agent["last_good_age_seconds"]
        told = f"last batch {_age(age)} ago" if age is not None else "nothing heard of it yet"
        click.echo(f"agent    {agent['origin']}: {agent['state']}, {told}")
        if agent["state"] == "flagged":
            click.echo(f"         {agent['refused']['total']} refused, last: {agent['problem']}")
    for origin in daemon["origins"]:
        endpoint = origin["endpoint"]
        offered = (
            ""
            if endpoint is None
            else f", {endpoint['authority']} {'offered' if endpoint['offered'] else 'not offered'}"
        )
        click.echo(f"origin   {origin['id']}: {origin['state']}{offered}")
        parts = (origin["health"], origin["dns"], endpoint)
        for finding in [finding for part in parts if part for finding in part["findings"]]:
            click.echo(f"         {finding['severity']}: {finding['evidence']}; {finding['advice']}")


def _findings(counts: dict[str, int]) -> str:
    told = [
        f"{n:,} {kind}{'s' if n > 1 and kind != 'info' else ''}"
        for kind, n in counts.items()
        if kind != "open" and n
    ]
    return f"{counts['open']:,} open: {', '.join(told)}" if told else "none open"


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
