"""What several tests of probing need."""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from contextlib import asynccontextmanager

import pytest
from aioquic.asyncio.server import QuicServer
from aioquic.quic.configuration import QuicConfiguration

from isochrone.lab.packets import unavailable
from isochrone.lab.packets.responders import Http3, http
from isochrone.model import Target

#: Run in the lab's near namespace: method, then address and port and timeout for each probe; prints the results as JSON.
PROBE = """
import asyncio, json, sys
from isochrone.model import Target
from isochrone.probing.methods import make

async def main():
    prober, told = make(sys.argv[1]), []
    for text in sys.argv[2:]:
        address, port, timeout = text.split()
        result = await prober.run_once(Target(address, int(port), 1), timeout=float(timeout))
        told.append({"outcome": result.outcome.value, "rtt_ms": result.rtt_ms, "detail": result.detail,
                     "phases": dict(result.phases)})
    print(json.dumps(told))

asyncio.run(main())
"""


def probe_in(lab, method, *probes):
    """Results of probes ("address port timeout") made in the lab's near namespace, one after the other."""
    return lab.python(PROBE, method, *probes)


async def probe(prober, address="127.0.0.1", port=443, timeout=2.0, **how):
    return await prober.run_once(Target(address, port, 64500), timeout=timeout, **how)


@asynccontextmanager
async def tls_server(certificate, *, alpn=("h2", "http/1.1"), handler=http, host="127.0.0.1"):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.chain, certificate.key)
    context.set_alpn_protocols(list(alpn))
    server = await asyncio.start_server(handler, host, 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.sleep(0.01)


@asynccontextmanager
async def tcp_server(handler, host="127.0.0.1"):
    server = await asyncio.start_server(handler, host, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.sleep(0.01)


async def hang_up(_reader, writer):
    writer.close()


@asynccontextmanager
async def quic_server(certificate, host="127.0.0.1"):
    configuration = QuicConfiguration(is_client=False, alpn_protocols=["h3"])
    configuration.load_cert_chain(str(certificate.chain), str(certificate.key))
    transport, protocol = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: QuicServer(configuration=configuration, create_protocol=Http3), local_addr=(host, 0)
    )
    try:
        yield transport.get_extra_info("sockname")[1]
    finally:
        protocol.close()
        transport.close()
        await asyncio.sleep(0.01)


@asynccontextmanager
async def udp_answers(answer, host="127.0.0.1"):
    """A UDP port that answers each datagram with `answer(datagram)`; None is silence."""

    class Answers(asyncio.DatagramProtocol):
        def connection_made(self, transport):
            self.transport = transport

        def datagram_received(self, data, addr):
            reply = answer(data)
            if reply is not None:
                self.transport.sendto(reply, addr)

    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(Answers, local_addr=(host, 0))
    try:
        yield transport.get_extra_info("sockname")[1]
    finally:
        transport.close()
        await asyncio.sleep(0.01)


async def isochrone(*arguments):
    """(exit status, standard output, standard error) of the command."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from isochrone.cli import main; main()", *map(str, arguments),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


def closed_port(kind):
    import socket

    with socket.socket(socket.AF_INET, kind) as once:
        once.bind(("127.0.0.1", 0))
        return once.getsockname()[1]


def namespaces_or_skip():
    reason = unavailable()
    if reason is None:
        return
    if os.environ.get("CI") and os.geteuid() == 0:
        pytest.fail(f"CI must run the packet lab: {reason}")
    pytest.skip(reason)
