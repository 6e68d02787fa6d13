"""`isochrone verify edge` against the real Worker behind a front that does what misconfigured zones do."""

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
import pytest_asyncio
from clients_support import NAMESPACE, SECRET, a_lab

from isochrone.lab.authority import Authority
from isochrone.lab.dns_server import DnsServer
from isochrone.lab.dns_zone import read_zone
from isochrone.lab.front import EdgeApp, Front
from isochrone.model import Outcome
from isochrone.service.edge_watch import EdgeWatch
from isochrone.settings import Settings
from isochrone.store.findings import history
from isochrone.store.sqlite import Store
from isochrone.verification.edge import EdgeChecker
from isochrone.verification.edge_faults import FAULTS

pytestmark = [pytest.mark.edge, pytest.mark.asyncio(loop_scope="module")]
OTHER_NAMESPACE = "0ther0000000000000000000000000000"
DOC = Path(__file__).parents[2] / "docs" / "FINDINGS.md"
#: what is wrong -> the one finding that it gives, beside those of FRONTS
INJECTED = {
    "this host can't read KV": "not_checked",
    "no secret is given": "no_secret",
    "the site's name has no address": "unresolved",
    "nothing answers at the site's address": "unreachable",
    "the edge's certificate is for another host": "certificate",
    "nobody trusted issued the edge's certificate": "certificate",
    "the site answers 404": "status",
    "the site's name leads past the Worker to an origin": "no_worker",
    "the secret is wrong": "closed",
    "KV holds no map": "no_map",
    "the manifest names a map that is damaged": "kv_trouble",
    "the Worker is bound to another namespace": "old_map",
    "the daemon has ended": "stale_map",
    "a variable of the Worker is no number": "variables",
    "pages and the decision see different clients": "wrong_origin",
    "regional names are exchanged": "wrong_region",
    "clear is stripped": "alt_svc_removed",
    "an Alt-Svc where none is promised": "alt_svc_added",
    "the HTTPS record offers h3 and UDP is closed": "https_protocol",
    "the HTTPS record has another port": "https_address",
    "a hint of the HTTPS record is stale": "https_address",
    "the HTTPS record leads to another host": "https_address",
}
CLOUDFLARES = 'h3=":443"; ma=86400'


@pytest.fixture(autouse=True)
def token(monkeypatch):
    monkeypatch.setenv("ISOCHRONE_LAB_TOKEN", "local")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ISOCHRONE_LAB_TOKEN", "local")
        async with a_lab(2) as lab:
            lab.without_map = await check(lab)  # while there is none
            yield lab


@pytest_asyncio.fixture(loop_scope="module")
async def lab(world):
    """With a good map, and a front that does no wrong."""
    app = world.front.app
    app.change = app.cf_of = None
    world.client_of(world.ids[0])
    await world.publish()
    return world


def settings(lab, **sections):
    given = {
        "site": lab.net.public_host,
        "origins": [
            {"id": o.id, "host": o.authority, "alt_svc": o.authority, "latitude": 1, "longitude": 1}
            for o in lab.net.origins.values()
        ],
        "verification": {"trust_store": lab.net.ca_pem, "timeout_seconds": 10},
        "edge": {"port": lab.front.port, "addresses": ["127.0.0.1"], "timeout_seconds": 30},
        "kv": {
            "account_id": "local",
            "namespace_id": NAMESPACE,
            "token_env": "ISOCHRONE_LAB_TOKEN",
            "base_url": lab.edge.kv_api,
        },
    }
    for name, section in sections.items():
        given[name] = {**given.get(name, {}), **section}
    return Settings.model_validate(given)


async def check(lab, *, secret=SECRET, **sections):
    environ = {"ISOCHRONE_SECRET": secret} if secret else {}
    return await EdgeChecker(settings(lab, **sections), environ).check(now=time.time())


async def kinds(lab, **given):
    """The findings' kinds, each once; the outcome must agree with them."""
    result = await check(lab, **given)
    json.dumps(result.document())
    found = {finding.check.removeprefix("edge.") for finding in result.findings}
    errors = any(FAULTS[kind].severity.value == "error" for kind in found)
    if errors:
        assert result.outcome is Outcome.TARGET_FAILED
    return found


