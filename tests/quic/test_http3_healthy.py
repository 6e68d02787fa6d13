"""A healthy lab gives no finding, round after round, by HTTP/3 and by DNS, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import AsyncExitStack

import psutil

from isochrone.lab.dns_server import DnsServer
from isochrone.lab.dns_zone import read_zone
from isochrone.lab.h3_certificates import Chains
from isochrone.lab.h3_endpoint import Manner
from isochrone.lab.h3_faults import IPV4, IPV6, SECOND_IPV4, SITE, H3Fault, Place, inject
from isochrone.model import Outcome
from isochrone.settings import Settings
from isochrone.verification.dns import DnsChecker
from isochrone.verification.http3 import EndpointChecker

ROUNDS, DEEP_EVERY = 200, 20
ZONE = "origins.isochrone.test"


def healthy(region, addresses):
    return H3Fault("none", "", dict.fromkeys(addresses, Place(Manner(regions=(region,)))))


def zone(origins):
    lines = ["ns 300 IN A 127.0.0.1"]
    for origin in origins:
        name, port = origin.id, origin.alt_svc.authority.rpartition(":")[2]
        lines += [f"{name} 300 IN {'AAAA' if ':' in a else 'A'} {a}" for a in origin.addresses]
        lines.append(f'{name} 300 IN HTTPS 1 . alpn="h3,h2" port={port}')
    return [read_zone(ZONE, "\n".join(lines) + "\n")]


def settings(chains, origins, server):
    return Settings.model_validate(
        {
            "site": SITE,
            "origins": [
                {"id": o.id, "host": o.host, "latitude": 0, "longitude": 0, "alt_svc": o.alt_svc.authority, "addresses": o.addresses}
                for o in origins
            ],
            "verification": {"trust_store": chains.ca_pem, "timeout_seconds": 20, "slow_ms": 20_000, "connections": 2},
            "dns": {"authoritative": [server.at()], "timeout_seconds": 20, "slow_ms": 20_000},
        }
    )  # fmt: skip


async def test_a_healthy_lab_gives_no_finding_in_200_rounds(tmp_path, has_ipv6):
    places = {"fra": (IPV4, IPV6) if has_ipv6 else (IPV4,), "ams": (SECOND_IPV4, "127.0.0.3")}
    chains, process = Chains(tmp_path), psutil.Process()
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        injected = [
            await enter(inject(healthy(region, addresses), chains, region, f"{region}.{ZONE}"))
            for region, addresses in places.items()
        ]
        told = settings(chains, injected, await enter(DnsServer(zone(injected))))
        endpoints, names = EndpointChecker(SITE, told.verification), DnsChecker(told)
        tasks, before = asyncio.all_tasks(), process.num_fds()
        for number in range(ROUNDS):
            now, deep = time.time(), number % DEEP_EVERY == 0
            asked = await names.check_all(now=now)
            rounds = await asyncio.gather(
                *(endpoints.check(o, now=now, deep=deep) for o in told.model_origins())
            )
            checks = [check for checked in rounds for check in checked]
            assert [f for check in (*checks, *asked) for f in check.findings] == [], f"round {number}"
            assert {check.outcome for check in (*checks, *asked)} == {Outcome.OK}
            assert {check.version for check in checks} == {"1"}
            assert [(c.origin, c.address) for c in checks] == [(r, a) for r in places for a in places[r]]
            if deep:
                assert {(c.resumed, c.early_data, c.migrated) for c in checks} == {(True, True, True)}
                assert all(c.timings[name] is not None for c in checks for name in ("h1", "h2"))
        for _ in range(100):  # the servers see that their clients are gone
            if asyncio.all_tasks() == tasks and process.num_fds() == before:
                break
            gc.collect()
            await asyncio.sleep(0.05)
        assert asyncio.all_tasks() == tasks
        assert process.num_fds() == before
