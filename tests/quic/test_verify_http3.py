"""HTTP/3 checks of affinity endpoints against real servers: each fault gives its own finding and no other."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import ssl
import time

import psutil
import pytest
import trustme
from aiohttp import web
from aioquic.quic.configuration import QuicConfiguration
from command_line import isochrone
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from hypothesis import given
from hypothesis import strategies as st
from servers import SITE, black_hole, dead_port, quic_server

from isochrone.model import AltSvcEndpoint, Origin, Outcome, Severity
from isochrone.settings import Verification
from isochrone.verification import http3
from isochrone.verification.certificates import TrustStore, TrustStoreError
from isochrone.verification.health import HealthChecker
from isochrone.verification.http3 import EndpointChecker, split_authority, verdict
from isochrone.verification.http3_exchange import Exchange
from isochrone.verification.http3_faults import FAULTS
from isochrone.verification.http3_link import EndpointLink


def origin(port, host="fra.example.com", addresses=("127.0.0.1",), **changes):
    return Origin(
        **(
            {"id": "fra-1", "host": host, "latitude": 50.1, "longitude": 8.7, "addresses": addresses}
            | {"alt_svc": AltSvcEndpoint(f"{host}:{port}", 300)}
            | changes
        )
    )


@pytest.fixture
def checker(certificates):
    def make(timeout=10.0):
        return EndpointChecker(SITE, Verification(trust_store=certificates.ca_pem, timeout_seconds=timeout))

    return make


async def check(checker, port, **changes):
    (result,) = await checker.check(origin(port, **changes), now=time.time())
    return result


def ids(result):
    return [finding.check for finding in result.findings]


async def test_a_good_endpoint(checker, good):
    async with quic_server(good, region="fra-1") as (port, seen):
        result = await check(checker(), port)
    assert result.outcome is Outcome.OK
    assert result.findings == ()
    assert (result.origin, result.authority, result.address) == (
        "fra-1",
        f"fra.example.com:{port}",
        "127.0.0.1",
    )
    assert result.handshake_ms > 0
    # What a pinned client asks for: the public host, not the endpoint's name.
    assert seen["requests"][0][b":authority"] == SITE.encode()
    assert seen["requests"][0][b":path"] == b"/healthz"


@pytest.mark.parametrize(
    ("behaviour", "finding", "evidence"),
    [
        ({"region": "ams-1"}, "http3.wrong_region", "comes from 'ams-1', not from 'fra-1'"),
        ({}, "http3.no_region", "no x-isochrone-region header"),
        ({"region": "fra-1", "status": 503}, "http3.server_error", "status 503"),
        ({"region": "fra-1", "status": 404}, "http3.status", "status 404"),
        ({"fault": "close"}, "http3.closed", "error 0x102 (H3_INTERNAL_ERROR): going away"),
        ({"fault": "reset"}, "http3.reset", "error 0x10c (H3_REQUEST_CANCELLED)"),
        ({"alpn": ["other"]}, "http3.alpn", "does not speak h3"),
    ],
)
async def test_a_server_that_misbehaves(checker, good, behaviour, finding, evidence):
    async with quic_server(good, **behaviour) as (port, _):
        result = await check(checker(), port)
    assert result.outcome is Outcome.TARGET_FAILED
    assert ids(result) == [finding]
    told = result.findings[0]
    assert evidence in told.evidence
    assert told.severity is Severity.ERROR
    assert told.subject == f"fra-1 127.0.0.1:{port}"
    assert told.advice
    assert "{" not in told.advice


async def test_connected_but_no_answer(checker, good):
    async with quic_server(good, fault="silent") as (port, _):
        result = await check(checker(0.7), port)
    assert ids(result) == ["http3.no_answer"]


async def test_silence(checker):
    with black_hole() as port:
        result = await check(checker(0.3), port)
    assert ids(result) == ["http3.unreachable"]
    assert result.handshake_ms is None


async def test_dead_port(checker):
    result = await check(checker(30), dead_port())
    assert ids(result) == ["http3.port_closed"]
    assert "closed" in result.findings[0].evidence


@pytest.mark.parametrize(
    ("names", "how", "finding"),
    [
        (["fra.example.com"], {}, "http3.certificate_name"),
        ([SITE], {"expired": True}, "http3.certificate_expired"),
        ([SITE], {"ca": trustme.CA()}, "http3.certificate_untrusted"),
    ],
)
async def test_a_bad_certificate(checker, certificates, names, how, finding):
    pair = certificates.leaf(finding, *names, **how)
    async with quic_server(pair, region="fra-1") as (port, seen):
        result = await check(checker(), port)
    assert result.outcome is Outcome.TARGET_FAILED
    assert ids(result) == [finding]
    assert result.findings[0].source
    assert "requests" not in seen  # nothing is asked of a server that no client would believe


async def test_the_evidence_names_the_certificate(checker, certificates):
    pair = certificates.leaf("named", "fra.example.com")
    async with quic_server(pair, region="fra-1") as (port, _):
        result = await check(checker(), port)
    (found,) = result.findings
    assert found.evidence == f"the certificate is for fra.example.com, not for {SITE}"
    shown = x509.load_pem_x509_certificates(pair[0].read_bytes())[0]
    assert found.details["certificate_sha256"] == shown.fingerprint(SHA256()).hex()
    assert found.details["certificate_serial"] == f"{shown.serial_number:x}"
    assert found.details["certificate_names"] == "fra.example.com"
    assert (found.details["origin"], found.details["address"]) == ("fra-1", "127.0.0.1")


async def test_a_thorough_check_ends_in_time(checker, good, monkeypatch):
    monkeypatch.setattr(http3, "DEEP_TIMEOUTS", 1e-6)
    async with quic_server(good, region="fra-1") as (port, _):
        (result,) = await checker().check(origin(port), now=time.time(), deep=True)
    assert result.outcome is Outcome.OK
    told = [finding for finding in result.findings if finding.check == "http3.not_checked"]
    assert len(told) == 1
    assert told[0].evidence.startswith("the thorough check did not end within ")


@given(st.lists(st.binary(max_size=1300), max_size=20))
def test_any_datagram_may_come_before_the_handshake(datagrams):
    async def run():
        with black_hole() as port:
            exchange = Exchange()
            exchange.link = link = EndpointLink(
                checker_configuration(), "127.0.0.1", port, on_event=exchange.on_event
            )
            try:
                link.start()
                for data in datagrams:
                    link._received(data, 0.0)
                assert link.received == len(datagrams)
                assert link.strange <= link.received
                assert link.completed is None
            finally:
                link.close()

    asyncio.run(run())


def checker_configuration():
    return QuicConfiguration(
        is_client=True, alpn_protocols=["h3"], server_name=SITE, verify_mode=ssl.CERT_NONE
    )


async def test_every_fault_of_a_certificate_is_found(checker, certificates):
    pair = certificates.leaf("all", "fra.example.com", expired=True, ca=trustme.CA())
    async with quic_server(pair, region="fra-1") as (port, _):
        result = await check(checker(), port)
    assert sorted(ids(result)) == [
        "http3.certificate_expired",
        "http3.certificate_name",
        "http3.certificate_untrusted",
    ]


async def test_a_certificate_that_will_expire_is_a_warning_only(checker, certificates):
    async with quic_server(certificates.leaf("soon", SITE, days_left=3), region="fra-1") as (port, _):
        result = await check(checker(), port)
    assert result.outcome is Outcome.OK
    assert ids(result) == ["http3.certificate_expiring"]
    assert result.findings[0].severity is Severity.WARNING


async def test_a_name_that_does_not_resolve_is_the_verifier_s_trouble(checker):
    result = await check(checker(), 443, host="no-such-name.invalid", addresses=())
    assert result.outcome is Outcome.PROBER_FAILED
    assert ids(result) == ["http3.unresolved"]


async def test_a_route_that_we_lack_is_the_verifier_s_trouble(checker, monkeypatch):
    from isochrone.probing import quic_link

    def no_route(*_, **_how):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(quic_link, "connected_socket", no_route)
    result = await check(checker(), 443)
    assert result.outcome is Outcome.PROBER_FAILED
    assert ids(result) == ["http3.not_checked"]
    assert result.findings[0].evidence == "this host has no route to the address"


async def test_our_own_lateness_is_not_the_endpoint_s_failure(checker):
    with black_hole() as port:
        task = asyncio.create_task(check(checker(0.1), port))
        await asyncio.sleep(0.01)
        time.sleep(0.5)  # noqa: ASYNC251
        result = await task
    assert result.outcome is Outcome.PROBER_FAILED
    assert ids(result) == ["http3.not_checked"]


async def test_every_address_is_checked_and_one_failure_counts(checker, good):
    async with quic_server(good, region="fra-1") as (port, _):
        checks = await checker().check(origin(port, addresses=("127.0.0.1", "127.0.0.2")), now=time.time())
    assert [c.address for c in checks] == ["127.0.0.1", "127.0.0.2"]
    assert [c.outcome for c in checks] == [Outcome.OK, Outcome.TARGET_FAILED]
    assert verdict(checks) is Outcome.TARGET_FAILED
    assert verdict(checks[:1]) is Outcome.OK


async def test_an_origin_without_an_endpoint_has_nothing_to_check(checker):
    assert await checker().check(origin(443, alt_svc=None), now=time.time()) == ()


async def test_many_checks_leave_nothing_behind(checker, good):
    process = psutil.Process()
    before = process.num_fds()
    async with quic_server(good, region="fra-1") as (port, _):
        one = checker()
        with black_hole() as hole:
            quick = checker(0.2)
            await asyncio.gather(
                *(check(one, port) for _ in range(10)), *(check(quick, hole) for _ in range(10))
            )
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert process.num_fds() == before


def test_authorities():
    assert split_authority("fra.example.com:8443") == ("fra.example.com", 8443)
    assert split_authority("fra.example.com") == ("fra.example.com", 443)


def test_every_fault_has_advice():
    assert all(fault.advice for fault in FAULTS.values())


def test_a_self_signed_certificate_and_one_not_yet_valid(certificates):
    chain, _ = certificates.leaf("plain", SITE)
    leaves = x509.load_pem_x509_certificates(chain.read_bytes())
    store = TrustStore(certificates.ca_pem)
    long_ago = dt.datetime(2020, 1, 1, tzinfo=dt.UTC).timestamp()
    assert [fault.kind for fault in store.faults(leaves, SITE, now=long_ago)] == ["not_yet_valid"]
    root = x509.load_pem_x509_certificates(trustme.CA().cert_pem.bytes())
    assert [fault.kind for fault in store.faults(root, SITE, now=time.time())][:2] == ["self_signed", "name"]


def test_a_trust_store_without_certificates(tmp_path):
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing\n")
    with pytest.raises(TrustStoreError, match="holds no certificates in PEM form"):
        EndpointChecker(SITE, Verification(trust_store=empty))
    with pytest.raises(TrustStoreError, match="holds no certificates in PEM form"):
        HealthChecker(Verification(trust_store=empty))


# Whether the origin itself is up


class https_origin:  # noqa: N801
    """An HTTPS server for the origin's own host."""

    def __init__(self, pair, status=200, wait=0.0):
        self.pair, self.status, self.wait, self.hosts = pair, status, wait, []

    async def __aenter__(self):
        async def answer(request):
            self.hosts.append(request.host)
            await asyncio.sleep(self.wait)
            return web.Response(status=self.status)

        app = web.Application()
        app.router.add_get("/healthz", answer)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(*self.pair)
        site = web.TCPSite(self.runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        await self.runner.cleanup()


@pytest.fixture
def health(certificates):
    async def run(port, timeout=10.0, **changes):
        settings = Verification(trust_store=certificates.ca_pem, timeout_seconds=timeout)
        return await HealthChecker(settings).check(
            origin(port, **({"host": f"fra.example.com:{port}", "alt_svc": None} | changes))
        )

    return run


async def test_an_origin_that_is_up(certificates, health):
    async with https_origin(certificates.leaf("own", "fra.example.com")) as server:
        result = await health(server.port)
    assert (result.outcome, result.status, result.detail) == (Outcome.OK, 200, "")
    assert result.total_ms > 0
    assert server.hosts == [f"fra.example.com:{server.port}"]


async def test_origins_that_are_down(certificates, health):
    own = certificates.leaf("own2", "fra.example.com")
    async with https_origin(own, status=503) as server:
        assert (await health(server.port)).detail == "status 503"
    async with https_origin(own, wait=5) as server:
        slow = await health(server.port, timeout=0.5)
    assert (slow.outcome, slow.detail) == (Outcome.TARGET_FAILED, "no answer within 0.5 s")
    async with https_origin(certificates.leaf("public", SITE)) as server:
        wrong = await health(server.port)
    assert wrong.outcome is Outcome.TARGET_FAILED
    assert wrong.detail.startswith("certificate: ")
    dead = await health(dead_port())
    assert dead.outcome is Outcome.TARGET_FAILED
    assert dead.detail.startswith("can't connect: ")


async def test_health_blames_dns_on_the_prober(health):
    result = await health(443, host="no-such-name.invalid", addresses=())
    assert result.outcome is Outcome.PROBER_FAILED


# The command


def configuration(folder, port, ca_pem, extra=""):
    path = folder / "isochrone.toml"
    path.write_text(f"""
site = "{SITE}"
{extra}
[[origins]]
id = "fra-1"
host = "fra.example.com"
latitude = 50.1
longitude = 8.7
alt_svc = "fra.example.com:{port}"
addresses = ["127.0.0.1"]
[verification]
trust_store = "{ca_pem}"
""")
    return path


async def test_command_on_a_good_endpoint(tmp_path, certificates, good):
    async with quic_server(good, region="fra-1") as (port, _):
        config = configuration(tmp_path, port, certificates.ca_pem)
        status, out, err = await isochrone("verify", "http3", "-c", config, "--json")
        assert (status, err) == (0, "")
        told = json.loads(out)
        assert told["site"] == SITE
        assert told["checks"][0]["outcome"] == "ok"
        assert told["checks"][0]["findings"] == []
        status, out, err = await isochrone("verify", "http3", "-c", config)
    assert (status, err) == (0, "")
    assert "fra-1" in out
    assert "ok" in out
    assert "handshakes in ms: median / p99 / jitter" in out
    checked = told["checks"][0]
    assert checked["version"] == "1"
    assert checked["transport"]["max_idle_timeout"] == 60_000
    assert checked["regions"] == ["fra-1"] * 6  # the first connection, and five more
    assert (checked["resumed"], checked["early_data"], checked["migrated"]) == (True, True, True)
    assert checked["timings"]["h3"]["samples"] in range(1, 6)  # those that this machine was not late for
    assert checked["timings"]["h3"]["min_ms"] <= checked["timings"]["h3"]["p99_ms"]
    assert checked["timings"]["h1"] is None  # nobody listens by TCP


async def test_command_on_a_bad_endpoint(tmp_path, certificates, good):
    async with quic_server(good, region="ams-1") as (port, _):
        config = configuration(tmp_path, port, certificates.ca_pem)
        status, out, err = await isochrone("verify", "http3", "-c", config, "--json")
        assert (status, err) == (1, "")
        assert [finding["check"] for finding in json.loads(out)["checks"][0]["findings"]] == [
            "http3.wrong_region"
        ]
        status, out, err = await isochrone("verify", "http3", "-c", config)
    assert (status, err) == (1, "")
    assert "error: http3.wrong_region: fra-1 127.0.0.1" in out


async def test_command_with_wrong_configuration(tmp_path, certificates):
    status, out, err = await isochrone("verify", "http3", "-c", tmp_path / "none.toml")
    assert (status, out) == (2, "")
    assert "there is no such file" in err
    config = configuration(tmp_path, 443, certificates.ca_pem, extra='sight = "x"')
    status, out, err = await isochrone("verify", "http3", "-c", config)
    assert (status, out) == (2, "")
    assert "sight: unknown key; did you mean 'site'?" in err
    config = configuration(tmp_path, 443, config)
    status, out, err = await isochrone("verify", "http3", "-c", config)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert "verification.trust_store: " in err
