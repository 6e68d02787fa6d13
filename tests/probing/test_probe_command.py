"""`isochrone probe` with each method."""

from __future__ import annotations

import json
import socket

import pytest
from probing_support import closed_port, isochrone, tls_server


@pytest.mark.parametrize(("method", "flag"), [("http", ""), ("h1", "--http1.1"), ("h2", "--http2")])
async def test_http(certificate, method, flag):
    async with tls_server(certificate) as port:
        status, out, err = await isochrone(
            "probe", "127.0.0.1", "--method", method, "--count", 2, "--interval", 0, "--port", port, "--json"
        )
    assert (status, err) == (0, "")
    told = json.loads(out)
    assert told["method"] == method
    assert all(list(probe["phases"]) == ["connect", "tls", "first_byte"] for probe in told["probes"])
    curl = told["summary"][0]["curl"]
    assert curl.startswith(f"curl {flag}".strip())
    assert "time_starttransfer" in curl
    assert curl.endswith(f"https://127.0.0.1:{port}/")


async def test_icmp_for_people():
    status, out, err = await isochrone("probe", "127.0.0.1", "--method", "icmp", "--count", 1)
    assert (status, err) == (0, "")
    assert "127.0.0.1: 1 of 1 ok, min" in out
    assert "compare: ping -n -c 1 -W 3 127.0.0.1" in out


@pytest.mark.parametrize(
    ("method", "kind", "command"),
    [("tcp", socket.SOCK_STREAM, "nc -v -z"), ("quic-vn", socket.SOCK_DGRAM, "curl --http3-only")],
)
async def test_closed_ports(method, kind, command):
    port = closed_port(kind)
    status, out, err = await isochrone("probe", "127.0.0.1", "--method", method, "--count", 1, "--port", port)
    assert (status, err) == (1, "")
    assert "target_failed: the port is closed" in out
    assert f"compare: {command}" in out
