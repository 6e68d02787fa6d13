"""`isochrone demo`: the whole system on this machine, real round-trip times replayed."""

from __future__ import annotations

import asyncio
import json
import signal
import sys

import click

from isochrone.cli import Failure, FiniteRange


@click.command("demo")
@click.option(
    "--seconds",
    type=FiniteRange(min=1),
    help="End after so many seconds, but not before the drills are done.",
)
@click.option("--no-browser", is_flag=True, help="Don't open the daemon's page in a browser.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the report as one JSON document, and nothing else."
)
def demo_command(*, seconds: float | None, no_browser: bool, as_json: bool) -> int:
    """The whole system on this machine: a small internet with real round-trip times, the edge, the daemon, and drills.

    Exit status 1 when a drill fails. Needs no root and sends nothing off this machine.
    """
    from rich.console import Console

    from isochrone.lab.demo import run_demo, summary
    from isochrone.lab.internet import LabError
    from isochrone.lab.local_edge import EdgeStartError
    from isochrone.lab.process import LabProcessError

    console = Console(stderr=as_json, quiet=as_json and not sys.stderr.isatty())
    browser = not no_browser and not as_json and console.is_terminal

    async def until_told() -> dict[str, object]:
        task = asyncio.current_task()
        for number in (
            signal.SIGTERM,
            signal.SIGHUP,
        ):  # a closed terminal ends the demo as Ctrl-C does: in order
            if task is not None:
                asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await run_demo(seconds=seconds, browser=browser, console=console)

    try:
        report = asyncio.run(until_told())
    except asyncio.CancelledError:
        raise Failure("the demo was interrupted before it had begun", status=1) from None
    except (LabError, LabProcessError, EdgeStartError) as error:
        raise Failure(f"the demo can't run: {error}", status=1) from None
    if as_json:
        print(json.dumps(report))
    else:
        summary(report, lambda line: console.print(line, highlight=False, soft_wrap=True))
    return 0 if report["ok"] else 1
