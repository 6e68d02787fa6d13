"""Helpers of the lab's tests: a small world, an HTTPS session, a relay process driven by hand, processes that must end."""

import asyncio
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import aiohttp
import psutil

from isochrone.lab.world import load_world


def small_world(origins=2, clients=2):
    return load_world().subset(origins=origins, clients=clients)


class _Resolver(aiohttp.abc.AbstractResolver):
    def __init__(self, hosts):
        self._hosts = hosts

    async def resolve(self, host, port=0, family=socket.AF_INET):
        found = {"hostname": host, "host": self._hosts[host], "port": port}
        return [{**found, "family": socket.AF_INET, "proto": 0, "flags": 0}]

    async def close(self):
        pass


def https_session(net, ca_pem=None):
    """A session that finds the regional hosts and trusts only the lab's authority (or another)."""
    context = ssl.create_default_context(cafile=str(ca_pem or net.ca_pem))
    connector = aiohttp.TCPConnector(ssl=context, resolver=_Resolver(net.hosts), force_close=True)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=5))


@contextmanager
def echo_server(delay_s=0.0):
    """A UDP server that sends back what it gets, from a thread; yields its address and the peers it saw."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    peers = []

    def run():
        while True:
            data, peer = sock.recvfrom(4096)
            if data == b"end":
                return
            peers.append(peer)
            if delay_s:
                time.sleep(delay_s)
            sock.sendto(data, peer)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield sock.getsockname(), peers
    finally:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stop:
            stop.sendto(b"end", sock.getsockname())
        thread.join()
        sock.close()


class RelayProcess:
    """The relays' process, line by line."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "isochrone.lab.relay_main"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, command):
        line = command if isinstance(command, bytes) else json.dumps(command).encode()
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def listen(self, server, rtt_ms=None, name="r"):
        answer = self.ask(
            {
                "op": "listen",
                "name": name,
                "address": ["127.0.0.1", 0],
                "server": server,
                "rtt_ms": rtt_ms or {},
            }
        )
        assert answer["ok"], answer
        return tuple(answer["address"])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.stdout.close()
        assert self.process.wait(5) == 0


@contextmanager
def udp_from(source, to, timeout=3.0):
    """A connected UDP socket with a bound source address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((source, 0))
        sock.connect(to)
        sock.settimeout(timeout)
        yield sock


def gone(pids, within_s=5.0):
    """Whether all these processes have ended (zombies that nobody has buried yet have)."""

    def lives(pid):
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    until = time.monotonic() + within_s
    while any(lives(pid) for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


async def gone_soon(pids, within_s=5.0):
    return await asyncio.to_thread(gone, pids, within_s)
