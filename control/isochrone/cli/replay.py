"""`isochrone replay`: learn a map on some samples, judge it on others, say what adopting it would change."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import click

from isochrone.cli import Failure, FiniteRange
from isochrone.cli.map import FILE, Gathering
from isochrone.cli.map_files import counting, parts_of_settings, say, set_aside, users_of
from isochrone.cli.replay_text import tell

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from isochrone.estimation.rejects import Rejects
    from isochrone.estimation.samples import SampleColumns
    from isochrone.model import Origin


@click.command("replay", cls=Gathering)
@click.option(
    "--origins",
    required=True,
    type=FILE,
    metavar="FILE",
    help="TOML, CSV or JSON with id, latitude, longitude.",
)
@click.option(
    "--train", required=True, multiple=True, type=FILE, metavar="FILE...", help="Samples to learn from."
)
@click.option(
    "--test", required=True, multiple=True, type=FILE, metavar="FILE...", help="Samples to judge on."
)
@click.option(
    "--now",
    type=FiniteRange(0, 4e9),
    metavar="UNIX",
    help="Samples after this time are of the future and set aside; the clock's when not given.",
)
@click.option(
    "--users", type=FILE, metavar="FILE", help="CSV with asn and users (or users_est): what each ASN weighs."
)
@click.option(
    "-c",
    "--config",
    type=FILE,
    metavar="FILE",
    help="[estimation], [steering] and [[overrides]] from an isochrone.toml; the window is all of --train unless it says otherwise.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def replay_command(
    origins: Path,
    train: tuple[Path, ...],
    test: tuple[Path, ...],
    now: float | None,
    users: Path | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Learn on some samples, judge on others. Exit 1 when nothing can be learnt or judged."""
    from isochrone.estimation.origins_file import load_origins
    from isochrone.estimation.samples import NoSamplesError, SamplesError
    from isochrone.mapping.build import NothingToBuildError
    from isochrone.replay.run import NothingToJudgeError, replay
    from isochrone.settings import SettingsError

    now = time.time() if now is None else now
    settings = parts_of_settings(config)
    weights = None if users is None else users_of(users)
    try:
        places = load_origins(origins).origins
        learning, learning_rejects = _samples(train, places, now, "samples to learn from")
        judging, judging_rejects = _samples(test, places, now, "samples to judge on")
        say("learning and judging")
        document = replay(learning, judging, places, settings, weights)
    except SettingsError as error:
        raise Failure(str(error).replace("\n", "\nisochrone: ")) from None
    except (NoSamplesError, NothingToBuildError, NothingToJudgeError) as error:
        raise Failure(f"{error}; nothing was judged", 1) from None
    except (SamplesError, ValueError) as error:
        raise Failure(str(error)) from None
    finally:
        say("")
    warnings = [*_same_files(train, test), *document.pop("warnings")]
    for warning in warnings:
        click.echo(f"isochrone: warning: {warning}", err=True)
    document = {
        "train": learning_rejects.as_dict(),
        "test": judging_rejects.as_dict(),
        "warnings": warnings,
        **document,
    }
    if as_json:
        click.echo(json.dumps(document))
        return
    for name, rejects in (("train", learning_rejects), ("test", judging_rejects)):
        for sentence in rejects.sentences():
            click.echo(f"isochrone: {name}: set aside: {sentence}", err=True)
    late = set_aside(document["map"]["set_aside"])
    if late:
        click.echo(f"isochrone: train: set aside: {late}", err=True)
    tell(document, sys.stdout)


def _same_files(train: Sequence[Path], test: Sequence[Path]) -> Iterator[str]:
    for path in test:
        if any(path.samefile(other) for other in train):
            yield f"{path}: is both learnt from and judged on; give --test what --train has not seen"


def _samples(
    paths: Sequence[Path], origins: Sequence[Origin], now: float, what: str
) -> tuple[SampleColumns, Rejects]:
    from isochrone.estimation.samples import NoSamplesError, Rejects, SampleColumns
    from isochrone.estimation.samples_csv import read_samples

    rejects, ids = Rejects(), [origin.id for origin in origins]
    parts = list(counting(read_samples(paths, ids, now=now, rejects=rejects), what))
    if not rejects.used:
        raise NoSamplesError(rejects)
    return SampleColumns.join(parts, ids), rejects