@contextlib.asynccontextmanager
async def dns(lab, record, address="127.0.0.1"):
    """Settings with a resolver that has this HTTPS record for the site."""
    zone = f"www 300 IN A {address}\n" if address else ""
    if record:
        zone += f"_{lab.front.port}._https.www 300 IN HTTPS {record}\n"
    async with DnsServer([read_zone("isochrone.test", zone)], resolver=True) as server:
        yield {"resolvers": [f"127.0.0.1:{server.port}"], "timeout_seconds": 10}


async def test_a_healthy_edge_has_no_finding(lab):
    record = f'1 www.isochrone.test. alpn="h3,h2" port={lab.front.port} ipv4hint=127.0.0.1'
    async with dns(lab, record) as names:
        checker = EdgeChecker(settings(lab, dns=names, edge={"addresses": []}), {"ISOCHRONE_SECRET": SECRET})
        for _ in range(10):
            result = await checker.check(now=time.time())
            assert (result.findings, result.outcome) == ((), Outcome.OK)
    told = result.document()
    assert [view["protocol"] for view in told["views"]] == ["http/1.1", "h2", "h3"]
    assert {view["alt_svc"] for view in told["views"]} == {told["decision"]["alt_svc"]}
    assert told["decision"]["origin"] == lab.ids[0]
    assert told["map"]["edge"] == told["published"]["version"] == lab.version


async def test_an_edge_without_a_map(world):
    assert [finding.check for finding in world.without_map.findings] == [
        "edge." + INJECTED["KV holds no map"]
    ]


def fields(change):
    """A front that changes the fields of every answer but those of the edge's own endpoints."""

    def apply(request, response):
        if request.target.startswith("/.isochrone/"):
            return response
        return replace(response, headers=change(list(response.headers)))

    return apply


def without(name):
    return lambda headers: [pair for pair in headers if pair[0] != name]


def instead(name, value):
    return lambda headers: [*without(name)(headers), (name, value)]


FRONTS = {
    "the header is stripped": ("alt_svc_removed", without("alt-svc")),
    "Cloudflare's own is put in its place": ("alt_svc_replaced", instead("alt-svc", CLOUDFLARES)),
    "what is put in its place is no Alt-Svc": ("alt_svc_replaced", instead("alt-svc", "h3=443")),
    "clear is put in its place": ("alt_svc_replaced", instead("alt-svc", "clear")),
    "Cloudflare's own is put before it": (
        "alt_svc_replaced",
        lambda headers: [("alt-svc", CLOUDFLARES), *headers],
    ),
    "Cloudflare's own is put after it": (
        "alt_svc_added",
        lambda headers: [*headers, ("alt-svc", CLOUDFLARES)],
    ),
    "the clock is an hour behind": (
        "clock_skew",
        instead("date", formatdate(time.time() - 3600, usegmt=True)),
    ),
    "Server-Timing is stripped": ("no_worker", without("server-timing")),
}


@pytest.mark.parametrize("name", FRONTS)
async def test_what_a_front_does_to_answers(lab, name):
    kind, change = FRONTS[name]
    lab.front.app.change = fields(change)
    assert await kinds(lab) == {kind}


async def test_only_one_protocol_is_told_when_only_one_is_wrong(lab):
    def change(request, response):
        return fields(without("alt-svc"))(request, response) if request.http == "2" else response

    lab.front.app.change = change
    (finding,) = (await check(lab)).findings
    assert finding.check == "edge.alt_svc_removed"
    assert finding.subject.endswith("over h2")
    assert f'{lab.net.origins[lab.ids[0]].authority}"; ma=3600' in finding.evidence


async def test_a_promise_that_nobody_made(lab):
    await lab.publish(endpoints=False)
    assert await kinds(lab) == set()
    lab.front.app.change = fields(lambda headers: [*headers, ("alt-svc", CLOUDFLARES)])
    assert await kinds(lab) == {INJECTED["an Alt-Svc where none is promised"]}


