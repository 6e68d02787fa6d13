"""W3C Trace Context, as the edge continues and begins it."""

import re

from hypothesis import given
from hypothesis import strategies as st

from isochrone_edge.trace import begun, trace

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
BITS = st.integers(0, 2**192 - 1)
FORM = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


@given(BITS, st.one_of(st.none(), st.text(max_size=70)), st.one_of(st.none(), st.text(max_size=70)))
def test_whatever_comes_a_valid_trace_goes_on(bits, parent, state):
    went = trace(parent, state, bits, sampled=False)
    assert FORM.fullmatch(went.parent)
    assert went.parent.split("-")[1] == went.id
    assert FORM.fullmatch(begun(bits))


@given(BITS)
def test_a_valid_parent_keeps_trace_and_flags_and_gets_a_new_hop(bits):
    went = trace(PARENT, "a=1", bits, sampled=True)
    assert went.parent[:36] == PARENT[:36]
    assert went.parent[-3:] == "-01"
    assert went.state("colour:1;map:v") == "isochrone=colour:1;map:v,a=1"


def test_versions():
    later = "cc" + PARENT[2:] + "-what-comes-later"
    assert trace(later, "", 1, sampled=False).id == "4bf92f3577b34da6a3ce929d0e0e4736"
    for bad in (
        "ff" + PARENT[2:],
        PARENT + "-x",
        PARENT.upper(),
        PARENT[:-1],
        " " + PARENT,
        PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
    ):
        went = trace(bad, "a=1", 1, sampled=False)
        assert went.others == ""
        assert went.parent.endswith("-00")


def test_a_trace_that_begins_says_whether_it_is_recorded():
    assert trace(None, None, 1, sampled=True).parent.endswith("-01")


@given(st.lists(st.text("abcdef=1", min_size=1, max_size=200), max_size=50))
def test_tracestate_stays_within_its_limits(entries):
    state = trace(PARENT, ",".join(entries), 1, sampled=False).state("colour:1;map:v")
    assert state.startswith("isochrone=colour:1;map:v")
    assert len(state) <= 512
    assert state.count(",") < 32
