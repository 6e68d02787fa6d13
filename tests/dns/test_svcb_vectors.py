"""RFC 9460 appendix D, and what SVCB parsers in public use have got wrong."""

from __future__ import annotations

import struct
from pathlib import Path

import dns.exception
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.tokenizer
import dns.wire
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from isochrone.verification.dns_svcb import Binding, read_binding

DATA = Path(__file__).parents[1] / "data" / "svcb"


def records(path):
    """Records of a vector file: comments out, what stands in brackets on one line."""
    depth, found, current = 0, [], ""
    for raw in path.read_text().splitlines():
        line = raw.partition(";")[0].strip()
        depth += line.count("(") - line.count(")")
        current += " " + line.replace("(", " ").replace(")", " ")
        if not depth:
            if current.strip():
                found.append(" ".join(current.split()))
            current = ""
    return found


TEXT = records(DATA / "dnspython_svcb_test_vectors.text")
WIRE = [bytes.fromhex("".join(r.split()[2:])) for r in records(DATA / "dnspython_svcb_test_vectors.generic")]

#: What the vectors say, by hand from appendix D.2.
VALUES = [
    Binding(wire=b"", priority=0, target="foo.example.com"),
    Binding(wire=b"", priority=1, target="."),
    Binding(wire=b"", priority=16, target="foo.example.com", port=53),
    Binding(wire=b"", priority=1, target="foo.example.com", params={667: b"hello"}),
    Binding(wire=b"", priority=1, target="foo.example.com", params={667: b"hello\xd2qoo"}),
    Binding(wire=b"", priority=1, target="foo.example.com", ipv6hint=("2001:db8::1", "2001:db8::53:1")),
    Binding(wire=b"", priority=1, target="example.com", ipv6hint=("2001:db8:ffff:ffff:ffff:ffff:c633:6464",)),
    Binding(wire=b"", priority=16, target="foo.example.org", alpn=(b"h2", b"h3-19"), mandatory=(1, 4), ipv4hint=("192.0.2.1",)),
    Binding(wire=b"", priority=16, target="foo.example.org", alpn=(b"f\\oo,bar", b"h2")),
    Binding(wire=b"", priority=16, target="foo.example.org", alpn=(b"f\\oo,bar", b"h2")),
]  # fmt: skip


def from_text(text):
    return dns.rdata.from_text(dns.rdataclass.IN, dns.rdatatype.HTTPS, text)


def test_there_are_all_vectors():
    assert len(TEXT) == len(WIRE) == len(VALUES)


@pytest.mark.parametrize(("text", "wire", "value"), list(zip(TEXT, WIRE, VALUES, strict=True)), ids=TEXT)
def test_vectors_of_appendix_d(text, wire, value):
    assert from_text(text).to_wire() == wire
    binding = read_binding(wire)
    assert binding.problems == ()
    names = ("priority", "target", "alpn", "port", "ipv4hint", "ipv6hint", "mandatory", "no_default_alpn")
    for name in names:
        assert getattr(binding, name) == getattr(value, name), name
    for key, raw in value.params.items():
        assert binding.params[key] == raw
    # What is shown as evidence means the same record.
    assert from_text(str(binding)).to_wire() == wire


@pytest.mark.parametrize(
    "text",
    [
        # Appendix D.3, the failure cases.
        "1 foo.example.com. (key123=abc key123=def)",
        "1 foo.example.com. mandatory",
        "1 foo.example.com. alpn",
        "1 foo.example.com. port",
        "1 foo.example.com. ipv4hint",
        "1 foo.example.com. ipv6hint",
        "1 foo.example.com. no-default-alpn=abc",
        "1 foo.example.com. mandatory=key123",
        "1 foo.example.com. mandatory=mandatory",
        "1 foo.example.com. (mandatory=key123,key123 key123=abc)",
    ],
)
def test_failure_cases_of_appendix_d_are_refused_as_text(text):
    with pytest.raises((dns.exception.DNSException, SyntaxError, ValueError)):
        from_text(text)


def wire(*params, priority=1, target=b"\0"):
    return (
        struct.pack("!H", priority)
        + target
        + b"".join(struct.pack("!HH", key, len(value)) + value for key, value in params)
    )


