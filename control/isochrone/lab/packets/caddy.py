"""Caddy as the far hosts' server: a compiled one, as real targets have, with HTTP/1.1 and HTTP/2 on TCP and HTTP/3 on UDP.

A QUIC server's cryptography is part of every handshake's time. In Python it takes milliseconds, in Go a part of one. Used where
the program is installed and works; `responders` is what answers elsewhere.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any

from isochrone.lab.packets.kernel import be_punctual, end_with_parent
from isochrone.lab.packets.paths import PORT
from isochrone.probing.quic_vn import CID_BYTES, greased_version, negotiated, probe_packet
from isochrone.probing.udp import RECEIVE_BYTES

if TYPE_CHECKING:
    from pathlib import Path

#: Far hosts are other machines: what else this one does must not slow them. Below the link.
PRIORITY = 20
START_SECONDS = 20.0
_ASK_SECONDS = 0.1
#: Two threads at most, and no collection of garbage while a probe is on its way, unless a long run needs it.
_RUNTIME = {"GOMAXPROCS": "2", "GOGC": "off", "GOMEMLIMIT": "512MiB"}


def config(chain: str, key: str, server_name: str, addresses: list[str]) -> dict[str, Any]:
    """Caddy's configuration: 200 to every request, whatever its name; nothing fetched, nothing logged but errors."""
    return {
        "admin": {"disabled": True, "config": {"persist": False}},
        "logging": {"logs": {"default": {"level": "ERROR"}}},
        "apps": {
            "http": {
                "servers": {
                    "far": {
                        "listen": [f"[{a}]:{PORT}" if ":" in a else f"{a}:{PORT}" for a in addresses],
                        "protocols": ["h1", "h2", "h3"],
                        "automatic_https": {"disable": True},
                        "tls_connection_policies": [{"default_sni": server_name}],
                        "routes": [
                            {"handle": [{"handler": "static_response", "status_code": 200, "body": "ok\n"}]}
                        ],
                    }
                }
            },
            "tls": {"certificates": {"load_files": [{"certificate": chain, "key": key}]}},
        },
    }


def version() -> str | None:
    """What the installed caddy calls itself, such as `2.6.2`; None when there is none that runs."""
    if shutil.which("caddy") is None:
        return None
    try:
        done = subprocess.run(
            ["caddy", "version"], capture_output=True, text=True, timeout=START_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return (done.stdout.split() or [""])[0].removeprefix("v") or None


def start(
    folder: Path, chain: str, key: str, server_name: str, addresses: list[str]
) -> subprocess.Popen[Any]:
    """Start it in this namespace, all its files in `folder`, and wait until it answers on all `addresses`.

    Raises OSError, with its last words, when it ends or stays silent.
    """
    folder.mkdir(mode=0o700)
    (folder / "caddy.json").write_text(json.dumps(config(chain, key, server_name, addresses)))
    own = {"HOME": folder, "XDG_DATA_HOME": folder, "XDG_CONFIG_HOME": folder}
    with (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            ["caddy", "run", "--config", str(folder / "caddy.json")],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            env=os.environ | _RUNTIME | {name: str(path) for name, path in own.items()},
            preexec_fn=_be_a_far_host,  # noqa: PLW1509  whoever starts it has one thread
        )
    deadline = time.monotonic() + START_SECONDS
    while not all(map(_answers, addresses)):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            words = (folder / "errors").read_text(errors="replace").strip().splitlines() or [
                "it said nothing"
            ]
            raise OSError(0, f"caddy did not start: {words[-1]}")
    return process


def _be_a_far_host() -> None:
    end_with_parent(signal.SIGKILL)  # at SIGTERM it would wait for its connections
    be_punctual(PRIORITY)


def _answers(address: str) -> bool:
    """Whether it negotiates a QUIC version. It listens on TCP before it does on UDP."""
    cids = os.urandom(CID_BYTES), os.urandom(CID_BYTES)
    unknown = greased_version()
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(_ASK_SECONDS)
        try:
            asking.connect((address, PORT))
            asking.send(probe_packet(unknown, *cids))
            return negotiated(asking.recv(RECEIVE_BYTES), unknown, *cids) is not None
        except ConnectionRefusedError:
            time.sleep(_ASK_SECONDS)
            return False
        except TimeoutError:
            return False
