"""What comes from the network is taken apart without damage, whatever it is."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.lab.packets.version_responder import answer as version_answer
from isochrone.probing import icmp_packet, quic_vn
from isochrone.probing.http_exchange import Http1, Http2, Malformed
from isochrone.probing.prober import IDENTITY, is_address

TOKEN = b"8 bytes!"
V4 = struct.Struct("!BBHHHBBH4s4s")
ME, FAR, ROUTER = (socket.inet_aton(a) for a in ("192.0.2.1", "203.0.113.7", "198.51.100.1"))
VERSIONS = st.sampled_from([4, 6])
CIDS = st.binary(min_size=8, max_size=8)


def v4_packet(source, destination, body, options=b""):
    length = 20 + len(options)
    return (
        V4.pack(0x40 | length // 4, 0, length + len(body), 0, 0, 64, 1, 0, source, destination)
        + options
        + body
    )


def reply_to(request, version):
    return bytes([icmp_packet.ECHO_REPLY[version]]) + request[1:]


@given(VERSIONS, st.integers(0, 0xFFFF), st.integers(0, 0xFFFF), CIDS)
def test_a_reply_is_recognised(version, ident, sequence, token):
    request = icmp_packet.echo_request(version, ident, sequence, token)
    assert len(request) == icmp_packet.PACKET_BYTES
    answer = icmp_packet.parse(version, reply_to(request, version))
    assert (answer.ident, answer.sequence, answer.token, answer.refusal) == (ident, sequence, token, "")
    if version == 4:
        assert icmp_packet.checksum(request) == 0  # RFC 1071: over all of it, its own checksum included


def test_a_request_says_who_asks():
    assert IDENTITY.encode() in icmp_packet.echo_request(4, 1, 2, TOKEN)
    assert IDENTITY.encode() in quic_vn.probe_packet(0x1A2A3A4A, b"d" * 8, b"s" * 8)


@pytest.mark.parametrize("options", [b"", b"\x07\x07\x04\0\0\0\0\0"])
def test_a_raw_reply_has_an_ip_header_before_it(options):
    request = icmp_packet.echo_request(4, 7, 9, TOKEN)
    answer = icmp_packet.parse(4, v4_packet(FAR, ME, reply_to(request, 4), options), ip_header=True)
    assert (answer.ident, answer.sequence, answer.token) == (7, 9, TOKEN)


@pytest.mark.parametrize(("sender", "own"), [(ROUTER, False), (ME, True)])
def test_an_error_says_whose_request_it_is_about(sender, own):
    request = icmp_packet.echo_request(4, 7, 9, TOKEN)
    error = struct.pack("!BBHI", 3, 1, 0, 0) + v4_packet(ME, FAR, request)[:28]
    answer = icmp_packet.parse(4, v4_packet(sender, ME, error), ip_header=True)
    assert (answer.ident, answer.sequence, answer.destination) == (7, 9, FAR)
    assert (answer.refusal, answer.own) == ("host unreachable", own)


def test_an_error_of_ipv6():
    request = icmp_packet.echo_request(6, 7, 9, TOKEN)
    source, destination = bytes(15) + b"\1", bytes(15) + b"\2"
    inner = struct.pack("!IHBB", 6 << 28, len(request), 58, 64) + source + destination + request
    answer = icmp_packet.parse(6, struct.pack("!BBHI", 1, 0, 0, 0) + inner, sender=source)
    assert (answer.destination, answer.refusal, answer.own) == (destination, "no route", True)


@given(VERSIONS, st.booleans(), st.binary(max_size=120))
def test_icmp_of_any_bytes(version, ip_header, data):
    answer = icmp_packet.parse(version, data, ip_header=ip_header)
    assert answer is None or 0 <= answer.sequence <= 0xFFFF


@given(st.sampled_from([3, 11]), st.binary(max_size=80))
def test_icmp_errors_around_any_bytes(kind, inside):
    icmp_packet.parse(4, v4_packet(ROUTER, ME, bytes([kind, 0, 0, 0, 0, 0, 0, 0]) + inside), ip_header=True)


@given(CIDS, CIDS)
def test_version_negotiation_is_recognised(destination, source):
    version = quic_vn.greased_version()
    assert version & 0x0F0F0F0F == 0x0A0A0A0A
    packet = quic_vn.probe_packet(version, destination, source)
    assert len(packet) == quic_vn.DATAGRAM_BYTES
    answer = version_answer(packet)
    assert quic_vn.negotiated(answer, version, destination, source) == (1, 0x6B3343CF)


@given(st.data())
def test_a_damaged_version_negotiation_is_not(data):
    destination, source = b"d" * 8, b"s" * 8
    good = bytearray(version_answer(quic_vn.probe_packet(0x1A2A3A4A, destination, source)))
    at = data.draw(st.integers(0, 22))  # all before the versions
    was = good[at]
    good[at] = data.draw(st.integers(0, 255))
    told = quic_vn.negotiated(bytes(good), 0x1A2A3A4A, destination, source)
    unused = (
        at == 0 and good[0] & 0x80
    )  # the other bits of the first byte may be anything (RFC 9000 section 17.2.1)
    assert (told is not None) == (good[at] == was or bool(unused))


@pytest.mark.parametrize("cut", range(31))
def test_a_cut_version_negotiation_is_not(cut):
    good = version_answer(quic_vn.probe_packet(0x1A2A3A4A, b"d" * 8, b"s" * 8))
    told = quic_vn.negotiated(good[:cut], 0x1A2A3A4A, b"d" * 8, b"s" * 8)
    assert (told is not None) == (cut == 27)  # one version of two is a whole packet


def test_an_answer_that_offers_our_own_version_is_discarded():
    good = version_answer(quic_vn.probe_packet(0x1A2A3A4A, b"d" * 8, b"s" * 8)) + b"\x1a\x2a\x3a\x4a"
    assert quic_vn.negotiated(good, 0x1A2A3A4A, b"d" * 8, b"s" * 8) is None


@given(st.binary(max_size=64))
def test_version_negotiation_of_any_bytes(data):
    assert quic_vn.negotiated(data, 0x1A2A3A4A, b"d" * 8, b"s" * 8) is None
    assert (
        quic_vn.negotiated(b"\x80\0\0\0\0" + data, 0x1A2A3A4A, b"d" * 8, b"s" * 8) is None or len(data) >= 22
    )


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_http1_of_any_bytes(parts):
    exchange = Http1("far.example.com", "/", secure=True)
    try:
        status = next((s for part in parts if (s := exchange.received(part)) is not None), None)
    except Malformed:
        return
    assert status is None or 100 <= status <= 999


@given(st.lists(st.integers(1, 60), max_size=8))
def test_http1_in_any_pieces(cuts):
    whole = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"
    exchange, begin, status = Http1("far.example.com", "/", secure=True), 0, None
    for size in [*cuts, len(whole)]:
        status = exchange.received(whole[begin : begin + size])
        begin += size
        if status is not None:
            break
    assert status == 204


@pytest.mark.parametrize("head", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 2000 OK\r\n", b"HTTP/2 200\r\n"])
def test_what_is_no_http1(head):
    with pytest.raises(Malformed):
        Http1("far.example.com", "/", secure=True).received(head)


def test_a_head_without_end_is_given_up():
    exchange = Http1("far.example.com", "/", secure=True)
    head = b"HTTP/1.1 100 Continue\r\nA: " + b"a" * 60_000
    assert exchange.received(head) is None
    with pytest.raises(Malformed):
        exchange.received(head)


@given(st.lists(st.binary(max_size=80), max_size=6))
def test_http2_of_any_bytes(parts):
    exchange = Http2("far.example.com", "/", secure=True)
    assert exchange.request().startswith(b"PRI * HTTP/2.0")
    try:
        for part in parts:
            exchange.received(part)
            exchange.reply()
    except Malformed:
        pass


@given(st.text(max_size=40))
def test_is_address_of_any_text(text):
    is_address(text)


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("192.0.2.1", True),
        ("2001:db8::1", True),
        ("fe80::1%eth0", True),
        ("localhost", False),
        ("1.2.3", False),
        ("", False),
    ],
)
def test_is_address(text, good):
    assert is_address(text) is good