async def test_clear_arrives_as_such(lab):
    await lab.publish(withdrawn=[lab.ids[0]])
    assert await kinds(lab) == set()
    lab.front.app.change = fields(without("alt-svc"))
    assert await kinds(lab) == {INJECTED["clear is stripped"]}


async def test_the_edge_forwards_elsewhere_than_it_says(lab):
    first, second = ({"asn": lab.asn(origin), "country": "DE"} for origin in lab.ids)
    lab.front.app.cf_of = lambda request: first if request.target.startswith("/.isochrone/") else second
    assert await kinds(lab) == {INJECTED["pages and the decision see different clients"]}


async def test_a_regional_name_leads_to_another_region(lab):
    await lab.publish(swapped=True)
    assert await kinds(lab) == {INJECTED["regional names are exchanged"]}


async def test_the_next_candidate_is_right_when_the_first_is_dead(lab):
    await lab.net.kill_origin(lab.ids[0])
    try:
        assert await kinds(lab) == set()
    finally:
        await lab.net.restart_origin(lab.ids[0])


async def test_an_edge_that_reads_another_namespace_answers_an_old_map(lab):
    manifest = {
        "version": "20261130T000000Z-1", "key": "map/20261130T000000Z-1", "sha256": "0" * 64, "origins": ["a"], "cells": 1,
    }  # fmt: skip
    for age, expected in ((600, {INJECTED["the Worker is bound to another namespace"]}), (60, set())):
        told = {**manifest, "built_at": time.time() - age}
        await lab.put("map/current", json.dumps(told).encode(), namespace=OTHER_NAMESPACE)
        assert await kinds(lab, kv={"namespace_id": OTHER_NAMESPACE}) == expected


async def test_nobody_publishes_any_more(lab):
    await lab.publish(built_at=time.time() - 600)
    assert await kinds(lab, publishing={"refresh_seconds": 250}) == {INJECTED["the daemon has ended"]}
    assert await kinds(lab, publishing={"refresh_seconds": 350}) == set()


async def test_the_edge_can_t_use_the_newest_map(lab):
    manifest = {"version": "x", "key": "map/x", "sha256": "0" * 64, "built_at": time.time(), "origins": ["a"], "cells": 1}  # fmt: skip
    await lab.put("map/x", b"no map")
    await lab.put("map/current", json.dumps(manifest).encode())
    end = time.monotonic() + 30
    found = set()
    while not found and time.monotonic() < end:
        found = await kinds(lab)
    assert found == {INJECTED["the manifest names a map that is damaged"]}


async def test_variables_of_the_worker_that_are_wrong(lab):
    def change(request, response):
        if request.target != "/.isochrone/status":
            return response
        told = {**json.loads(response.body), "variables": ["TRY_MS: 'x' is no number"]}
        body = json.dumps(told).encode()
        return replace(
            response, body=body, headers=instead("content-length", str(len(body)))(response.headers)
        )

    lab.front.app.change = change
    assert await kinds(lab) == {INJECTED["a variable of the Worker is no number"]}


async def test_the_secret(lab):
    assert await kinds(lab, secret="wrong") == {INJECTED["the secret is wrong"]}
    assert await kinds(lab, secret="") == {INJECTED["no secret is given"]}


async def test_a_site_that_can_t_be_asked(lab, tmp_path):
    stranger = Authority(tmp_path)
    assert await kinds(lab, verification={"trust_store": stranger.ca_pem}) == {
        INJECTED["nobody trusted issued the edge's certificate"]
    }
    nobody = lab.net.authority.issue("nobody", "nobody.test")
    async with Front(lab.front.app, nobody) as front:
        assert await kinds(lab, edge={"port": front.port}) == {
            INJECTED["the edge's certificate is for another host"]
        }
    assert await kinds(lab, edge={"port": front.port}) == {INJECTED["nothing answers at the site's address"]}
    async with dns(lab, "", address="") as names:
        assert await kinds(lab, dns=names, edge={"addresses": []}) == {
            INJECTED["the site's name has no address"]
        }
    assert await kinds(lab, verification={"path": "/status/404"}) == {INJECTED["the site answers 404"]}


