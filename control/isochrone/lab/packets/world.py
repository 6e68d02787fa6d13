"""The process that makes both namespaces and then is the link. Started by PacketLab; the near namespace is its own.

Reads one JSON line on standard input, answers with one on standard output, `{"ready": ...}` or `{"problem": "..."}`; ends at SIGTERM,
or with whoever started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path as File
from typing import Any

from isochrone.lab.packets import caddy, kernel
from isochrone.lab.packets.link import End, Link
from isochrone.lab.packets.paths import FAR_NETWORK, FAR_TUN, NEAR, Path, Version, address, write_log

_DEVICE = "lab0"
_START_SECONDS = 30


def main() -> int:
    """Make the lab, carry packets, write the log."""
    spec = json.loads(sys.stdin.readline())
    kernel.end_with_parent()
    paths = [Path(**path) for path in spec["paths"]]
    responders: list[subprocess.Popen[Any]] = []
    try:
        near, far, responders, versions, far_host = _make(spec, len(paths))
    except subprocess.CalledProcessError as error:
        print(json.dumps({"problem": f"{' '.join(error.cmd)}: {(error.stderr or '').strip()}"}), flush=True)
        return 1
    except OSError as error:
        print(json.dumps({"problem": f"{error.strerror} {error.filename or ''}".strip()}), flush=True)
        return 1
    link = Link(near, far, paths, seed=spec["seed"])
    print(json.dumps({"ready": {"versions": versions, "far_host": far_host}}), flush=True)
    try:
        link.run()
    finally:
        for process in responders:
            process.kill()  # they hold nothing, and some would wait for their connections
            process.wait()
    write_log(File(spec["log"]), link.crossings())
    return 0


def _make(
    spec: dict[str, Any], count: int
) -> tuple[End, End, list[subprocess.Popen[Any]], list[Version], str]:
    kernel.unshare_network()
    versions: list[Version] = [4, 6] if kernel.have_ipv6() else [4]
    near = _end(versions, NEAR)
    for version in versions:
        kernel.ip(*_flag(version), "route", "add", FAR_NETWORK[version], "dev", _DEVICE, "src", NEAR[version])
    if spec["ping_sockets"]:
        kernel.set_network(
            "ipv4/ping_group_range", "0 2147483647" if os.geteuid() == 0 and _maps_all() else "0 0"
        )
    namespace = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    kernel.unshare_network()
    try:
        far = _end(versions, FAR_TUN)
        with contextlib.suppress(OSError):
            kernel.set_network("ipv4/icmp_ratelimit", "0")  # the lab asks for many errors
        for version in versions:
            kernel.ip(*_flag(version), "route", "add", NEAR[version], "dev", _DEVICE, "src", FAR_TUN[version])
            kernel.ip(*_flag(version), "route", "add", "local", FAR_NETWORK[version], "dev", "lo")
        addresses = [address(number, version) for number in range(count) for version in versions]
        if 6 in versions:  # a local route is enough to be reached there, but not to bind to it
            for number in range(count):
                kernel.ip("-6", "address", "add", address(number, 6) + "/128", "dev", "lo", "nodad")
        responders, far_host = _responders(spec, versions, addresses) if spec["servers"] else ([], "none")
    finally:
        kernel.enter_network(namespace)
        os.close(namespace)
    return near, far, responders, versions, far_host


def _end(versions: list[Version], own: dict[int, str]) -> End:
    tun = kernel.open_tun(_DEVICE)
    for device in ("lo", _DEVICE):
        kernel.ip("link", "set", device, "up")
    for version in versions:
        bits = "/32" if version == 4 else "/128"
        extra = ["nodad"] if version == 6 else []
        kernel.ip(*_flag(version), "address", "add", own[version] + bits, "dev", _DEVICE, *extra)
    return End(tun, kernel.open_tap(_DEVICE))


def _flag(version: Version) -> list[str]:
    return ["-6"] if version == 6 else []


def _maps_all() -> bool:
    """Whether this user namespace knows all groups: the range may name no others."""
    return File("/proc/self/gid_map").read_text().split()[-1] == str(0xFFFFFFFF)


def _responders(
    spec: dict[str, Any], versions: list[Version], addresses: list[str]
) -> tuple[list[subprocess.Popen[Any]], str]:
    """The far hosts' servers, and what they are in words."""
    chain, key = spec["chain"], spec["key"]
    negotiator = _started("isochrone.lab.packets.version_responder", str(max(versions)))
    why = "caddy is not installed" if spec["compiled"] else "as asked"
    if spec["compiled"] and (version := caddy.version()) is not None:
        folder = File(spec["log"]).parent / "caddy"
        try:
            server = caddy.start(folder, chain, key, spec["server_name"], addresses)
        except OSError as error:
            why = str(error.strerror)
        else:
            return [server, negotiator], f"caddy {version}"
    server = _started("isochrone.lab.packets.responders", chain, key, *addresses)
    return [server, negotiator], f"aioquic and h2 in Python ({why})"


def _started(module: str, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None  # noqa: S101  it was asked for
    if process.stdout.readline().strip() != "ready":
        process.kill()
        raise OSError(0, "the far hosts' servers did not start")
    return process


if __name__ == "__main__":
    sys.exit(main())
