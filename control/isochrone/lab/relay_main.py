"""The process of the relays: `python -m isochrone.lab.relay_main`.

JSON lines on standard input, one answer line each; ends when standard input closes, so it cannot outlive its parent:

    {"op": "listen", "name": N, "address": [HOST, PORT], "server": [HOST, PORT], "rtt_ms": {SOURCE: MS}, "default_rtt_ms": MS}
    {"op": "path", "name": N, "source": SOURCE, "rtt_ms": MS, "loss": P}    source null: all; the others: as it was
    {"op": "stats"}

A process of its own, standard library only: Python work elsewhere cannot hold up a datagram.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
from typing import Any

from isochrone.lab.relay import Relays
from isochrone.lab.relay_flow import RelayError

PR_SET_TIMERSLACK = 29
SPARE_DESCRIPTORS = 128


def raise_descriptor_limit() -> int:
    """Lifts the soft limit of open files as far as allowed and returns it."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 16384) if hard != resource.RLIM_INFINITY else 16384
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def carry_out(relays: Relays, command: dict[str, Any]) -> dict[str, Any]:
    """One command's answer; what is wrong with it stands in `error`."""
    try:
        match command.get("op"):
            case "listen":
                address = relays.listen(
                    command["name"],
                    (command["address"][0], command["address"][1]),
                    (command["server"][0], command["server"][1]),
                    command.get("rtt_ms", {}),
                    command.get("default_rtt_ms", 0.0),
                )
                return {"ok": True, "address": address}
            case "path":
                relays.set_path(
                    command["name"],
                    command["source"],
                    rtt_ms=command.get("rtt_ms"),
                    loss=command.get("loss"),
                )
                return {"ok": True}
            case "stats":
                return {"ok": True, **relays.stats()}
            case other:
                return {"ok": False, "error": f"unknown op {other!r}"}
    except RelayError as error:
        return {"ok": False, "error": str(error)}
    except (KeyError, TypeError, IndexError, OverflowError) as error:
        return {"ok": False, "error": f"malformed command: {error!r}"}


class Console:
    """Standard input, line by line, inside the relays' loop."""

    def __init__(self, relays: Relays) -> None:
        self._relays = relays
        self._rest = b""
        os.set_blocking(0, False)
        relays.watch(0, self.read)

    def read(self) -> None:
        """Answers every whole line that has come; ends the loop at the end of input."""
        chunk = os.read(0, 65536)
        if not chunk:
            self._relays.running = False
            return
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            try:
                command = json.loads(line)
                answer = carry_out(self._relays, command if isinstance(command, dict) else {})
            except ValueError as error:
                answer = {"ok": False, "error": f"not a JSON line: {error}"}
            os.write(1, json.dumps(answer).encode() + b"\n")


def main() -> None:
    """Runs until standard input ends."""
    limit = raise_descriptor_limit()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)  # only less exact where it fails
    relays = Relays(max_flows=min(4096, limit - SPARE_DESCRIPTORS))
    Console(relays)
    gc.disable()  # nothing here makes cycles that outlive a flow; a pause would be a late datagram
    relays.run()


if __name__ == "__main__":
    main()
