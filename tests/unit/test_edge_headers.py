"""Fields on their way through the edge; the crossing's half of the same policy is shown in tests/edge."""

import json
import re
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from isochrone_edge import headers as h
from isochrone_edge import hop, hosts
from isochrone_edge.lane import Lane
from isochrone_edge.steer import Origin, Plan, Steering
from isochrone_edge.trace import begun, trace

NAMES = st.one_of(
    st.sampled_from(
        [*sorted(h.HOP_BY_HOP), "host", "cookie", "via", "x-isochrone-origin", "x-isochrone-", "x-isochron", "cf-connecting-ip", "x-forwarded-for", "__proto__"]
    ),
    st.text("abcdefghijklmnopqrstuvwxyz0123456789-_!#", min_size=1, max_size=12),
)  # fmt: skip
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=40)
FIELDS = st.dictionaries(NAMES, VALUES, max_size=12)
TRACE = trace(None, None, 7 << 80, sampled=False)
FRONT = '"x-forwarded-proto":"https","x-forwarded-host":"www.example.test"'


def text_of(fields):
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


def added(fields, **replaced):
    given_ = {
        "colour": 7,
        "origin": "eu-1",
        "version": "v1",
        "trace": TRACE,
        "front": FRONT,
        "protocol": "HTTP/2",
    }
    return json.loads("{" + h.added(text_of(fields), **{**given_, **replaced}) + "}")


@given(FIELDS)
def test_peek_reads_what_json_would(fields):
    for name in [*fields, "nobody", "cookie", "via"]:
        assert h.peek(text_of(fields), name) == fields.get(name)


@given(FIELDS)
def test_plain_means_that_nothing_has_to_be_looked_at(fields):
    if h.is_plain(text_of(fields)):
        assert not [
            n for n in fields if n.startswith("x-isochrone-") or (n in h.HOP_BY_HOP and n != "connection")
        ]
        assert (
            fields.get("connection", "keep-alive").lower() == "keep-alive"
            or '"connection":"keep-alive"' in text_of(fields).lower()
        )
        assert all(value.isascii() for value in fields.values())


@given(FIELDS)
def test_what_reaches_an_origin(fields):
    kept = h.to_origin(fields)
    ours = added(fields)
    both = {**kept, **ours}
    named = set(h.nominated(fields.get("connection")))
    assert {n for n in both if n.startswith("x-isochrone-")} == {
        "x-isochrone-colour",
        "x-isochrone-origin",
        "x-isochrone-map",
    }
    assert both["x-isochrone-origin"] == "eu-1"
    assert not both.keys() & h.HOP_BY_HOP
    assert not kept.keys() & named
    for name, value in fields.items():
        if name not in h.HOP_BY_HOP | named | ours.keys() | {
            "host",
            "content-length",
        } and not name.startswith("x-isochrone-"):
            assert both[name] == value
    # Field by field the same goes.
    dropped = h.dropped_from_request(fields)
    assert {n for n in fields if n.startswith("x-isochrone-")} <= set(dropped)
    assert not set(dropped) & kept.keys()


@given(st.text(max_size=60))
def test_nominated_are_tokens_and_never_what_a_proxy_must_keep(connection):
    for name in h.nominated(connection):
        assert re.fullmatch(r"[!#$%&'*+.^_`|~0-9a-z-]+", name)
        assert name not in hop.KEPT


def test_a_client_can_not_have_cookies_or_its_own_address_taken_away():
    assert h.nominated("Cookie, X-A, cf-connecting-ip, authorization, HOST, x b") == ["x-a"]


def test_forwarded_for_and_via():
    assert hop.forwarded_for("192.0.2.1", None) == "192.0.2.1"
    assert hop.forwarded_for("192.0.2.1", "10.0.0.1, 192.0.2.1") == ""
    assert hop.forwarded_for("192.0.2.1", "192.0.2.1, 10.0.0.1") == "192.0.2.1, 10.0.0.1, 192.0.2.1"
    assert hop.forwarded_for("", "10.0.0.1") == ""
    assert hop.via(None, "HTTP/3") == "3 isochrone"
    assert hop.via("1.0 a", 'HTTP/2"; x') == "1.0 a, 1.1 isochrone"
    assert hop.via(None, None) == "1.1 isochrone"


