"""`python -m isochrone.lab.tied_main PARENT ARGUMENT...`: the isochrone command, ended by the kernel when its parent ends (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent and become `isochrone ARGUMENT...`; the tie survives exec (prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        return  # it ended before the tie was made
    os.execv(sys.executable, [sys.executable, "-m", "isochrone.cli", *sys.argv[2:]])  # noqa: S606  no shell wanted


if __name__ == "__main__":
    main()
