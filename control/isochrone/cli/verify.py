"""`isochrone verify`: is what the map promises true?"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from isochrone.cli import Failure
from isochrone.cli.check import settings_of
from isochrone.cli.verify_dns import dns_command, run_dns, show_dns
from isochrone.cli.verify_edge import edge_command, edge_status, run_edge, show_edge
from isochrone.cli.visible import visible
from isochrone.model import Outcome, Severity
from isochrone.verification.certificates import TrustStoreError
from isochrone.verification.http3 import EndpointCheck, EndpointChecker
from isochrone.verification.resolving import resolver_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from isochrone.settings import Settings
    from isochrone.verification.dns import DnsCheck

_COLOURS = {Outcome.OK: "green", Outcome.TARGET_FAILED: "red", Outcome.PROBER_FAILED: "yellow"}

_PROTOCOLS = {"h1": "HTTP/1.1", "h2": "HTTP/2", "h3": "HTTP/3"}


@click.group("verify")
def verify_command() -> None:
    """Prove by real connections that what the map promises is true."""


verify_command.add_command(dns_command)
verify_command.add_command(edge_command)


@verify_command.command("http3")
@click.option("-c", "--config", default="isochrone.toml", show_default=True, help="The configuration file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def verify_http3(config: str, as_json: bool) -> int:
    """Connect to every affinity endpoint by HTTP/3 as a pinned client does, several times in a row. Exit 1 unless all are good."""
    settings = settings_of(config)
    checks = _run_http3(settings)
    if as_json:
        click.echo(
            json.dumps({"site": settings.site, "checks": [asdict(check) for check in checks]}, indent=2)
        )
    elif not checks:
        click.echo(f"{config}: no origin has an affinity endpoint (alt_svc), so there is nothing to verify")
    else:
        _show(checks)
    return _status(checks)


@verify_command.command("all")
@click.option("-c", "--config", default="isochrone.toml", show_default=True, help="The configuration file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document: `dns`, `http3` and `edge`.")
def verify_all(config: str, as_json: bool) -> int:
    """All of it: `verify dns`, `verify http3` and `verify edge`, one after the other. Exit 1 unless all are good."""
    from isochrone.verification.dns_document import document

    settings, now = settings_of(config), time.time()
    names = run_dns(settings, now)
    endpoints = _run_http3(settings)
    edge = run_edge(settings, time.time())
    if as_json:
        told = {
            "site": settings.site,
            "checked_at": now,
            "dns": document(settings.site, names, now),
            "http3": {"site": settings.site, "checks": [asdict(check) for check in endpoints]},
            "edge": edge.document(),
        }
        click.echo(json.dumps(told, indent=2))
    else:
        show_dns(names)
        _show(endpoints)
        show_edge(edge)
    return max(_status(names), _status(endpoints), edge_status(edge))


def _status(checks: Sequence[EndpointCheck | DnsCheck]) -> int:
    """The exit status: what could not be checked is not proved, and only what is proved is good."""
    errors = any(finding.severity is Severity.ERROR for check in checks for finding in check.findings)
    return 1 if errors or any(check.outcome is not Outcome.OK for check in checks) else 0


def _run_http3(settings: Settings) -> list[EndpointCheck]:
    from rich.console import Console

    try:
        resolve = resolver_of(settings.dns)
    except TrustStoreError as error:
        raise Failure(f"dns.trust_store: {error}") from None
    try:
        checker = EndpointChecker(settings.site, settings.verification, resolve)
    except TrustStoreError as error:
        raise Failure(f"verification.trust_store: {error}") from None

    async def run() -> list[EndpointCheck]:
        now = time.time()
        checked = await asyncio.gather(
            *(checker.check(origin, now=now, deep=True) for origin in settings.model_origins())
        )
        return [check for checks in checked for check in checks]

    with Console(stderr=True).status("connecting to every address, several times in a row"):
        return asyncio.run(run())


def _show(checks: list[EndpointCheck]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for title in ("origin", "endpoint", "address"):
        table.add_column(title, overflow="fold")
    for title in ("QUIC", "resumes", "0-RTT", "migrates", "result"):
        table.add_column(title, no_wrap=True)
    for check in checks:
        table.add_row(
            check.origin, check.authority, check.address or "-", check.version or "-", _yes(check.resumed), _yes(check.early_data),
            _yes(check.migrated), Text(check.outcome.value, style=_COLOURS[check.outcome]),
        )  # fmt: skip
    console = Console()
    console.print(table)
    if any(check.timings for check in checks):
        console.print(_handshakes(checks))
    for check in checks:
        for finding in check.findings:
            source = f" ({finding.source})" if finding.source else ""
            click.echo(
                f"{finding.severity.value}: {finding.check}: {finding.subject}: {visible(finding.evidence)}; {finding.advice}{source}"
            )


def _yes(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "no"


def _handshakes(checks: list[EndpointCheck]) -> Table:
    """The three protocols beside each other, on the same path."""
    from rich.table import Table

    table = Table(title="handshakes in ms: median / p99 / jitter (standard deviation)", title_justify="left")
    for title in ("origin", "address"):
        table.add_column(title, overflow="fold")
    for title in _PROTOCOLS.values():
        table.add_column(title, no_wrap=True, justify="right")
    for check in checks:
        if check.timings:
            cells = (check.timings.get(name) for name in _PROTOCOLS)
            table.add_row(
                check.origin,
                check.address,
                *(f"{t.median_ms:.1f} / {t.p99_ms:.1f} / {t.jitter_ms:.1f}" if t else "-" for t in cells),
            )
    return table