@given(FIELDS, st.sampled_from([None, "HTTP/2", "HTTP/1.1", "x"]))
def test_the_quick_way_adds_what_the_long_one_does(fields, protocol):
    fields = {name: value for name, value in fields.items() if name not in {"via", "traceparent"}}
    origin = Origin("eu-1", "eu-1.test")
    lane = Lane(Steering(None, (origin,)), Plan((origin,), "asn:measured", 7, "v1"), protocol)
    ours = json.loads(lane.text)["fields"] | {"traceparent": begun(7 << 80)} | json.loads("{" + FRONT + "}")
    listed = hop.forwarded_for(fields.get("cf-connecting-ip", ""), fields.get("x-forwarded-for"))
    if listed:
        ours["x-forwarded-for"] = listed
    assert ours == added(fields, protocol=protocol)


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 10**400))
@example(1e306, 60)
def test_a_lane_can_be_told_whatever_the_map_promises(valid_until, max_age):
    origin = Origin("eu-1", "eu-1.test", alt_svc='h3=":443"', max_age=max_age)
    steering = Steering(None, (origin,))
    steering.valid_until = valid_until
    until = json.loads(Lane(steering, Plan((origin,), "asn:measured"), "HTTP/2").text, parse_constant=fail)[
        "until"
    ]
    if 0 < max_age < 1e9 and 0 < valid_until < 1e9:
        assert until == 1000 * (valid_until - max_age)


def fail(constant):
    raise AssertionError(f"{constant} is no JSON")


@given(st.text(max_size=12) | st.integers(0, 10**12).map(str), st.floats(0.001, 10))
def test_a_budget_can_only_be_shortened(text, limit):
    assert 0 <= h.budget_seconds({h.BUDGET: text}, limit) <= limit
    assert h.budget_seconds({}, limit) == limit
    assert h.budget_seconds({h.BUDGET: "250"}, 2.5) == 0.25


def test_cookie():
    fields = {"cookie": "a=1; sid=x=y; sid=z; b"}
    assert h.cookie(fields, "sid") == "x=y"
    assert h.cookie(fields, "b") is None
    assert h.cookie({}, "sid") is None


@given(st.text(max_size=40))
def test_a_host_that_is_allowed_is_safe_in_quotes_and_in_a_url(host):
    if hosts.host_allowed(host, frozenset()):
        assert re.fullmatch(r"\[?[A-Za-z0-9._:-]+\]?(:\d+)?", host)
    assert not hosts.host_allowed(host, frozenset({"www.example.test"}))


def test_hosts():
    site = frozenset({"www.example.test", "api.example.test:8443"})
    for host, good in (
        ("www.example.test", True), ("WWW.example.test:443", True), ("API.example.test:8443", True), ("api.example.test", False),
        ("www.example.test.", False), ("www.example.test:99999", False), ("", False),
    ):  # fmt: skip
        assert hosts.host_allowed(host, site) is good, host
    assert hosts.host_allowed("[2001:db8::1]:8080", frozenset())
    assert not hosts.host_allowed("[::1", frozenset())


def test_both_sides_of_the_crossing_mark_the_same_fields():
    source = (Path(h.__file__).parents[1] / "crossing.mjs").read_text()
    marked = re.search(r'"\(([^)]*)\)/;', source)[1].split("|")
    assert {'"' + name for name in marked} == set(h._MARKS)


def test_small_bodies_may_be_kept():
    for length, good in (
        ("0", True),
        ("16", True),
        ("17", False),
        ("", False),
        ("1e1", False),
        ("²", False),
        ("9" * 30, False),
    ):
        assert h.may_keep({"content-length": length}, 16) is good
    assert not h.may_keep({}, 16)


COOKIES = st.lists(
    st.tuples(
        st.text("abcXYZ09_-", min_size=1, max_size=6), st.text('abc 09=,;"{}', max_size=8).map(str.strip)
    ),
    min_size=1,
    max_size=4,
)


@given(COOKIES, FIELDS)
def test_several_cookie_fields_become_one(pairs, others):
    """As the runtime gives them, with commas between."""
    lines = [f"{name}={value}" for name, value in pairs]
    fields = {**others, "cookie": ", ".join(lines)}
    got = json.loads(h.one_cookie_field(text_of(fields)))
    assert {**got, "cookie": ""} == {**fields, "cookie": ""}
    assert got["cookie"].replace("; ", ", ") == fields["cookie"].replace("; ", ", ")  # nothing but separators
    name, value = pairs[-1]
    if len(pairs) > 1:
        assert got["cookie"].endswith(f"; {name}={value}") or ", " in value
    elif ", " not in value:
        assert got["cookie"] == fields["cookie"]


def test_a_comma_within_a_cookie_stays():
    for value, expected in (
        ("a=1, b=2", "a=1; b=2"), ("a=1; b=2, c=3", "a=1; b=2; c=3"), ("a=1,b=2", "a=1,b=2"), ("d=Wed, 21 Oct 2026", "d=Wed, 21 Oct 2026"),
        ("a=, b=", "a=; b="), ("a, =b", "a, =b"), ('j={"x":1, "y=":2}', 'j={"x":1, "y=":2}'),
    ):  # fmt: skip
        assert json.loads(h.one_cookie_field(text_of({"cookie": value})))["cookie"] == expected
    untouched = text_of({"cookie": "a=1; b=2", "x": "1, y=2"})
    assert h.one_cookie_field(untouched) is untouched
