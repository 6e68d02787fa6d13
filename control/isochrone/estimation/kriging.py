"""Kriging of the inflation over places: near places, and places of one country, tell about each other. Pure.

Inflation is the round-trip time over what the distance says. It varies slowly over the map (Krige, 1951; Cressie,
Statistics for Spatial Data, 1993, section 3.2), so that a place without samples gets it from the places around it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from isochrone.estimation.physics import Floats, Ints, distances_km

LENGTH_KM = 500.0  # how far a place tells about another one
COUNTRY_WEIGHT = 0.2  # and how much a shared country does, at any distance
NUGGET = 0.2  # variance between networks of one place, against the variance over places
MAX_SITES = 3000  # squares grow until there are no more
CHUNK = 2048


class Sites(NamedTuple):
    """Networks of one country in one square, together."""

    latitude: Floats  # (s,)
    longitude: Floats  # (s,)
    country: Ints  # (s,) 0: unknown
    networks: Floats  # (s,) how many
    values: Floats  # (s, k) their mean
    of_network: Ints  # (n,) the site of each network


def gather(latitude: Floats, longitude: Floats, country: Ints, values: Floats) -> Sites:
    """Sites from n networks. The squares begin at 0.05 degrees and double until the sites are few enough."""
    step = 0.05
    while True:
        key = np.stack([np.floor(latitude / step), np.floor(longitude / step), country], axis=1).astype(
            np.int64
        )
        _, first, site, count = np.unique(
            key, axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        if len(count) <= MAX_SITES:
            break
        step *= 2
    site = site.ravel()

    def mean(column: Floats) -> Floats:
        means: Floats = np.bincount(site, weights=column, minlength=len(count)) / count
        return means

    return Sites(
        mean(latitude), mean(longitude), country[first], count.astype(np.float64),
        np.stack([mean(values[:, k]) for k in range(values.shape[1])], axis=1), site,
    )  # fmt: skip


def kernel(lat_a: Floats, lon_a: Floats, sites: Sites) -> Floats:
    """(n, s) how much each site tells about each place, whatever the countries."""
    km = distances_km(lat_a, lon_a, sites.latitude, sites.longitude)
    km /= -LENGTH_KM
    return np.exp(km, out=km)


class Kriging(NamedTuple):
    """Fitted: K^-1 and K^-1 (values - mean)."""

    sites: Sites
    mean: Floats
    weights: Floats
    inverse: Floats

    def predict(self, latitude: Floats, longitude: Floats, country: Ints) -> Floats:
        """(n, k) at any places."""
        return self.of_place(latitude, longitude) + self.of_country(country)

    def of_place(self, latitude: Floats, longitude: Floats) -> Floats:
        """(n, k) what the place says, whatever the country."""
        out = np.empty((len(latitude), len(self.mean)))
        for start in range(0, len(latitude), CHUNK):
            part = slice(start, start + CHUNK)
            out[part] = self.mean + kernel(latitude[part], longitude[part], self.sites) @ self.weights
        return out

    def of_country(self, country: Ints) -> Floats:
        """(n, k) what the country adds, the same everywhere in it; 0 for countries without sites."""
        known, at = np.unique(self.sites.country, return_inverse=True)
        total = np.zeros((len(known) + 1, len(self.mean)))
        np.add.at(total, at.ravel(), COUNTRY_WEIGHT * self.weights)
        total[:-1][known == 0] = 0.0
        row = np.searchsorted(known, country)
        found = np.append(known, -1)[row] == country
        added: Floats = total[np.where(found, row, len(known))]
        return added

    def without_itself(self, values: Floats) -> Floats:
        """(n, k) for each network that made the sites, as if it had not (its fellows of the site still count)."""
        count, site = self.sites.networks, self.sites.of_network
        diagonal = np.diag(self.inverse)
        without_site = self.sites.values - self.weights / diagonal[:, None]
        site_variance = np.maximum(1 / diagonal - NUGGET / count, 1e-6)
        others = count[site] - 1
        fellows = (self.sites.values[site] * count[site][:, None] - values) / np.maximum(others, 1)[:, None]
        share = (others / NUGGET) / (others / NUGGET + 1 / site_variance[site])
        return without_site[site] * (1 - share)[:, None] + fellows * share[:, None]


def krige(sites: Sites) -> Kriging:
    """Fit."""
    matrix = kernel(sites.latitude, sites.longitude, sites)
    known = sites.country[:, None] > 0
    matrix += COUNTRY_WEIGHT * (known & (sites.country[:, None] == sites.country[None]))
    matrix[np.diag_indices_from(matrix)] += NUGGET / sites.networks
    mean = sites.values.mean(axis=0) if len(sites.values) else np.ones(sites.values.shape[1])
    inverse: Floats = np.linalg.inv(matrix).astype(np.float64)
    return Kriging(sites, mean, inverse @ (sites.values - mean), inverse)
