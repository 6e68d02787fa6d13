"""How close to the best possible the map chooses: five cases on public data, by the pipeline that builds maps.

    .venv/bin/python bench/quality.py [--json] [--quick] [--data FOLDER]

Every choice is that of a map of bytes: coloured, rounded, looked up by what the edge knows of a client. The part that judges
never sees what was learnt from. `quality_data.py` says where the samples come from.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from _machine import bar, machine
from isochrone.estimation.origins_file import load_origins
from isochrone.estimation.physics import distances_km
from isochrone.estimation.samples import SampleColumns
from isochrone.estimation.samples_csv import load_samples
from isochrone.replay.clients import Clients, clients_of
from isochrone.replay.judge import BASELINES, Judged, judge, summary
from isochrone.replay.learn import Learned, learn, whole_window
from isochrone.settings import Estimation, Steering
from quality_data import Case, data_folder, eu_day, eu_years, mesh_clients, mesh_directions, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from isochrone.model import Origin

SEEDS = range(1, 7)  # of random five folds, beside the one by client id
FOLDS = 5
QUICK_HOURS = 6
NEIGHBOURS = 4  # of plain averaging
FOREVER = 4e9  # a time after all samples: recorded data is not late

Mask = NDArray[np.bool_]


class Loaded(NamedTuple):
    """A case as the command line would read it, and which client each sample is of."""

    origins: tuple[Origin, ...]
    learn: SampleColumns
    judge: SampleColumns
    learn_client: NDArray[np.int64]
    judge_client: NDArray[np.int64]


def load(case: Case) -> Loaded:
    """Through files, as a user's samples come."""
    with tempfile.TemporaryDirectory() as folder:
        write(case, Path(folder))
        origins = load_origins(Path(folder) / "origins.csv").origins
        ids = [origin.id for origin in origins]
        columns = [
            load_samples([Path(folder) / f"{name}.csv"], ids, now=FOREVER) for name in ("learn", "judge")
        ]
    for _, rejects in columns:
        if rejects.total:
            raise RuntimeError(f"the data has bad rows: {rejects.sentences()}")
    clients = [np.array([client.id for _, _, client, _ in part]) for part in (case.learn, case.judge)]
    return Loaded(origins, columns[0][0], columns[1][0], clients[0], clients[1])


def select(samples: SampleColumns, mask: Mask) -> SampleColumns:
    """Some of the rows."""
    names = [name for name in SampleColumns.__slots__ if name != "origins"]
    return SampleColumns(origins=samples.origins, **{name: getattr(samples, name)[mask] for name in names})


def learnt(samples: SampleColumns, origins: tuple[Origin, ...], **more: Any) -> Learned:
    """A map of all the samples, with default settings."""
    settings, now = whole_window(samples, Estimation())
    return learn(samples, origins, settings, Steering(), now=now, **more)


def judged_on(samples: SampleColumns, origins: tuple[Origin, ...], found: Learned) -> Judged:
    """The map's choices for the clients of these samples."""
    return judge(clients_of(samples), found.map, found.rules, origins)


def joined(parts: list[Judged]) -> Judged:
    """All of them."""
    return Judged(
        np.concatenate([p.regret_ms for p in parts]),
        {name: np.concatenate([p.baseline_ms[name] for p in parts]) for name in BASELINES},
        np.concatenate([p.level for p in parts]), np.concatenate([p.choice for p in parts]),
        sum(p.unmeasured for p in parts), np.concatenate([p.asn for p in parts]),
    )  # fmt: skip


def held_out(
    data: Loaded, fold_of: Callable[[NDArray[np.int64]], NDArray[np.int64]], folds: int = FOLDS
) -> Judged:
    """Every client judged by a map that was made without its fold."""
    learn_fold, judge_fold = fold_of(data.learn_client), fold_of(data.judge_client)
    parts = []
    for fold in range(folds):
        mine = judge_fold == fold
        if mine.any():
            found = learnt(select(data.learn, learn_fold != fold), data.origins)
            parts.append(judged_on(select(data.judge, mine), data.origins, found))
    return joined(parts)


def random_folds(data: Loaded, seed: int) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
    """Five folds of clients drawn at random."""
    ids = np.unique(data.learn_client)
    folds = np.random.default_rng(seed).permutation(len(ids)) % FOLDS
    return lambda clients: folds[np.searchsorted(ids, clients)]


def told(judged: Judged) -> dict[str, Any]:
    """The figures of one run."""
    figures = summary(judged, np.ones(len(judged.regret_ms)))
    levels, counts = np.unique(judged.level, return_counts=True)
    return {**figures, "levels": dict(zip(levels.tolist(), counts.tolist(), strict=True))}


