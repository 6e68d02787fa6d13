"""Some of many targets, spread over countries and, within each, over networks. Pure.

Groups get equal shares as far as they have members (max-min fairness, filled level by level), first the countries, then the
networks of each country. So no two choices of the same size reach more countries, nor more networks with these shares. Ties go
to those that were chosen before: the same question asked again gives the same answer, and one change moves at most one other.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeVar

from isochrone.probing.limiter import network_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from isochrone.model import Target

G = TypeVar("G", bound="Hashable")


def spread(targets: Iterable[Target], most: int, rank: Callable[[Target], int]) -> list[Target]:
    """At most `most` of the targets.

    Args:
        targets: in order of preference; an unknown country is a country of its own.
        most: 0 or more.
        rank: 0 for those that were chosen before, more for others; lower ones come first within a network.
    """
    targets = list(targets)
    if len(targets) <= most:
        return targets
    chosen: list[Target] = []
    for country in _shared(_grouped(targets, lambda target: target.country), most, rank):
        for network in _shared(_grouped(country[0], network_of), country[1], rank):
            chosen += sorted(network[0], key=rank)[: network[1]]
    return chosen


def shares(sizes: Mapping[G, int], most: int, kept: Mapping[G, int]) -> dict[G, int]:
    """How many of each group: as equal as the sizes allow, `most` in all or everybody.

    What can't be divided goes to groups of which so many were kept, then to the first ones.
    """
    share = dict.fromkeys(sizes, 0)
    left = min(most, sum(sizes.values()))
    while left:
        open_groups = [group for group in sizes if share[group] < sizes[group]]
        step = min(left // len(open_groups), *(sizes[group] - share[group] for group in open_groups))
        if step == 0:
            open_groups.sort(
                key=lambda group: kept.get(group, 0) <= share[group]
            )  # stable: ties keep their order
            del open_groups[left:]
            step = 1
        for group in open_groups:
            share[group] += step
        left -= step * len(open_groups)
    return share


def _grouped(targets: Iterable[Target], key: Callable[[Target], Hashable]) -> dict[Hashable, list[Target]]:
    groups: defaultdict[Hashable, list[Target]] = defaultdict(list)
    for target in targets:
        groups[key(target)].append(target)
    return groups


def _shared(
    groups: Mapping[Hashable, Sequence[Target]], most: int, rank: Callable[[Target], int]
) -> list[tuple[Sequence[Target], int]]:
    """Each group that gets a share, with its share."""
    share = shares(
        {name: len(group) for name, group in groups.items()},
        most,
        {name: sum(rank(target) == 0 for target in group) for name, group in groups.items()},
    )
    return [(group, share[name]) for name, group in groups.items() if share[name]]