async def test_an_answer_that_did_not_go_through_the_worker(lab):
    address, port = next(iter(lab.net.origins.values())).https
    assert await kinds(lab, edge={"addresses": [address], "port": port}) == {
        INJECTED["the site's name leads past the Worker to an origin"]
    }


async def test_kv_that_can_t_be_read_is_not_the_edge_s_fault(lab):
    parts = urlsplit(lab.edge.kv_api)
    nobody = {"base_url": f"http://127.0.0.1:1{parts.path}", "timeout_seconds": 1}
    result = await check(lab, kv=nobody, edge={"timeout_seconds": 3})
    assert [finding.check for finding in result.findings] == ["edge." + INJECTED["this host can't read KV"]]
    assert result.outcome is Outcome.PROBER_FAILED


@pytest.mark.parametrize(
    ("record", "name"),
    [
        ('1 www.isochrone.test. alpn="h2" port={port}', None),
        ('1 www.isochrone.test. alpn="h3,h2" port={port}', "the HTTPS record offers h3 and UDP is closed"),
        ('1 www.isochrone.test. alpn="h2" port=1', "the HTTPS record has another port"),
        (
            '1 www.isochrone.test. alpn="h2" port={port} ipv4hint=127.0.0.9',
            "a hint of the HTTPS record is stale",
        ),
        (
            '1 elsewhere.isochrone.test. alpn="h2" port={port} ipv4hint=127.0.0.9',
            "the HTTPS record leads to another host",
        ),
    ],
)
async def test_https_records_of_a_site_without_http3(lab, record, name):
    async with (
        EdgeApp(lab.edge.url, cf=lab.front.app.cf) as app,
        Front(app, lab.certificate, http3=False) as front,
        dns(replace(lab, front=front), record.format(port=front.port)) as names,
    ):
        assert await kinds(replace(lab, front=front), dns=names) == ({INJECTED[name]} if name else set())


CONFIG = """\
site = "{site}"
[verification]
trust_store = "{store}"
timeout_seconds = 10
connections = 1
[edge]
port = {port}
addresses = ["127.0.0.1"]
timeout_seconds = 30
[dns]
resolvers = ["{resolver}"]
authoritative = ["{authority}"]
timeout_seconds = 10
slow_ms = 60000
[[origins]]
id = "{origin}"
host = "{host}:{their_port}"
alt_svc = "{host}:{their_port}"
addresses = ["{address}"]
latitude = 1
longitude = 1
"""


async def isochrone(*arguments):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from isochrone.cli import main; main()", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ, "ISOCHRONE_SECRET": SECRET},
    )  # fmt: skip
    out, err = await process.communicate()
    assert b"Traceback" not in err
    return process.returncode, out.decode(), err.decode()


async def test_verify_all_is_one_document(lab, tmp_path):
    place = next(iter(lab.net.origins.values()))
    name = place.host.removesuffix(".isochrone.test")
    zone = (
        f"www 300 IN A 127.0.0.1\n{name} 300 IN A {place.https[0]}\n"
        f'{name} 300 IN HTTPS 1 . alpn="h3,h2" port={place.https[1]}\n'
        f'_{place.https[1]}._https.{name} 300 IN HTTPS 1 {place.host}. alpn="h3" port={place.https[1]}\n'
    )
    zones = [read_zone("isochrone.test", zone)]
    config = tmp_path / "isochrone.toml"
    async with DnsServer(zones, resolver=True) as resolver, DnsServer(zones) as authority:
        config.write_text(
            CONFIG.format(
                site=lab.net.public_host, store=lab.net.ca_pem, port=lab.front.port, origin=place.id, host=place.host,
                their_port=place.https[1], address=place.https[0], resolver=f"127.0.0.1:{resolver.port}",
                authority=f"127.0.0.1:{authority.port}",
            )
        )  # fmt: skip
        status, out, err = await isochrone("verify", "all", "-c", str(config), "--json")
        told = json.loads(out)
        assert set(told) == {"site", "checked_at", "dns", "http3", "edge"}
        assert told["edge"]["findings"] == []
        errors = [
            f for f in [*told["dns"]["findings"], *(f for c in told["http3"]["checks"] for f in c["findings"])]
            if f["severity"] == "error"
        ]  # fmt: skip
        assert (errors, status, err) == ([], 0, "")
        lab.front.app.change = fields(without("alt-svc"))
        status, out, err = await isochrone("verify", "edge", "-c", str(config))
        assert (status, err) == (1, "")
        assert out.count("error: edge.alt_svc_removed: ") == 3
        status, out, err = await isochrone("verify", "all", "-c", str(config))
        assert status == 1
        assert out.count("error: edge.alt_svc_removed: ") == 3


