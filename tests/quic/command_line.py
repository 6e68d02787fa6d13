"""The command line as real processes."""

from __future__ import annotations

import asyncio
import sys


async def isochrone(*arguments, cwd=None):
    """(exit status, standard output, standard error)."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from isochrone.cli import main; main()", *map(str, arguments),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=cwd,
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()
