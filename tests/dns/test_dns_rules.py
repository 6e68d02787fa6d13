"""Properties of the pure rules: order, repetition and the number of servers never change what is found."""

from __future__ import annotations

import itertools
import struct
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from isochrone.nameserver import NameServer, Transport
from isochrone.verification.dns_answer import Answer, Question
from isochrone.verification.dns_faults import found
from isochrone.verification.dns_https import Found, follow, https_findings
from isochrone.verification.dns_plan import entry
from isochrone.verification.dns_promise import BALANCERS, Bounds, Promise
from isochrone.verification.dns_rules import address_findings, agree, ttl_findings, usable
from isochrone.verification.dns_server_rules import server_findings
from isochrone.verification.dns_svcb import read_binding

NAME = "fra.example.test"
BOUNDS = Bounds(ttl_min=20, ttl_max=86_400, slow_ms=1000)
addresses = st.sets(st.sampled_from(["203.0.113.1", "203.0.113.2", "203.0.113.3", "203.0.113.4"]))
some = st.sets(st.sampled_from(["203.0.113.1", "203.0.113.2", "203.0.113.3", "203.0.113.4"]), min_size=1)


def server(number, *, authoritative=True):
    return NameServer(f"127.0.0.{number}", 53, authoritative=authoritative)


def answer(number=1, got=("203.0.113.1",), *, ttl=300, subnet="", rdtype="A", **more):
    return Answer(
        server=server(number), question=Question(NAME, rdtype, subnet), addresses=frozenset(got), ttl=ttl, rtt_ms=1.0, **more
    )  # fmt: skip


def promise(expected=("203.0.113.1",), **more):
    return Promise(origin="fra-1", name=NAME, expected=frozenset(expected), **more)


def kinds(findings):
    return {finding.check.removeprefix("dns.") for finding in findings}


@given(some, st.integers(1, 6))
def test_servers_that_say_what_is_expected_give_no_finding(expected, count):
    answers = [answer(n, expected) for n in range(1, count + 1)]
    agreed = agree(promise(expected), answers)
    assert agreed.findings == ()
    assert address_findings(promise(expected), {"A": agreed.answer}, None) == []


@given(some, some)
def test_one_cause_gives_one_finding(expected, got):
    found_ = address_findings(promise(expected), {"A": answer(got=got)}, None)
    assert len(found_) == (0 if got == expected else 1)
    if got != expected:
        extra = got - expected
        kind = "missing_address" if not extra else "extra_address" if got & expected else "wrong_address"
        assert kinds(found_) == {kind}


@given(some, st.lists(some, min_size=1, max_size=6), st.randoms())
def test_the_order_of_servers_does_not_count(expected, said, random):
    answers = [answer(n, got) for n, got in enumerate(said, 1)]
    shuffled = answers[:]
    random.shuffle(shuffled)
    one, other = agree(promise(expected), answers), agree(promise(expected), shuffled)
    assert kinds(one.findings) == kinds(other.findings)
    # Whoever says what is expected is believed; the others are told.
    if set(expected) in [set(got) for got in said]:
        assert one.answer.addresses <= frozenset(expected)


@given(st.lists(some, min_size=2, max_size=6))
def test_servers_disagree_exactly_when_they_do(said):
    answers = [answer(n, got) for n, got in enumerate(said, 1)]
    differ = len({frozenset(got) for got in said}) > 1
    assert kinds(agree(promise(()), answers).findings) == ({"servers_disagree"} if differ else set())


@given(some, some)
def test_a_server_that_changes_its_mind_is_unstable_and_one_that_looks_at_clients_steers(one, other):
    same = one == other
    rotating = agree(promise(()), [answer(got=one), answer(got=other)])
    assert kinds(rotating.findings) == (set() if same else {"unstable"})
    steering = agree(promise(()), [answer(got=one), answer(got=other, subnet="198.51.100.0/24")])
    assert kinds(steering.findings) == (set() if same else {"subnet_steered"})


@given(st.integers(0, 2**31 - 1), st.booleans())
def test_ttl_bounds(ttl, authoritative):
    said = replace(answer(ttl=ttl), server=server(1, authoritative=authoritative))
    expect = set()
    if ttl < 20 and authoritative:  # a resolver's has run down
        expect = {"ttl_low"}
    elif ttl > 86_400:
        expect = {"ttl_high"}
    assert kinds(ttl_findings(promise(), [said], BOUNDS)) == expect


@given(st.sampled_from(BALANCERS), st.sampled_from(["", "x.", "a.b."]), st.booleans())
def test_balancers_are_known_by_their_suffix(suffix, prefix, glued):
    assert BOUNDS.balancer([f"{prefix}{suffix}"]) == f"{prefix}{suffix}"
    assert BOUNDS.balancer([f"not{suffix}" if glued else f"{suffix}.example"]) == ""


def test_an_authoritative_server_need_not_know_where_a_cname_leads():
    led = answer(got=(), ttl=300, chain=("elsewhere.example",))
    assert usable([led], BOUNDS) == []
    asked = replace(led, server=server(1, authoritative=False))
    assert usable([asked], BOUNDS) == [asked]


