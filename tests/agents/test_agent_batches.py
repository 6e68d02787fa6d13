"""A batch is stored once, with its id, or not at all."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isochrone.model import Sample
from isochrone.store import agent_batches
from isochrone.store.agent_batches import Allowance, TooManyError
from isochrone.store.errors import StoreError
from isochrone.store.sqlite import Store

NOW = 1_790_000_000.0
PLENTY = Allowance("p", 60.0, 1000)


def samples(count=3, at=NOW, origin="fra-1"):
    return [Sample(at + n, origin, 64500, "DE", 12.5, "quic") for n in range(count)]


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "isochrone.db") as opened:
        yield opened


def test_a_repeat_is_known_and_stores_nothing(store):
    assert agent_batches.accept(store, "fra-1", "a", samples(), now=NOW, allowance=PLENTY)
    assert not agent_batches.accept(store, "fra-1", "a", samples(), now=NOW + 5, allowance=PLENTY)
    assert agent_batches.accept(store, "ams-1", "a", samples(origin="ams-1"), now=NOW + 9, allowance=PLENTY)
    assert len(store.sample_columns()) == 6
    assert agent_batches.is_known(store, "fra-1", "a")
    assert not agent_batches.is_known(store, "fra-1", "b")
    assert agent_batches.last_accepted(store) == {"fra-1": NOW, "ams-1": NOW + 9}


def test_a_batch_above_the_allowance_leaves_nothing_behind(store):
    few = Allowance("p", 60.0, 4)
    agent_batches.accept(store, "fra-1", "a", samples(3), now=NOW, allowance=few)
    with pytest.raises(TooManyError) as caught:
        agent_batches.accept(store, "fra-1", "b", samples(3), now=NOW, allowance=few)
    assert caught.value.allowance == few
    assert not agent_batches.is_known(store, "fra-1", "b")
    assert len(store.sample_columns()) == 3
    assert agent_batches.accept(store, "fra-1", "b", samples(1), now=NOW, allowance=few)  # what fits is taken
    assert agent_batches.accept(
        store, "fra-1", "d", samples(3), now=NOW, allowance=few._replace(plan="q")
    )  # another plan is counted by itself
    later = samples(3, at=NOW + 60)
    assert agent_batches.accept(store, "fra-1", "c", later, now=NOW, allowance=few)


def test_a_batch_that_can_not_be_stored_is_not_known(store):
    broken = [*samples(2), Sample(NOW, "new-1", None, "", None)]
    with pytest.raises(StoreError):
        agent_batches.accept(store, "fra-1", "a", broken, now=NOW, allowance=PLENTY)
    assert not agent_batches.is_known(store, "fra-1", "a")
    assert agent_batches.accept(store, "fra-1", "a", samples(2, origin="new-1"), now=NOW, allowance=PLENTY)
    assert store.sample_columns().origins == ("new-1",)


def test_plans_and_ids_are_kept_for_as_long_as_told(store):
    agent_batches.save_plan(store, "p1", b"one", NOW)
    agent_batches.save_plan(store, "p2", b"two", NOW)
    agent_batches.save_plan(store, "p1", b"one", NOW + 100)
    agent_batches.accept(store, "fra-1", "a", samples(), now=NOW, allowance=PLENTY)
    agent_batches.forget(store, NOW + 50)
    assert agent_batches.plan_body(store, "p1") == b"one"
    assert agent_batches.plan_body(store, "p2") is None
    assert not agent_batches.is_known(store, "fra-1", "a")


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.integers(1, 30)), min_size=1, max_size=12
    )
)
def test_whatever_is_sent_in_whatever_order_each_id_counts_once_and_no_span_is_overfull(
    tmp_path_factory, sent
):
    allowance = Allowance("p", 60.0, 40)
    taken: dict[tuple[str, str], int] = {}
    with Store.open(tmp_path_factory.mktemp("s") / "isochrone.db") as store:
        for origin, batch, count in sent:
            rows = [Sample(NOW // 60 * 60 + n, origin, 64500, "", 1.0, "tcp") for n in range(count)]
            full = sum(n for (o, _), n in taken.items() if o == origin) + count > allowance.samples
            if (origin, batch) not in taken and full:
                with pytest.raises(TooManyError):
                    agent_batches.accept(store, origin, batch, rows, now=NOW, allowance=allowance)
                continue
            fresh = agent_batches.accept(store, origin, batch, rows, now=NOW, allowance=allowance)
            assert fresh == ((origin, batch) not in taken)
            taken.setdefault((origin, batch), count)
        assert store.sample_counts().get("ok", 0) == sum(taken.values())
