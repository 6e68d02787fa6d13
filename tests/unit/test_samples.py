"""Reading samples: what is used, what is refused and where that is said to be. No input may do anything else."""

import gzip
import random
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isochrone.estimation import csv_blocks
from isochrone.estimation.rejects import CODE, WORDS, NoSamplesError, Reason, Rejects, UnreadableSamplesError
from isochrone.estimation.samples import SampleColumns
from isochrone.estimation.samples_csv import load_samples, read_samples
from isochrone.model import Outcome, Sample
from isochrone_edge.latency_map import letters

NOW = 1_790_000_000.0
ORIGINS = ("aws:us-west-2", "fra-1", "a")
HEADER = "timestamp,origin,asn,country,rtt_ms,colo,continent,latitude,longitude,method,outcome"
GOOD = "1789999000.5,fra-1,3320,DE,12.345,FRA,EU,50.11,8.68,icmp,ok"
FILE_KINDS = {Reason.EMPTY_FILE, Reason.HEADER, Reason.GZIP_CUT, Reason.GZIP_DAMAGED}
COLUMNS = [f.name for f in fields(SampleColumns) if f.name != "origins"]


@pytest.fixture
def read(tmp_path):
    """Reads bytes or text as a file: columns and rejects."""

    def read(content, *, zipped=False):
        path = tmp_path / "samples.csv"
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(data) if zipped else data)
        rejects = Rejects()
        parts = list(read_samples([path], ORIGINS, now=NOW, rejects=rejects))
        columns = SampleColumns.join(parts, ORIGINS)
        assert len(columns) == rejects.used
        refused = sum(entry.count for kind, entry in rejects.kinds.items() if kind not in FILE_KINDS)
        assert rejects.rows == rejects.used + rejects.target_failed + rejects.prober_failed + refused
        assert all(len(entry.first) == min(3, entry.count) for entry in rejects.kinds.values())
        return columns, rejects

    return read


def same(a, b):
    """Whether two sets of columns hold the same."""
    return all(
        np.array_equal(getattr(a, n), getattr(b, n), equal_nan=n in {"latitude", "longitude"})
        for n in COLUMNS
    )


def with_field(name, text):
    """The good row with one field replaced."""
    row = dict(zip(HEADER.split(","), GOOD.split(","), strict=True))
    row[name] = text
    return ",".join(row.values())


@pytest.mark.parametrize("zipped", [False, True])
def test_a_good_file(read, zipped):
    columns, rejects = read(f"{HEADER}\n{GOOD}\n{with_field('origin', 'aws:us-west-2')}\n", zipped=zipped)
    assert columns.origins == ORIGINS
    assert columns.timestamp.tolist() == [1789999000.5] * 2
    assert columns.origin.tolist() == [1, 0]
    assert columns.asn.tolist() == [3320] * 2
    assert columns.country.tolist() == [letters("DE")] * 2
    assert columns.colo.tolist() == [letters("FRA")] * 2
    assert columns.continent.tolist() == [letters("EU")] * 2
    assert columns.rtt_ms.tolist() == [np.float32(12.345)] * 2
    assert columns.latitude.tolist() == [np.float32(50.11)] * 2
    assert columns.longitude.tolist() == [np.float32(8.68)] * 2
    assert [str(columns.origin.dtype), str(columns.asn.dtype), str(columns.rtt_ms.dtype)] == [
        "uint16",
        "uint32",
        "float32",
    ]
    assert (rejects.rows, rejects.used, rejects.total) == (2, 2, 0)


@pytest.mark.parametrize(
    "content",
    [
        f"\ufeff{HEADER}\r\n{GOOD}\r\n",
        f"{HEADER}\n\n{GOOD}",
        f"{HEADER.upper()}\n\r\n{GOOD}\r\n\n",
        '"' + HEADER.replace(",", '","') + '"\n"' + GOOD.replace(",", '","') + '"\n',
        f"{HEADER}\n" + GOOD.replace(",", " , ") + "\n",
        f'{HEADER},note\n{GOOD},"Köln, 4"\n',
        f"{HEADER},note\n{GOOD},Köln\n",
        ",".join(reversed(HEADER.split(","))) + "\n" + ",".join(reversed(GOOD.split(","))) + "\n",
        f"{HEADER}\n{with_field('rtt_ms', '+1.2345e1')}\n",
        f"{HEADER}\n{with_field('outcome', '')}\n",
    ],
)  # fmt: skip
def test_ways_to_write_the_same(read, content):
    columns, rejects = read(content)
    assert rejects.as_dict() == {"rows": 1, "used": 1, "target_failed": 0, "prober_failed": 0, "rejected": {}}
    assert same(columns, read(f"{HEADER}\n{GOOD}\n")[0])


