"""Findings from their first sight to their last: nothing is counted twice, nothing open is lost, and the file stays bounded."""

from __future__ import annotations

import itertools
import sqlite3
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.model import Finding, Severity
from isochrone.store import findings, schema
from isochrone.store.findings import end_others, history, open_counts, record
from isochrone.store.sqlite import Store

NOW = 1_790_000_000.0


def finding(check="dns.silent", subject="fra-1 fra.example", evidence="e", severity=Severity.ERROR):
    return Finding(
        check=check, subject=subject, severity=severity, evidence=evidence, advice="a", source="RFC 1", details={"k": "v"}
    )  # fmt: skip


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "isochrone.db") as opened:
        yield opened


def test_from_the_first_sight_to_the_last(store):
    assert record(store, "dns", {"fra-1": [finding()]}, {"fra-1"}, now=NOW)
    assert record(store, "dns", {"fra-1": [finding(evidence="f")]}, {"fra-1"}, now=NOW + 60)
    (seen,) = history(store)
    assert (seen.first_seen, seen.last_seen, seen.count, seen.ended_at) == (NOW, NOW + 60, 2, None)
    assert seen.finding == finding(evidence="f")
    assert open_counts(store) == {"error": 1, "warning": 0, "info": 0}
    # A round that could not ask ends nothing; one that did, does.
    assert record(store, "dns", {"fra-1": []}, set(), now=NOW + 120)
    assert not record(store, "dns", {"fra-1": []}, {"fra-1"}, now=NOW + 180)
    (seen,) = history(store)
    assert (seen.last_seen, seen.count, seen.ended_at) == (NOW + 60, 2, NOW + 180)
    assert history(store, only_open=True) == []
    # Back again: another stretch.
    assert record(store, "dns", {"fra-1": [finding()]}, {"fra-1"}, now=NOW + 240)
    assert [(s.first_seen, s.ended_at) for s in history(store)] == [(NOW + 240, None), (NOW, NOW + 180)]


def test_kinds_of_check_and_origins_do_not_end_each_other(store):
    record(store, "dns", {"fra-1": [finding()], "ams-1": [finding()]}, {"fra-1", "ams-1"}, now=NOW)
    record(store, "http3", {"fra-1": [finding("http3.alpn")]}, {"fra-1"}, now=NOW)
    record(store, "http3", {"fra-1": []}, {"fra-1"}, now=NOW + 1)
    record(store, "dns", {"ams-1": []}, {"ams-1"}, now=NOW + 1)
    assert [(s.job, s.origin) for s in history(store, only_open=True)] == [("dns", "fra-1")]
    assert [s.job for s in history(store, check="http3.alpn")] == ["http3"]
    assert [s.origin for s in history(store, origin="ams-1")] == ["ams-1"]
    assert len(history(store, limit=2)) == 2


def test_several_pieces_of_evidence_of_one_finding_count_once_and_are_bounded(store):
    record(store, "dns", {"fra-1": [finding(evidence=e) for e in "aba"]}, {"fra-1"}, now=NOW)
    (seen,) = history(store)
    assert (seen.count, seen.finding.evidence) == (1, "a; b")
    record(store, "dns", {"fra-1": [finding(evidence="x" * 9_000)]}, {"fra-1"}, now=NOW)
    assert len(history(store)[0].finding.evidence) == findings.EVIDENCE_CHARACTERS


def test_the_oldest_ended_ones_go_and_open_ones_stay(store, monkeypatch):
    monkeypatch.setattr(findings, "ROWS", 3)
    record(store, "dns", {"old": [finding()]}, {"old"}, now=NOW - 99)
    for n in range(6):
        record(store, "dns", {"fra-1": [finding(subject=str(n))]}, {"fra-1"}, now=NOW + n)
    record(store, "dns", {"fra-1": []}, {"fra-1"}, now=NOW + 9)
    assert [s.finding.subject for s in history(store)] == ["5", "4", "3", "fra-1 fra.example"]


def test_what_is_not_checked_any_more_has_ended(store):
    record(store, "dns", {"fra-1": [finding()], "gone": [finding()]}, {"fra-1", "gone"}, now=NOW)
    assert end_others(store, {("dns", "fra-1")}, now=NOW + 1) == {"dns"}
    assert [s.origin for s in history(store, only_open=True)] == ["fra-1"]
    assert end_others(store, (), now=NOW + 2) == set()


SIGHTS = st.lists(
    st.tuples(
        st.sampled_from(["dns", "http3"]),
        st.dictionaries(st.sampled_from(["a", "b"]), st.sets(st.sampled_from("xyz"))),
        st.booleans(),
    ),
    max_size=12,
)


@settings(max_examples=40)
@given(SIGHTS)
def test_any_rounds_give_the_stretches_that_were_seen(rounds):
    expected, still = [], {}  # each: key, first, last, count, ended
    with tempfile.TemporaryDirectory() as folder, Store.open(f"{folder}/isochrone.db") as store:
        for now, (job, seen, heard) in zip(itertools.count(1.0), rounds, strict=False):
            told = {
                origin: [finding(subject=s) for s in sorted(subjects)] for origin, subjects in seen.items()
            }
            record(store, job, told, set(seen) if heard else set(), now=now)
            keys = {(job, origin, s) for origin, subjects in seen.items() for s in subjects}
            for key in keys:
                if key in still:
                    still[key][2:4] = [now, still[key][3] + 1]
                else:
                    still[key] = [key, now, now, 1, None]
                    expected.append(still[key])
            for key in [k for k in still if k[0] == job and heard and k[1] in seen and k not in keys]:
                still.pop(key)[4] = now
        found = [
            [(s.job, s.origin, s.finding.subject), s.first_seen, s.last_seen, s.count, s.ended_at]
            for s in history(store)
        ]
        assert sorted(found, key=str) == sorted(expected, key=str)
        assert open_counts(store)["error"] == len(still)


def test_findings_of_an_older_file_are_carried_over(tmp_path, monkeypatch):
    path = tmp_path / "isochrone.db"
    with monkeypatch.context() as patch:
        older = schema.MIGRATIONS[:1]
        patch.setattr(schema, "MIGRATIONS", older)
        patch.setattr(schema, "VERSION", 1)
        Store.open(path).close()
    connection = sqlite3.connect(path)
    for at in (NOW, NOW + 1):
        connection.execute(
            "INSERT INTO findings VALUES (?,'http3.alpn','fra-1','error','e','a','RFC','{}')", (at,)
        )
    connection.commit()
    connection.close()
    with Store.open(path) as store:
        (seen,) = history(store)
    assert (seen.finding.check, seen.first_seen, seen.last_seen, seen.count) == (
        "http3.alpn",
        NOW,
        NOW + 1,
        2,
    )
    assert seen.ended_at == NOW + 1