def seeds_told(runs: list[Judged]) -> dict[str, Any]:
    """Means over several foldings; nothing when there was none."""
    if not runs:
        return {}
    means = [float(run.regret_ms.mean()) for run in runs]
    gains = [run.baseline_ms["nearest"] - run.regret_ms for run in runs]
    figures = {
        "runs": len(runs),
        "mean_regret_ms": round(float(np.mean(means)), 4),
        "least": round(min(means), 4),
        "most": round(max(means), 4),
        "wrong_share": round(float(np.mean([(run.regret_ms > 0).mean() for run in runs])), 4),
        "better_by_10ms": round(float(np.mean([(gain >= 10).sum() for gain in gains])), 2),
        "worse_by_10ms": round(float(np.mean([(gain <= -10).sum() for gain in gains])), 2),
    }
    return {"random_folds": figures}


def baselines(clients: Clients, origins: tuple[Origin, ...], fold: NDArray[np.int64]) -> dict[str, Any]:
    """The rules of MANIFEST.md, on clients that were measured to everything."""
    rtt, best = clients.rtt_ms, clients.rtt_ms.min(axis=1)
    rows, everyone = np.arange(len(rtt)), rtt.mean(axis=0)
    latitude, longitude = (clients.place[name].astype(np.float64) for name in ("latitude", "longitude"))
    to_origins = distances_km(
        latitude, longitude, np.array([o.latitude for o in origins]), np.array([o.longitude for o in origins])
    )
    apart = distances_km(latitude, longitude, latitude, longitude)
    nearest, country = to_origins.argmin(axis=1), clients.place["country"]
    by_country, by_country_or_all = nearest.copy(), np.empty(len(rtt), np.int64)
    neighbours = np.empty(len(rtt), np.int64)
    for row in rows:
        fellows = (country == country[row]) & (rows != row)
        others = rtt[fellows].mean(axis=0) if fellows.any() else None
        by_country_or_all[row] = (everyone if others is None else others).argmin()
        if others is not None:
            by_country[row] = others.argmin()
        strangers = np.flatnonzero(fold != fold[row])
        closest = strangers[np.argsort(apart[row, strangers], kind="stable")[:NEIGHBOURS]]
        neighbours[row] = rtt[closest].mean(axis=0).argmin()
    choices = {
        "one_best": np.full(len(rtt), everyone.argmin()), "nearest": nearest,
        "another_client_of_the_country_else_nearest": by_country,
        "another_client_of_the_country_else_all": by_country_or_all,
        "mean_of_nearest_neighbours": neighbours,
    }  # fmt: skip
    regrets = {name: rtt[rows, choice] - best for name, choice in choices.items()}
    return {
        name: {"wrong_share": round(float((r > 0).mean()), 4), "mean_regret_ms": round(float(r.mean()), 4)}
        for name, r in regrets.items()
    }


