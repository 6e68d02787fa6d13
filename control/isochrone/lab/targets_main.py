"""The server that answers probes: `python -m isochrone.lab.targets_main`.

One real QUIC server (ALPN h3, EC certificate) stands behind the relays of all client networks. The first line on standard
input is its configuration, {"address": [HOST, PORT], "chain": PEM, "key": PEM}; the answer {"ok": true, "address": [HOST, PORT]}
says that it serves. It ends when standard input closes.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys

from isochrone.lab.app import RegionApp
from isochrone.lab.h3server import RegionProtocol, quic_server_configuration, serve_quic


class TargetProtocol(RegionProtocol):
    """A probe's connection; a request is answered too, but a handshake alone costs no more than a handshake."""

    app = RegionApp("target")
    eager = False


async def run(line: str) -> int:
    """Serves until standard input ends; the process's exit status."""
    try:
        document = json.loads(line)
        configuration = quic_server_configuration(document["chain"], document["key"])
        host, port = document["address"]
        server, address = await serve_quic((str(host), int(port)), configuration, TargetProtocol)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(json.dumps({"ok": False, "error": f"{type(error).__name__}: {error}"}), flush=True)
        return 1
    over = asyncio.Event()

    def drain() -> None:
        if not os.read(0, 4096):
            over.set()

    asyncio.get_running_loop().add_reader(0, drain)
    gc.collect()
    gc.freeze()
    print(json.dumps({"ok": True, "address": address}), flush=True)
    await over.wait()
    server.close()
    return 0


def main() -> None:
    """Reads the configuration and serves."""
    sys.exit(asyncio.run(run(os.fdopen(0, "rb", buffering=0, closefd=False).readline().decode())))


if __name__ == "__main__":
    main()
