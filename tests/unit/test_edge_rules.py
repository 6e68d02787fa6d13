"""What verification says of the edge, from what was seen; docs/FINDINGS.md names the same findings."""

import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.cli import main
from isochrone.client.names import Service
from isochrone.settings import Settings
from isochrone.verification.edge_faults import FAULTS
from isochrone.verification.edge_rules import Own, Published, Seen, View, judge

NOW = 1_796_060_000.0
PIN = 'h3="a.test:443"; ma=300; persist=1'
SETTINGS = Settings.model_validate(
    {"site": "www.test", "origins": [{"id": "a", "host": "a.test", "latitude": 1, "longitude": 1}]}
)
DECISION = {
    "map": "v1", "colour": 3, "band": 1,
    "candidates": [{"origin": "a", "alt_svc": PIN}, {"origin": "b", "alt_svc": ""}],
}  # fmt: skip
TIMING = {"map": "v1", "origin": "a", "colour": "3", "tries": "1"}


def view(protocol="h2", **given):
    options = {"status": 200, "region": "a", "edge": TIMING, "alt_svc": PIN, "date": NOW, "at": NOW}
    return View(protocol=protocol, **{**options, **given})


def kinds(*views, decision=DECISION, secret=True, **given):
    options = {
        "addresses": ("192.0.2.1",),
        "own": Own(opened=200, decision=decision, status={"map": "v1", "problem": "", "variables": []}),
        "published": Published(version="v1", built_at=NOW - 60),
    }
    seen = Seen(views=views or (view(),), **{**options, **given})
    return [f.check.removeprefix("edge.") for f in judge(SETTINGS, seen, secret=secret, now=NOW)]


def test_nothing_is_wrong():
    assert kinds() == []
    assert kinds(published=None) == []


@pytest.mark.parametrize(
    ("arrived", "found"),
    [
        ('h3="a.test:443"; ma=299; persist=1', []),  # a second later
        ('h3="A.test:443";ma="300";persist=1', []),
        ('h3="a.test:443"; ma=301; persist=1', ["alt_svc_replaced"]),
        ('h3="a.test:443"; ma=300', ["alt_svc_replaced"]),
        ('h3="a.test:443"; persist=1', ["alt_svc_replaced"]),
        ('h3="b.test:443"; ma=300; persist=1', ["alt_svc_replaced"]),
        ('h3="a.test:444"; ma=300; persist=1', ["alt_svc_replaced"]),
        ('h3=":443"; ma=86400', ["alt_svc_replaced"]),
        ("clear", ["alt_svc_replaced"]),
        ("", ["alt_svc_replaced"]),
        (f'{PIN}, h3=":443"; ma=86400', ["alt_svc_added"]),
        (f'h3=":443"; ma=86400, {PIN}', ["alt_svc_replaced"]),
        (None, ["alt_svc_removed"]),
    ],
)
def test_alt_svc(arrived, found):
    assert kinds(view(alt_svc=arrived)) == found


@pytest.mark.parametrize(
    ("promised", "arrived", "found"),
    [
        ("", None, []),
        ("", PIN, ["alt_svc_added"]),
        ("clear", "clear", []),
        ("clear", None, ["alt_svc_removed"]),
        ("clear", PIN, ["alt_svc_replaced"]),
        ("clear", "Clear", ["alt_svc_replaced"]),
    ],
)
def test_alt_svc_where_nothing_is_promised(promised, arrived, found):
    decision = {**DECISION, "candidates": [{"origin": "a", "alt_svc": promised}]}
    assert kinds(view(alt_svc=arrived), decision=decision) == found


@given(st.text(max_size=60) | st.none(), st.sampled_from(["", "clear", PIN]))
def test_any_field_is_judged(arrived, promised):
    decision = {**DECISION, "candidates": [{"origin": "a", "alt_svc": promised}]}
    found = kinds(view(alt_svc=arrived), decision=decision)
    assert len(found) <= 1
    assert all(kind.startswith("alt_svc_") for kind in found)
    if (arrived or "") == promised and (promised or arrived is None):
        assert found == []