def directions(data: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Case 1."""
    part = load(mesh_directions(data))
    found = judged_on(part.judge, part.origins, learnt(part.learn, part.origins))
    back = judged_on(part.learn, part.origins, learnt(part.judge, part.origins))
    figures = {"learn_to_region": told(found), "learn_from_region": told(back)}
    wrong, mean = float((found.regret_ms > 0).mean()), float(found.regret_ms.mean())
    return figures, [
        bar("mesh_directions_wrong_percent", round(100 * wrong, 1), 2.6),
        bar("mesh_directions_mean_regret_ms", round(mean, 2), 0.17),
    ]


def unseen(data: Path, seeds: range) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Case 2."""
    part = load(mesh_clients(data))
    found = held_out(part, lambda clients: clients % FOLDS)
    runs = [held_out(part, random_folds(part, seed)) for seed in seeds]
    clients = clients_of(part.judge)
    gain = found.baseline_ms["nearest"] - found.regret_ms
    better, worse = int((gain >= 10).sum()), int((gain <= -10).sum())
    figures = {"by_client_id": told(found), **seeds_told(runs)}
    figures["baselines"] = baselines(clients, part.origins, _fold_of(part, clients))
    return figures, [
        bar("mesh_unseen_mean_regret_ms", float(found.regret_ms.mean()), 2.0),
        bar("mesh_unseen_better_for_one_worse", better / max(worse, 1), 5.0, "higher"),
    ]


def _fold_of(part: Loaded, clients: Clients) -> NDArray[np.int64]:
    """The fold by client id of each client that is judged."""
    place = {
        key: client % FOLDS
        for *key_parts, client in zip(part.judge.asn.tolist(), part.judge.latitude.tolist(), part.judge.longitude.tolist(), part.judge_client.tolist(), strict=True)
        for key in (tuple(key_parts),)
    }  # fmt: skip
    keys = zip(*(clients.place[name].tolist() for name in ("asn", "latitude", "longitude")), strict=True)
    return np.array([place[key] for key in keys])


def years(data: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Case 3."""
    part = load(eu_years(data))
    horizon = float(np.median(part.judge.timestamp) - part.learn.timestamp.max())
    found = judged_on(part.judge, part.origins, learnt(part.learn, part.origins, horizon_seconds=horizon))
    fresh = judged_on(part.judge, part.origins, learnt(part.learn, part.origins))
    mean = float(found.regret_ms.mean())
    return {"stale": told(found), "as_if_fresh": told(fresh)}, [bar("eu_years_mean_regret_ms", mean, 0.45)]


@lru_cache(maxsize=1)
def day(data: Path) -> Loaded:
    """What cases 4 and 5 share."""
    return load(eu_day(data))


def fellows(data: Path, seeds: range, *, quick: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Case 4: every client by the others."""
    part = day(data)
    ids = np.unique(part.judge_client)
    alone = held_out(part, lambda clients: np.searchsorted(ids, clients), len(ids)) if not quick else None
    folded = held_out(part, lambda clients: clients % FOLDS)
    runs = [held_out(part, random_folds(part, seed)) for seed in seeds]
    clients = clients_of(part.judge)
    figures: dict[str, Any] = {"by_client_id": told(folded), **seeds_told(runs)}
    if alone is not None:
        figures["one_left_out"] = told(alone)
    figures["baselines"] = baselines(clients, part.origins, np.arange(len(clients.rtt_ms)))
    if alone is None:  # fewer to learn from than the case has: another figure, another name
        return figures, [bar("eu_fellows_five_folds_mean_regret_ms", float(folded.regret_ms.mean()), 1.6)]
    return figures, [bar("eu_fellows_mean_regret_ms", float(alone.regret_ms.mean()), 1.6)]


def hourly(
    data: Path, *, calm: bool = True, quick: bool = False
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Case 5: a map each hour from the hours before, used for the hour that follows."""
    part = day(data)
    hours = np.unique(part.judge.timestamp)[: QUICK_HOURS if quick else None]
    everyone = clients_of(part.judge)
    previous, before, changes, regrets, worst = None, None, 0, [], 0.0
    for hour in hours[1:]:
        past = select(part.learn, part.learn.timestamp < hour)
        found = learn(
            past, part.origins, Estimation(), Steering(), now=hour - 1, previous=previous if calm else None
        )
        previous = found.map
        regrets.append(judged_on(select(part.judge, part.judge.timestamp == hour), part.origins, found))
        choices = np.array([found.map.order(found.map.find(facts)[1])[0] for facts in everyone.facts()])
        if before is not None:
            changes += int((choices != before).sum())
        before = choices
        worst = max(worst, float(regrets[-1].regret_ms.mean()))
    networks = len(np.unique(everyone.place["asn"]))
    days = (len(hours) - 2) / 24
    rate, mean = changes / networks / days, float(joined(regrets).regret_ms.mean())
    figures = {
        "networks": networks, "maps": len(hours) - 1, "changes": changes,
        "changes_per_asn_and_day": round(rate, 4), "mean_regret_ms": round(mean, 4), "worst_hour_ms": round(worst, 4),
    }  # fmt: skip
    name = "eu_first_hours" if quick else "eu_hourly"
    return figures, [
        bar(f"{name}_changes_per_asn_and_day", rate, 0.03),
        bar(f"{name}_mean_regret_ms", mean, 0.10),
    ]


def main() -> None:
    """Run all cases, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--quick", action="store_true", help="no random folds, nobody left out one by one, some hours only"
    )
    parser.add_argument("--data", type=Path, default=data_folder(), help="the folder of MANIFEST.md")
    arguments = parser.parse_args()
    data, seeds = arguments.data, SEEDS[:0] if arguments.quick else SEEDS
    cases: dict[str, Callable[[], tuple[dict[str, Any], list[dict[str, Any]]]]] = {
        "mesh_directions": lambda: directions(data),
        "mesh_unseen": lambda: unseen(data, seeds),
        "eu_years": lambda: years(data),
        "eu_fellows": lambda: fellows(data, seeds, quick=arguments.quick),
        "eu_hourly": lambda: hourly(data, quick=arguments.quick),
    }
    results, bars = {}, []
    for name, run in cases.items():
        began = time.perf_counter()
        figures, lines = run()
        results[name] = {**figures, "seconds": round(time.perf_counter() - began, 1)}
        bars += lines
    document = {"benchmark": "quality", "machine": machine(), "cases": results, "bars": bars}
    print(json.dumps(document, indent=None if arguments.json else 2))


if __name__ == "__main__":
    main()
