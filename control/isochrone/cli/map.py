"""`isochrone map`: build a latency map from samples, ask it, list it, compare two."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from isochrone.cli import Failure, FiniteRange
from isochrone.cli.map_files import (
    counting,
    csv_rows,
    load_map,
    parts_of_settings,
    say,
    set_aside,
    users_of,
    write_whole,
)

if TYPE_CHECKING:
    from isochrone.mapping.diff import MapDiff

FILE = click.Path(path_type=Path)


class Gathering(click.Command):
    """A command whose options of several values take them after one flag too: `--samples a.csv b.csv.gz --out map`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the flag before each of its further values."""
        flags = {flag for option in self.params if getattr(option, "multiple", False) for flag in option.opts}
        spread: list[str] = []
        gathering, values = "", 0
        for position, argument in enumerate(args):
            if argument == "--":
                spread += args[position:]
                break
            if argument.startswith("-") and argument != "-":
                if gathering and not values:
                    raise click.BadOptionUsage(
                        gathering,
                        f"Option '{gathering}' requires an argument, and '{argument}' follows.",
                        ctx,
                    )
                gathering, values = (argument if argument in flags else ""), 0
            elif gathering:
                spread += [gathering] if values else []
                values += 1
            spread.append(argument)
        return super().parse_args(ctx, spread)


@click.group("map")
def map_command() -> None:
    """Build a latency map from samples, ask it, list it, compare two."""


@map_command.command("build", cls=Gathering)
@click.option(
    "--origins",
    required=True,
    type=FILE,
    metavar="FILE",
    help="TOML, CSV or JSON with id, latitude, longitude, host.",
)
@click.option(
    "--samples", required=True, multiple=True, type=FILE, metavar="FILE...", help="CSV files, plain or gzip."
)
@click.option(
    "--out",
    required=True,
    type=FILE,
    metavar="FILE",
    help="Where the map goes; an older one is replaced at once.",
)
@click.option(
    "--previous", type=FILE, metavar="FILE", help="The map before this one: keeps first choices calm."
)
@click.option(
    "--now",
    type=FiniteRange(0, 4e9),
    metavar="UNIX",
    help="The time of building; the clock's when not given.",
)
@click.option(
    "-c",
    "--config",
    type=FILE,
    metavar="FILE",
    help="[estimation], [steering] and [[overrides]] from an isochrone.toml.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def build_command(
    origins: Path,
    samples: tuple[Path, ...],
    out: Path,
    previous: Path | None,
    now: float | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Build a map. Exit 1 when no sample can be used."""
    from isochrone.estimation.aggregate import aggregate
    from isochrone.estimation.estimate import estimate
    from isochrone.estimation.origins_file import load_origins
    from isochrone.estimation.samples import NoSamplesError, Rejects, SamplesError
    from isochrone.estimation.samples_csv import read_samples
    from isochrone.mapping.build import NothingToBuildError, build_map
    from isochrone.mapping.override import cell_name, overrides_of
    from isochrone.settings import SettingsError

    now = time.time() if now is None else now
    settings = parts_of_settings(config)
    before = None if previous is None else load_map(previous)
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise Failure(f"{out}: a map can't be written there; name a file in a folder that exists with --out")
    for path in (origins, *samples, *([config] if config else [])):
        if path.exists() and out.exists() and path.samefile(out):
            raise Failure(
                f"{out}: is read by this very build, and would be lost; name another file with --out"
            )
    try:
        places = load_origins(origins).origins
        rejects = Rejects()
        parts = read_samples(samples, [o.id for o in places], now=now, rejects=rejects)
        counted = aggregate(counting(parts, "samples"), places, settings.estimation, now)
        if not rejects.used:
            raise NoSamplesError(rejects)
        if not counted.counts.get("used", 1):
            for sentence in rejects.sentences():
                click.echo(f"isochrone: set aside: {sentence}", err=True)
            raise Failure(
                f"none of {rejects.used} samples can be used: {set_aside(counted.counts)}; is --now right? No map was written",
                1,
            )
        say("estimating")
        table = estimate(counted, places, settings.estimation)
        say("colouring")
        built = build_map(
            table,
            places,
            settings=settings.steering,
            previous=before,
            now=now,
            overrides=overrides_of(settings.overrides),
        )
    except SettingsError as error:
        raise Failure(str(error).replace("\n", "\nisochrone: ")) from None
    except (NoSamplesError, NothingToBuildError) as error:
        raise Failure(f"{error}; no map was written", 1) from None
    except (SamplesError, ValueError) as error:
        raise Failure(str(error)) from None
    finally:
        say("")
    write_whole(out, built.data)
    report = built.report
    if as_json:
        click.echo(
            json.dumps(
                {
                    "map": report.version,
                    **report.as_dict(),
                    "samples": {**rejects.as_dict(), "set_aside": table.counts},
                }
            )
        )
        return
    for sentence in rejects.sentences():
        click.echo(f"isochrone: set aside: {sentence}", err=True)
    late = set_aside(table.counts)
    if late:
        click.echo(f"isochrone: set aside: {late}", err=True)
    cells = ", ".join(f"{count:,} {level}" for level, count in report.cells.items())
    click.echo(f"{out}: {report.version}, {report.bytes:,} bytes, {report.colours:,} colours; cells: {cells}")
    click.echo(
        f"{table.counts.get('used', rejects.used):,} of {rejects.rows:,} samples used; {report.changed:,} first choices changed, {report.held:,} held"
    )
    for applied in report.overrides:
        click.echo(f"override {applied.status}: {cell_name(applied.override)} -> {applied.override.origin}")