def test_only_the_required_columns(read):
    columns, _ = read("timestamp,origin,asn,country,rtt_ms\n1789999000,a,3320,,7\n")
    assert (columns.country[0], columns.colo[0], columns.continent[0]) == (0, 0, 0)
    assert np.isnan(columns.latitude[0])
    assert np.isnan(columns.longitude[0])


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("timestamp", "", Reason.TIMESTAMP),
        ("timestamp", "yesterday", Reason.TIMESTAMP),
        ("timestamp", "nan", Reason.TIMESTAMP),
        ("timestamp", "-5", Reason.TIMESTAMP),
        ("timestamp", "inf", Reason.TIMESTAMP),
        ("timestamp", "1_789_999_000", Reason.TIMESTAMP),
        ("timestamp", "1789999000500", Reason.TIMESTAMP_MILLISECONDS),
        ("timestamp", "1789999000500000000", Reason.TIMESTAMP_MILLISECONDS),
        ("timestamp", "1790000301", Reason.TIMESTAMP_FUTURE),
        ("origin", "mars-1", Reason.ORIGIN_UNKNOWN),
        ("origin", "", Reason.ORIGIN_UNKNOWN),
        ("origin", "fra-1x", Reason.ORIGIN_UNKNOWN),
        ("origin", "a-name-much-longer-than-any-of-those-that-are-known", Reason.ORIGIN_UNKNOWN),
        ("asn", "", Reason.ASN),
        ("asn", "AS3320", Reason.ASN),
        ("asn", "-1", Reason.ASN),
        ("asn", "3320.0", Reason.ASN),
        ("asn", "4294967296", Reason.ASN),
        ("asn", "99999999999999999999", Reason.ASN),
        ("asn", "0", Reason.ASN_RESERVED),
        ("asn", "23456", Reason.ASN_RESERVED),
        ("asn", "64496", Reason.ASN_RESERVED),
        ("asn", "131071", Reason.ASN_RESERVED),
        ("asn", "4200000000", Reason.ASN_RESERVED),
        ("asn", "4294967295", Reason.ASN_RESERVED),
        ("country", "DEU", Reason.COUNTRY),
        ("country", "?", Reason.COUNTRY),
        ("country", "D-", Reason.COUNTRY),
        ("colo", "FR", Reason.COLO),
        ("colo", "FR_", Reason.COLO),
        ("continent", "E", Reason.CONTINENT),
        ("latitude", "90.1", Reason.PLACE),
        ("latitude", "north", Reason.PLACE),
        ("latitude", "-", Reason.PLACE),
        ("longitude", "-180.5", Reason.PLACE),
        ("longitude", "inf", Reason.PLACE),
        ("rtt_ms", "", Reason.RTT_MISSING),
        ("rtt_ms", "12ms", Reason.RTT),
        ("rtt_ms", "1.2.3", Reason.RTT),
        ("rtt_ms", ".", Reason.RTT),
        ("rtt_ms", "12,5", Reason.FIELDS),
        ("rtt_ms", "NaN", Reason.RTT_NAN),
        ("rtt_ms", "-3", Reason.RTT_NEGATIVE),
        ("rtt_ms", "-inf", Reason.RTT_NEGATIVE),
        ("rtt_ms", "0", Reason.RTT_ZERO),
        ("rtt_ms", "0.0000", Reason.RTT_ZERO),
        ("rtt_ms", "60000.001", Reason.RTT_HUGE),
        ("rtt_ms", "1e300", Reason.RTT_HUGE),
        ("rtt_ms", "inf", Reason.RTT_HUGE),
        ("rtt_ms", "99999999999999999999999", Reason.RTT_HUGE),
        ("outcome", "fine", Reason.OUTCOME),
        ("method", 'ic"mp', Reason.QUOTES),
        ("method", '"icmp', Reason.QUOTES),
        ("method", "ic\0mp", Reason.NUL),
        ("method", "x" * 70_000, Reason.LONG_LINE),
    ],
)
def test_a_bad_row_is_named_and_the_rest_is_used(read, name, text, reason):
    columns, rejects = read(f"{HEADER}\n{GOOD}\n{with_field(name, text)}\n{GOOD}\n")
    assert set(rejects.kinds) == {reason}
    assert [line for _, line in rejects.kinds[reason].first] == [3]
    assert len(columns) == 2


