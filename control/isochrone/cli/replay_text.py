"""What a replay found, for people: sentences, and tables of each kind of cell against simpler rules."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

_RULES = {
    "nearest": "the nearest by geography",
    "one_best": "one best origin for all",
    "country": "the best of the country",
}
_NARROWEST = 100  # columns: what the tables need, also in a pipe


def tell(document: Mapping[str, Any], out: TextIO) -> None:
    """Print the document of a replay."""
    from rich.console import Console

    console = Console(file=out, highlight=False, markup=False, soft_wrap=True)
    console.width = max(console.width, _NARROWEST)
    learnt, judged = document["map"], document["judged"]
    click.echo(
        f"map {learnt['version']}: {learnt['bytes']:,} bytes, {learnt['colours']:,} colours, learnt from "
        f"{learnt['set_aside']['used']:,} of {document['train']['rows']:,} samples, up to {_time(learnt['learnt_until'])}",
        file=out,
    )
    left_out = f"; {judged['left_out']:,} left out: measured to one origin only" if judged["left_out"] else ""
    click.echo(
        f"{judged['clients']:,} clients judged by the median of their {judged['samples']:,} samples, "
        f"{judged['horizon_days']:g} days later{left_out}",
        file=out,
    )
    for title, part in (("all clients", document), ("weighted by users", document.get("weighted_by_users"))):
        if part is None:
            continue
        click.echo(f"\n{_summary(title, part['overall'])}", file=out)
        if "file_share" in part:
            click.echo(
                f"the ASNs that are judged have {part['file_share']:.1%} of the weight in the users file, which names "
                f"{part['asns']:,} of the {judged['asns']:,}",
                file=out,
            )
        groups = {"all": part["overall"], **part["by_level"]}
        console.print(_regrets(groups))
        console.print(_against(groups))


def _time(unix: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix))


def _summary(title: str, figures: Mapping[str, Any]) -> str:
    if not figures["clients"]:
        return f"{title}: none"
    return f"{title}: {figures['clients']:,} clients, {figures['wrong_share']:.1%} wrong choices, {figures['regret_ms']['mean']:.2f} ms lost on average"


def _table(title: str, words: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in words:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, no_wrap=True, justify="right")
    return table


def _regrets(groups: Mapping[str, Mapping[str, Any]]) -> Table:
    """One row a kind of cell."""
    table = _table("regret in ms", ("cells",), ("clients", "wrong", "mean", "p50", "p90", "p99"))
    for name, figures in groups.items():
        if figures["clients"]:
            regrets = [f"{value:.2f}" for value in figures["regret_ms"].values()]
            table.add_row(name, f"{figures['clients']:,}", f"{figures['wrong_share']:.1%}", *regrets)
    return table


def _against(groups: Mapping[str, Mapping[str, Any]]) -> Table:
    """One row a kind of cell and a rule: the rule's own figures, and whom the map serves better or worse than it."""
    table = _table(
        "the map against simpler rules; better and worse: by 10 ms or more",
        ("cells", "against"),
        ("its wrong", "its mean", "better", "worse"),
    )
    for name, figures in groups.items():
        for rule, other in figures.get("against", {}).items():
            table.add_row(
                name, _RULES[rule], f"{other['wrong_share']:.1%}", f"{other['mean_regret_ms']:.2f}",
                f"{other['better_by_10ms_share']:.1%}", f"{other['worse_by_10ms_share']:.1%}",
            )  # fmt: skip
    return table
