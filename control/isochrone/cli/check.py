"""`isochrone check`: is this configuration right?"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from isochrone.checks import read_toml
from isochrone.cli import Failure
from isochrone.settings import Settings, SettingsError, load

if TYPE_CHECKING:
    from isochrone.probing.target_source import TargetSource


def settings_of(path: str) -> Settings:
    """The settings for a command, or its end with every problem on a line of its own."""
    try:
        return load(path)
    except SettingsError as error:
        raise Failure(str(error).replace("\n", "\nisochrone: ")) from None


def before_start(settings: Settings) -> tuple[TargetSource | None, list[str]]:
    """The targets, and every problem with which the daemon does not start. Opens no connection and writes nothing."""
    from isochrone.probing.databases import TargetsError
    from isochrone.probing.target_source import TargetSource
    from isochrone.publishing.kv import token_of
    from isochrone.publishing.kv_errors import KvError
    from isochrone.service.agents_api import CertificateError, tls_of
    from isochrone.verification.certificates import TrustStore, TrustStoreError
    from isochrone.verification.dns import DnsChecker
    from isochrone.verification.dns_anchor import TrustAnchorError
    from isochrone.verification.health import HealthChecker

    problems: list[str] = []
    if settings.kv is None:
        problems.append("kv: missing; the daemon publishes to Workers KV: give account_id and namespace_id")
    else:
        try:
            token_of(settings.kv)
        except KvError as error:
            problems.append(str(error))
    targets: TargetSource | None = None
    try:
        targets = TargetSource(settings)
    except TargetsError as error:
        problems.append(str(error))
    if targets is not None and not targets.targets:
        problems.append("targets: there is no usable target; list some under [[targets]] or in targets_file")
        problems += targets.left_out
    try:
        TrustStore(settings.verification.trust_store)
        HealthChecker(settings.verification)
    except TrustStoreError as error:
        problems.append(f"verification.trust_store: {error}")
    if settings.checks_dns:
        try:
            DnsChecker(settings)
        except TrustStoreError as error:
            problems.append(f"dns.trust_store: {error}")
        except TrustAnchorError as error:
            problems.append(f"dns.trust_anchor: {error}")
        except TargetsError as error:
            problems.append(str(error))
    try:
        tls_of(settings.service.certificate, settings.service.key)
    except CertificateError as error:
        problems.append(str(error))
    state = settings.service.state_dir
    above = next((folder for folder in (state, *state.parents) if os.path.lexists(folder)), state)
    if not above.is_dir():
        problems.append(f"service.state_dir: {above} is not a folder")
    elif not os.access(above, os.W_OK | os.X_OK):
        problems.append(f"service.state_dir: {above} can't be written by this user")
    return targets, problems


def _dns_problems(settings: Settings) -> list[str]:
    """What `isochrone verify dns` would refuse."""
    from isochrone.verification.certificates import TrustStoreError
    from isochrone.verification.dns_anchor import TrustAnchorError, load_anchors
    from isochrone.verification.dns_ask import tls_context

    problems = []
    try:
        tls_context(settings.dns.trust_store)
    except TrustStoreError as error:
        problems.append(f"dns.trust_store: {error}")
    try:
        if settings.dns.trust_anchor is not None:
            load_anchors(settings.dns.trust_anchor)
    except TrustAnchorError as error:
        problems.append(f"dns.trust_anchor: {error}")
    return problems


def is_of_agent(path: str) -> bool:
    """Whether it is an agent.toml; then it has been checked, and is good."""
    from isochrone.agents import settings as agent

    document = read_toml(Path(path), []) or {}
    if "control_plane" not in document or "site" in document:
        return False
    try:
        settings, _ = agent.load(path)
    except SettingsError as error:
        raise Failure(str(error).replace("\n", "\nisochrone: ")) from None
    click.echo(f"{path}: good: agent of {settings.origin}, control plane {settings.control_plane}")
    return True


@click.command("check")
@click.option("-c", "--config", default="isochrone.toml", show_default=True, help="The configuration file.")
def check_command(config: str) -> None:
    """Validate configuration and the files that it names: every problem at once, exit 2 when there is one.

    What only `isochrone run` needs, and targets that it would leave out, are told and are no problem here.
    """
    if is_of_agent(config):
        return
    settings = settings_of(config)
    targets, problems = before_start(settings)
    notes = [problem for problem in problems if _only_for_run(settings, problem)]
    problems = [problem for problem in problems if problem not in notes]
    problems += [problem for problem in _dns_problems(settings) if problem not in problems]
    if problems:
        raise Failure("\nisochrone: ".join(f"{config}: {problem}" for problem in problems))
    if targets is not None and targets.targets:
        notes += (*targets.left_out, *targets.refused)
    count = len(targets.targets) if targets is not None else 0
    click.echo(f"{config}: good: {settings.site}, {len(settings.origins)} origins, {count} targets")
    for database in targets.databases if targets is not None else ():
        built = time.strftime("%Y-%m-%d", time.gmtime(database.built_at))
        days = (time.time() - database.built_at) / 86_400
        notes.append(f"probing.{database.name}: {database.kind}, built on {built}, {days:.0f} days old")
    for note in notes:
        click.echo(f"{config}: note: {note}")


def _only_for_run(settings: Settings, problem: str) -> bool:
    """Whether it is a section that is left out, not one that is wrong: other commands do without."""
    no_kv = settings.kv is None and problem.startswith("kv: missing")
    nobody = (
        not settings.targets and settings.targets_file is None and problem.startswith("targets: there is no")
    )
    return no_kv or nobody
