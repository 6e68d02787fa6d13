"""What was measured, leaned on what was expected by how much each can be trusted. Pure.

The weights come from data: the sampling variance of each figure, and the covariance over origins of how far
expectations were off for networks that were measured. A network that is farther than expected from Frankfurt is so from
Zurich too: the covariance carries one measured origin over to those that never were.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from isochrone.estimation.physics import Floats

NOISE_FLOOR_MS = 0.02  # an error that no number of samples averages away: clock, direction
DRIFT_MS_PER_SQRT_DAY = (
    0.055  # routes drift: about 1 ms in a year (European anchors 2023 against 2024), nothing in a week
)
POOL_WEIGHT = 4.0  # of the pooled variance against a network's own, in samples
PRIOR_VARIANCE = 0.02  # of the inflation, where there are too few networks to learn it from
PRIOR_ROWS = 10.0
CHUNK = 1024  # rows: their systems fit a processor's cache


def noise_variance(rtt_ms: Floats, samples: Floats, spread_ms: Floats, age_days: float) -> Floats:
    """(n, m) variance in ms^2 of each measured figure; inf where nothing was measured.

    Args:
        rtt_ms: figures, NaN where none.
        samples: how many samples each stands on.
        spread_ms: one standard error of each; of a single sample it says nothing.
        age_days: how old the figures are when they are used.
    """
    measured = ~np.isnan(rtt_ms)
    count = np.where(measured, np.maximum(samples, 1), 1)
    told = measured & (count > 1)
    own = np.where(told, np.nan_to_num(spread_ms) ** 2 * count, 0.0)  # of one sample
    weight = np.where(told, count - 1, 0.0)
    pooled = float(np.median(own[told])) if told.any() else 0.0
    one = (own * weight + pooled * POOL_WEIGHT) / (weight + POOL_WEIGHT)
    fixed = NOISE_FLOOR_MS**2 + DRIFT_MS_PER_SQRT_DAY**2 * max(age_days, 0.0)
    return np.where(measured, one / count + fixed, np.inf)


def posterior(seen: Floats, noise: Floats, prior: Floats, covariance: Floats) -> tuple[Floats, Floats]:
    """Gaussian posterior over the origins of each of n rows, and an upper bound of its variance, both (n, m).

    `noise` is inf where nothing was seen; `covariance` (m, m) is of the prior's errors. One small system for each row, on all
    processors. The bound takes, beside an origin's own figure, what the one other origin says that tells most: the exact
    variance would cost three times as much as all the rest of a map of the whole Internet.
    """
    mean, variance = np.empty_like(prior), np.empty_like(prior)
    diagonal = np.arange(seen.shape[1])
    own = covariance[diagonal, diagonal]
    shared = np.square(covariance)

    def work(start: int) -> None:
        part = slice(start, start + CHUNK)
        known = np.isfinite(noise[part]) & ~np.isnan(seen[part])
        gap = np.where(known, seen[part] - prior[part], 0.0)
        error = np.where(known, noise[part] + 1e-9, 1.0)
        mask = known.astype(np.float64)
        system = mask[:, :, None] * covariance
        system *= mask[:, None, :]
        system[:, diagonal, diagonal] += error
        weights = np.linalg.solve(system, gap[:, :, None])[:, :, 0]
        mean[part] = prior[part] + (weights * mask) @ covariance
        told = np.where(known, 1.0 / (own + error), 0.0)
        # An origin's own figure is among the others: C - C^2 / (C + D) is the harmonic sum of both.
        best = np.zeros_like(told)
        for origin in diagonal:
            np.maximum(best, told[:, origin : origin + 1] * shared[origin], out=best)
        variance[part] = np.maximum(own - best, 0.0)

    starts = range(0, len(seen), CHUNK)
    if len(starts) < 2:
        for start in starts:
            work(start)
    else:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            list(pool.map(work, starts))
    return mean, variance


def covariance_with_gaps(values: Floats, limit: int = 4000, rounds: int = 3) -> tuple[Floats, Floats]:
    """Mean (m,) and covariance (m, m) of rows with gaps, by a few rounds of filling them, on at most `limit` rows."""
    origins = values.shape[1]
    if not len(values):
        return np.ones(origins), PRIOR_VARIANCE * np.eye(origins)
    chosen = values[np.argsort(np.isnan(values).sum(axis=1), kind="stable")[:limit]]
    gaps = np.isnan(chosen)
    overall = float(np.nanmedian(chosen)) if not gaps.all() else 1.0
    seen = np.count_nonzero(~gaps, axis=0)
    mean = np.where(seen > 0, np.nansum(chosen, axis=0) / np.maximum(seen, 1), overall)
    filled = np.where(gaps, mean, chosen)
    noise = np.where(gaps, np.inf, 1e-4)
    for _ in range(rounds if gaps.any() else 0):
        mean = filled.mean(axis=0)
        guess = posterior(chosen, noise, np.broadcast_to(mean, chosen.shape), _covariance(filled - mean))[0]
        filled = np.where(gaps, guess, chosen)
    mean = filled.mean(axis=0)
    return mean, _covariance(filled - mean)


def covariance_of_errors(errors: Floats, limit: float = 4.0) -> Floats:
    """(m, m) second moment of the errors, each column clipped at `limit` robust standard deviations: outliers teach nothing."""
    scale = 1.4826 * np.median(np.abs(errors), axis=0) + 1e-6
    return _covariance(np.clip(errors, -limit * scale, limit * scale))


def _covariance(errors: Floats) -> Floats:
    rows, origins = errors.shape
    moment: Floats = errors.T @ errors
    # Few rows can't teach a matrix: it begins as if PRIOR_ROWS independent ones had been seen.
    start = PRIOR_ROWS / (1 + rows / 20)
    blended: Floats = (moment + start * PRIOR_VARIANCE * np.eye(origins)) / (rows + start)
    return blended + 1e-4 * np.eye(origins)
