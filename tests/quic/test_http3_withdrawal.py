"""What only a thorough check sees withdraws an endpoint too: a balancer behind it that every other connection betrays."""

from __future__ import annotations

import time

import pytest

from isochrone.lab.h3_certificates import Chains
from isochrone.lab.h3_endpoint import Manner
from isochrone.lab.h3_faults import IPV4, REGION, SITE, H3Fault, Place, inject
from isochrone.service.verifying import Verifying
from isochrone.settings import Verification
from isochrone.store.sqlite import Store
from isochrone.verification.health import HealthChecker
from isochrone.verification.http3 import EndpointChecker


@pytest.mark.parametrize("region", [REGION, "ams-1"])
async def test_a_balancer_is_found_out(tmp_path, region):
    chains, passed = Chains(tmp_path), [0.0]
    settings = Verification(
        trust_store=chains.ca_pem, timeout_seconds=20, connections=4, interval_seconds=30, deep_interval_seconds=60, fall=3
    )  # fmt: skip
    # In the order in which connections are made: a cheap check, a thorough one with four more and a resumption, three cheap ones.
    regions = (REGION, REGION, region, REGION, region, REGION, REGION, REGION, REGION, REGION)
    fault = H3Fault("a balancer", "", {IPV4: Place(Manner(regions=regions))})
    async with inject(fault, chains) as origin:
        with Store.open(tmp_path / "state.sqlite") as store:
            verifying = Verifying(
                [origin], EndpointChecker(SITE, settings), HealthChecker(settings), None, store, settings,
                lambda: time.time() + passed[0],
            )  # fmt: skip
            assert await verifying.endpoint_round()  # offered: nothing is wrong yet
            assert verifying.offered(origin)
            passed[0] += 60
            await verifying.deep.round()
            offered = []
            for _ in range(3):
                await verifying.endpoint_round()
                offered.append(verifying.offered(origin))
            found = {finding.check for each in verifying.findings.values() for finding in each}
            if region == REGION:
                assert (offered, found) == ([True, True, True], set())
            else:
                assert (offered, found) == ([True, True, False], {"http3.region_alternates"})
