"""Test samples -> clients: who asks, and what the round-trip time to each origin really was. Pure."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from isochrone.estimation.quantiles import pack, summarise
from isochrone_edge.latency_map import Facts, unletters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from isochrone.estimation.physics import Floats
    from isochrone.estimation.samples import SampleColumns

#: Half a client's requests are quicker and half are slower: what a median of its samples says of a choice. A low quantile,
#: with which maps are learnt, would forgive an origin that is quick now and then only.
_LOWER, _UPPER = 0.5, 0.5 + 1e-9
_PLACE = np.dtype(
    [
        ("asn", "u4"),
        ("country", "u2"),
        ("colo", "u2"),
        ("continent", "u2"),
        ("latitude", "f4"),
        ("longitude", "f4"),
    ]
)


class Clients(NamedTuple):
    """n clients x m origins: those of one (ASN, country, colo, continent, coordinates) are one client."""

    place: NDArray[np.void]  # (n,) with the fields above; numbers are `letters` of codes, 0 and NaN: unknown
    rtt_ms: Floats  # (n, m) the median of its samples; NaN: none
    samples: NDArray[np.int64]  # (n,)

    def take(self, which: NDArray[np.bool_] | NDArray[np.int64]) -> Clients:
        """Some of them."""
        return Clients(self.place[which], self.rtt_ms[which], self.samples[which])

    def facts(self) -> Iterator[Facts]:
        """What the edge would know of each."""
        for asn, country, colo, continent, latitude, longitude in self.place.tolist():
            yield Facts(
                asn or None,
                unletters(country, 2) if country else None,
                unletters(colo, 3) if colo else None,
                unletters(continent, 2) if continent else None,
                *((None, None) if isnan(latitude) else (latitude, longitude)),
            )


def clients_of(samples: SampleColumns) -> Clients:
    """The clients, in order of ASN, country and so on."""
    place = np.empty(len(samples), _PLACE)
    for name in _PLACE.names or ():
        place[name] = getattr(samples, name)
    # As bytes, so that equal NaN are equal.
    whole = place.view(np.dtype((np.void, _PLACE.itemsize)))
    _, first, client = np.unique(whole, return_index=True, return_inverse=True)
    clients, origins = len(first), len(samples.origins)
    keys = pack(client.ravel() * origins + samples.origin, samples.rtt_ms)
    lower, upper = summarise(keys, _LOWER), summarise(keys, _UPPER)
    rtt, counts = np.full(clients * origins, np.nan), np.zeros(clients * origins, np.int64)
    rtt[lower.group] = (lower.value_ms.astype(np.float64) + upper.value_ms) / 2
    counts[lower.group] = lower.samples
    found = Clients(place[first], rtt.reshape(clients, origins), counts.reshape(clients, origins).sum(axis=1))
    order = np.argsort(found.place, order=["asn", "country", "colo", "continent", "latitude", "longitude"])
    return found.take(order)
