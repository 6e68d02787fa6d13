"""`isochrone verify edge`: is the site, as a client sees it, what it should be?"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

import click

from isochrone.cli import Failure
from isochrone.cli.check import settings_of
from isochrone.cli.visible import cell, visible
from isochrone.model import Outcome

if TYPE_CHECKING:
    from isochrone.settings import Settings
    from isochrone.verification.edge import EdgeCheck


@click.command("edge")
@click.option("-c", "--config", default="isochrone.toml", show_default=True, help="The configuration file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def edge_command(config: str, as_json: bool) -> int:
    """Ask the site over HTTP/1.1, HTTP/2 and HTTP/3, and hold what arrives against what the edge and KV say.

    The secret of the edge's own endpoints comes from the environment (edge.secret_env). Exit 1 when something is wrong.
    """
    settings = settings_of(config)
    check = run_edge(settings, time.time())
    if as_json:
        click.echo(json.dumps(check.document(), indent=2))
    else:
        show_edge(check)
    return edge_status(check)


def run_edge(settings: Settings, now: float) -> EdgeCheck:
    """One round, or the command's end when a file that the settings name can't be used."""
    from isochrone.verification.certificates import TrustStoreError
    from isochrone.verification.edge import EdgeChecker

    try:
        checker = EdgeChecker(settings)
    except TrustStoreError as error:
        raise Failure(f"verification.trust_store or dns.trust_store: {error}") from None
    return asyncio.run(checker.check(now=now))


def edge_status(check: EdgeCheck) -> int:
    """The exit status: what could not be checked is not proved, and only what is proved is good."""
    return 0 if check.outcome is Outcome.OK else 1


def show_edge(check: EdgeCheck) -> None:
    """For people."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for title in ("over", "address", "status", "region", "map", "Alt-Svc", "first byte"):
        table.add_column(title, overflow="fold")
    for view in check.seen.views:
        if view.error:
            table.add_row(view.protocol, "-", "not answered", "-", "-", "-", "-")
            continue
        first_byte = f"{view.phases['first_byte']:.1f} ms" if "first_byte" in view.phases else "-"
        table.add_row(
            view.protocol, view.address, str(view.status), cell(view.region or "-"), cell(view.edge.get("map", "-")),
            cell(view.alt_svc or "-"), first_byte,
        )  # fmt: skip
    Console().print(table)
    for finding in check.findings:
        source = f" ({finding.source})" if finding.source else ""
        click.echo(
            f"{finding.severity.value}: {finding.check}: {finding.subject}: {visible(finding.evidence)}; {finding.advice}{source}"
        )