@given(st.lists(st.sampled_from(["", "silent", "servfail", "lame"]), min_size=1, max_size=8))
def test_one_finding_for_each_server_and_kind(troubles):
    answers = [answer(1, trouble=trouble, detail="why") for trouble in troubles]
    told = server_findings(promise(), answers, BOUNDS)
    assert sorted(f.check for f in told) == sorted({f"dns.{t}" for t in troubles if t})


def test_a_slow_answer_among_quick_ones_is_no_slow_server():
    quick, late = answer(), replace(answer(), rtt_ms=5000.0)
    assert server_findings(promise(), [quick, quick, late], BOUNDS) == []
    assert kinds(server_findings(promise(), [quick, late, late], BOUNDS)) == {"slow"}


def test_without_tcp_only_when_udp_works():
    udp = NameServer("127.0.0.1", 53, authoritative=True, plain=True)
    by_udp = replace(answer(), server=udp)
    by_tcp = replace(answer(trouble="silent", detail="no answer"), server=udp.by(Transport.TCP))
    dead = replace(by_udp, trouble="silent")
    assert kinds(server_findings(promise(), [by_udp, by_tcp], BOUNDS)) == {"no_tcp"}
    assert kinds(server_findings(promise(), [dead, by_tcp], BOUNDS)) == {"silent"}


# Alias chains


def alias(target):
    labels = b"".join(bytes([len(part)]) + part.encode() for part in target.split(".")) + b"\0"
    return read_binding(b"\0\0" + labels)


SERVICE = read_binding(b"\0\1\0" + struct.pack("!HH", 1, 3) + b"\x02h3")


@given(st.integers(0, 12), st.booleans())
def test_alias_chains_end_or_are_told(length, closed):
    """A chain of any length ends: at its service, at the limit, or where it comes back to itself."""
    names = [NAME, *(f"a{n}.test" for n in range(length))]
    at = {name: Found((alias(following),)) for name, following in itertools.pairwise(names)}
    at[names[-1]] = Found((alias(NAME) if closed else SERVICE,), frozenset({"203.0.113.1"}))
    services = follow(promise(), NAME, at, BOUNDS)
    if closed or length > 8:
        assert kinds(services.findings) == {"https_alias_loop"}
        assert services.dead
    else:
        assert services.findings == ()
        assert (services.owner, services.bindings) == (names[-1], (SERVICE,))


def test_what_nobody_could_be_asked_for_is_no_fault_of_the_name():
    services = follow(promise(), NAME, {NAME: Found((alias("far.test"),))}, BOUNDS)
    assert kinds(https_findings(promise(), services, {})) == {"not_checked"}


@given(st.integers(0, 65_535), st.integers(1, 65_535))
def test_ports_agree_or_are_told(port, promised):
    binding = read_binding(b"\0\1\0" + struct.pack("!HH", 1, 3) + b"\x02h3" + struct.pack("!HHH", 3, 2, port))
    at = {NAME: Found((binding,), frozenset({"203.0.113.1"}))}
    own = promise(authority=(NAME, promised))
    told = https_findings(own, follow(own, NAME, at, BOUNDS), at)
    assert kinds(told) == (set() if port == promised else {"https_port"})


@given(some, addresses)
def test_hints_must_be_addresses_of_the_target(got, hints):
    params = struct.pack("!HH", 1, 3) + b"\x02h3"
    if hints:
        raw = b"".join(bytes(int(part) for part in hint.split(".")) for hint in sorted(hints))
        params += struct.pack("!HH", 4, len(raw)) + raw
    binding = read_binding(b"\0\1\0" + params)
    at = {NAME: Found((binding,), frozenset(got))}
    own = promise(got, authority=(NAME, 443))
    told = https_findings(own, follow(own, NAME, at, BOUNDS), at)
    assert kinds(told) == (set() if hints <= got else {"https_hints"})


# The plan


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.floats(0, 2e9))
def test_the_plan_is_valid_for_the_shortest_ttl(one, other, now):
    agreed = {
        "A": answer(ttl=one),
        "AAAA": answer(got=("2001:db8::1",), ttl=other, rdtype="AAAA"),
    }
    plan = entry(promise(), agreed, None, [], now=now)
    assert plan.ttl == min(one, other)
    assert plan.valid_until == now + plan.ttl
    assert plan.addresses == ("2001:db8::1", "203.0.113.1")


def test_the_plan_is_not_to_be_used_while_the_promise_is_broken():
    agreed = {"A": answer()}
    assert entry(promise(), agreed, None, [found("ttl_low", "x", "y")], now=0).proved
    assert entry(promise(), agreed, None, [found("silent", "x", "y")], now=0).proved
    plan = entry(promise(), agreed, None, [found("balancer", "x", "y")], now=0)
    assert (plan.proved, plan.addresses, plan.why) == (False, (), ("dns.balancer",))
