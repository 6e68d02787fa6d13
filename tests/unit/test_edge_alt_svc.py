"""What the edge writes, as clients read it: the cases of curl's and Chromium's own tests, turned round.

Their tests say what a client makes of every odd field. Ours say that none of those oddities can come from the edge.
"""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from isochrone.client.alt_svc import Alternative, parse_alt_svc
from isochrone_edge.alt_svc import CLEAR, field_value
from isochrone_edge.latency_map import Facts, LatencyMap
from isochrone_edge.latency_map_writer import Colour, encode
from isochrone_edge.steer import Steering

LABEL = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=20)
HOSTS = st.lists(LABEL, min_size=1, max_size=4).map(".".join)
PORTS = st.integers(1, 65_535)
AGES = st.integers(0, 2**31 - 1)


@given(HOSTS, PORTS, AGES)
def test_a_client_reads_what_was_meant(host, port, age):
    assert parse_alt_svc(field_value(f"{host}:{port}", age)) == (
        Alternative("h3", host, port, age, persist=True),
    )


@given(st.text(max_size=30), st.integers(-5, 10**12))
@example('x:1"; ma=99, h2="evil:443', 1)
@example("x:443\r\nSet-Cookie: a=1", 1)
@example("[::1]:443", 1)  # curl ignores literals of IPv6
@example("::1:443", 1)
@example(":443", 1)  # means the origin's own host: that is the edge, not a region
@example("x:0", 1)
@example("x:65536", 1)
@example("x:٤٤٣", 1)
@example("x:+443", 1)
@example("x:443 ", 1)
@example("a%20b:443", 1)
@example("x", 1)
def test_no_authority_can_say_more_than_a_host_and_a_port(authority, age):
    try:
        value = field_value(authority, age)
    except ValueError:
        return
    (alternative,) = parse_alt_svc(value)
    assert f"{alternative.host}:{alternative.port}" == re.sub(r":0*", ":", authority)
    assert re.fullmatch(r'h3="[A-Za-z0-9._-]+:\d+"; ma=\d+; persist=1', value)


@pytest.mark.parametrize(
    "authority",
    ["", ":", "x:", ":443", "x:0", "x:65536", "x:-1", "x:1:2", "[::1]:443", "x y:1", 'x":1', "x;:1", "x,y:1", "ä.test:1", "x:1\n", "x/y:1", "x@y:1"],
)  # fmt: skip
def test_what_is_no_authority_is_refused(authority):
    with pytest.raises(ValueError, match="is no"):
        field_value(authority, 1)


def test_clear_stands_alone_and_in_lower_case():
    assert CLEAR == "clear"
    assert parse_alt_svc(CLEAR) == ()


def steering(notes=None, **fields):
    origins = [{"id": "a", "host": "a.test", **fields}, {"id": "b", "host": "b.test"}]
    data = encode(
        built_at=0,
        origins=origins,
        palette=[Colour(((0, 1.0, 1), (1, 2.0, 1)))],
        default=0,
        cells={},
        notes=notes,
    )
    return Steering(LatencyMap(data))


PROMISE = {"alt_svc": {"authority": "a.test:8443", "ma": 300}}


@given(st.floats(0, 10_000), st.floats(0, 10_000))
def test_a_promise_never_reaches_beyond_the_map_s(until, now):
    plans = steering({"valid_until": until}, **PROMISE)
    value = plans.promise(plans.plan(Facts()).origins[0], now)
    if value:
        (alternative,) = parse_alt_svc(value)
        assert 0 < alternative.max_age <= 300
        assert now + alternative.max_age <= until
    else:
        assert until - now < 1


def test_draining_and_withdrawn_origins_clear_also_for_those_without_a_promise():
    for fields in ({"state": "draining", **PROMISE}, {"alt_svc": "clear"}, {"state": "draining"}):
        plans = steering(**fields)
        assert [plans.promise(o, 0.0) for o in plans.origins] == ["clear", "clear"]
    plans = steering(**PROMISE)
    assert [plans.promise(o, 0.0) for o in plans.origins] == ['h3="a.test:8443"; ma=300; persist=1', ""]
    for odd in ("CLEAR", "", None, [], 5):
        plans = steering(alt_svc=odd)
        assert [plans.promise(o, 0.0) for o in plans.origins] == ["", ""]
