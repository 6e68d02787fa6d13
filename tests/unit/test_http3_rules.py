"""What an endpoint's answer must look like, silence by family, times and codes in words: the pure parts of verify http3."""

from __future__ import annotations

import json
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.probing.quic_link import LinkClosed
from isochrone.settings import Verification
from isochrone.verification.http3_exchange import Answer
from isochrone.verification.http3_families import SILENT, by_family
from isochrone.verification.http3_faults import FAULTS
from isochrone.verification.http3_rules import alt_svc_troubles, region_of
from isochrone.verification.http3_session import Trouble
from isochrone.verification.http3_timing import Timing, slower_than_tcp, timing
from isochrone.verification.quic_words import (
    ALERTS,
    HTTP3,
    TRANSPORT,
    closed_in_words,
    http3_code,
    transport_code,
)

SITE, HOST, PORT = "www.example.com", "fra.example.com", 8443
HEADER, DOCUMENT = Verification(), Verification(region_member="region")


def answer(status="200", body=b"", **fields):
    return Answer(
        status=status, headers={k.replace("_", "-"): v for k, v in fields.items()}, body=body, ended=True
    )


def region(settings=HEADER, **how):
    return region_of(answer(**how), settings, SITE)


def kind(settings=HEADER, **how):
    with pytest.raises(Trouble) as told:
        region(settings, **how)
    assert told.value.kind in FAULTS
    return told.value.kind


def test_the_region_is_in_the_header_field_or_in_the_document():
    assert region(x_isochrone_region="fra-1") == "fra-1"
    assert region(DOCUMENT, body=b'{"region": "fra-1", "load": 3}', x_isochrone_region="other") == "fra-1"


@pytest.mark.parametrize(
    ("status", "expected"),
    [("421", "misdirected"), ("500", "server_error"), ("599", "server_error"), ("404", "status"), ("302", "status"), ("", "status"), (None, "status")],
)  # fmt: skip
def test_statuses(status, expected):
    assert kind(status=status, x_isochrone_region="fra-1") == expected


def test_an_answer_without_a_region():
    assert kind() == "no_region"


@given(st.binary(max_size=200) | st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_any_health_document(body):
    try:
        wanted = json.loads(body)["region"]
        good = isinstance(wanted, str)
    except (ValueError, KeyError, TypeError, RecursionError):
        good = False
    if good:
        assert region(DOCUMENT, body=body) == wanted
    else:
        assert kind(DOCUMENT, body=body) == "document"


def test_a_document_nested_without_end():
    assert kind(DOCUMENT, body=b"[" * 60_000) == "document"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (f'h3="{HOST}:{PORT}"', []),
        (f'h3="{HOST.upper()}:{PORT}"; ma=60; persist=1', []),
        (f'h3="{HOST}:443"', ["alt_svc_elsewhere"]),
        ('h3=":443"', ["alt_svc_back"]),  # without a host: the public one
        (f'h3=":{PORT}"', ["alt_svc_back"]),
        (f'h3="{SITE}:443"; ma=1', ["alt_svc_back"]),
        (f'h3="{HOST}:{PORT}", h2="ams.example.com:443"', ["alt_svc_elsewhere"]),
        ("clear", ["alt_svc_clear"]),
        ("h3", ["alt_svc_malformed"]),
        ('h3="a:99999"', ["alt_svc_malformed"]),
        ("", ["alt_svc_malformed"]),
    ],
)
def test_alt_svc(value, expected):
    found = alt_svc_troubles(answer(alt_svc=value), site=SITE, host=HOST, port=PORT)
    assert [trouble.kind for trouble in found] == expected


def test_without_alt_svc_nothing_is_wrong():
    assert list(alt_svc_troubles(answer(), site=SITE, host=HOST, port=PORT)) == []


@given(st.text(max_size=100))
def test_any_alt_svc_is_judged(value):
    for trouble in alt_svc_troubles(answer(alt_svc=value), site=SITE, host=HOST, port=PORT):
        assert trouble.kind in FAULTS


