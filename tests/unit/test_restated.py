"""The live map with what verification knows now: as if it had been built so, and nothing else of it changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.mapping.build import EndpointState, describe
from isochrone.model import AltSvcEndpoint, Origin
from isochrone.service.building import restated
from isochrone_edge.latency_map import EVERYWHERE, NOWHERE, Facts, LatencyMap, letters
from isochrone_edge.latency_map_writer import Colour, encode, with_origins
from isochrone_edge.steer import Steering

NOW = 1_800_000_000.0
ORIGINS = tuple(
    Origin(
        id=name, host=f"{name}.example.com", latitude=1.0, longitude=2.0, alt_svc=AltSvcEndpoint(f"{name}.example.com:443", 300)
    )
    for name in ("fra", "iad", "sin")
)  # fmt: skip
STATES = st.fixed_dictionaries(
    {o.id: st.builds(EndpointState, st.booleans(), st.booleans(), st.booleans()) for o in ORIGINS}
)
ASNS = st.integers(1, 2**32 - 1)


def described(states):
    return [describe(origin, states[origin.id]) for origin in ORIGINS]


def a_map(states, asns=(3320, 701), **changes):
    return encode(
        origins=described(states),
        palette=[Colour(((0, 1.0, 5), (1, 2.0, 5))), Colour(((2, 1.0, 5), (0, 2.0, 5)))],
        default=0,
        cells={"asn": dict.fromkeys(asns, 1), "country": {letters("DE"): 1}},
        homes={"asn": {asn: NOWHERE if asn % 2 else EVERYWHERE for asn in asns}},
        **({"built_at": NOW, "notes": {"tolerance": {"ms": 2}}, "extra": {b"CALM": b"memory"}} | changes),
    )


@given(STATES, STATES, st.sets(ASNS, min_size=1, max_size=20))
def test_it_is_the_map_that_would_have_been_built(before, after, asns):
    old = LatencyMap(a_map(before, asns))
    data = restated(old, ORIGINS, endpoints=after, now=NOW + 60)
    if described(before) == described(after):
        assert data is None
    else:
        assert data == a_map(after, asns, built_at=NOW + 60)


def test_the_edge_clears_what_is_withdrawn_and_leaves_what_is_down():
    good = {origin.id: EndpointState(proved=True) for origin in ORIGINS}
    facts = Facts(3320, None, None, None, None, None)
    live = LatencyMap(a_map(good))
    assert Steering(live).plan(facts).origins[0].alt_svc.startswith('h3="sin.example.com:443"')
    withdrawn = restated(live, ORIGINS, endpoints=good | {"sin": EndpointState(withdrawn=True)}, now=NOW)
    first = Steering(LatencyMap(withdrawn)).plan(facts).origins[0]
    assert (first.id, first.alt_svc) == ("sin", "clear")
    down = restated(live, ORIGINS, endpoints=good | {"sin": EndpointState(up=False)}, now=NOW)
    assert Steering(LatencyMap(down)).plan(facts).origins[0].id == "fra"


def test_a_map_of_other_origins_takes_a_build():
    good = {origin.id: EndpointState(proved=True) for origin in ORIGINS}
    live = LatencyMap(a_map(good))
    for others in (ORIGINS[:2], ORIGINS[::-1]):
        assert restated(live, others, endpoints={}, now=NOW) is None
        with pytest.raises(ValueError, match="not the map's origins"):
            with_origins(live, [describe(o, EndpointState()) for o in others], built_at=NOW)
