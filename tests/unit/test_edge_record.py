"""A record behaves as the NamedTuple that type checkers take it for."""

import pickle
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone_edge.record import Record


class Ours(Record):
    first: int
    second: str = "two"
    third: object = None


class Theirs(NamedTuple):
    first: int
    second: str = "two"
    third: object = None


NAMES = st.sampled_from(["first", "second", "third", "fourth", "_fields"])
VALUES = st.one_of(st.integers(), st.text(max_size=3))
NAMED = st.dictionaries(NAMES, VALUES, max_size=4)


def outcome(make):
    try:
        return tuple(make())
    except (TypeError, ValueError):
        return "refused"


@given(st.lists(VALUES, max_size=4), NAMED, NAMED)
def test_as_a_named_tuple(values, named, changes):
    theirs = outcome(lambda: Theirs(*values, **named))
    assert outcome(lambda: Ours(*values, **named)) == theirs
    if theirs != "refused":
        ours, theirs = Ours(*values, **named), Theirs(*values, **named)
        assert (ours.first, ours.second, ours.third) == (theirs.first, theirs.second, theirs.third)
        assert (ours._asdict(), repr(ours)) == (theirs._asdict(), repr(theirs).replace("Theirs", "Ours"))
        assert (ours == theirs, hash(ours), ours._fields) == (True, hash(theirs), theirs._fields)
        assert outcome(lambda: ours._replace(**changes)) == outcome(lambda: theirs._replace(**changes))
        assert pickle.loads(pickle.dumps(ours)) == ours


def test_it_stays_as_it_was_made():
    record = Ours(1)
    with pytest.raises(AttributeError):
        record.first = 2
    with pytest.raises(TypeError, match="needs first"):
        Ours()
    with pytest.raises(TypeError, match="has the fields first, second, third"):
        Ours(1, first=1)
