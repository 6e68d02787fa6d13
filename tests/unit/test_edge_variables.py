"""The Worker's variables, its answers of its own, and what its requests share."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone_edge import own_endpoints
from isochrone_edge.isolate import Isolate, protocol_of
from isochrone_edge.latency_map import LatencyMap, letters
from isochrone_edge.latency_map_writer import Colour, encode
from isochrone_edge.problem import TITLES, problem
from isochrone_edge.variables import DEFAULTS, read


def make(built_at, notes=None, **origin):
    entry = {"id": "a", "host": "a.test", **origin}
    return encode(
        built_at=built_at, origins=[entry], palette=[Colour(((0, 1.0, 1),))], default=0, cells={}, notes=notes
    )


def variables(**values):
    return read(values.get)


def test_defaults():
    got = variables()
    assert (got.limits.budget, got.limits.each_try, got.limits.tries, got.refresh) == (2.5, 2.0, 4, 60)
    assert (got.cache_ttl, got.hedge, got.band_ms, got.alt_svc, got.site, got.problems) == (
        0,
        False,
        0,
        "on",
        frozenset(),
        (),
    )
    assert got.limits.retry_statuses == {502, 503, 504}


@given(
    st.dictionaries(
        st.sampled_from(sorted(DEFAULTS)), st.one_of(st.text(max_size=20), st.integers(), st.none())
    )
)
def test_whatever_stands_there_the_worker_starts(values):
    got = variables(**values)
    assert got.limits.budget >= 0
    assert got.limits.tries >= 1
    assert all(origin.host for origin in got.origins)


def test_what_can_not_be_used_is_named_and_its_default_is_in_force():
    got = variables(
        BUDGET_MS="soon",
        SITE="a b",
        ORIGINS='[{"id": "x"}]',
        SESSION="cookie",
        RETRY_STATUSES="200",
        HEDGE="yes",
    )
    assert len(got.problems) == 6
    assert got.limits.budget == 2.5


def test_the_map_is_looked_at_no_more_often_than_kv_is_fresh():
    for said, meant in (("60", 60), ("30", 30), ("29.9", 60), ("0", 60), ("3600", 3600)):
        got = variables(MAP_REFRESH_SECONDS=said)
        assert (got.refresh, len(got.problems)) == (meant, said in ("29.9", "0"))
    assert variables(MAP_REFRESH_SECONDS="1", MAP_REFRESH_FLOOR_SECONDS="0").refresh == 1


def test_sites_and_sessions():
    assert variables(SITE="A.test, b.test:8443, c.test:443, d.test:80").site == {
        "a.test",
        "b.test:8443",
        "c.test",
        "d.test",
    }
    got = variables(SITE="a.test, https://b.test, *.c.test")  # one that is none opens the edge to nobody
    assert got.site == {"a.test"}
    assert got.problems == (
        "SITE holds what is no host: 'https://b.test', '*.c.test'; the others are in force",
    )
    assert variables(SITE="*.c.test").problems[0].startswith("SITE is not usable, its default is in force")
    isolate = Isolate({"SESSION": "cookie:sid"}.get)
    assert isolate.session({"cookie": "sid=1", "cf-connecting-ip": "192.0.2.1"}) == "1"
    assert isolate.session({"cf-connecting-ip": "192.0.2.1"}) == "192.0.2.1"
    for text in ("header:X-Session", "header: X-Session "):
        assert Isolate({"SESSION": text}.get).session({"x-session": "2"}) == "2"
    assert Isolate({}.get).session({}) == ""


def test_protocols():
    assert protocol_of('[1,"DE","FRA","EU","1","2","HTTP/2"]') == "HTTP/2"
    assert protocol_of("[]") not in ("HTTP/2", "HTTP/1.1")


@given(st.text(max_size=20))
def test_only_the_secret_opens(guess):
    assert own_endpoints.opens("s3cret", f"Bearer {guess}") is (guess == "s3cret")
    assert not own_endpoints.opens("", f"Bearer {guess}")
    assert not own_endpoints.opens("s3cret", f"Basic {guess}")
    assert own_endpoints.opens(variables(ISOCHRONE_SECRET="s3cret\n").secret, "bearer s3cret")


@pytest.mark.parametrize("status", [*TITLES, 500, 599])
def test_failures_say_nothing_of_the_inside(status):
    body, fields = problem(status, "ab" * 16)
    told = json.loads(body)
    assert told.keys() == {"type", "title", "status", "trace_id"}
    assert fields["content-type"] == "application/problem+json"
    assert ("retry-after" in fields) is (status == 503)


class Values(dict):
    async def text(self, key):
        return self.get(key)

    data = text

    def entry(self, data):
        version = LatencyMap(data).version
        self[version] = data
        return {"version": version, "key": version, "sha256": hashlib.sha256(data).hexdigest()}

    def publish(self, data, canary=None, share=0.0):
        entry = self.entry(data)
        if canary is not None:
            entry["canary"] = {**self.entry(canary), "share": share}
        self["map/current"] = json.dumps(entry)
        return entry["version"]


async def test_an_isolate_steers_by_the_newest_good_map():
    isolate, kv = Isolate({}.get), Values()
    assert isolate.cold()
    kv.publish(make(1))
    await isolate.look(kv, 0)
    first = isolate.steering
    assert not isolate.cold()
    lane = isolate.lane("[]")
    assert lane.plan.version == first.version
    kv.publish(make(2, host="a/b"))
    for _ in range(2):
        await isolate.look(kv, 60)
        assert isolate.steering is first
        assert "refused" in isolate.problem()
    assert isolate.snapshot.counters["damaged"] == 1
    kv.publish(make(3))
    await isolate.look(kv, 120)
    assert isolate.steering is not first
    assert isolate.problem() == ""
    assert isolate.lane("[]").plan.version == isolate.steering.version


async def test_a_canary_takes_its_share_and_those_who_ask():
    isolate, kv = Isolate({}.get), Values()
    kv.publish(make(1), make(2), 0.25)
    await isolate.look(kv, 0)
    canary = isolate.canary
    assert isolate.steering_for({"x-canary": "1"}) is canary
    assert isolate.steering_for({"x-canary": "0"}) is isolate.steering
    on = [isolate.steering_for({"cf-connecting-ip": f"192.0.2.{n}"}) is canary for n in range(1000)]
    assert 200 < sum(on) < 300
    assert isolate.lane("[]") is None  # the quick way knows no sessions
    for bad in (b"x", None):
        kv.publish(make(1), make(3), 0.25)
        kv[LatencyMap(make(3)).version] = bad
        await isolate.look(kv, 60)
        assert isolate.canary is canary
    kv.publish(make(1))
    await isolate.look(kv, 120)
    assert isolate.canary is None
    assert isolate.lane("[]") is not None


async def test_a_session_of_the_canary_stays_with_it_whatever_its_version():
    isolate, kv, on = Isolate({}.get), Values(), []
    for number, share in ((2, 0.25), (3, 0.25), (4, 0.5)):
        kv.publish(make(1), make(number), share)
        await isolate.look(kv, 60 * number)
        clients = ({"cf-connecting-ip": f"192.0.2.{n}"} for n in range(250))
        on.append({n for n, headers in enumerate(clients) if isolate.steering_for(headers) is isolate.canary})
    assert on[0] == on[1] < on[2]


async def test_a_decision_without_facts_is_that_of_who_asks():
    origins = [{"id": name, "host": f"{name}.test"} for name in "ab"]
    palette = [Colour(((0, 1.0, 9), (1, 2.0, 9)))]
    data = encode(built_at=1, origins=origins, palette=palette, default=0, cells={}, notes={"band_ms": 5})
    isolate, kv = Isolate({}.get), Values()
    kv.publish(data, make(2), 0.5)
    await isolate.look(kv, 0)
    seen = set()
    for number in range(60):
        headers = {"cf-connecting-ip": f"192.0.2.{number}"}
        steering = isolate.steering_for(headers)
        plan = steering.plan_for("[]").for_session(isolate.session(headers))
        told = own_endpoints.decision(isolate, "", 5.0, "[]", headers)
        assert (told["map"], told["canary"]) == (plan.version, steering is isolate.canary)
        assert [c["origin"] for c in told["candidates"]] == [o.id for o in plan.origins]
        seen.add((told["canary"], told["candidates"][0]["origin"]))
        assert own_endpoints.decision(isolate, "canary=0", 5.0, "[]", headers)["canary"] is False
    assert seen == {(True, "a"), (False, "a"), (False, "b")}


async def test_an_origin_of_the_canary_alone_is_known_to_the_breaker_too():
    isolate, kv = Isolate({}.get), Values()
    kv.publish(make(1), make(2, id="b", host="b.test"), 0.25)
    await isolate.look(kv, 0)
    for _ in range(5):
        isolate.breaker.failed("b", 0.0)
    await isolate.look(kv, 10)
    assert isolate.breaker.ejected(10).keys() == {"b"}


async def test_an_origin_that_the_control_plane_finds_well_again_is_trusted():
    isolate, kv = Isolate({}.get), Values()
    kv.publish(make(1, state="down"))
    await isolate.look(kv, 0)
    for _ in range(5):
        isolate.breaker.failed("a", 0.0)
    kv.publish(make(2))
    await isolate.look(kv, 60)
    assert isolate.breaker.calm("a")


def test_status_and_decision_are_json():
    isolate = Isolate({"ORIGINS": '[{"id": "a", "host": "a.test"}]', "ISOCHRONE_SECRET": "x"}.get)
    for name in ("status", "decision"):
        status, body = own_endpoints.answer(
            isolate, f"/.isochrone/{name}", "asn=1", {"authorization": "bearer x"}, 5.0
        )
        assert status == 200
        assert json.loads(body)
    assert own_endpoints.answer(isolate, "/.isochrone/status", "", {}, 5.0)[0] == 404


async def test_a_decision_is_that_of_the_client_asked_about():
    origins = [{"id": name, "host": f"{name}.test"} for name in "ab"]
    palette = [Colour(((0, 1.0, 1), (1, 2.0, 1))), Colour(((1, 1.0, 1), (0, 2.0, 1)))]
    cells = {
        "asn": {64: 1},
        "colo": {letters("FRA"): 1},
        "country": {letters("FR"): 1},
        "continent": {letters("EU"): 1},
    }
    isolate, kv = Isolate({"ISOCHRONE_SECRET": "x"}.get), Values()
    data = encode(built_at=1, origins=origins, palette=palette, default=0, cells=cells, notes={"band_ms": 3})
    kv.publish(data)
    await isolate.look(kv, 5.0)

    def decision(query, client="[]"):
        return json.loads(
            own_endpoints.answer(
                isolate, "/.isochrone/decision", query, {"authorization": "Bearer x"}, 5.0, client
            )[1]
        )

    for query, level in (
        ("", "default"), ("asn=64", "asn"), ("colo=FRA", "colo"), ("country=FR", "country"), ("continent=EU", "continent"),
    ):  # fmt: skip
        told = decision(query)
        assert (told["reason"], told["colour"]) == (f"{level}:measured:band", int(bool(query)))
    assert decision("", '[64,"DE","MUC",null,null,null,"HTTP/2"]')["reason"] == "asn:measured:band"
    first = {decision(f"session={n}")["candidates"][0]["origin"] for n in range(20)}
    assert first == {"a", "b"}


def test_hosts_are_remembered_only_when_they_are_ours():
    isolate = Isolate({"SITE": "a.test"}.get)
    assert isolate.front("https://b.test", "b.test") is None
    assert isolate.front("https://a.test", "b.test") is None
    assert isolate.fronts == {}
    assert (
        isolate.front("https://a.test", "a.test") == '"x-forwarded-proto":"https","x-forwarded-host":"a.test"'
    )
    assert isolate.fronts == {"https://a.test": "a.test"}
    for n in range(1000):
        isolate.front(f"https://a.test:{n}", f"a.test:{n}")
    assert len(isolate.fronts) <= 256


def test_origins_that_are_none_are_named():
    for origins in (
        '[{"id": "a", "host": "127.0.0.1"}]', '[{"id": "a", "host": "[::1]:443"}]', '[{"id": "a", "host": "1.2.3.999"}]',
        '[{"id": "a", "host": "a.test"}, {"id": "a", "host": "b.test"}]', "[" * 50_000, '{"a":' * 50_000, '[{"id": "a", "host": "0x7f000001"}]',
        "{}", '[{"id": "a", "host": null}]', '[{"id": "a"}]', "[1]", '[{"id": "a", "host": "."}]', '[{"id": "a", "host": "a..test"}]',
        '[{"id": "a", "host": "%s.test"}]' % ("x" * 64),
    ):  # fmt: skip
        got = variables(ORIGINS=origins)
        assert got.origins == ()
        assert [problem.split(" ")[0] for problem in got.problems] == ["ORIGINS"], origins[:80]
        assert len(got.problems[0]) < 200
    assert (
        len(variables(ORIGINS='[{"id": "a", "host": "1.a.test:443"}, {"id": "b", "host": "0xg"}]').origins)
        == 2
    )
    assert variables(MAX_TRIES="0").problems


def test_no_value_that_would_take_the_site_down_is_taken():
    bad = {
        "CACHE_TTL_SECONDS": "0.5", "KEEP_BODY_BYTES": "1.5", "SESSION": "header:Not A Header", "BUDGET_MS": "0", "TRY_MS": "0.5", "LOG_SHARE": "50", "MAP_REFRESH_FLOOR_SECONDS": "100", "MAX_TRIES": 3, "ORIGINS": [],
    }  # fmt: skip
    got = read(bad.get)
    assert {problem.split(" ")[0] for problem in got.problems} == bad.keys()
    assert (got.limits.budget, got.limits.each_try, got.limits.tries, got.log_share) == (2.5, 2.0, 4, 0)
    assert got.refresh == 60


async def test_a_map_with_odd_values_leaves_the_last_good_one():
    for odd, notes in (
        ({"authority": 443, "ma": 3}, {}),
        ({"authority": "a.test:443", "ma": float("inf")}, {}),
        ({"authority": "a.test:443", "ma": 60}, {"valid_until": float("nan")}),
        ({"authority": "a.test:443", "ma": 60}, {"valid_until": float("inf")}),
    ):
        isolate = Isolate(lambda name: None)
        encoded = make(1.0, notes=notes, alt_svc=odd)
        version = LatencyMap(encoded).version
        digest = hashlib.sha256(encoded).hexdigest()

        class KV:
            async def text(self, key, entry=(version, digest)):
                return json.dumps({"version": entry[0], "key": "map/1", "sha256": entry[1]})

            async def data(self, key, value=encoded):
                return value

        await isolate.look(KV(), 1.0)
        assert isolate.steering.map is None
        assert isolate.problem().startswith(f"map {version} refused")