def test_which_origin():
    second = {**TIMING, "origin": "b"}
    assert kinds(view(edge=second, region="b", alt_svc=None)) == ["wrong_origin"]
    assert kinds(view(edge={**second, "tries": "2"}, region="b", alt_svc=None)) == []
    assert kinds(view(edge=second, region="b", alt_svc=None), decision={**DECISION, "band": 2}) == []
    assert kinds(view(edge={**TIMING, "colour": "4"})) == ["wrong_origin"]
    assert kinds(view(region="b")) == ["wrong_region"]
    assert kinds(view(edge={**TIMING, "map": "v2"}, alt_svc=None), published=None) == []  # another isolate


def test_own_endpoints():
    assert kinds(decision=None) == ["closed"]
    assert kinds(decision=None, secret=False) == ["no_secret"]


def test_what_explains_the_rest_stands_alone():
    gone = [view(p, error="unreachable", problem="refused") for p in ("http/1.1", "h2", "h3")]
    assert kinds(*gone) == ["unreachable"]
    assert kinds(*[view(p, error="certificate") for p in ("http/1.1", "h2", "h3")]) == ["certificate"]
    assert kinds(*[view(p, error="own") for p in ("http/1.1", "h2", "h3")]) == ["not_checked"]
    assert kinds(view("", error="unresolved")) == ["unresolved"]
    assert kinds(view(), view("h3", error="unreachable")) == []  # nobody said that there is HTTP/3
    assert kinds(view(status=503, edge={}, alt_svc=None), decision=None) == ["status"]
    assert kinds(view(edge={}, alt_svc=None), decision=None) == ["no_worker"]


def test_maps():
    old = {**TIMING, "map": "v0"}
    late = Published(version="v1", built_at=NOW - 181)
    assert kinds(view(edge=old)) == []
    assert kinds(view(edge=old), published=late) == ["old_map"]
    assert kinds(published=Published(version="v1", built_at=NOW - 7201)) == ["stale_map"]
    assert kinds(view(edge={**TIMING, "map": "none"}), published=late) == ["no_map"]
    assert kinds(published=Published(problem="no token")) == ["not_checked"]
    assert kinds(published=Published()) == []


@pytest.mark.parametrize(
    ("apart", "found"), [(0, []), (9.9, []), (11, ["clock_skew"]), (-11, ["clock_skew"])]
)
def test_clocks(apart, found):
    assert kinds(view(date=NOW - apart)) == found
    assert kinds(view(date=NOW - apart), view("h3", date=NOW)) == []
    assert kinds(view(date=None)) == []


def test_https_records():
    def services(**given):
        options = {"host": "www.test", "port": 443, "protocols": ("h3", "h2"), "addresses": ("192.0.2.1",)}
        return (Service(**{**options, **given}),)

    both = (view(), view("h3"))
    assert kinds(*both, services=services()) == []
    assert kinds(view(), view("h3", error="unreachable"), services=services()) == ["https_protocol"]
    assert kinds(*both, services=services(port=8443)) == ["https_address"]
    assert kinds(*both, services=services(addresses=("192.0.2.9",))) == ["https_address"]
    assert kinds(*both, services=services(hints=("192.0.2.9",))) == ["https_address"]


def test_findings_are_documented_as_they_are():
    doc = (Path(__file__).parents[2] / "docs" / "FINDINGS.md").read_text()
    rows = re.findall(r"^\| `edge\.(\w+)` \| (.*) \|$", doc, re.MULTILINE)
    assert [(kind, *re.split(r" \| ", cells)) for kind, cells in rows] == [
        (kind, f.meaning, f.severity.value, f.source or "-", f.advice) for kind, f in FAULTS.items()
    ]


def test_a_trust_store_that_can_t_be_used_ends_the_command(tmp_path, capsys, monkeypatch):
    config = tmp_path / "isochrone.toml"
    (tmp_path / "empty.pem").touch()
    config.write_text(
        'site = "a.test"\n[verification]\ntrust_store = "empty.pem"\n'
        '[[origins]]\nid = "a"\nhost = "b.test"\nlatitude = 1\nlongitude = 1\n'
    )
    monkeypatch.setattr(sys, "argv", ["isochrone", "verify", "edge", "-c", str(config)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "holds no certificates in PEM form" in capsys.readouterr().err