ADDRESSES = ["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"]
KINDS = st.sampled_from([*sorted(SILENT), "wrong_region", "alpn", "not_checked", ""])


@given(st.dictionaries(st.sampled_from(ADDRESSES), KINDS))
def test_silence_is_told_by_family(kinds):
    troubles = {a: [Trouble(k, f"evidence {k}")] if k else [] for a, k in kinds.items()}
    told = by_family(troubles)
    assert list(told) == list(kinds)
    answering = {a for a, k in kinds.items() if k not in SILENT and k != "not_checked"}
    for address, found in told.items():
        was = kinds[address]
        assert [t.evidence for t in found] == [t.evidence for t in troubles[address]]
        if was not in SILENT or not answering:
            assert [t.kind for t in found] == [t.kind for t in troubles[address]]
            continue
        family = "ipv6" if ":" in address else "ipv4"
        same = any((":" in other) == (":" in address) for other in answering)
        assert [t.kind for t in found] == ["address_unreachable" if same else f"{family}_unreachable"]
        assert found[0].kind in FAULTS


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_timings(samples):
    told = timing(samples)
    assert told.samples == len(samples)
    assert told.min_ms <= told.median_ms <= told.p99_ms
    assert sum(value > told.p99_ms + 0.001 for value in samples) <= len(samples) // 100
    assert told.jitter_ms == pytest.approx(statistics.pstdev(samples), abs=0.001)


def test_no_samples():
    assert timing([]) is None


def test_what_is_slower_than_tcp():
    def of(ms):
        return Timing(5, ms, ms, ms, 0.0)

    def slower(timings):
        return slower_than_tcp(timings, slow_ms=1000)

    assert "by QUIC, 40.0 ms by TCP and TLS (h2)" in slower({"h3": of(281), "h2": of(40), "h1": of(50)})
    assert slower({"h3": of(279), "h2": of(40), "h1": of(50)}) == ""
    assert slower({"h3": of(1e6), "h2": None, "h1": None}) == ""
    assert slower({"h3": None, "h2": of(1), "h1": of(1)}) == ""


def test_codes_in_words():
    assert transport_code(0x0A) == "0xa (PROTOCOL_VIOLATION)"
    assert transport_code(0x178) == "0x178 (TLS alert no_application_protocol)"
    assert transport_code(0x1FE) == "0x1fe (TLS alert 254)"
    assert transport_code(0x12345) == "0x12345"
    assert (
        http3_code(0x100) == "0x100 (H3_NO_ERROR)"
    )  # the same number is a TLS alert in the other kind of frame
    assert http3_code(0x21 + 5 * 0x1F) == f"0x{0x21 + 5 * 0x1F:x} (reserved: no error)"
    assert (
        closed_in_words(LinkClosed("bye", error_code=0x102, application=True))
        == "error 0x102 (H3_INTERNAL_ERROR): bye"
    )
    assert closed_in_words(LinkClosed("", error_code=0x12A)) == "error 0x12a (TLS alert bad_certificate)"
    assert closed_in_words(LinkClosed("the port is closed")) == "the port is closed"
    assert closed_in_words(LinkClosed("")) == "no reason given"


@given(st.integers(0, 2**62 - 1))
def test_every_code_is_told(code):
    assert f"0x{code:x}" in transport_code(code)
    assert f"0x{code:x}" in http3_code(code)


def test_codes_are_those_of_aioquic():
    from aioquic.h3.connection import ErrorCode
    from aioquic.quic.packet import QuicErrorCode
    from aioquic.tls import AlertDescription

    assert {
        int(c): c.name for c in QuicErrorCode if c != QuicErrorCode.CRYPTO_ERROR
    }.items() <= TRANSPORT.items()
    # aioquic numbers record_overflow 21; RFC 8446 section 6 has 22.
    named = {int(c): c.name for c in AlertDescription if c is not AlertDescription.record_overflow}
    assert named.items() <= ALERTS.items()
    assert {int(c) for c in ErrorCode} <= set(HTTP3)
