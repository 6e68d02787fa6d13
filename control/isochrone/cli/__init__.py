"""The `isochrone` command: one thin file per command group, imported only when it is asked for."""

from __future__ import annotations

from isochrone import early  # first: what follows takes a while, and Ctrl-C may come at any time

# isort: split
import contextlib
import errno
import importlib
import importlib.util
import math
import os
import signal
import sys
from typing import NoReturn, TextIO

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

_OUTPUT_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class Failure(Exception):
    """A command's bad end: a sentence for standard error (what is wrong, where, what to do) and the exit status.

    status 1: the work was done and the answer is bad; 2: wrong usage or configuration.
    """

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


class FiniteRange(click.FloatRange):
    """A number between bounds; NaN, which compares with nothing, is none."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class LazyGroup(click.Group):
    """A group whose commands live in modules of their own."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        """The commands whose module exists."""
        return sorted(
            name for name, module in COMMANDS.items() if importlib.util.find_spec(f"{__name__}.{module}")
        )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"{__name__}.{COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command; the daemon can be told to end even before its modules are there."""
        if args[:1] in (["run"], ["agent"]):
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, _end)
        return super().resolve_command(ctx, args)


def _end(number: int, frame: object) -> NoReturn:  # noqa: ARG001  signal's signature
    sys.exit(0)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="isochrone")
def cli() -> None:
    """Sends every client to the origin region that is nearest in time."""


def main() -> NoReturn:
    """Run the command line; whatever a user can cause ends in one sentence and the right exit status."""
    out = sys.stdout
    try:
        status = _status(out)
        if out is not None:
            out.flush()
    except KeyboardInterrupt:  # the last words were cut short
        status = 130
    except BrokenPipeError:  # who reads has seen enough
        status = 0
        _let_go()
    except OSError as error:
        if not _is_of_output(error, out):
            raise
        status = 1
        _tell(f"isochrone: standard output can't be written: {error.strerror}; nothing else went wrong")
        _let_go()
    sys.exit(status)


def _status(out: TextIO | None) -> int:
    """The command, run; its exit status. Errors of the output go through."""
    try:
        status = cli.main(standalone_mode=False)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        _tell(None, error)
        return 2
    except (click.Abort, KeyboardInterrupt):
        return 130
    except Failure as failure:
        if out is not None:
            out.flush()
        _tell(f"isochrone: {failure}")
        return failure.status
    except SystemExit as end:
        if (
            sys.stdout is not out
        ):  # click itself ends with 1 on a closed pipe, and puts a stream of its own in place
            raise BrokenPipeError from None
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return status if isinstance(status, int) else 0


def _tell(sentence: str | None, error: click.ClickException | None = None) -> None:
    """On standard error, if that can be written."""
    try:
        if error is not None:
            error.show()
        else:
            print(sentence, file=sys.stderr)
        if sys.stderr is not None:
            sys.stderr.flush()
    except OSError:
        _let_go(2)


def _is_of_output(error: OSError, out: TextIO | None) -> bool:
    """Whether it was standard output that could not be written: what is still in its buffer can't be either."""
    try:
        if out is not None:
            out.flush()
    except OSError:
        return True
    return error.filename is None and error.errno in _OUTPUT_ERRORS


def _let_go(number: int = 1) -> None:
    """What is left in the buffers goes nowhere; the interpreter would complain of it at its end."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


early.over()