@pytest.mark.parametrize("asn", ["1", "23455", "23457", "64495", "131072", "4199999999"])
def test_asns_beside_the_reserved_ones(read, asn):
    assert read(f"{HEADER}\n{with_field('asn', asn)}\n")[0].asn.tolist() == [int(asn)]


def test_bytes_that_are_not_utf8(read):
    columns, rejects = read(
        f"{HEADER}\n{GOOD}\n".encode() + GOOD.replace("icmp", "M\xfcnchen").encode("latin-1") + b"\n"
    )
    assert len(columns) == 1
    assert rejects.kinds[Reason.NOT_UTF8].first[0][1] == 3


def test_failures_are_counted_and_not_used(read):
    content = [
        HEADER,
        with_field("outcome", "target_failed").replace("12.345", ""),
        with_field("outcome", "target_failed"),
        with_field("outcome", "prober_failed").replace("12.345", ""),
        GOOD,
    ]
    columns, rejects = read("\n".join(content))
    assert (len(columns), rejects.target_failed, rejects.prober_failed, rejects.total) == (1, 2, 1, 0)


def test_the_first_three_lines_of_each_kind(read):
    zero, private = with_field("rtt_ms", "0"), with_field("asn", "65000")
    content = [HEADER, zero, "", GOOD, private, zero, "rubbish", zero, zero, private, GOOD]
    columns, rejects = read("\n".join(content))
    places = {kind: (entry.count, [line for _, line in entry.first]) for kind, entry in rejects.kinds.items()}
    assert places == {
        Reason.RTT_ZERO: (4, [2, 6, 8]),
        Reason.ASN_RESERVED: (2, [5, 10]),
        Reason.FIELDS: (1, [7]),
    }
    assert len(columns) == 2
    assert rejects.sentences()[0].startswith("fields: 1 (")


@pytest.mark.parametrize("coordinates", ["0,0", ",8.68", "50.11,", "nan,nan", "0.0,-0.0"])
def test_places_that_say_nothing(read, coordinates):
    columns, rejects = read(f"{HEADER}\n{GOOD.replace('50.11,8.68', coordinates)}\n")
    assert rejects.total == 0
    assert np.isnan(columns.latitude[0])
    assert np.isnan(columns.longitude[0])


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\n",
        "   \n",
        "timestamp,origin,asn,country\n1,2,3,4\n",
        GOOD,
        f"{HEADER},asn\n{GOOD},1\n",
        "\0\0\0",
    ],
)
def test_no_header_no_samples(read, content):
    columns, rejects = read(content)
    assert len(columns) == 0
    assert set(rejects.kinds) <= {Reason.HEADER, Reason.EMPTY_FILE}
    assert rejects.total == 1


