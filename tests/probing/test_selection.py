"""Which targets of an ASN are probed: as many as may be, spread, steady, and back when they are back."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.model import Outcome, Target, TargetState
from isochrone.probing.limiter import network_of
from isochrone.probing.selection import (
    FALL,
    FORGIVEN,
    RETRY_MOST_SECONDS,
    Selection,
    key_of,
    pause,
)
from isochrone.probing.spread import shares, spread

NOW = 1_790_000_000.0
INTERVAL = 300.0


def target(network, host=1, *, asn=1, country="DE"):
    return Target(f"203.0.{network}.{host}", 443, asn, country)


target_lists = st.lists(
    st.builds(
        target, st.integers(0, 5), st.integers(1, 4), asn=st.integers(1, 2), country=st.sampled_from(["", "DE", "FR"])
    ),
    max_size=24,
    unique_by=key_of,
)  # fmt: skip
outcomes = st.sampled_from([*Outcome, None])


def reach(chosen):
    """What a spread is judged by: countries, then the evenness over them, then networks of each country."""
    countries = Counter(t.country for t in chosen)
    networks = Counter((t.country, network_of(t)) for t in chosen)
    return len(countries), -sum(n * n for n in countries.values()), -sum(n * n for n in networks.values())


@given(target_lists, st.integers(0, 6))
def test_no_other_choice_is_spread_wider(targets, most):
    targets = targets[:9]  # all subsets are looked at
    chosen = spread(targets, most, lambda _: 1)
    assert len(chosen) == len(set(chosen)) == min(most, len(targets))
    best = max(reach(other) for other in itertools.combinations(targets, len(chosen)))
    # Countries are shared out first; among the choices with their shares none reaches more networks.
    assert reach(chosen)[:2] == best[:2]
    of_country = Counter(t.country for t in chosen)
    same = [
        other
        for other in itertools.combinations(targets, len(chosen))
        if Counter(t.country for t in other) == of_country
    ]
    assert reach(chosen) == max(map(reach, same))


@given(target_lists, st.integers(1, 6), st.data())
def test_one_change_moves_at_most_one_other(targets, most, data):
    chosen = set(spread(targets, most, lambda _: 1))
    assert set(spread(targets, most, lambda t: int(t not in chosen))) == chosen  # asked again: the same
    if not targets:
        return
    one = data.draw(st.sampled_from(targets))
    without = [t for t in targets if t != one]
    after = set(spread(without, most, lambda t: int(t not in chosen)))
    assert chosen - {one} <= after  # a loss moves nobody else
    back = set(spread(targets, most, lambda t: int(t not in after)))
    assert len(after - back) <= 1


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(0, 40), st.lists(st.integers(0, 9), max_size=8))
def test_shares_are_even(sizes, most, kept):
    sizes = dict(enumerate(sizes))
    found = shares(sizes, most, dict(enumerate(kept)))
    assert sum(found.values()) == min(most, sum(sizes.values()))
    full = [group for group in sizes if found[group] == sizes[group]]
    others = [found[group] for group in sizes if group not in full]
    assert all(found[group] <= sizes[group] for group in sizes)
    assert not others or max(found.values()) <= min(others) + 1


def selection(targets, states=(), *, per_asn=2):
    return Selection(targets, dict(states), per_asn=per_asn, interval_seconds=INTERVAL)


class World:
    """Rounds of a selection, INTERVAL apart."""

    def __init__(self, chosen):
        self.chosen, self.now = chosen, NOW
        self.round = chosen.next_round(self.now)

    def go(self, outcome_of):
        for t in self.round:
            if (outcome := outcome_of(t)) is not None:
                self.chosen.note(key_of(t), outcome)
        self.now += INTERVAL
        self.round = self.chosen.next_round(self.now)
        return self.round


@given(
    target_lists,
    st.integers(1, 4),
    st.lists(st.dictionaries(st.tuples(st.integers(0, 5), st.integers(1, 4)), outcomes), max_size=30),
)
def test_whatever_happens_no_asn_has_more_than_its_share(targets, per_asn, rounds):
    world = World(selection(targets, per_asn=per_asn))
    for told in rounds:
        states = world.chosen._states
        active = [t for t in targets if states.get(key_of(t), TargetState()).active]
        by_asn = Counter(t.asn for t in active)
        assert all(n <= per_asn for n in by_asn.values())
        assert len(world.round) == len(set(world.round)) <= world.chosen.most
        assert all(n <= by_asn[asn] + 1 for asn, n in Counter(t.asn for t in world.round).items())
        for asn in {t.asn for t in targets}:
            alive = [t for t in targets if t.asn == asn and not states.get(key_of(t), TargetState()).given_up]
            assert by_asn[asn] == min(per_asn, len(alive))  # no place stays free beside a spare
            best = spread(alive, per_asn, lambda _: 1)
            assert reach([t for t in active if t.asn == asn])[:2] == reach(best)[:2]
        counts = world.chosen.counts()
        assert counts["active"] + counts["spare"] + counts["given_up"] == counts["listed"] == len(targets)
        world.go(lambda t, told=told: told.get((int(t.address.split(".")[2]), int(t.address.split(".")[3]))))


@given(target_lists, st.lists(st.booleans(), min_size=20, max_size=20))
def test_our_own_trouble_never_demotes(targets, ours):
    world = World(selection(targets))
    first = world.round
    for trouble in ours:
        assert world.go(lambda _, trouble=trouble: Outcome.PROBER_FAILED if trouble else None) == first
    assert world.chosen.counts()["given_up"] == 0


@given(target_lists, st.integers(1, 4))
def test_nothing_moves_while_all_answer(targets, per_asn):
    world = World(selection(targets, per_asn=per_asn))
    first = world.round
    for _ in range(FORGIVEN + 2):
        assert world.go(lambda _: Outcome.OK) == first


def test_a_spare_takes_the_place_of_a_silent_one_which_comes_back_as_spare():
    one, two, spare = target(1), target(2), target(3)
    other = target(9, asn=2)
    world = World(selection([one, two, spare, other]))
    assert world.round == [one, two, other]
    down = {one}

    def outcome(t):
        return Outcome.TARGET_FAILED if t in down else Outcome.OK

    for _ in range(FALL - 1):
        assert world.go(outcome) == [one, two, other]
    assert world.go(outcome) == [two, spare, other]
    down.clear()
    tried = [world.go(outcome) for _ in range(20)]
    assert (
        sum(one in round_ for round_ in tried) == 1
    )  # one trial; then it is a spare, and nobody gives way to it
    assert world.chosen.counts() == {"listed": 4, "asns": 2, "active": 3, "spare": 1, "given_up": 0}
    down.add(two)
    assert [world.go(outcome) for _ in range(FALL)][-1] == [one, spare, other]


def test_the_only_target_of_a_country_gets_its_place_back():
    german, second, french = target(1), target(2), target(3, country="FR")
    world = World(selection([german, second, french, target(9, asn=2)]))
    assert french in world.round
    assert second not in world.round
    for _ in range(FALL):
        world.go(lambda t: Outcome.TARGET_FAILED if t is french else Outcome.OK)
    assert second in world.round
    for _ in range(10):
        world.go(lambda _: Outcome.OK)
    assert french in world.round
    assert second not in world.round


def test_a_dead_target_is_tried_ever_more_rarely():
    dead, alive = target(1), target(9, asn=2)
    world = World(selection([dead, alive]))
    tried = []
    for number in range(24 * 12 * 8):  # eight days
        if dead in world.round:
            tried.append(number * INTERVAL)
        world.go(lambda t: Outcome.TARGET_FAILED if t is dead else Outcome.OK)
    gaps = [b - a for a, b in itertools.pairwise(tried)]
    assert gaps[: FALL - 1] == [INTERVAL] * (FALL - 1)
    doubling = gaps[FALL - 1 : FALL + 6]
    assert all(1.1 < b / a < 3.5 for a, b in itertools.pairwise(doubling))
    assert max(gaps) <= 1.25 * RETRY_MOST_SECONDS + INTERVAL
    assert len(tried) < 25
    assert world.chosen.counts()["given_up"] == 1


def test_one_that_comes_and_goes_moves_things_ever_more_rarely():
    flapping, steady, spare = target(1), target(2), target(3)
    world = World(selection([flapping, steady, spare]))
    rng = random.Random(3)
    changes, before = 0, set(world.round)
    for _ in range(24 * 12 * 4):  # four days
        up = rng.random() < 0.3
        world.go(lambda t, up=up: Outcome.OK if t is not flapping or up else Outcome.TARGET_FAILED)
        active = {t for t in world.round if world.chosen._states[key_of(t)].active}
        changes += active != before
        before = active
    assert 1 <= changes <= 4  # a spare took over; nothing gained by taking it back


@pytest.mark.parametrize(("good", "falls"), [(1, 4), (FORGIVEN - 1, 4), (FORGIVEN, 1)])
def test_falls_are_forgiven_only_after_many_good_rounds(good, falls):
    """Four times up for so many rounds and then gone: how long it is left alone in the end."""
    flapping, steady = target(1), target(2)
    world = World(selection([flapping, steady, target(9, asn=2)]))
    for _ in range(4):
        up = 0
        while up < good:
            up += flapping in world.round
            world.go(lambda _: Outcome.OK)
        while not world.chosen._states[key_of(flapping)].given_up:
            world.go(lambda t: Outcome.TARGET_FAILED if t is flapping else Outcome.OK)
    state = world.chosen._states[key_of(flapping)]
    assert state.falls == falls
    assert state.retry_at - world.now == pytest.approx(pause(key_of(flapping), falls, 2 * INTERVAL))


@given(st.integers(1, 10_000), st.integers(1, 255), st.floats(0.1, 1e6))
def test_pauses_grow_to_a_bound_and_are_the_same_every_time(falls, host, first):
    key = ("203.0.113." + str(host), 443)
    assert pause(key, falls, first) == pause(key, falls, first)
    assert 0.75 * first <= pause(key, falls, first) <= 1.25 * max(RETRY_MOST_SECONDS, first)
    assert pause(key, falls + 2, first) >= min(pause(key, falls, first), 0.75 * RETRY_MOST_SECONDS)


def test_jitter_spreads_those_lost_together():
    pauses = [pause((f"203.0.113.{n}", 443), 1, 600.0) for n in range(200)]
    assert 450 <= min(pauses) < 480
    assert 720 < max(pauses) <= 750
    assert len({round(p) for p in pauses}) > 100


@pytest.mark.parametrize(("lost", "doubted"), [(20, 1), (18, 1), (17, 0)])
def test_silence_of_nearly_all_at_once_is_our_own(lost, doubted):
    targets = [target(n, asn=n) for n in range(20)]
    world = World(selection(targets))
    world.go(lambda _: Outcome.OK)
    for _ in range(FALL + 1):
        world.go(lambda t: Outcome.TARGET_FAILED if t in targets[:lost] else Outcome.OK)
    assert world.chosen.counts()["given_up"] == (0 if doubted else lost)
    assert bool(world.chosen.doubted) == bool(doubted)


def test_targets_that_never_answered_are_given_up_even_if_none_does():
    world = World(selection([target(n, asn=n) for n in range(20)]))
    for _ in range(FALL):
        world.go(lambda _: Outcome.TARGET_FAILED)
    assert world.chosen.counts()["given_up"] == 20


def test_the_best_of_a_round_counts_and_strangers_are_ignored():
    chosen = selection([target(1)])
    chosen.next_round(NOW)
    for number in range(FALL + 1):
        for outcome in (Outcome.TARGET_FAILED, Outcome.OK, Outcome.PROBER_FAILED):
            chosen.note(key_of(target(1)), outcome)
        chosen.note(("198.51.100.1", 1), Outcome.TARGET_FAILED)
        assert chosen.next_round(NOW + number) == [target(1)]
    assert chosen.unsaved().keys() == {key_of(target(1))}


@given(target_lists, st.lists(st.lists(outcomes, min_size=24, max_size=24), max_size=12), st.integers(0, 11))
def test_a_restart_changes_nothing(targets, rounds, restart):
    def run(*, restarted):
        world, kept = World(selection(targets)), {}
        for number, told in enumerate(rounds):
            index = {key_of(t): outcome for t, outcome in zip(targets, told, strict=False)}
            world.go(lambda t, index=index: index[key_of(t)])
            changed = world.chosen.unsaved()
            kept |= changed
            world.chosen.saved(changed)
            assert world.chosen.unsaved() == {}
            if restarted and number == restart:
                world.chosen = selection(targets, kept)
        return world.round, world.chosen._states

    first, second = run(restarted=False), run(restarted=True)
    assert first[0] == second[0]
    assert {k: v for k, v in first[1].items() if v != TargetState()} == {
        k: v for k, v in second[1].items() if v != TargetState()
    }


def test_an_agent_with_an_older_plan_makes_nothing_worse():
    """It goes on probing a target that was given up: its silence counts once it is due again, its answer always."""
    dead = target(1)
    world = World(selection([dead, target(9, asn=2)]))
    while not world.chosen._states[key_of(dead)].given_up:
        world.go(lambda t: Outcome.TARGET_FAILED if t is dead else Outcome.OK)
    state = world.chosen._states[key_of(dead)]
    world.chosen.note(key_of(dead), Outcome.TARGET_FAILED)
    world.chosen.next_round(world.now + 1.0)
    assert world.chosen._states[key_of(dead)] == state
    world.chosen.note(key_of(dead), Outcome.OK)
    assert dead in world.chosen.next_round(world.now + 2.0)


def test_another_list_keeps_what_is_known():
    one, two, three = target(1), target(2), target(3)
    world = World(selection([one, two]))
    for _ in range(FALL):
        world.go(lambda t: Outcome.TARGET_FAILED if t is one else Outcome.OK)
    world.chosen.replace([one, three])
    assert world.chosen.next_round(world.now + 1) == [three]
    world.chosen.replace([one, two, three])
    assert world.chosen.next_round(world.now + 2) == [two, three]
    assert world.chosen.counts()["given_up"] == 1
    world.chosen.replace([])
    assert world.chosen.next_round(world.now + 3) == []
