"""A control plane that answers agents over TLS: one origin has an agent, the daemon itself measures for the other."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import subprocess
import sys

import aiohttp
import pytest
import trustme
from agents_support import (
    TOKENS,
    Forker,
    Targets,
    control_document,
    environment,
    status,
    until,
    write,
)

from isochrone.settings import SettingsError, load
from isochrone.store.sqlite import Store
from ports import free_port

pytestmark = [pytest.mark.system, pytest.mark.timeout(170)]

KV = {"ISOCHRONE_TEST_KV": "x"}


@pytest.fixture
def pem(tmp_path):
    """A server's chain and key, and the authority that issued them."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    files = {name: tmp_path / f"{name}.pem" for name in ("ca", "chain", "key")}
    authority.cert_pem.write_to_path(files["ca"])
    issued.private_key_pem.write_to_path(files["key"])
    files["chain"].write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    return files


async def test_an_agent_measures_over_tls_and_the_daemon_leaves_its_origin_alone(tmp_path, pem):
    port, agents_port = free_port(), free_port()
    log, agent_log = tmp_path / "control.log", tmp_path / "agent.log"
    async with Targets(4) as targets:
        service = {
            "agents_listen": f"127.0.0.1:{agents_port}", "certificate": str(pem["chain"]), "key": str(pem["key"]),
        }  # fmt: skip
        control = write(
            tmp_path / "isochrone.toml",
            control_document(
                port=port, targets=targets.entries, state_dir=tmp_path / "state", origins=("eu-1", "us-1"),
                agents=("eu-1",), service=service, estimation={"interval_seconds": 1, "min_samples": 2},
                verification={"interval_seconds": 600, "timeout_seconds": 1},
            ),
        )  # fmt: skip
        document = {
            "control_plane": f"https://localhost:{agents_port}", "origin": "eu-1", "lab": True, "batch_seconds": 0.2,
            "poll_seconds": 1, "spool_dir": str(tmp_path / "spool"), "trust_store": str(pem["ca"]),
        }  # fmt: skip
        agent = write(tmp_path / "agent.toml", document)
        with Forker() as forker:
            daemon = forker.start("run", "-c", str(control), log=log)
            await until(lambda: status(port), log=log)
            process = forker.start(
                "agent", "-c", str(agent), log=agent_log, ISOCHRONE_AGENT_TOKEN=TOKENS["eu-1"]
            )

            async def both_measured():
                told = await status(port)
                return (
                    told and told["counters"]["builds"] and told["agents"][0]["samples"]["total"] > 8 and told
                )

            told = await until(both_measured, log=agent_log)
            assert [one["origin"] for one in told["agents"]] == ["eu-1"]
            assert told["agents"][0]["state"] == "ok"

            # Nothing but agents is answered there, and agents are answered nowhere else.
            tls = ssl.create_default_context(cafile=pem["ca"])
            bearer = {"Authorization": f"Bearer {TOKENS['eu-1']}"}
            async with aiohttp.ClientSession(headers=bearer) as session:
                for url, wanted in (
                    (f"https://localhost:{agents_port}/agents/eu-1/plan", 200),
                    (f"https://localhost:{agents_port}/agents/us-1/plan", 404),
                    (f"https://localhost:{agents_port}/status", 404),
                    (f"http://127.0.0.1:{port}/agents/eu-1/plan", 404),
                ):
                    async with session.get(url, ssl=tls) as answer:
                        body = await answer.read()
                        assert answer.status == wanted, url
                        if wanted == 200:
                            etag = answer.headers["ETag"]
                            assert etag == f'"{hashlib.sha256(body).hexdigest()}"'
                            plan = url
                async with session.get(plan, ssl=tls, headers={"If-None-Match": etag}) as answer:
                    assert (answer.status, await answer.read()) == (304, b"")
                async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                    metrics = await answer.text()
            for wanted in (
                'isochrone_agent_age_seconds{origin="eu-1"}', 'isochrone_agent_flagged{origin="eu-1"} 0.0',
                'isochrone_agent_samples_total{origin="eu-1",outcome="ok"}',
            ):  # fmt: skip
                assert wanted in metrics
            shown = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-c", "from isochrone.cli import main; main()", "status", "-c", str(control)],
                capture_output=True, text=True, env=environment(), timeout=60, check=False,
            )  # fmt: skip
            assert "agent    eu-1: ok, last batch " in shown.stdout

            # A certificate that nobody vouches for is no control plane.
            stranger = write(tmp_path / "stranger.toml", {k: v for k, v in document.items() if k != "trust_store"} | {"spool_dir": str(tmp_path / "other")})  # fmt: skip
            other = forker.start(
                "agent", "-c", str(stranger), "--once", log=tmp_path / "stranger.log",
                ISOCHRONE_AGENT_TOKEN=TOKENS["eu-1"],
            )  # fmt: skip
            await until(lambda: not other.alive())
            assert "certificate" in (tmp_path / "stranger.log").read_text()

            # The control plane goes away: the agent goes on, restarted too, and is told of as late by nobody yet.
            await daemon.kill(15)
            await process.kill()
            waiting = len(list((tmp_path / "spool").glob("*.batch")))
            process = forker.start(
                "agent", "-c", str(agent), log=agent_log, ISOCHRONE_AGENT_TOKEN=TOKENS["eu-1"]
            )
            await until(lambda: len(list((tmp_path / "spool").glob("*.batch"))) > waiting + 2, log=agent_log)
            await process.kill(15)
        for path in (log, agent_log):
            assert "Traceback" not in path.read_text()
    with Store.open(tmp_path / "state" / "isochrone.db") as store:
        columns = store.sample_columns()
        with store.reader() as connection:
            (by_agents,) = connection.execute("SELECT sum(samples) FROM agent_batches").fetchone()
    assert set(columns.origins) == {"eu-1", "us-1"}
    assert (columns.origin_in(["eu-1"]) == 0).sum() == by_agents  # the daemon added none of its own


def problems(tmp_path, change):
    document = control_document(
        port=1, targets=[{"address": "127.0.0.1", "asn": 64512}], state_dir=tmp_path / "s"
    )
    change(document)
    with pytest.raises(SettingsError) as caught:
        load(write(tmp_path / "isochrone.toml", document), KV)
    return caught.value.problems


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["agents"][0].update(origin="eu-2"), "agents[0].origin: there is no origin 'eu-2'; did you mean 'eu-1'?"),
        (lambda d: d["agents"].append(d["agents"][0]), "has an agent in agents[0] already"),
        (lambda d: d["agents"].append(d["agents"][0]), "the token of agents[0]; give each agent its own"),
        (lambda d: d["agents"][0].update(token_sha256="token"), "is not a SHA-256 of 64 hexadecimal digits"),
        (lambda d: d["agents"][0].update(token="x"), "agents[0].token: unknown key; did you mean 'token_sha256'?"),
        (lambda d: d["service"].update(certificate="a.pem"), "service.certificate, service.key: give both or none"),
        (lambda d: d["service"].update(certificate="a.pem"), "service.certificate: there is no file"),
        (lambda d: d["service"].update(certificate="a", key="b"), "give agents_listen"),
        (lambda d: d["service"].update(agents_listen="nowhere"), "service.agents_listen: 'nowhere' is not ADDRESS:PORT"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_agents_is_told(tmp_path, change, words):
    assert any(words in problem for problem in problems(tmp_path, change))