H3, PORT = (1, b"\x02h3"), (3, b"\x20\xfb")


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (wire(PORT, H3), "https_malformed", "alpn stands after port"),
        (wire((667, b"a"), (667, b"b")), "https_malformed", "key667 is there twice"),
        (wire(H3, (3, b"\1")), "https_malformed", "value of port is not valid: 01"),
        (wire(H3, (3, b"\1\2\3")), "https_malformed", "value of port"),
        (wire((1, b"")), "https_malformed", "value of alpn is not valid: empty"),
        (wire((1, b"\0")), "https_malformed", "value of alpn"),
        (wire((1, b"\x05h3")), "https_malformed", "value of alpn"),
        (wire(H3, (4, b"")), "https_malformed", "value of ipv4hint"),
        (wire(H3, (4, b"\1\2\3\4\5")), "https_malformed", "value of ipv4hint"),
        (wire(H3, (6, b"\1\2\3\4")), "https_malformed", "value of ipv6hint"),
        (wire(H3, (5, b"\0\1")), "https_malformed", "value of ech"),
        (wire((0, b""), H3), "https_malformed", "mandatory is empty"),
        (wire((0, b"\0\1\0"), H3), "https_malformed", "odd length"),
        (wire((0, b"\0\0"), H3), "https_malformed", "mandatory lists itself"),
        (wire((0, b"\0\1\0\1"), H3), "https_malformed", "do not ascend"),
        (wire((0, b"\0\3\0\1"), H3, PORT), "https_malformed", "do not ascend"),
        (wire((0, b"\0\4"), H3), "https_malformed", "lists ipv4hint, which the record does not have"),
        (wire((0, b"\2\x9b"), H3, (667, b"")), "https_mandatory", "key667 is mandatory"),
        (wire((2, b"")), "https_no_default_alpn", "no protocol at all"),
        (wire(H3, (2, b"x")), "https_malformed", "value of no-default-alpn"),
        (wire(H3)[:-1], "https_malformed", "alpn ends before its value does"),
        (wire(H3) + b"\0", "https_malformed", "ends inside a parameter"),
        (b"", "https_malformed", "cut short"),
        (b"\0", "https_malformed", "cut short"),
        (b"\0\1", "https_malformed", "cut short"),
        (b"\0\1\xc0\x0c", "https_malformed", "compressed"),
        (wire(H3, priority=0, target=b"\3foo\0"), "https_alias_params", "clients ignore"),
    ],
)  # fmt: skip
def test_what_breaks_the_rules_is_named(data, kind, words):
    binding = read_binding(data)
    assert [problem.kind for problem in binding.problems] == [kind], binding.problems
    assert words in binding.problems[0].evidence


def test_unknown_keys_that_are_not_mandatory_are_no_fault():
    """Parsers that refuse what they do not know break every later extension (RFC 9460 section 8)."""
    binding = read_binding(wire(H3, (7, b"/dns-query{?dns}"), (667, b"x"), (65_534, b"")))
    assert binding.problems == ()
    assert binding.alpn == (b"h3",)
    assert str(binding) == "1 . alpn=h3 key7=/dns-query{?dns} key667=x key65534"


def test_the_default_protocol():
    """alpn=h3 offers http/1.1 too, unless no-default-alpn stands beside it (section 7.1.2)."""
    assert read_binding(wire(H3)).protocols == (b"h3", b"http/1.1")
    assert read_binding(wire(H3, (2, b""))).protocols == (b"h3",)


def test_the_target_of_a_service_is_its_owner():
    assert read_binding(wire(H3)).owner_or_target("fra.example") == "fra.example"
    assert read_binding(wire(H3, target=b"\3AMS\7example\0")).owner_or_target("fra.example") == "ams.example"


def test_names_are_case_insensitive_and_escaped():
    assert read_binding(wire(target=b"\4F.oo\0")).target == "f\\.oo"


@given(st.lists(st.binary(min_size=1, max_size=12), min_size=1, max_size=4))
@example([b","])
@example([b"\\"])
@example([b'"', b" ", b"\\,"])
@example([b"a;b", b"(c)"])
def test_any_protocol_name_survives_both_formats(names):
    """Two layers of escaping: the list's and the string's (appendix A.1)."""
    data = wire((1, b"".join(bytes([len(n)]) + n for n in names)))
    binding = read_binding(data)
    assert binding.alpn == tuple(names)
    assert from_text(str(binding)).to_wire() == data


@given(st.binary(max_size=80))
def test_reading_never_raises_and_agrees_with_dnspython(data):
    """What we find no fault with, dnspython reads; what dnspython refuses, we find a fault with."""
    binding = read_binding(data)
    str(binding)
    try:
        theirs = dns.rdata.from_wire_parser(dns.rdataclass.IN, dns.rdatatype.HTTPS, dns.wire.Parser(data))
    except (dns.exception.DNSException, ValueError):
        assert binding.problems
    else:
        assert theirs.to_wire() == data
        assert {p.kind for p in binding.problems} <= {"https_mandatory", "https_malformed"}


@given(
    st.integers(1, 65_535),
    st.dictionaries(st.integers(0, 8), st.binary(max_size=12), max_size=5),
)
def test_well_formed_frames_of_any_values(priority, params):
    data = wire(*sorted(params.items()), priority=priority)
    binding = read_binding(data)
    assert binding.priority == priority
    assert dict(binding.params) == params
