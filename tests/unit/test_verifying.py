"""What standings come to: an endpoint is offered only while HTTP/3, DNS and the origin's health all stand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.mapping.build import EndpointState, describe
from isochrone.model import AltSvcEndpoint, Origin, Outcome, Standing
from isochrone.service.verifying import DNS, HEALTH, Verifying
from isochrone.settings import Verification
from isochrone.verification.standing import step

ENDPOINT = "fra.example.com:443"
ORIGIN = Origin(
    id="fra-1", host="fra.example.com", latitude=50.1, longitude=8.7, alt_svc=AltSvcEndpoint(ENDPOINT, 300)
)
OK, FAILED, OURS = Outcome.OK, Outcome.TARGET_FAILED, Outcome.PROBER_FAILED
ROWS = st.lists(st.sampled_from([OK, FAILED, OURS]), max_size=12)


def verifying(**rows):
    """With the standings that these rows of outcomes have earned; nothing here is asked or stored."""
    made = Verifying((ORIGIN,), None, None, None, None, Verification(), lambda: 0.0)
    for name, outcomes in rows.items():
        standing = Standing()
        for now, outcome in enumerate(outcomes, 1):
            standing = step(standing, outcome, now=now, rise=5, fall=3)
        made.standings[ORIGIN.id, {"h3": ENDPOINT, "dns": DNS, "health": HEALTH}[name]] = standing
    return made


@pytest.mark.parametrize(
    ("rows", "offered"),
    [
        ({}, False),
        ({"h3": [OK]}, True),  # DNS was not checked
        ({"h3": [OK], "dns": [OURS] * 9}, True),  # or could not be
        ({"h3": [OK], "dns": [OK]}, True),
        ({"h3": [OK], "dns": [FAILED]}, False),  # never proved, so not promised
        ({"h3": [OK], "dns": [FAILED, OK]}, True),
        ({"h3": [OK], "dns": [OK, FAILED, FAILED]}, True),
        ({"h3": [OK], "dns": [OK, FAILED, FAILED, FAILED]}, False),
        ({"h3": [OK], "dns": [OK, FAILED, FAILED, OURS, OURS]}, True),
        ({"h3": [OK], "dns": [OK, FAILED, FAILED, FAILED, OK, OK, OK, OK]}, False),
        ({"h3": [OK], "dns": [OK, FAILED, FAILED, FAILED, OK, OK, OK, OK, OK]}, True),
        ({"h3": [FAILED] * 3, "dns": [OK]}, False),
        ({"h3": [OK], "dns": [OK], "health": [FAILED] * 3}, False),
    ],
)
def test_offered(rows, offered):
    assert verifying(**rows).offered(ORIGIN) is offered


@given(ROWS, ROWS, ROWS)
def test_offered_only_while_all_stand_and_withdrawn_only_after_a_proof(h3, dns, health):
    made = verifying(h3=h3, dns=dns, health=health)
    alone = [verifying(h3=h3), verifying(h3=[OK], dns=dns), verifying(h3=[OK], health=health)]
    assert made.offered(ORIGIN) is all(part.offered(ORIGIN) for part in alone)
    assert not (made.offered(ORIGIN) and made.withdrawn(ORIGIN))
    assert made.withdrawn(ORIGIN) is (OK in h3 and not made.offered(ORIGIN))


@pytest.mark.parametrize(
    ("state", "field"),
    [
        (EndpointState(), None),
        (EndpointState(proved=True), {"authority": ENDPOINT, "ma": 300}),
        (EndpointState(withdrawn=True), "clear"),
        (EndpointState(up=False, withdrawn=True), "clear"),
        (EndpointState(up=False, proved=True), None),
    ],
)
def test_what_the_map_says_of_an_endpoint(state, field):
    assert describe(ORIGIN, state).get("alt_svc") == field


def test_what_stands_and_failed_last_is_doubtful():
    made = verifying(h3=[OK, FAILED], dns=[OK, FAILED, OURS], health=[OK])
    assert made.doubtful("http3") == {(ORIGIN.id, ENDPOINT)}
    assert made.doubtful("dns") == {(ORIGIN.id, DNS)}
    assert made.doubtful("health") == set()
    assert verifying(h3=[OK, FAILED, FAILED, FAILED]).doubtful("http3") == set()  # withdrawn already
