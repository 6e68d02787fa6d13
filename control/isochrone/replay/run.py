"""The whole of a replay: learn, judge, report. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from isochrone.mapping.override import overrides_of
from isochrone.replay.clients import clients_of
from isochrone.replay.doubts import doubts
from isochrone.replay.judge import judge, report
from isochrone.replay.learn import DAY, learn, whole_window

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from isochrone.estimation.samples import SampleColumns
    from isochrone.model import Origin


class NothingToJudgeError(ValueError):
    """No client of the test samples was measured to two origins."""

    def __init__(self, clients: int, origins: int) -> None:
        self.clients = clients
        super().__init__(
            f"none of the {clients:,} clients of the test samples was measured to two of the {origins} origins, so there is no choice to judge"
        )


class NoWeightError(ValueError):
    """The users of no judged ASN are known."""

    def __init__(self, asns: int) -> None:
        super().__init__(f"the users file names none of the {asns:,} ASNs that are judged")


def replay(
    train: SampleColumns,
    test: SampleColumns,
    origins: Sequence[Origin],
    settings: Any,
    users: Mapping[int, float] | None = None,
) -> dict[str, Any]:
    """A document with `map`, `judged`, `overall`, `by_level`, `warnings` and, with users, `weighted_by_users`.

    Args:
        train: what to learn from; not empty.
        test: what to judge on; not empty. A client is judged by the median of its samples to each origin.
        origins: that the samples count.
        settings: with `estimation`, `steering` and `overrides`.
        users: weight of ASNs; those that are not in it weigh nothing.

    Raises:
        NothingToJudgeError: no client was measured to two origins.
        NothingToBuildError: no training sample can be used.
        NoWeightError: users are given, and of no ASN that is judged.
    """
    everyone = clients_of(test)
    choosing = np.count_nonzero(~np.isnan(everyone.rtt_ms), axis=1) > 1
    clients = everyone.take(choosing)
    if not len(clients.place):
        raise NothingToJudgeError(len(everyone.place), len(origins))
    asns = np.unique(clients.place["asn"])
    if users is not None and not any(users.get(asn, 0.0) > 0 for asn in asns.tolist()):
        raise NoWeightError(len(asns))
    estimation, now = whole_window(train, settings.estimation)
    if "window_seconds" in settings.estimation.model_fields_set:
        estimation = settings.estimation
    horizon = max(0.0, float(np.median(test.timestamp)) - now)
    found = learn(
        train, origins, estimation, settings.steering,
        now=now, horizon_seconds=horizon, overrides=overrides_of(settings.overrides),
    )  # fmt: skip
    built = found.report
    return {
        "warnings": doubts(train, test),
        "map": {
            "version": built.version, "bytes": built.bytes, "colours": built.colours, "cells": built.cells,
            "learnt_until": now, "window_seconds": estimation.window_seconds, "set_aside": found.counts,
        },
        "judged": {
            "clients": len(clients.place), "samples": int(clients.samples.sum()),
            "left_out": int(np.count_nonzero(~choosing)), "asns": len(asns), "horizon_days": round(horizon / DAY, 2),
        },
        **report(judge(clients, found.map, found.rules, origins), users),
    }  # fmt: skip
