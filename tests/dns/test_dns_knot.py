"""The same DNS faults served by Knot DNS: what the checks say does not hang on our own server."""

from __future__ import annotations

import asyncio
import time

import dns.dnssec
import dns.message
import dns.name
import dns.query
import dns.rdatatype
import pytest
from dns_support import GOOD, ORIGINS, SUBNETS, ZONE, findings, ids, settings
from knot import KNOTD, Knot, knot
from test_dns_faults import CASES

from isochrone.lab.dns_zone import ZoneKey, read_zone, sign
from isochrone.model import Outcome
from isochrone.verification.dns import DnsChecker

pytestmark = pytest.mark.skipif(KNOTD is None, reason="knotd is not installed (Debian package knot)")

#: The cases that are a zone's content: each gets a zone of its own at one pair of servers.
CONTENT = [(f"k{number}.test", fault) for number, fault in enumerate(CASES) if fault.is_content]
#: Cases that Knot shows by other means than a zone's content, in the tests at the end.
BY_OTHER_MEANS = {
    "a server drops everything", "REFUSED", "SERVFAIL at all servers", "lame delegation: no authority", "a port where nobody listens",
    "DNSSEC: signatures have expired", "DNSSEC: signatures expire soon", "DNSSEC: signatures of the future",
    "DNSSEC: signed by a key that is not published", "DNSSEC: the trust anchor fits no key",
}  # fmt: skip
DAY = 86_400.0
KEY, OTHER = ZoneKey.make(), ZoneKey.make()


def text_of(zone):
    return zone.to_text(relativize=False)


def renamed(zones, name):
    return text_of(zones[0]).replace(ZONE, name)


def origins(name):
    return [{k: v.replace(ZONE, name) if isinstance(v, str) else v for k, v in o.items()} for o in ORIGINS]


def signed(name, **how):
    made = read_zone(name, GOOD)
    sign(made, KEY, **how)
    return text_of(made)


SIGNED = {
    "valid.test": ({}, set()),
    "expired.test": ({"begin": time.time() - 20 * DAY, "end": time.time() - DAY}, {"dnssec_expired"}),
    "expiring.test": ({"begin": time.time() - 20 * DAY, "end": time.time() + DAY}, {"dnssec_expiring"}),
    "early.test": ({"begin": time.time() + DAY, "end": time.time() + 20 * DAY}, {"dnssec_not_yet_valid"}),
    "bogus.test": ({"publish": OTHER}, {"dnssec_bogus"}),
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("knot")
    same = {
        "healthy.test": text_of(read_zone("healthy.test", GOOD)),
        "empty.test": None,
        "auto.test": text_of(read_zone("auto.test", GOOD)),
    }
    same |= {
        "parent.test": text_of(
            read_zone("parent.test", "child 300 IN NS ns.child\nns.child 300 IN A 127.0.0.1\n")
        )
    }
    same |= {name: signed(name, **how) for name, (how, _) in SIGNED.items()}
    first, second = dict(same), dict(same)
    for name, fault in CONTENT:
        given = fault.servers()
        zones = given.get("zones") or [read_zone(ZONE, GOOD)]
        first[name] = renamed(zones, name)
        second[name] = renamed(given.get("second_zones") or zones, name)
    options = {"auto.test": "    dnssec-signing: on\n    dnssec-policy: short\n"}
    with knot(folder / "1", first, options=options) as one, knot(folder / "2", second) as two:
        yield one, two


def checker(servers, name, **more):
    base = {"authoritative": [server.at() for server in servers], "client_subnets": SUBNETS}
    return DnsChecker(settings(origins=origins(name), **(base | more)))


async def test_a_healthy_zone_gives_no_finding(servers):
    checks = await checker(servers, "healthy.test").check_all(now=time.time())
    assert [(c.outcome, c.findings) for c in checks] == [(Outcome.OK, ())] * 2


@pytest.mark.parametrize(("name", "fault"), CONTENT, ids=str)
async def test_each_fault_gives_its_own_finding_and_no_other(servers, name, fault):
    changes = {k: v for k, v in fault.servers().items() if k not in {"zones", "second_zones"}}
    found = await findings(checker(servers, name, **changes))
    assert ids(found) == fault.expect, [(f.check, f.subject, f.evidence) for f in found]


@pytest.mark.parametrize(("name", "expect"), [(name, expect) for name, (_, expect) in SIGNED.items()])
async def test_zones_signed_before(servers, name, expect, tmp_path):
    anchor = tmp_path / "anchor"
    anchor.write_text(f"{name}. IN DS {(OTHER if name == 'bogus.test' else KEY).ds(name).to_text()}\n")
    assert ids(await findings(checker(servers, name, trust_anchor=anchor))) == expect


async def test_a_zone_that_knot_signs_itself(servers, tmp_path):
    one = servers[:1]
    shown = await asyncio.to_thread(
        dns.query.udp,
        dns.message.make_query("auto.test", "DNSKEY", want_dnssec=True),
        "127.0.0.1",
        2,
        one[0].port,
    )
    keys = next(r for r in shown.answer if r.rdtype == dns.rdatatype.DNSKEY)
    ds = dns.dnssec.make_ds(dns.name.from_text("auto.test"), keys[0], "SHA256")
    anchor = tmp_path / "anchor"
    anchor.write_text(f"auto.test. IN DS {ds.to_text()}\n")
    assert ids(await findings(checker(one, "auto.test", trust_anchor=anchor))) == set()
    anchor.write_text(f"auto.test. IN DS {OTHER.ds('auto.test').to_text()}\n")
    assert ids(await findings(checker(one, "auto.test", trust_anchor=anchor))) == {"dnssec_key_mismatch"}


@pytest.mark.parametrize(
    ("name", "expect"),
    [("strange.test", "refused"), ("empty.test", "servfail"), ("child.parent.test", "lame")],
    ids=["no such zone", "the zone could not be loaded", "it has the parent only"],
)
async def test_what_a_server_answers_about_zones_it_does_not_have(servers, name, expect):
    checks = await checker(servers, name).check_all(now=time.time())
    for check in checks:
        assert ids(check.findings) == {expect}
        assert check.outcome is Outcome.TARGET_FAILED


async def test_a_server_that_hangs(servers):
    one, two = servers
    with two.paused():
        assert ids(await findings(checker([one, two], "healthy.test", timeout_seconds=0.5))) == {"silent"}
    assert ids(await findings(checker([one, two], "healthy.test"))) == set()


async def test_a_server_that_has_ended(servers, tmp_path):
    with knot(tmp_path / "gone", {"healthy.test": text_of(read_zone("healthy.test", GOOD))}) as third:
        dead: Knot = third
    assert ids(await findings(checker([servers[0], dead], "healthy.test"))) == {"unreachable"}


async def test_answers_that_are_truncated(tmp_path):
    """mod-noudp truncates whatever is asked by UDP: a fault only where TCP does not work."""
    zones = {"healthy.test": text_of(read_zone("healthy.test", GOOD))}
    options = {"healthy.test": "    module: mod-noudp\n"}
    with knot_tcp_ready(tmp_path, zones, options) as server:
        assert ids(await findings(checker([server], "healthy.test"))) == set()


def knot_tcp_ready(folder, zones, options):
    # The harness waits for an answer by UDP: another zone gives it.
    return knot(folder, {"ready.test": text_of(read_zone("ready.test", GOOD))} | zones, options=options)
