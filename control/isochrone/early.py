"""Ctrl-C while the command's modules are still being imported: the end without a word, status 130.

Importing this module begins it; `over` ends it. A command's `main` takes care of all that comes later.
"""

from __future__ import annotations

import signal
import sys
from typing import NoReturn


def _end(number: int, frame: object) -> NoReturn:  # noqa: ARG001  signal's signature
    sys.exit(130)


def begin() -> None:
    """From here on; nothing happens where somebody else handles Ctrl-C, or outside the main thread, which gets the signals."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        try:
            signal.signal(signal.SIGINT, _end)
        except ValueError:
            return


def over() -> None:
    """Python's own way again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


begin()