async def test_the_daemon_keeps_what_was_found(lab, tmp_path):
    checker = EdgeChecker(settings(lab), {"ISOCHRONE_SECRET": SECRET})
    with Store.open(tmp_path / "state.sqlite") as store:
        watch = EdgeWatch(checker, store, time.time, timeout=10)
        assert watch.document() is None
        lab.front.app.change = fields(without("alt-svc"))
        for _ in range(2):
            await watch.round()
        kept = history(store, only_open=True)
        assert {(seen.job, seen.origin, seen.finding.check, seen.count) for seen in kept} == {
            ("edge", "", "edge.alt_svc_removed", 2)
        }
        assert len(watch.document()["findings"]) == len(kept) == 3
        lab.front.app.change = None
        await watch.round()
        assert history(store, only_open=True) == []
        assert watch.document()["outcome"] == "ok"


async def test_faults_are_documented_as_they_are_injected():
    section = DOC.read_text().partition("\n## Edge faults\n")[2].partition("\n## ")[0]
    rows = [tuple(line.strip("| ").split(" | ")) for line in section.splitlines() if line.startswith("| ")][
        1:
    ]
    injected = INJECTED | {name: kind for name, (kind, _) in FRONTS.items()}
    assert rows == [(name, f"`edge.{kind}`") for name, kind in injected.items()]
    assert set(injected.values()) == set(FAULTS)
    assert f"{len(injected)} kinds of fault" in section


DAEMON = """\
site = "{site}"
[verification]
trust_store = "{store}"
interval_seconds = 600
[edge]
port = {port}
addresses = ["127.0.0.1"]
timeout_seconds = 30
[kv]
account_id = "local"
namespace_id = "{namespace}"
token_env = "ISOCHRONE_LAB_TOKEN"
base_url = "{kv}"
[service]
listen = "127.0.0.1:{listen}"
[probing]
lab = true
interval_seconds = 600
[[targets]]
address = "127.0.0.1"
port = 9
asn = 3320
[[origins]]
id = "{origin}"
host = "{host}"
addresses = ["{address}"]
latitude = 1
longitude = 1
"""


async def test_the_daemon_looks_at_the_edge_where_the_file_has_the_section(lab, tmp_path):
    place = next(iter(lab.net.origins.values()))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = free.getsockname()[1]
    config = tmp_path / "isochrone.toml"
    config.write_text(
        DAEMON.format(
            site=lab.net.public_host, store=lab.net.ca_pem, port=lab.front.port, namespace=NAMESPACE, kv=lab.edge.kv_api,
            listen=listen, origin=place.id, host=place.authority, address=place.https[0],
        )
    )  # fmt: skip
    lab.front.app.change = fields(without("alt-svc"))
    with (tmp_path / "log").open("wb") as log:
        daemon = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "from isochrone.cli import main; main()", "run", "-c", str(config),
            stdout=log, stderr=log, env={**os.environ, "ISOCHRONE_SECRET": SECRET},
        )  # fmt: skip
    try:
        told, end = None, time.monotonic() + 90
        while not told and time.monotonic() < end and daemon.returncode is None:
            await asyncio.sleep(0.2)
            with contextlib.suppress(aiohttp.ClientError):
                async with lab.session.get(f"http://127.0.0.1:{listen}/status") as answer:
                    told = (await answer.json())["edge"]
        assert told, (tmp_path / "log").read_text()
        assert {finding["check"] for finding in told["findings"]} == {"edge.alt_svc_removed"}
    finally:
        daemon.terminate()
        assert await daemon.wait() == 0
