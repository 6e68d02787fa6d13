"""Databases and files of targets that change under a running program: the good one stays in use, whatever happens to the file."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.model import Target
from isochrone.probing.databases import Annotator, TargetsError
from isochrone.probing.target_source import TargetSource
from isochrone.settings import OriginSettings, Probing, Settings

REAL = Path(__file__).parents[1] / "data" / "GeoLite2-ASN-Test.mmdb"
KNOWN = Target("1.128.0.1", 443, 0)  # AS1221
_EPOCH = b"build_epoch"


def aged(data: bytes, epoch: int, *, asn: int | None = None) -> bytes:
    """The database with another build epoch, and AS1221 renumbered: a newer edition."""
    at = data.rindex(_EPOCH) + len(_EPOCH)
    assert data[at : at + 2] in {b"\x04\x02", b"\x08\x02"}  # an unsigned 64-bit number of 4 or 8 bytes
    size = data[at]
    data = data[: at + 2] + epoch.to_bytes(size, "big") + data[at + 2 + size :]
    if asn is not None:
        data = data.replace(b"\xc2\x04\xc5", b"\xc2" + asn.to_bytes(2, "big"))
    return data


def put(path: Path, data: bytes, *, atomically: bool = True, at: float = 1_790_000_000.0) -> None:
    """Write the file, in place or as another one, changed at that Unix time."""
    if atomically:
        new = path.with_suffix(".new")
        new.write_bytes(data)
        os.utime(new, (at, at))
        new.replace(path)
    else:
        path.write_bytes(data)
        os.utime(path, (at, at))


NOW = 1_790_001_000.0


@pytest.fixture
def path(tmp_path):
    shutil.copy(REAL, tmp_path / "asn.mmdb")
    return tmp_path / "asn.mmdb"


def test_a_copy_is_known_by_its_epoch(path):
    with closing(Annotator(path)) as annotate:
        (state,) = annotate.states()
        assert (state.name, state.kind, state.problem) == ("asn_database", "GeoLite2-ASN", "")
        assert 1.4e9 < state.built_at < 1.9e9
        assert annotate(KNOWN).asn == 1221
        assert not annotate.refresh(NOW)


@pytest.mark.parametrize("atomically", [True, False])
def test_a_changed_file_is_read_anew(path, atomically):
    with closing(Annotator(path)) as annotate:
        put(path, aged(REAL.read_bytes(), 1_789_999_999), atomically=atomically)
        assert annotate.refresh(NOW)
        assert annotate.states()[0].built_at == 1_789_999_999
        assert annotate(KNOWN).asn == 1221
        assert not annotate.refresh(NOW)


def test_a_file_of_the_same_size_and_time_is_another_one_when_it_was_replaced(path):
    with closing(Annotator(path)) as annotate:
        before = path.stat()
        put(path, aged(REAL.read_bytes(), 1_789_999_998), at=before.st_mtime)
        assert annotate.refresh(before.st_mtime + 1000)
        assert annotate.states()[0].built_at == 1_789_999_998


def test_a_file_that_was_written_to_just_now_is_left_alone_for_a_moment(path):
    with closing(Annotator(path)) as annotate:
        put(path, aged(REAL.read_bytes(), 1_789_999_999), at=NOW)
        assert not annotate.refresh(NOW + 0.5)
        assert annotate.states()[0].problem == ""
        assert annotate.refresh(NOW + 2.0)


def test_a_clock_that_was_ahead_does_not_keep_a_file_out_for_ever(path):
    with closing(Annotator(path)) as annotate:
        put(path, aged(REAL.read_bytes(), 1_789_999_999), at=NOW + 1e6)
        assert annotate.refresh(NOW)


def test_half_a_file_is_told_once_and_the_whole_one_is_taken(path, caplog):
    with closing(Annotator(path)) as annotate:
        built_at = annotate.states()[0].built_at
        put(path, REAL.read_bytes()[:6_000], atomically=False)
        for _ in range(3):
            assert not annotate.refresh(NOW)
        told = [r.message for r in caplog.records if r.levelname == "WARNING"]
        assert len(told) == 1
        assert "not a readable MaxMind database" in told[0]
        assert "the one read before stays in use" in told[0]
        (state,) = annotate.states()
        assert state.built_at == built_at
        assert "not a readable MaxMind database" in state.problem
        assert annotate(KNOWN).asn == 1221
        put(path, aged(REAL.read_bytes(), 1_789_999_999), at=NOW - 10)
        assert annotate.refresh(NOW)
        assert annotate.states()[0].problem == ""


def test_a_file_that_is_gone_or_of_another_kind_is_told_and_forgiven(path):
    with closing(Annotator(path)) as annotate:
        kept = path.read_bytes()
        path.rename(path.with_suffix(".away"))
        assert not annotate.refresh(NOW)
        assert "can't be read" in annotate.states()[0].problem
        assert annotate(KNOWN).asn == 1221
        path.with_suffix(".away").rename(path)
        assert not annotate.refresh(NOW)  # the same file again
        assert annotate.states()[0].problem == ""
        put(path, kept.replace(b"GeoLite2-ASN", b"GeoLite2-XYZ"))
        assert not annotate.refresh(NOW)
        assert "type 'GeoLite2-XYZ'" in annotate.states()[0].problem


def test_writing_over_a_database_in_use_changes_nothing_under_it(path):
    """It is read from a copy: a map of the file itself would end the process with SIGBUS here."""
    with closing(Annotator(path)) as annotate:
        os.truncate(path, 10)
        assert annotate(KNOWN).asn == 1221


@given(st.randoms(use_true_random=False), st.integers(1, 60), st.booleans())
@settings(max_examples=150, deadline=None)
def test_no_damage_is_more_than_a_sentence(tmp_path_factory, rng, changes, cut):
    path = tmp_path_factory.getbasetemp() / "damaged.mmdb"
    data = bytearray(REAL.read_bytes())
    for _ in range(changes):
        data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(data[: rng.randrange(len(data))] if cut else data)
    try:
        annotate = Annotator(path)
    except TargetsError as error:
        assert str(path) in str(error)  # noqa: PT017  either is right
        return
    with closing(annotate):
        for address in ("1.128.0.1", "12.81.92.1", "2600:6000::1", "203.0.113.1", "10.0.0.1"):
            annotate(Target(address, 443, 0))


@pytest.fixture
def source(path, tmp_path):
    csv = tmp_path / "targets.csv"
    put(csv, b"address,asn\n1.128.0.1,\n192.0.2.7,3320\n")
    origin = OriginSettings(id="fra-1", host="fra.example.com", latitude=50.1, longitude=8.7)
    return TargetSource(
        Settings(
            site="www.example.com",
            origins=(origin,),
            targets_file=csv,
            probing=Probing(asn_database=path),
        )
    )


def known(source):
    return [(t.address, t.asn) for t in source.targets]


def test_targets_follow_their_file(source, tmp_path, caplog):
    csv = tmp_path / "targets.csv"
    assert known(source) == [("1.128.0.1", 1221), ("192.0.2.7", 3320)]
    assert not source.refresh(NOW)
    put(csv, b"address,asn\n1.128.0.1,\n192.0.2.8,64500\nnonsense,1\n", at=NOW - 60)
    assert source.refresh(NOW)
    assert known(source) == [("1.128.0.1", 1221)]
    assert [r.message.partition(" (")[0] for r in caplog.records if r.levelname == "WARNING"] == [
        "1 target left out: the address is not an IP address",
        "1 target left out: the ASN is reserved",
    ]
    assert not source.refresh(NOW)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "first line must name the columns"), (b"address,asn\n", "no usable target"),
        (b"address,asn\nnonsense,1\n", "no usable target"), (None, "is gone"),
    ],
)  # fmt: skip
def test_a_file_that_is_of_no_use_leaves_the_targets_from_before(source, tmp_path, caplog, content, told):
    csv = tmp_path / "targets.csv"
    before = source.targets
    if content is None:
        csv.unlink()
    else:
        put(csv, content, atomically=False)
    for _ in range(3):
        assert not source.refresh(NOW)
    assert told in source.problem
    assert len([r for r in caplog.records if "stay in use" in r.message]) == 1
    assert source.targets == before
    put(csv, b"address,asn\n192.0.2.9,3320\n", at=NOW - 60)
    assert source.refresh(NOW)
    assert (known(source), source.problem) == ([("192.0.2.9", 3320)], "")


def test_another_database_annotates_anew(source, tmp_path):
    data = aged(REAL.read_bytes(), 1_789_999_999, asn=1299)
    put(tmp_path / "asn.mmdb", data)
    assert source.refresh(NOW)
    assert known(source) == [("1.128.0.1", 1299), ("192.0.2.7", 3320)]
    assert source.databases[0].built_at == 1_789_999_999
    put(tmp_path / "asn.mmdb", aged(data, 1_789_999_997), at=NOW - 50)
    assert not source.refresh(NOW)  # the same ASNs: nothing to choose anew
    assert source.databases[0].built_at == 1_789_999_997


def test_a_database_changes_while_the_file_is_being_written(source, tmp_path):
    put(tmp_path / "asn.mmdb", aged(REAL.read_bytes(), 1_789_999_999, asn=1299))
    put(tmp_path / "targets.csv", b"address,asn\n1.1", atomically=False, at=NOW)
    assert not source.refresh(NOW + 0.1)  # half a file is not read because something else has changed
    put(tmp_path / "targets.csv", b"address,asn\n1.128.0.1,\n", atomically=False, at=NOW + 1)
    assert source.refresh(NOW + 10)
    assert known(source) == [("1.128.0.1", 1299)]


def test_targets_that_manners_refuse_take_nobodys_place(path, tmp_path):
    csv = tmp_path / "targets.csv"
    put(csv, b"address,asn\n8.8.8.8,15169\n8.8.4.4,15169\n10.0.0.1,15169\n192.168.0.1,3320\n")
    origin = OriginSettings(id="fra-1", host="fra.example.com", latitude=50.1, longitude=8.7)
    probing = Probing(never_probe=("8.8.4.0/24",))
    source = TargetSource(
        Settings(site="www.example.com", origins=(origin,), targets_file=csv, probing=probing)
    )
    assert len(source.targets) == 4
    assert [t.address for t in source.allowed] == ["8.8.8.8"]
    assert source.refused == (
        "3 targets will never be probed (not probed: 8.8.4.4 is in never_probe (8.8.4.0/24), ...)",
    )
    put(csv, b"address,asn\n8.8.8.8,15169\n8.8.8.9,15169\n", at=NOW - 60)
    assert source.refresh(NOW)
    assert ([t.address for t in source.allowed], source.refused) == (["8.8.8.8", "8.8.8.9"], ())