def test_a_gzip_cut_in_the_middle(read):
    rows = [with_field("rtt_ms", f"{random.Random(i).random() * 100:.3f}") for i in range(1000)]
    whole = gzip.compress("\n".join([HEADER, *rows]).encode())
    columns, rejects = read(whole[: len(whole) // 2])
    assert 100 < len(columns) < 900
    assert set(rejects.kinds) == {Reason.GZIP_CUT}
    assert (
        rejects.kinds[Reason.GZIP_CUT].first[0][1] == len(columns) + 2
    )  # the header, then the line that is cut
    assert columns.rtt_ms.tolist() == [np.float32(row.split(",")[4]) for row in rows[: len(columns)]]


def test_a_gzip_with_a_wrong_checksum_is_told(read):
    whole = bytearray(gzip.compress(f"{HEADER}\n{GOOD}\n".encode()))
    whole[-6] ^= 1
    _, rejects = read(bytes(whole))
    assert Reason.GZIP_DAMAGED in rejects.kinds


@pytest.mark.parametrize(
    ("tail", "kinds"), [(b"", set()), (b"\0" * 100, set()), (b"rubbish", {Reason.GZIP_DAMAGED})]
)
def test_gzip_members_one_after_the_other(read, tail, kinds):
    data = b"".join(
        gzip.compress(text.encode()) for text in (f"{HEADER}\n", f"{GOOD}\n{GOOD[:20]}", f"{GOOD[20:]}\n")
    )
    columns, rejects = read(data + tail)
    assert len(columns) == 2
    assert set(rejects.kinds) == kinds


def test_lines_that_never_end(read, monkeypatch):
    monkeypatch.setattr(csv_blocks, "BLOCK", 1 << 12)
    columns, rejects = read(f"{HEADER}\n{GOOD}\n{'x' * 300_000}\n{GOOD}\nbad\n{'y' * 100_000}")
    assert len(columns) == 2
    assert [line for _, line in rejects.kinds[Reason.LONG_LINE].first] == [3, 6]
    assert rejects.kinds[Reason.FIELDS].first[0][1] == 5


def test_many_rows_of_one_cell(read):
    columns, rejects = read(f"{HEADER}\n" + f"{GOOD}\n" * 300_000, zipped=True)
    assert rejects.used == len(columns) == 300_000


def test_several_files_and_nothing_usable(tmp_path):
    good, bad, empty = (tmp_path / name for name in ("good.csv", "bad.csv", "empty.csv"))
    good.write_text(f"{HEADER}\n{GOOD}\n")
    bad.write_text(f"{HEADER}\n{with_field('rtt_ms', '0')}\n")
    empty.write_bytes(b"")
    columns, rejects = load_samples([empty, bad, good], ORIGINS, now=NOW)
    assert len(columns) == 1
    assert rejects.kinds[Reason.EMPTY_FILE].first == [(str(empty), 1)]
    with pytest.raises(NoSamplesError, match=r"none of 1 rows .* rtt_zero: 1 \(.*bad.csv:2\)") as caught:
        load_samples([empty, bad], ORIGINS, now=NOW)
    assert caught.value.rejects.rows == 1
    with pytest.raises(UnreadableSamplesError, match="No such file"):
        load_samples([good, tmp_path / "none.csv"], ORIGINS, now=NOW)
    with pytest.raises(UnreadableSamplesError):
        load_samples([tmp_path], ORIGINS, now=NOW)


def test_the_daemons_own_samples():
    samples = [
        Sample(NOW - 5, "fra-1", 64512, "DE", 7.5, colo="FRA", continent="EU", latitude=50.0, longitude=8.0),
        Sample(NOW - 4, "a", 3320, "", None, outcome=Outcome.TARGET_FAILED),
        Sample(NOW - 4, "gone", 3320, "", 5.0),
        Sample(NOW - 3, "a", 23456, "", 5.0),
        Sample(NOW - 3, "a", 2**33, "", 5.0),
    ]
    columns, rejects = SampleColumns.from_samples(samples, ORIGINS, now=NOW)
    assert (columns.asn.tolist(), columns.origin.tolist(), columns.rtt_ms.tolist()) == ([64512], [1], [7.5])
    assert columns.country.tolist() == [letters("DE")]
    assert {kind: entry.first for kind, entry in rejects.kinds.items()} == {
        Reason.ORIGIN_UNKNOWN: [("samples", 3)],
        Reason.ASN_RESERVED: [("samples", 4), ("samples", 5)],
    }
    assert rejects.target_failed == 1
    assert not len(SampleColumns.from_samples(samples[:1], ORIGINS, now=NOW, private_asns=False)[0])
    assert not len(SampleColumns.from_samples([], ORIGINS, now=NOW)[0])


@pytest.mark.parametrize(
    "text", ["7", "7.", ".5", "0.001", "12.345075607299805", "1234.5678", "1234.56789", "12345.12345678", "0.0123456789012345", "59999.9999999999999", "00012.5"],
)  # fmt: skip
def test_numbers_are_those_of_float(read, text):
    columns, rejects = read("\n".join([HEADER, *[with_field("rtt_ms", t) for t in (text, text)], GOOD]))
    assert rejects.total == (float(text) > 60_000)
    assert float(text) > 60_000 or columns.rtt_ms[0] == np.float32(float(text))


def test_plain_rows_are_read_without_looking_at_each(read, monkeypatch):
    """What scripts usually write must not go the slow way."""
    monkeypatch.setattr("isochrone.estimation.samples_csv.fill", None)
    rows = [
        "1789999000.1234567,fra-1,3320,DE,12.345075607299805,FRA,EU,50.115521234567,-8.68417,icmp,ok",
        "1789999000,aws:us-west-2,1,,7,,,,,,",
        "1789999000,aws:us-west-2,1,,-1,,,,,,",
        '"1789999000","a","3320","DE","9.5","FRA","EU","50.1","8.7","quic","ok"',
        "1789999000,mars,4200000001,DE,0,FRA,EU,50.1,8.7,quic,target_failed\r",
        "1789999000,fra-1,3320,DE,,FRA,EU,50.1,8.7,Köln,prober_failed",
    ]
    assert read("\n".join([HEADER, *rows]))[1].rows == 6


NUMBERS = st.one_of(
    st.decimals(0, 10**6, places=3).map(str),
    st.floats(allow_nan=True).map(repr),
    st.integers(-5, 10**20).map(str),
    st.from_regex(r"[-+ ]?[0-9]{0,12}\.?[0-9]{0,9}", fullmatch=True),
    st.text("0123456789.-+eE/:n", max_size=20),
)
CODES = st.one_of(st.sampled_from(["", "DE", "us", "FRA", "1A", "T1"]), st.text("ABz09-? ", max_size=4))
ROWS = st.fixed_dictionaries(
    {
        "timestamp": st.one_of(st.floats(1.7e9, 1.8e9).map(repr), NUMBERS),
        "origin": st.one_of(
            st.sampled_from([*ORIGINS, " a", "a ", "", "b"]), st.text("afr-1: ", max_size=12)
        ),
        "asn": st.one_of(st.integers(0, 2**33).map(str), NUMBERS),
        "country": CODES,
        "rtt_ms": NUMBERS,
        "colo": CODES,
        "continent": CODES,
        "latitude": NUMBERS,
        "longitude": NUMBERS,
        "outcome": st.sampled_from(["ok", "", "target_failed", "prober_failed", "target_faileD", "no"]),
    }
)
MANY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@MANY
@given(st.lists(ROWS, min_size=1, max_size=30))
def test_fast_and_slow_reading_agree(read, rows):
    """A quoted comma in a column that nobody reads sends every row down the slow path."""
    header = ",".join([*rows[0], "note"])
    texts = [
        "\n".join([header, *(",".join([*row.values(), note]) for row in rows)]) for note in ("x", '"x,y"')
    ]
    (fast, rejects), (slow, expected) = (read(text) for text in texts)
    assert rejects.as_dict() == expected.as_dict()
    for name in COLUMNS:
        a, b = getattr(fast, name), getattr(slow, name)
        if name == "timestamp":  # 17 digits and more: the nearest double or its neighbour
            assert np.allclose(a, b, rtol=2**-51, atol=0)
        else:
            assert np.array_equal(a, b, equal_nan=name in {"latitude", "longitude"})


@MANY
@given(st.binary(max_size=400), st.booleans(), st.booleans())
def test_any_bytes(read, data, header, zipped):
    read((f"{HEADER}\n".encode() if header else b"") + data, zipped=zipped)
    read(b"\x1f\x8b" + data)


@MANY
@given(st.data())
def test_any_damage_to_a_good_file(read, data):
    content = bytearray(f"{HEADER}\n{GOOD}\n{GOOD}\r\n".encode() * 3)
    if data.draw(st.booleans()):
        content = bytearray(gzip.compress(bytes(content)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.sampled_from([b"", b'"', b"\0", b"\n", b",", b"\xff", b"\r", b"9"])
        )
    read(bytes(content))


@MANY
@given(
    st.lists(
        st.sampled_from([GOOD, "", "bad", with_field("asn", "0"), with_field("method", '"'), GOOD + "\r"]),
        max_size=20,
    ),
    st.integers(1, 200),
)
def test_the_size_of_blocks_changes_nothing(read, rows, size):
    text = "\n".join([HEADER, *rows])
    columns, rejects = read(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_blocks, "BLOCK", size)
        for zipped in (False, True):
            again, told = read(text, zipped=zipped)
            assert same(columns, again)
            assert told.as_dict() == rejects.as_dict()


def test_every_reason_has_a_number():
    assert sorted(CODE.values()) == list(range(1, len(Reason) + 1))
    assert set(WORDS) == set(Reason)
