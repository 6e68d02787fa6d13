"""Whom to probe next: up to K targets of each ASN; spares take the place of silent ones. Pure: the clock is an argument.

A target that stays silent for `FALL` rounds in a row is given up: a spare is promoted, and it is tried again ever more rarely,
at most one such trial for each ASN and round. One answer makes it a spare again, or active where a place is free or the spread
gains. How often it was given up is forgiven only after `FORGIVEN` good rounds in a row, so that one which comes and goes is
tried ever more rarely too. What failed on our side (`prober_failed`) says nothing about a target.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING

from isochrone.model import Outcome, TargetKey, TargetState
from isochrone.probing.spread import spread

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from isochrone.model import Target

FALL = 3  # silent rounds in a row
FORGIVEN = 12  # good rounds in a row
RETRY_MOST_SECONDS = 86_400.0
DOUBT_SHARE = (
    0.9  # so many of those that answered before fall silent at once: the silence is taken for our own
)
DOUBT_LEAST = 2  # from so many on a share means something
_NEW = TargetState()


class Selection:
    """The targets of every ASN and what is known of them. Not safe for several threads.

    A round is what lies between two calls of `next_round`: what was noted meanwhile is judged at the second.
    """

    def __init__(
        self,
        targets: Iterable[Target],
        states: Mapping[TargetKey, TargetState],
        *,
        per_asn: int,
        interval_seconds: float,
    ) -> None:
        self.doubted = 0  # rounds whose silence was not held against anybody
        self._per_asn = per_asn
        self._first_pause = 2 * interval_seconds
        self._apart = interval_seconds / 2  # rounds nearer to each other say no more of silence than one
        self._silence_judged_at = -math.inf
        self._states = dict(states)
        self._unsaved: set[TargetKey] = set()
        self._noted: dict[TargetKey, Outcome] = {}
        self.replace(targets)

    def replace(self, targets: Iterable[Target]) -> None:
        """Another list of targets. What is known of those in both stays."""
        self._targets = {key_of(target): target for target in targets}
        self._asns: defaultdict[int, list[Target]] = defaultdict(list)
        for target in self._targets.values():
            self._asns[target.asn].append(target)
        for key in [key for key, state in self._states.items() if state.active and key not in self._targets]:
            self._set(key, replace(self._states[key], active=False))
        for asn in self._asns:
            self._choose(asn)

    def next_round(self, now: float) -> list[Target]:
        """Judge what was noted since the last call, at the Unix time `now`; the targets of the round that begins."""
        noted = {key: outcome for key, outcome in self._noted.items() if key in self._targets}
        self._noted.clear()
        silent = {key for key, outcome in noted.items() if outcome is Outcome.TARGET_FAILED}
        if self._doubtful(noted, silent):
            self.doubted += 1
            silent = set()
        # The rounds of a start follow each other at once: a host that boots into a silent network must not give up all its targets.
        if 0 <= now - self._silence_judged_at < self._apart:
            silent = set()
        elif silent:
            self._silence_judged_at = now
        moved: set[int] = set()
        for key, outcome in noted.items():
            before = self._states.get(key, _NEW)
            if outcome is Outcome.OK:
                after = answered(before)
            elif (
                key in silent and before.retry_at <= now
            ):  # an agent may go on with a plan from before it was given up
                after = stayed_silent(before, key, now, first_pause=self._first_pause)
            else:
                continue
            self._set(key, after)
            if before.given_up != after.given_up:
                moved.add(self._targets[key].asn)
        for asn in moved:
            self._choose(asn)
        return self.active() + self._trials(now)

    def active(self) -> list[Target]:
        """The targets that are probed in every round, in the order of the list."""
        return [target for key, target in self._targets.items() if self._states.get(key, _NEW).active]

    def note(self, key: TargetKey, outcome: Outcome) -> None:
        """What a probe of it came to; the best of a round counts. One that is not in the list is ignored."""
        self._noted[key] = max(outcome, self._noted.get(key, outcome), key=_TELLING.index)

    def unsaved(self) -> dict[TargetKey, TargetState]:
        """States that changed and were not reported as saved."""
        return {key: self._states[key] for key in self._unsaved}

    def saved(self, states: Mapping[TargetKey, TargetState]) -> None:
        """These are kept. One that has changed again meanwhile stays unsaved."""
        self._unsaved -= {key for key, state in states.items() if self._states[key] == state}

    def counts(self) -> dict[str, int]:
        """How many targets are listed, active, spare and given up, and of how many ASNs."""
        kinds = Counter(_kind(self._states.get(key, _NEW)) for key in self._targets)
        return {"listed": len(self._targets), "asns": len(self._asns)} | {
            kind: kinds[kind] for kind in ("active", "spare", "given_up")
        }

    @property
    def most(self) -> int:
        """No round has more targets than this."""
        return sum(min(len(targets), self._per_asn + 1) for targets in self._asns.values())

    def __len__(self) -> int:
        return len(self._targets)

    def _doubtful(self, noted: Mapping[TargetKey, Outcome], silent: set[TargetKey]) -> bool:
        """Whether nearly all that answered the last time were silent at once."""
        before = [
            key
            for key, outcome in noted.items()
            if outcome is not Outcome.PROBER_FAILED and self._states.get(key, _NEW).good
        ]
        return len(before) >= DOUBT_LEAST and sum(key in silent for key in before) >= DOUBT_SHARE * len(
            before
        )

    def _choose(self, asn: int) -> None:
        """The active ones of an ASN anew."""
        members = self._asns[asn]
        alive = [target for target in members if not self._states.get(key_of(target), _NEW).given_up]
        chosen = {key_of(target) for target in spread(alive, self._per_asn, self._rank)}
        for target in members:
            key = key_of(target)
            state = self._states.get(key, _NEW)
            if state.active != (key in chosen):
                self._set(key, replace(state, active=key in chosen))

    def _rank(self, target: Target) -> int:
        state = self._states.get(key_of(target), _NEW)
        return 0 if state.active else 1 if state.answered else 2

    def _trials(self, now: float) -> list[Target]:
        """Of each ASN the one given up whose time has come longest ago."""
        due: dict[int, tuple[float, Target]] = {}
        for key, target in self._targets.items():
            state = self._states.get(key, _NEW)
            if state.given_up and state.retry_at <= now:
                first = due.get(target.asn)
                if first is None or state.retry_at < first[0]:
                    due[target.asn] = (state.retry_at, target)
        return [target for _, target in due.values()]

    def _set(self, key: TargetKey, state: TargetState) -> None:
        if state != self._states.get(key, _NEW):
            self._states[key] = state
            self._unsaved.add(key)


_TELLING = (Outcome.PROBER_FAILED, Outcome.TARGET_FAILED, Outcome.OK)  # the later says more about a target


def key_of(target: Target) -> TargetKey:
    """What it is known by: its address and port."""
    return target.address, target.port


def answered(state: TargetState) -> TargetState:
    """After a round in which it answered."""
    good = min(state.good + 1, FORGIVEN)
    return replace(
        state, answered=True, good=good, silent=0, retry_at=0.0, falls=0 if good >= FORGIVEN else state.falls
    )


def stayed_silent(state: TargetState, key: TargetKey, now: float, *, first_pause: float) -> TargetState:
    """After a round in which it did not answer, at the Unix time `now`."""
    silent = min(state.silent + 1, FALL)
    if silent < FALL:
        return replace(state, good=0, silent=silent)
    falls = state.falls + 1
    retry_at = now + pause(key, falls, first_pause)
    return replace(state, active=False, good=0, silent=silent, falls=falls, retry_at=retry_at)


def pause(key: TargetKey, falls: int, first_pause: float) -> float:
    """Seconds until a target that was given up for the `falls`-th time is tried again: twice as long each time, up to a day.

    A quarter more or less, by its address, so that targets lost together do not come up together; the same after a restart.
    """
    digest = blake2b(f"{key[0]} {key[1]} {falls}".encode(), digest_size=4).digest()
    jitter = 0.75 + 0.5 * int.from_bytes(digest) / 2**32
    return min(first_pause * 2.0 ** min(falls - 1, 60), max(RETRY_MOST_SECONDS, first_pause)) * jitter


def _kind(state: TargetState) -> str:
    return "given_up" if state.given_up else "active" if state.active else "spare"
