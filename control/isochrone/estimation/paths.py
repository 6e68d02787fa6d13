"""What distance alone says: the cheapest way from a place to an origin over at most one other origin's city. Pure.

Great circles mislead where cables do not go: Perth to Singapore is quick, Perth to Johannesburg is not. The cities of
the origins are where networks meet, and how far apart they are is read from the samples themselves: a network with
rtt(a, h) and rtt(a, o) shows that h and o are at most that sum apart.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from isochrone.estimation.physics import KM_PER_MS, Floats

DETOUR_MS_PER_KM = 0.016  # usual round-trip time to the nearest hub; light in fibre would need 0.010
HUB_PENALTY_MS = 2.0
MESH_NETWORKS = 20_000  # of more, one in so many is looked at: enough to see every pair of cities
MESH_RANK = 1000  # of n networks the n/1000th smallest sum counts: one network that lies must do no harm
BASE_MS, BASE_SLOPE = (
    5.0,
    1.2,
)  # least squares gives 5 and 1.35 on the anchor mesh; what is left, kriging corrects
FLOOR_MS = 3.0


def origin_mesh(rtt_ms: Floats, origin_km: Floats) -> Floats:
    """(m, m) round-trip time between origins in ms, from n networks' times to them (NaN: not measured)."""
    rtt_ms = rtt_ms[:: max(1, len(rtt_ms) // MESH_NETWORKS)]
    networks, origins = rtt_ms.shape
    kth = max(1, networks // MESH_RANK) - 1
    known = np.where(np.isnan(rtt_ms), np.inf, rtt_ms)
    mesh = np.full((origins, origins), np.inf)
    if networks:
        for hub in range(origins):
            both = known[:, hub : hub + 1] + known
            mesh[hub] = both.min(axis=0) if kth == 0 else np.partition(both, kth, axis=0)[kth]
    mesh = np.where(np.isfinite(mesh), mesh, origin_km * DETOUR_MS_PER_KM + HUB_PENALTY_MS)
    far: Floats = np.maximum(mesh, origin_km / KM_PER_MS)
    np.fill_diagonal(far, 0.5)
    return far


class Baseline(NamedTuple):
    """Distance -> a first idea of the round-trip time."""

    mesh_ms: Floats  # (m, m)

    def __call__(self, km: Floats) -> Floats:
        """(n, m) ms for places that are `km` (n, m) away from the origins."""
        path = np.full(km.shape, np.inf)
        for hub in range(km.shape[1]):
            via = np.full(km.shape[1], HUB_PENALTY_MS)
            via[hub] = 0.0
            np.minimum(
                path, DETOUR_MS_PER_KM * km[:, hub : hub + 1] + (via + self.mesh_ms[hub])[None], out=path
            )
        return np.maximum(BASE_MS + BASE_SLOPE * path, FLOOR_MS)
