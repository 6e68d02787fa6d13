"""The fault lab of HTTP/3: each fault is injected into real servers and gives its own finding, and no other."""

from __future__ import annotations

import time

import pytest

from isochrone.lab.h3_certificates import Chains
from isochrone.lab.h3_faults import FAULTS, HARMLESS, IPV6, SITE, inject
from isochrone.model import Outcome, Severity
from isochrone.settings import Verification
from isochrone.verification.http3 import EndpointChecker
from isochrone.verification.http3_faults import FAULTS as KINDS

TRIES = 5  # a machine so busy that the verifier was late says so, and is asked again


@pytest.fixture(scope="module")
def chains(tmp_path_factory):
    return Chains(tmp_path_factory.mktemp("chains"))


def checker(chains, fault):
    settings = {"timeout_seconds": 10.0, "connections": 3, "slow_ms": 60_000.0} | dict(fault.settings)
    return EndpointChecker(SITE, Verification(trust_store=chains.ca_pem, **settings))


@pytest.mark.parametrize("fault", [*FAULTS, *HARMLESS], ids=str)
async def test_a_fault_gives_its_own_finding_and_no_other(chains, fault, has_ipv6):
    if IPV6 in fault.places and not has_ipv6:
        pytest.skip("this host has no IPv6 loopback")
    for _ in range(TRIES):
        async with inject(fault, chains) as origin:
            checks = await checker(chains, fault).check(origin, now=time.time(), deep=True)
        found = [finding for check in checks for finding in check.findings]
        if not any(finding.check == "http3.not_checked" for finding in found):
            break
    assert {f.check for f in found} == ({f"http3.{fault.finding}"} if fault.finding else set()), found
    for finding in found:
        assert finding.evidence
        assert "{" not in finding.advice
    bad = fault.finding and KINDS[fault.finding].severity is Severity.ERROR
    assert any(check.outcome is Outcome.TARGET_FAILED for check in checks) == bool(bad)


def test_every_kind_of_finding_has_a_fault():
    """But for the verifier's own troubles, which test_verify_http3.py shows."""
    assert {fault.finding for fault in FAULTS} == set(KINDS) - {"unresolved", "not_checked"}
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
