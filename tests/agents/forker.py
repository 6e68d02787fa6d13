"""Starts `isochrone ...` again and again at the price of a fork: `python forker.py`.

One JSON line on standard input starts one process, {"argv": [...], "log": PATH, "env": {...}}; its id is the answer. The modules are
imported once, here; what runs in the child is the command as a user would run it, a process of its own.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def child(order):
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(order["env"])
    sys.argv = ["isochrone", *order["argv"]]
    from isochrone.cli import main

    main()


def run():
    import isochrone.cli.agent
    import isochrone.cli.run
    import isochrone.probing.tcp
    import isochrone.publishing.kv  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    print("ready", flush=True)
    while line := sys.stdin.readline():
        pid = os.fork()
        if pid == 0:
            try:
                child(json.loads(line))
            except SystemExit as end:
                os._exit(end.code if isinstance(end.code, int) else 1)
            except BaseException:  # noqa: BLE001  a child must never go on as the parent
                sys.excepthook(*sys.exc_info())
            os._exit(70)
        print(pid, flush=True)


if __name__ == "__main__":
    run()