@map_command.command("lookup")
@click.argument("file", type=FILE)
@click.option("--asn", metavar="N", help="The client's ASN.")
@click.option("--country", metavar="CC", help="ISO 3166 alpha-2.")
@click.option("--colo", metavar="IATA", help="The colo that serves the client.")
@click.option("--continent", metavar="XX", help="Two letters.")
@click.option("--latitude", metavar="X", help="Degrees.")
@click.option("--longitude", metavar="Y", help="Degrees.")
@click.option(
    "--batch",
    type=FILE,
    metavar="CLIENTS.csv",
    help="Many clients: the same names as columns; one JSON line a row.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def lookup_command(file: Path, batch: Path | None, as_json: bool, **values: str | None) -> None:
    """Who serves this client, best first, and why. With --batch, exit 1 when rows have bad values."""
    from isochrone.mapping.lookup import FACTS, Lookup, read_facts

    lookup = Lookup(load_map(file))
    if batch is not None:
        given = [f"--{name}" for name, value in values.items() if value is not None]
        if given:
            raise Failure(f"--batch takes its clients from the file: leave out {', '.join(given)}")
        rows = bad = 0
        for row in csv_rows(batch, (FACTS,)):
            facts, problems = read_facts(row)
            answer = lookup.answer(facts)
            click.echo(json.dumps({**answer, "problem": "; ".join(problems)} if problems else answer))
            rows, bad = rows + 1, bad + bool(problems)
        if bad:
            raise Failure(
                f"{batch}: {bad:,} of {rows:,} rows have a `problem`, told in their lines; what is wrong counts as unknown",
                1,
            )
        return
    facts, problems = read_facts(values)
    if problems:
        raise Failure("; ".join(problems))
    answer = lookup.answer(facts)
    if as_json:
        click.echo(json.dumps(answer))
        return
    click.echo(f"{answer['reason']}, colour {answer['colour']} of map {answer['map']}")
    for candidate in answer["candidates"]:
        evidence = f"{candidate['samples']} samples" if candidate["samples"] else "inferred"
        click.echo(f"{candidate['origin']:<24} {candidate['rtt_ms']:9.2f} ms  {evidence}")


@map_command.command("export")
@click.argument("file", type=FILE)
def export_command(file: Path) -> None:
    """Every cell as a line of JSON."""
    from isochrone.mapping.lookup import Lookup

    for cell in Lookup(load_map(file)).cells():
        click.echo(json.dumps(cell))


@map_command.command("diff")
@click.argument("old", type=FILE)
@click.argument("new", type=FILE)
@click.option("--users", type=FILE, metavar="FILE", help="CSV with asn and users: what each ASN weighs.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def diff_command(old: Path, new: Path, users: Path | None, as_json: bool) -> None:
    """What another map would change."""
    from isochrone.mapping.diff import diff_maps

    diff = diff_maps(load_map(old), load_map(new), None if users is None else users_of(users))
    click.echo(json.dumps(diff.as_dict()) if as_json else _told(diff))


def _told(diff: MapDiff) -> str:
    lines = [
        f"{diff.old} -> {diff.new}: {'the same content' if diff.same_content else f'{diff.moved_share:.2%} of the weight moves'}"
    ]
    lines += [
        f"{level}: {d.cells:,} cells, {d.moved:,} moved, {d.added:,} added, {d.removed:,} removed"
        for level, d in diff.levels.items()
    ]
    lines += [f"origin {name}: added" for name in diff.origins_added] + [
        f"origin {name}: removed" for name in diff.origins_removed
    ]
    for name, fields in diff.origins_changed.items():
        lines += [
            f"origin {name}: {field}: {json.dumps(old)} -> {json.dumps(new)}"
            for field, (old, new) in fields.items()
        ]
    drift = diff.rtt_drift_ms
    lines.append(
        f"RTT of first choices that stay: {drift['mean']:+.2f} ms on average, p99 {drift['p99']:.2f} ms, max {drift['max']:.2f} ms"
    )
    return "\n".join(lines)
