"""`isochrone check`: is this configuration right?"""

from __future__ import annotations

import click

from isochrone.cli import Failure
from isochrone.settings import Settings, SettingsError, load


def settings_of(path: str) -> Settings:
    """The settings for a command, or its end with every problem on a line of its own."""
    try:
        return load(path)
    except SettingsError as error:
        raise Failure(str(error).replace("\n", "\nisochrone: ")) from None


@click.command("check")
@click.option("-c", "--config", default="isochrone.toml", show_default=True, help="The configuration file.")
def check_command(config: str) -> None:
    """Validate configuration: every problem at once, exit 2 when there is one."""
    settings = settings_of(config)
    click.echo(f"{config}: good: {settings.site}, {len(settings.origins)} origins, {len(settings.targets)} targets")
