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
from isochrone.cli.verify_dns import dns_command
from isochrone.model import Outcome, Severity
from isochrone.verification.certificates import TrustStoreError
from isochrone.verification.http3 import EndpointCheck, EndpointChecker

if TYPE_CHECKING:
    from isochrone.settings import Settings

_COLOURS = {Outcome.OK: "green", Outcome.TARGET_FAILED: "red", Outcome.PROBER_FAILED: "yellow"}


@click.group("verify")
def verify_command() -> None:
    """Prove by real connections that what the map promises is true."""


verify_command.add_command(dns_command)


@verify_command.command("http3")
@click.option("-c", "--config", default="isochrone.toml", show_default=True, help="The configuration file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def verify_http3(config: str, as_json: bool) -> int:
    """Connect to every affinity endpoint by HTTP/3 as a pinned client does. Exit 1 unless all of them are good."""
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
    errors = any(finding.severity is Severity.ERROR for check in checks for finding in check.findings)
    # What could not be checked is not proved, and only what is proved is good.
    return 1 if errors or any(check.outcome is not Outcome.OK for check in checks) else 0


def _run_http3(settings: Settings) -> list[EndpointCheck]:
    try:
        checker = EndpointChecker(settings.site, settings.verification)
    except TrustStoreError as error:
        raise Failure(f"verification.trust_store: {error}") from None

    async def run() -> list[EndpointCheck]:
        now = time.time()
        checked = await asyncio.gather(
            *(checker.check(origin, now=now) for origin in settings.model_origins())
        )
        return [check for checks in checked for check in checks]

    return asyncio.run(run())


def _show(checks: list[EndpointCheck]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("origin", "endpoint", "address", "handshake", "result")
    for check in checks:
        table.add_row(
            check.origin,
            check.authority,
            check.address or "-",
            "-" if check.handshake_ms is None else f"{check.handshake_ms:.1f} ms",
            Text(check.outcome.value, style=_COLOURS[check.outcome]),
        )
    Console().print(table)
    for check in checks:
        for finding in check.findings:
            source = f" ({finding.source})" if finding.source else ""
            click.echo(
                f"{finding.severity.value}: {finding.check}: {finding.subject}: {finding.evidence}; {finding.advice}{source}"
            )
