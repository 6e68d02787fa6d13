"""Which origins a request is given, in which order, and why."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone_edge.alt_svc import field_value
from isochrone_edge.colour import facts_of
from isochrone_edge.latency_map import Facts, LatencyMap
from isochrone_edge.latency_map_writer import Colour, encode
from isochrone_edge.steer import Steering, built_in_origins


def make_map(states=("up", "up", "up"), promises=(True, False, True)):
    origins = [
        {
            "id": f"o{i}",
            "host": f"o{i}.test",
            "state": state,
            "alt_svc": {"authority": f"o{i}.test:443", "ma": 300} if promise else None,
        }
        for i, (state, promise) in enumerate(zip(states, promises, strict=True))
    ]
    palette = [Colour(((1, 5.0, 9), (0, 9.0, 9))), Colour(((2, 1.0, 9), (1, 2.0, 9), (0, 3.0, 9)))]
    return LatencyMap(encode(built_at=0, origins=origins, palette=palette, default=1, cells={"asn": {64: 0}}))


def test_the_cells_order_comes_first_then_the_defaults():
    plan = Steering(make_map()).plan(Facts(asn=64))
    assert [o.id for o in plan.origins] == ["o1", "o0", "o2"]
    assert (plan.reason, plan.colour) == ("asn:measured", 0)


def test_an_unknown_client_gets_the_default():
    plan = Steering(make_map()).plan(Facts())
    assert [o.id for o in plan.origins] == ["o2", "o1", "o0"]
    assert plan.reason == "default:measured"


def test_origins_that_are_not_up_come_last_and_the_reason_says_so():
    plan = Steering(make_map(states=("up", "down", "draining"))).plan(Facts(asn=64))
    assert [o.id for o in plan.origins] == ["o0", "o2", "o1"]
    assert plan.reason == "asn:measured:down"


def test_a_band_ends_at_the_first_origin_that_is_not_up():
    for states, band, order in (
        (("up", "up", "up"), 3, ["o2", "o1", "o0"]),
        (("up", "draining", "up"), 2, ["o2", "o0", "o1"]),
        (("down", "draining", "up"), 1, ["o2", "o1", "o0"]),
        (("draining", "draining", "draining"), 1, ["o2", "o1", "o0"]),
    ):
        plan = Steering(make_map(states=states), band_ms=5.0).plan(Facts())
        assert (plan.band, [o.id for o in plan.origins]) == (band, order)


def test_only_proved_endpoints_are_promised():
    by_id = {o.id: o for o in Steering(make_map()).plan(Facts()).origins}
    assert by_id["o0"].alt_svc == 'h3="o0.test:443"; ma=300; persist=1'
    assert by_id["o1"].alt_svc == ""
    assert {o.alt_svc for o in Steering(make_map(), promise=False).plan(Facts()).origins} == {""}


def test_a_cell_with_a_colour_that_is_not_there_gets_the_default():
    live = make_map()
    steering = Steering(live)
    live.find = lambda facts: ("asn", 119)
    plan = steering.plan(Facts(asn=64))
    assert [o.id for o in plan.origins] == ["o2", "o1", "o0"]
    assert (plan.reason, plan.colour) == ("default:measured:damaged", 1)


def test_a_default_without_candidates_is_refused():
    live = make_map()
    live.order = lambda colour: []
    with pytest.raises(IndexError):
        Steering(live)


def test_a_state_that_can_not_stand_in_a_field_is_refused():
    with pytest.raises(ValueError, match="an origin's state"):
        Steering(make_map(states=('x"\r\nset-cookie: a=1', "up", "up")))


def test_without_a_map_the_built_in_order_and_no_promise():
    plan = Steering(
        None, built_in_origins([{"id": "b", "host": "b.test"}, {"id": "a", "host": "a.test"}])
    ).plan(Facts(asn=64))
    assert [(o.id, o.alt_svc) for o in plan.origins] == [("b", ""), ("a", "")]
    assert plan.reason == "no_map:built_in"


@given(
    st.permutations(range(6)), st.lists(st.sampled_from(["up", "down", "draining"]), min_size=6, max_size=6)
)
def test_every_origin_stays_reachable_once(order, states):
    origins = [{"id": str(i), "host": f"h{i}", "state": s} for i, s in enumerate(states)]
    palette = [Colour(tuple((i, 1.0, 1) for i in order[:3])), Colour(tuple((i, 1.0, 1) for i in order[3:]))]
    live = LatencyMap(encode(built_at=0, origins=origins, palette=palette, default=1, cells={"asn": {7: 0}}))
    for facts in (Facts(asn=7), Facts()):
        ids = [o.id for o in Steering(live).plan(facts).origins]
        assert sorted(ids) == [str(i) for i in range(6)]
        if "up" in states:
            assert states[int(ids[0])] == "up"


@pytest.mark.parametrize(
    "authority",
    ["a.test", "a.test:", "a.test:0", "a.test:65536", 'a".test:1', "[::1]:443", "a b:1", "a\r\n:1"],
)
def test_what_is_no_authority_is_never_advertised(authority):
    with pytest.raises(ValueError):
        field_value(authority, 60)


@given(st.from_regex(r"[a-z0-9.-]{1,40}:[1-9][0-9]{0,3}", fullmatch=True), st.integers(0, 10**6))
def test_alt_svc_has_the_form_of_rfc_7838(authority, max_age):
    assert field_value(authority, max_age) == f'h3="{authority}"; ma={max_age}; persist=1'


anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=3)
)


@given(st.tuples(*[anything] * 6))
def test_facts_of_anything_are_believable_or_unknown(values):
    facts = facts_of(*values)
    assert facts.asn is None or 0 < facts.asn < 2**32
    for code, width in ((facts.country, 2), (facts.colo, 3), (facts.continent, 2)):
        assert code is None or (len(code) == width and code.isascii() and code.upper() == code)
    assert facts.latitude is None or -90 <= facts.latitude <= 90
    assert facts.longitude is None or -180 <= facts.longitude <= 180


def test_facts_as_the_edge_gives_them():
    assert facts_of(3320, "de", "FRA", "EU", "50.11", "8.68") == Facts(3320, "DE", "FRA", "EU", 50.11, 8.68)
