"""The fault lab of DNS: each fault is injected into real servers and gives its own finding, and no other."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import struct
import time

import dns.flags
import dns.name
import psutil
import pytest
from dns_support import GOOD, ORIGINS, ZONE, case, findings, ids, settings, world, write_mmdb, zone_text

from isochrone.lab.dns_faults import (
    alternate,
    code,
    drop,
    for_subnet,
    garbage,
    lame,
    no_edns,
    nxdomain,
    raw_https,
    slow,
    spoilt_signatures,
    stripped_signatures,
    truncate,
    without_flag,
    wrong_id,
    wrong_question,
)
from isochrone.lab.dns_server import DnsServer
from isochrone.lab.dns_zone import ZoneKey, read_zone, sign
from isochrone.model import Outcome, Severity
from isochrone.nameserver import parse
from isochrone.verification.dns import DnsChecker
from isochrone.verification.dns_ask import HOPELESS, PER_SERVER
from isochrone.verification.dns_faults import FAULTS

FRA = f"fra.{ZONE}"


def zone(*changes):
    return read_zone(ZONE, zone_text(*changes))


def zones(*changes):
    return {"zones": [zone(*changes)]}


def https(record, *more):
    """The good zone with another HTTPS record for fra."""
    return zones("-fra 300 IN HTTPS", f"fra 300 IN HTTPS {record}", *more)


def raw(*params):
    wire = struct.pack("!HB", 1, 0) + b"".join(struct.pack("!HH", k, len(v)) + v for k, v in params)
    return everywhere(only_fra(raw_https(wire)))


def only_fra(fault):
    async def limited(request, response):
        return await fault(request, response) if request.name == FRA else response

    return limited


def everywhere(fault):
    return {"first": [fault], "second": [fault], "resolver": [fault]}


H3 = (1, b"\x02h3")
P8443 = (3, struct.pack("!H", 8443))
QUICK = {"timeout_seconds": 0.9}

CASES = [
    # what a server does, or does not
    case("a server drops everything", "silent", second=[drop()], **QUICK),
    case("a server drops UDP", "silent", second=[drop(transports={"udp"})], **QUICK),
    case("a server drops questions for HTTPS", "silent", second=[drop(rdtypes={"HTTPS"})], **QUICK),
    case("the resolver drops everything", "silent", resolver=[drop()], **QUICK),
    case("SERVFAIL at one server", "servfail", second=[code("SERVFAIL")]),
    case("SERVFAIL for AAAA only", "servfail", second=[code("SERVFAIL", rdtypes={"AAAA"})]),
    case("SERVFAIL at all servers", "servfail", **everywhere(code("SERVFAIL"))),
    case("SERVFAIL of a validating resolver", "servfail", resolver=[code("SERVFAIL", text="signature expired")]),
    case("REFUSED", "refused", second=[code("REFUSED")]),
    case("NOTIMP for HTTPS", "rcode", second=[code("NOTIMP", rdtypes={"HTTPS"})]),
    case("FORMERR to everything", "rcode", second=[code("FORMERR")]),
    case("lame delegation: no authority", "lame", second=[lame()]),
    case("lame delegation: a referral", "lame", second=[lame(refer=ZONE)]),
    case("a resolver that does not resolve", "no_recursion", resolver=[without_flag(dns.flags.RA)]),
    case("truncated, TCP refused", "truncated", first=[truncate()], first_tcp=False),
    case("truncated, TCP silent", "truncated", second=[truncate(), drop(transports={"tcp"})], **QUICK),
    case("no TCP", "no_tcp", first_tcp=False),
    case("TCP silent", "no_tcp", second=[drop(transports={"tcp"})], **QUICK),
    case("no EDNS", "no_edns", second=[no_edns()]),
    case("slow", "slow", second=[slow(0.7)], slow_ms=600),
    case("wrong id", "mismatch", second=[wrong_id()], **QUICK),
    case("another question", "mismatch", second=[wrong_question("evil.test")], **QUICK),
    case("no DNS message", "malformed", second=[garbage()]),
    case("HTTP status 500", "doh", doh_status=500),
    # where the name leads
    case("NXDOMAIN", "nxdomain", **zones("-fra ")),
    case("NXDOMAIN for AAAA of a name with A", "nxdomain_mixed", **everywhere(only_fra(nxdomain("HTTPS")))),
    case("no addresses", "no_address", **zones("-fra 300 IN A ", "-fra 300 IN AAAA")),
    case("another region's address", "other_region", **zones("-fra 300 IN A ", "fra 300 IN A 203.0.113.8")),
    case("wrong addresses", "wrong_address",
         **zones("-fra 300 IN A ", "-fra 300 IN AAAA", "fra 300 IN A 192.0.2.66", "fra 300 IN AAAA 2001:db8::66")),
    case("one wrong address among right ones", "extra_address", **zones("fra 300 IN A 192.0.2.66")),
    case("an address is missing", "missing_address", **zones("-fra 300 IN AAAA")),
    case("CNAME to a known balancer", "balancer", **zones("-fra ", "fra 300 IN CNAME fra.trafficmanager.net.")),
    case("CNAME to a configured balancer", "balancer",
         **zones("-fra ", "fra 300 IN CNAME pool", "pool 300 IN CNAME x.glb.example.net."), balancer_suffixes=["glb.example.net"]),
    case("CNAME loop", "cname_loop", **zones("-fra ", "fra 300 IN CNAME a", "a 300 IN CNAME fra")),
    case("the second server has an old zone", "servers_disagree",
         second_zones=[zone("-fra 300 IN A ", "fra 300 IN A 192.0.2.66")]),
    case("the resolver has an old answer", "servers_disagree",
         resolver_zones=[zone("-fra 300 IN A ", "fra 300 IN A 192.0.2.66")]),
    case("servers disagree on HTTPS", "servers_disagree",
         second_zones=[zone("-fra 300 IN HTTPS", "fra 300 IN HTTPS 1 . alpn=h3 port=8443")]),
    case("rotating answers", "unstable", second=[only_fra(alternate("A", "203.0.113.7", "192.0.2.66"))]),
    case("an answer by the client's network", "subnet_steered",
         second=[only_fra(for_subnet("198.51.100.0/24", "A", "192.0.2.66"))]),
    case("an HTTPS answer by the client's network", "subnet_steered",
         client_subnets=["198.51.100.0/24", "2001:db8:1::/48"],
         resolver=[only_fra(for_subnet("2001:db8:1::/48", "HTTPS", "1 . alpn=h3 port=9443"))]),
    case("TTL 0", "ttl_low", **zones("-fra 300 IN A ", "fra 0 IN A 203.0.113.7")),
    case("TTL of a week", "ttl_high", **zones("-fra 300 IN A ", "fra 604800 IN A 203.0.113.7")),
    # HTTPS records
    case("no HTTPS record", "https_missing", **zones("-fra 300 IN HTTPS")),
    case("HTTPS without h3", "https_no_h3", **https('1 . alpn="h2" port=8443')),
    case("HTTPS with another port", "https_port", **https('1 . alpn="h3" port=9443')),
    case("HTTPS with no port, so 443", "https_port", **https('1 . alpn="h3"')),
    case("HTTPS with another target", "https_target", **https(f'1 ams.{ZONE}. alpn="h3" port=8443')),
    case("stale hints", "https_hints", **https('1 . alpn="h3" port=8443 ipv4hint=192.0.2.66')),
    case("an unknown key is mandatory", "https_mandatory",
         **https('1 . mandatory=key667 alpn="h3" port=8443 key667=x')),
    case("alias loop", "https_alias_loop", **https(f"0 a.{ZONE}.", f"a 300 IN HTTPS 0 fra.{ZONE}.", "a 300 IN A 203.0.113.7")),
    case("alias to nowhere", "https_alias_dangling", **https(f"0 nowhere.{ZONE}.")),
    case("alias to the root: no such service", "https_alias_none", **https("0 .")),
    case("alias to a balancer", "balancer", **https("0 x.cdn.cloudflare.net.")),
    case("alias and service together", "https_alias_mixed",
         **https(f"0 a.{ZONE}.", "fra 300 IN HTTPS 1 . alpn=h3 port=8443", "a 300 IN A 203.0.113.7", "a 300 IN AAAA 2001:db8::7",
                 'a 300 IN HTTPS 1 . alpn="h3" port=8443')),
    case("keys out of order", "https_malformed", **raw(P8443, H3)),
    case("a key twice", "https_malformed", **raw(H3, H3, P8443)),
    case("mandatory lists itself", "https_malformed", **raw((0, b"\0\0"), H3, P8443)),
    case("mandatory lists what is not there", "https_malformed", **raw((0, b"\0\4"), H3, P8443)),
    case("an empty alpn", "https_malformed", **raw((1, b""), P8443)),
    case("hints of a wrong length", "https_malformed", **raw(H3, P8443, (4, b"\1\2\3"))),
    case("no-default-alpn without alpn", "https_no_default_alpn", **raw((2, b""), P8443)),
]  # fmt: skip


@pytest.mark.parametrize("fault", CASES, ids=str)
async def test_each_fault_gives_its_own_finding_and_no_other(fault, certificates):
    async with world(certificates, **fault.servers()) as servers:
        found = await findings(servers.checker())
    assert ids(found) == fault.expect, [(f.check, f.subject, f.evidence) for f in found]
    for finding in found:
        assert finding.evidence
        assert finding.advice
        assert finding.details["origin"] in {"fra-1", "ams-1"}


async def test_a_healthy_world_gives_no_finding(certificates):
    async with world(certificates) as servers:
        checks = await servers.checker().check_all(now=1_796_000_000.0)
    assert [(c.origin, c.outcome, c.findings) for c in checks] == [
        ("fra-1", Outcome.OK, ()),
        ("ams-1", Outcome.OK, ()),
    ]
    plan = checks[0].plan
    assert plan.proved
    assert plan.addresses == ("2001:db8::7", "203.0.113.7")
    assert (plan.ttl, plan.valid_until) == (300, 1_796_000_300.0)
    assert [(r.priority, r.target, r.port, r.alpn) for r in plan.https] == [
        (1, FRA, 8443, ("h3", "h2", "http/1.1"))
    ]


async def test_two_hundred_healthy_rounds_give_no_finding_and_leave_nothing_open(certificates):
    process, tasks = psutil.Process(), len(asyncio.all_tasks())
    async with world(certificates, client_subnets=[]) as servers:
        only = servers.servers()
        # One way to ask each server: rounds are many here, transports are proved above.
        checker = servers.checker(authoritative=only["authoritative"][:1], resolvers=only["resolvers"][:1])
        await checker.check_all(now=time.time())
        before, memory = process.num_fds(), process.memory_info().rss
        for _ in range(200):
            assert await findings(checker) == []
        assert process.num_fds() <= before
        assert process.memory_info().rss - memory < 16e6
    assert len(asyncio.all_tasks()) == tasks


# DNSSEC

DAY = 86_400.0


@pytest.fixture
def anchor(tmp_path):
    def write(key, name=ZONE):
        path = tmp_path / "anchor"
        path.write_text(f"{name}. IN DS {key.ds(name).to_text()}\n")
        return path

    return write


def signed(key, *changes, **how):
    made = zone(*changes)
    sign(made, key, **how)
    return made


KEY, OTHER = ZoneKey.make(), ZoneKey.make()


@pytest.mark.parametrize("anchored", [True, False])
@pytest.mark.parametrize(
    ("how", "expect"),
    [
        ({}, set()),
        ({"begin": time.time() - 20 * DAY, "end": time.time() - DAY}, {"dnssec_expired"}),
        ({"begin": time.time() - 20 * DAY, "end": time.time() + DAY}, {"dnssec_expiring"}),
        ({"begin": time.time() + DAY, "end": time.time() + 20 * DAY}, {"dnssec_not_yet_valid"}),
        # What is made on the fly lives two days: half of it left is no reason to tell.
        ({"begin": time.time() - DAY, "end": time.time() + DAY}, set()),
        ({"publish": OTHER}, {"dnssec_bogus"}),
    ],
)
async def test_dnssec_dates_and_keys(certificates, anchor, how, expect, anchored):
    key = how.get("publish", KEY)
    more = {"trust_anchor": anchor(key)} if anchored else {}
    async with world(certificates, zones=[signed(KEY, **how)], client_subnets=[], **more) as servers:
        assert ids(await findings(servers.checker())) == expect


@pytest.mark.parametrize(
    ("fault", "expect"),
    [(spoilt_signatures(), {"dnssec_bogus"}), (stripped_signatures(), {"dnssec_unsigned"})],
)
async def test_signatures_spoilt_or_stripped_on_the_way(certificates, anchor, fault, expect):
    async with world(
        certificates, zones=[signed(KEY)], trust_anchor=anchor(KEY), second=[only_fra(fault)]
    ) as servers:
        found = await findings(servers.checker())
    assert ids(found) == expect
    at = str(servers.second.at())
    assert {f.details["server"] for f in found} == {at, at.replace("udp", "tcp")}


async def test_the_trust_anchor_fits_no_key(certificates, anchor):
    async with world(certificates, zones=[signed(KEY)], trust_anchor=anchor(OTHER)) as servers:
        assert ids(await findings(servers.checker())) == {"dnssec_key_mismatch"}


def parent(*lines):
    made = read_zone("test", f"{ZONE.removesuffix('.test')} 300 IN NS ns.{ZONE}.\n" + "".join(lines))
    sign(made, OTHER)
    return made


def ds(key):
    return f"example 300 IN DS {key.ds(ZONE).to_text()}\n"


@pytest.mark.parametrize(
    ("made", "expect"),
    [
        (lambda: [parent(ds(KEY)), signed(KEY)], set()),
        (lambda: [parent(), signed(KEY)], {"dnssec_no_chain"}),
        (lambda: [parent(ds(OTHER)), signed(KEY)], {"dnssec_key_mismatch"}),
        (lambda: [parent(ds(KEY)), zone()], {"dnssec_unsigned"}),
        (lambda: [parent(), zone()], set()),  # an insecure delegation is no fault
    ],
    ids=["chain", "no DS", "DS of another key", "DS but unsigned", "insecure"],
)
async def test_the_chain_from_the_trust_anchor(certificates, anchor, made, expect):
    async with world(
        certificates, zones=made(), trust_anchor=anchor(OTHER, "test"), client_subnets=[]
    ) as servers:
        assert ids(await findings(servers.checker())) == expect


async def test_a_zone_cannot_deny_its_own_ds_record(certificates, anchor):
    """Its servers have nothing of the parent: whether there is a DS record stays unknown, which is no fault."""
    async with world(
        certificates, zones=[signed(KEY)], trust_anchor=anchor(OTHER, "test"), resolvers=[]
    ) as servers:
        assert ids(await findings(servers.checker())) == set()


# TLS


@pytest.mark.parametrize(
    ("names", "dates"),
    [(("other.test",), {}), (("dns.test",), {"not_after": dt.datetime.now(dt.UTC) - dt.timedelta(hours=2)})],
    ids=["for another name", "expired"],
)
async def test_a_resolver_with_a_bad_certificate(certificates, names, dates):
    async with world(certificates, tls=certificates.context(*names, **dates)) as servers:
        assert ids(await findings(servers.checker())) == {"certificate"}


async def test_a_resolver_that_speaks_no_tls(certificates):
    async with world(certificates) as servers:
        plain = parse(f"tls://dns.test@127.0.0.1:{servers.first.port}")
        found = await findings(servers.checker(resolvers=[plain], timeout_seconds=1))
    assert ids(found) in ({"tls"}, {"unreachable"}, {"silent"})


# Where the addresses are


async def test_addresses_in_a_foreign_network_or_country(certificates, tmp_path):
    asns = {
        "203.0.113.0/24": {"autonomous_system_number": 64500},
        "2001:db8::/32": {"autonomous_system_number": 64500},
    }
    countries = {net: {"country": {"iso_code": "DE"}} for net in asns}
    probing = {
        "asn_database": write_mmdb(tmp_path / "asn.mmdb", "GeoLite2-ASN", asns),
        "country_database": write_mmdb(tmp_path / "country.mmdb", "GeoLite2-Country", countries),
    }

    async def found(**where):
        origins = [ORIGINS[0] | where, ORIGINS[1]]
        checker = DnsChecker(servers.settings(origins=origins, probing=probing))
        return ids(await findings(checker))

    async with world(certificates) as servers:
        assert await found(asn=64500, country="DE") == set()
        assert await found(asn=64501, country="DE") == {"wrong_asn"}
        assert await found(asn=64500, country="NL") == {"wrong_country"}
        assert await found() == set()


# Our own trouble, and who is to blame


async def test_our_own_trouble_says_nothing_about_the_name(certificates):
    """The broadcast address: this host forbids it before anything is sent."""
    async with world(certificates) as servers:
        checker = servers.checker(
            authoritative=[parse("255.255.255.255", authoritative=True)],
            resolvers=[parse("udp://255.255.255.255")],
        )
        checks = await checker.check_all(now=time.time())
    for check in checks:
        assert ids(check.findings) == {"not_checked"}
        assert {f.severity for f in check.findings} == {Severity.INFO}
        assert check.outcome is Outcome.PROBER_FAILED
        assert not check.plan.proved


async def test_one_dead_server_among_others_withdraws_nothing(certificates):
    async with world(certificates, second=[drop()], **QUICK) as servers:
        checks = await servers.checker().check_all(now=time.time())
    assert {c.outcome for c in checks} == {Outcome.OK}
    assert all(c.plan.proved for c in checks)


async def test_a_dead_port_is_unreachable(certificates):
    async with world(certificates) as servers:
        async with DnsServer([], tcp=True) as gone:
            dead = gone.at()
        found = await findings(servers.checker(authoritative=[servers.first.at(), dead]))
    assert ids(found) == {"unreachable"}
    assert {f.details["server"] for f in found} == {str(dead)}


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [(code("SERVFAIL"), Outcome.TARGET_FAILED), (drop(), Outcome.PROBER_FAILED)],
    ids=["all say SERVFAIL", "nobody speaks: perhaps it is our own network"],
)
async def test_the_outcome_when_nothing_was_learnt(certificates, fault, outcome):
    async with world(certificates, **everywhere(fault), timeout_seconds=0.3) as servers:
        checks = await servers.checker().check_all(now=time.time())
    assert {c.outcome for c in checks} == {outcome}


async def test_a_broken_promise_fails_its_own_origin_only(certificates):
    async with world(certificates, **zones("fra 300 IN A 192.0.2.66")) as servers:
        fra, ams = await servers.checker().check_all(now=time.time())
    assert (fra.outcome, ams.outcome) == (Outcome.TARGET_FAILED, Outcome.OK)
    assert fra.plan.why == ("dns.extra_address",)
    assert not fra.plan.proved
    assert ams.plan.proved


async def test_a_silent_server_does_not_hold_up_the_round(certificates):
    """Sixteen names at a server that never answers cost a few timeouts, not one for each question."""
    origins = [ORIGINS[0] | {"id": f"o{n}", "alt_svc": f"{FRA}:{8443 + n}"} for n in range(16)]
    async with world(certificates, second=[drop()], timeout_seconds=0.6) as servers:
        checker = DnsChecker(servers.settings(origins=origins))
        await checker.check_all(now=time.time())
    by_udp, by_tcp = 3 * (HOPELESS + PER_SERVER), HOPELESS + PER_SERVER
    assert servers.second.questions <= by_udp + by_tcp < servers.first.questions


async def test_authoritative_servers_are_found_by_walking_up_to_the_ns_records(certificates):
    made = [read_zone(ZONE, GOOD)]
    async with DnsServer(made) as own, DnsServer(made, resolver=True) as resolver:
        checker = DnsChecker(settings(resolvers=[resolver.at()]), port=own.port)
        checks = await checker.check_all(now=time.time())
    assert [ids(c.findings) for c in checks] == [set(), set()]
    assert own.questions > 0


async def test_no_name_servers_to_be_found(certificates):
    bare = read_zone(ZONE, GOOD)
    bare.delete_rdataset(bare.origin, "NS")
    async with DnsServer([bare], resolver=True) as resolver:
        checker = DnsChecker(settings(resolvers=[resolver.at()]))
        assert ids(await findings(checker)) == {"no_authority"}


async def test_an_alias_with_parameters(certificates):
    target = dns.name.from_text(f"a.{ZONE}").to_wire()
    record = struct.pack("!H", 0) + target + struct.pack("!HH", 1, 3) + b"\x02h3"
    made = zone("a 300 IN A 203.0.113.7", "a 300 IN AAAA 2001:db8::7", "a 300 IN HTTPS 1 . alpn=h3 port=8443")
    fault = only_fra(raw_https(record))
    async with world(certificates, zones=[made], **everywhere(fault)) as servers:
        assert ids(await findings(servers.checker())) == {"https_alias_params"}


#: Faults that need more than a line of the table above: what is wrong -> its finding, and the test that injects it.
MORE = {
    "a port where nobody listens": ("unreachable", test_a_dead_port_is_unreachable),
    "DNS over TLS: a server that speaks no TLS": ("tls", test_a_resolver_that_speaks_no_tls),
    "DNS over TLS and HTTPS: a certificate for another name": ("certificate", test_a_resolver_with_a_bad_certificate),
    "DNS over TLS and HTTPS: an expired certificate": ("certificate", test_a_resolver_with_a_bad_certificate),
    "no NS records": ("no_authority", test_no_name_servers_to_be_found),
    "this host may not send": ("not_checked", test_our_own_trouble_says_nothing_about_the_name),
    "an address in a foreign network (ASN)": ("wrong_asn", test_addresses_in_a_foreign_network_or_country),
    "an address in another country": ("wrong_country", test_addresses_in_a_foreign_network_or_country),
    "DNSSEC: signatures have expired": ("dnssec_expired", test_dnssec_dates_and_keys),
    "DNSSEC: signatures expire soon": ("dnssec_expiring", test_dnssec_dates_and_keys),
    "DNSSEC: signatures of the future": ("dnssec_not_yet_valid", test_dnssec_dates_and_keys),
    "DNSSEC: signed by a key that is not published": ("dnssec_bogus", test_dnssec_dates_and_keys),
    "DNSSEC: signatures spoilt on the way": ("dnssec_bogus", test_signatures_spoilt_or_stripped_on_the_way),
    "DNSSEC: signatures stripped on the way": ("dnssec_unsigned", test_signatures_spoilt_or_stripped_on_the_way),
    "DNSSEC: the trust anchor fits no key": ("dnssec_key_mismatch", test_the_trust_anchor_fits_no_key),
    "DNSSEC: no DS record at the parent": ("dnssec_no_chain", test_the_chain_from_the_trust_anchor),
    "DNSSEC: a DS record of another key": ("dnssec_key_mismatch", test_the_chain_from_the_trust_anchor),
    "DNSSEC: a DS record, but the zone is unsigned": ("dnssec_unsigned", test_the_chain_from_the_trust_anchor),
    "HTTPS: an alias with parameters": ("https_alias_params", test_an_alias_with_parameters),
}  # fmt: skip


def test_every_kind_of_finding_is_injected_here():
    """A finding that no fault gives is not proved."""
    for kind, test in MORE.values():
        assert f'"{kind}"' in inspect.getsource(test)
    assert {kind for fault in CASES for kind in fault.expect} | {kind for kind, _ in MORE.values()} == set(
        FAULTS
    )
