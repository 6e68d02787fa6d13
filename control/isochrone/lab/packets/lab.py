"""The lab from outside: starts it, runs programs in its near namespace, reads the link's log."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path as File
from typing import TYPE_CHECKING, Any, Self

from isochrone.lab.authority import Authority
from isochrone.lab.packets.paths import Path, Version, address, read_log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isochrone.lab.packets.paths import Crossing

_STOP_SECONDS = 20
_SERVER_NAME = "far.example.com"


class LabError(Exception):
    """The lab can't be made here; one sentence."""


class PacketLab:
    """A context manager: while it is entered, `command(...)` runs programs that see the far hosts.

    `servers`: whether the far hosts serve HTTP; ICMP is answered, and TCP refused, in any case. `compiled`: by Caddy, where it is
    installed, rather than by servers in Python; `far_host` says by what. `ping_sockets`: whether the near namespace allows
    unprivileged ICMP. Raises LabError when it can't be made.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        seed: int = 1,
        servers: bool = True,
        compiled: bool = True,
        ping_sockets: bool = False,
    ) -> None:
        self._paths = tuple(paths)
        self._spec: dict[str, Any] = {
            "paths": [path.told() for path in paths], "seed": seed, "servers": servers, "compiled": compiled,
            "ping_sockets": ping_sockets, "server_name": _SERVER_NAME,
        }  # fmt: skip
        self._process: subprocess.Popen[str] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.versions: tuple[Version, ...] = ()
        self.far_host = ""  # what serves there, such as "caddy 2.6.2"
        self.crossings: list[Crossing] = []  # the link's log, once the lab is over

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="isochrone-lab-")
        folder = File(self._folder.name)
        try:
            certificate = Authority(folder).issue("far", _SERVER_NAME)
            self._spec |= {
                "log": str(folder / "log"),
                "chain": str(certificate.chain),
                "key": str(certificate.key),
            }
            self._process = subprocess.Popen(
                [*_become_root(), sys.executable, "-m", "isochrone.lab.packets.world"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            told = self._start(self._process)
            self.versions, self.far_host = tuple(told["versions"]), told["far_host"]
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def address(self, number: int, version: Version = 4) -> str:
        """The far host at the end of path `number`, from 0."""
        return address(number, version)

    def command(self, *argv: str) -> list[str]:
        """The arguments that run a program in the near namespace."""
        if self._process is None:
            raise RuntimeError("the lab is not running")
        user = ["--user", "--preserve-credentials"] if os.geteuid() != 0 else []
        return ["nsenter", f"--target={self._process.pid}", *user, "--net", "--", *argv]

    def run(self, *argv: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a program in the near namespace to its end."""
        return subprocess.run(
            self.command(*argv),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def python(self, code: str, *arguments: str, seconds: float = 120) -> Any:
        """What a piece of Python that runs in the near namespace prints, read as JSON. Raises LabError when it fails."""
        done = self.run(sys.executable, "-c", code, *arguments, seconds=seconds)
        if done.returncode != 0:
            raise LabError(done.stderr.strip() or f"exit status {done.returncode}")
        return json.loads(done.stdout)

    def _start(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None  # noqa: S101, PT018
        try:
            process.stdin.write(json.dumps(self._spec) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass
        line = process.stdout.readline()
        if not line:
            process.wait(timeout=_STOP_SECONDS)
            raise LabError((process.stderr.read().strip().splitlines() or ["the lab ended at once"])[-1])
        told = json.loads(line)
        if "problem" in told:
            raise LabError(told["problem"])
        ready: dict[str, Any] = told["ready"]
        return ready

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        if self._folder is not None:
            log = File(self._folder.name, "log")
            if log.exists():
                self.crossings = read_log(log)
            self._folder.cleanup()
            self._folder = None


@functools.cache
def unavailable() -> str | None:
    """Why the lab can't be made here, or None."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    for program in ("ip", "nsenter", "unshare"):
        if shutil.which(program) is None:
            return f"there is no program {program} (iproute2, util-linux)"
    try:
        with PacketLab([Path(0)], servers=False):
            return None
    except LabError as error:
        return f"no network namespaces or TUN devices here: {error}"


def _become_root() -> list[str]:
    """Whoever is not root is, in a user namespace of his own."""
    return [] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--"]
