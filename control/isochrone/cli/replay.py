"""`isochrone replay`: learn a map on some samples, judge it on others, say what adopting it would change."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from isochrone.cli import Failure
from isochrone.cli.map import FILE, Gathering
from isochrone.cli.map_files import counting, parts_of_settings, say, users_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from isochrone.estimation.rejects import Rejects
    from isochrone.estimation.samples import SampleColumns
    from isochrone.model import Origin

FOREVER = 4e9  # recorded samples are judged by each other's times, not by the clock's
_NAMES = {
    "nearest": "the nearest by geography",
    "one_best": "one best origin for all",
    "country": "the best of the country",
}


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

    settings = parts_of_settings(config)
    weights = None if users is None else users_of(users)
    try:
        places = load_origins(origins).origins
        learning, learning_rejects = _samples(train, places, "samples to learn from")
        judging, judging_rejects = _samples(test, places, "samples to judge on")
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
    document = {"train": learning_rejects.as_dict(), "test": judging_rejects.as_dict(), **document}
    if as_json:
        click.echo(json.dumps(document))
        return
    for name, rejects in (("train", learning_rejects), ("test", judging_rejects)):
        for sentence in rejects.sentences():
            click.echo(f"isochrone: {name}: set aside: {sentence}", err=True)
    click.echo("\n".join(_told(document)))


def _samples(paths: Sequence[Path], origins: Sequence[Origin], what: str) -> tuple[SampleColumns, Rejects]:
    from isochrone.estimation.samples import NoSamplesError, Rejects, SampleColumns
    from isochrone.estimation.samples_csv import read_samples

    rejects, ids = Rejects(), [origin.id for origin in origins]
    parts = list(counting(read_samples(paths, ids, now=FOREVER, rejects=rejects), what))
    if not rejects.used:
        raise NoSamplesError(rejects)
    return SampleColumns.join(parts, ids), rejects


def _told(document: Mapping[str, Any]) -> list[str]:
    """For people."""
    learnt, judged = document["map"], document["judged"]
    lines = [
        f"map {learnt['version']}: {learnt['bytes']:,} bytes, {learnt['colours']:,} colours, from {document['train']['used']:,} samples",
        f"{judged['clients']:,} clients judged by the median of their {judged['samples']:,} samples, {judged['horizon_days']:g} days later"
        + (f"; {judged['left_out']:,} left out: measured to one origin only" if judged["left_out"] else ""),
        "",
        *_summary("all clients", document["overall"]),
    ]
    for level, figures in document["by_level"].items():
        lines += _summary(f"level {level}", figures, brief=True)
    weighted = document.get("weighted_by_users")
    if weighted:
        lines += ["", *_summary("weighted by users", weighted["overall"])]
        for level, figures in weighted["by_level"].items():
            lines += _summary(f"level {level}", figures, brief=True)
    return lines


def _summary(title: str, figures: Mapping[str, Any], *, brief: bool = False) -> list[str]:
    if not figures["clients"]:
        return [f"{title}: none"]
    regret = figures["regret_ms"]
    quantiles = ", ".join(f"{name} {value:.2f}" for name, value in regret.items())
    lines = [
        f"{title}: {figures['clients']:,} clients, {figures['wrong_share']:.1%} wrong choices; regret in ms: {quantiles}"
    ]
    if not brief:
        lines += [
            f"  against {_NAMES[name]} ({other['wrong_share']:.1%} wrong, mean {other['mean_regret_ms']:.2f} ms): "
            f"{other['better_by_10ms_share']:.1%} better and {other['worse_by_10ms_share']:.1%} worse by 10 ms or more"
            for name, other in figures["against"].items()
        ]
    return lines
