"""`isochrone verify dns`: do the regional names resolve where they say, from everywhere?"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

import click

from isochrone.cli import Failure
from isochrone.cli.check import settings_of
from isochrone.cli.visible import cell, visible
from isochrone.model import Outcome, Severity
from isochrone.verification.dns_document import document

if TYPE_CHECKING:
    from isochrone.settings import Settings
    from isochrone.verification.dns import DnsCheck

_COLOURS = {Outcome.OK: "green", Outcome.TARGET_FAILED: "red", Outcome.PROBER_FAILED: "yellow"}


@click.command("dns")
@click.option("-c", "--config", default="isochrone.toml", show_default=True, help="The configuration file.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON document: findings and the pre-resolution plan."
)
def dns_command(config: str, as_json: bool) -> int:
    """Ask for every regional name at its own servers and at resolvers. Exit 1 when a promise is not true."""
    settings = settings_of(config)
    now = time.time()
    checks = run_dns(settings, now)
    if as_json:
        click.echo(json.dumps(document(settings.site, checks, now), indent=2))
    else:
        show_dns(checks)
    errors = any(finding.severity is Severity.ERROR for check in checks for finding in check.findings)
    # What could not be checked is not proved, and only what is proved is good.
    return 1 if errors or any(check.outcome is not Outcome.OK for check in checks) else 0


def run_dns(settings: Settings, now: float) -> tuple[DnsCheck, ...]:
    """One round, or the command's end when a file that the settings name can't be used."""
    # Imported here: the other commands of the group need neither dnspython nor geoip2.
    from isochrone.probing.databases import TargetsError
    from isochrone.verification.certificates import TrustStoreError
    from isochrone.verification.dns import DnsChecker
    from isochrone.verification.dns_anchor import TrustAnchorError

    try:
        checker = DnsChecker(settings)
    except TrustStoreError as error:
        raise Failure(f"dns.trust_store: {error}") from None
    except TrustAnchorError as error:
        raise Failure(f"dns.trust_anchor: {error}") from None
    except TargetsError as error:
        raise Failure(str(error)) from None
    return asyncio.run(checker.check_all(now=now))


def show_dns(checks: tuple[DnsCheck, ...]) -> None:
    """For people."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for title in ("origin", "name", "addresses", "https"):
        table.add_column(title, overflow="fold")
    for title in ("ttl", "answers", "result"):
        table.add_column(title, no_wrap=True)
    for check in checks:
        https = "; ".join(f"{r.priority} {r.target}:{r.port} {','.join(r.alpn)}" for r in check.plan.https)
        table.add_row(
            check.origin, check.name, "\n".join(check.plan.addresses) or "-", cell(https or "-"), f"{check.plan.ttl} s" if check.plan.proved else "-",
            str(check.answers), Text(check.outcome.value, style=_COLOURS[check.outcome]),
        )  # fmt: skip
    Console().print(table)
    for check in checks:
        for finding in check.findings:
            source = f" ({finding.source})" if finding.source else ""
            click.echo(
                f"{finding.severity.value}: {finding.check}: {finding.subject}: {visible(finding.evidence)}; {finding.advice}{source}"
            )
