"""The `isochrone` command: one thin file per command group, imported only when it is asked for."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import NoReturn

import click

#: command -> module; a command's module is imported when the command is run, so that `--help` stays quick
COMMANDS = {
    "agent": "agent",
    "check": "check",
    "demo": "demo",
    "fetch": "fetch",
    "map": "map",
    "probe": "probe",
    "publish": "publish",
    "replay": "replay",
    "rollback": "publish",
    "run": "run",
    "status": "status",
    "verify": "verify",
}


class Failure(Exception):
    """A command's bad end: a sentence for standard error (what is wrong, where, what to do) and the exit status.

    status 1: the work was done and the answer is bad; 2: wrong usage or configuration.
    """

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


class LazyGroup(click.Group):
    """A group whose commands live in modules of their own."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        """The commands whose module exists."""
        return sorted(name for name, module in COMMANDS.items() if importlib.util.find_spec(f"{__name__}.{module}"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"{__name__}.{COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="isochrone")
def cli() -> None:
    """Sends every client to the origin region that is nearest in time."""


def main() -> NoReturn:
    """Run the command line; whatever a user can cause ends in one sentence and the right exit status."""
    try:
        status = cli.main(standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except Failure as failure:
        print(f"isochrone: {failure}", file=sys.stderr)
        sys.exit(failure.status)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
