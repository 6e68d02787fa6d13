"""The process that origins are born from: `python -m isochrone.lab.origins_main`.

It imports the servers once and forks one process for each origin: sixteen origins start in about the time of one, share
most of their memory, and each is a process that SIGKILL ends like any other.

JSON lines on standard input, one answer line each:

    {"op": "start", "origin": {see `OriginConfig`}}      answer: {"ok": true, "pid": PID}
    {"op": "signal", "id": ID, "signal": "KILL"}         KILL answers once the process is gone; STOP and CONT freeze and thaw
    {"op": "ping"}

News on standard output: {"event": "ready", "id", "pid"} when an origin serves, {"event": "failed", "id", "error"} when it
cannot, {"event": "exited", "id", "pid", "status"} when it is gone.
When standard input closes every origin is killed and the process ends. The kernel kills every origin, a frozen one too,
when this process is killed itself (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import sys
import traceback
from typing import Any, NoReturn

from isochrone.lab.origin import OriginConfig, run_origin

PR_SET_PDEATHSIG = 1
LONGEST_ERROR = 1000  # characters
SIGNALS = frozenset({"KILL", "STOP", "CONT", "TERM"})


def say(message: dict[str, Any]) -> None:
    """One line on standard output; shorter than PIPE_BUF, so lines of several processes never mix."""
    if "error" in message:
        message["error"] = message["error"][:LONGEST_ERROR]
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(message).encode() + b"\n")


async def live(config: OriginConfig) -> None:
    """Serves until a signal ends the process."""
    try:
        async with run_origin(config):
            say({"event": "ready", "id": config.id, "pid": os.getpid()})
            await asyncio.Event().wait()
    except OSError as error:
        say({"event": "failed", "id": config.id, "error": str(error)})


class Nursery:
    """Forks origins, delivers signals, reports deaths."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._rest = b""
        self._bell = os.pipe()  # rings when a child ends
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl

    def run(self) -> None:
        """Until standard input closes."""
        wake, ring = self._bell
        for descriptor in self._bell:
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(ring)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ready, _, _ = select.select([0, wake], [], [])
            if wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
                self.reap()
            if 0 in ready and not self.read():
                break
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
        for pid in self._pids.values():
            os.waitpid(pid, 0)

    def read(self) -> bool:
        """Carries out what has come; false at the end of input."""
        chunk = os.read(0, 65536)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            try:
                answer = self.carry_out(json.loads(line))
            except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
                answer = {"ok": False, "error": f"malformed command: {error!r}"}
            say(answer)
        return bool(chunk)

    def carry_out(self, command: dict[str, Any]) -> dict[str, Any]:
        """One command's answer."""
        match command["op"]:
            case "start":
                config = OriginConfig.from_json(command["origin"])
                if config.id in self._pids:
                    return {"ok": False, "error": f"origin {config.id} runs already"}
                return {"ok": True, "pid": self.start(config)}
            case "signal":
                name, pid = command["signal"], self._pids.get(command["id"])
                if name not in SIGNALS:
                    return {"ok": False, "error": f"signal must be one of {', '.join(sorted(SIGNALS))}"}
                if pid is None:
                    return {"ok": False, "error": f"origin {command['id']} does not run"}
                os.kill(pid, signal.Signals[f"SIG{name}"])
                if name == "KILL":
                    _, status = os.waitpid(pid, 0)
                    self.buried(command["id"], status)
                return {"ok": True, "pid": pid}
            case "ping":
                return {"ok": True}
            case other:
                return {"ok": False, "error": f"unknown op {other!r}"}

    def start(self, config: OriginConfig) -> int:
        """Forks the origin's process; its news tells when it serves."""
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self.be_origin(config, parent)
        self._pids[config.id] = pid
        return pid

    def be_origin(self, config: OriginConfig, parent: int) -> NoReturn:
        """The forked process, to its end."""
        status = 1
        try:
            self._prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # it died before the kernel was asked
                os._exit(status)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in self._bell:
                os.close(descriptor)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.close(nothing)
            asyncio.run(live(config))
            status = 0
        except BaseException:  # noqa: BLE001 - nothing of the parent's stack may run in this process
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def reap(self) -> None:
        """Reports origins that ended by themselves."""
        for origin, pid in list(self._pids.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self.buried(origin, status)

    def buried(self, origin: str, status: int) -> None:
        """Forgets a dead origin and says so."""
        pid = self._pids.pop(origin)
        say({"event": "exited", "id": origin, "pid": pid, "status": os.waitstatus_to_exitcode(status)})


def main() -> None:
    """Runs until standard input ends."""
    nursery = Nursery()
    gc.collect()
    gc.freeze()  # what was imported stays shared between the forked processes
    nursery.run()


if __name__ == "__main__":
    main()
