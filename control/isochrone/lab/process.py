"""Child processes that speak JSON lines and end with their parent.

A child answers each line on its standard input with one line on its standard output, in order; a line with the key
`event` is news, not an answer. It ends when its standard input closes: the kernel closes that pipe however the parent
ends, so a parent killed by SIGKILL leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STOP_S = 3.0  # from closing standard input to SIGKILL
ANSWER_S = 20.0
LINE_LIMIT = 1 << 20  # bytes
TAIL = 2000  # characters of a log shown in an error

Message = dict[str, Any]


class LabProcessError(Exception):
    """A child did not start, answered with an error, or is gone; `name` says which."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name = name
        self.problem = problem


class LineProcess:
    """One child, a Python module run by this interpreter; its standard error goes to `log`."""

    def __init__(
        self, name: str, module: str, *, log: Path, on_event: Callable[[Message], None] | None = None
    ) -> None:
        self.name = name
        self._module = module
        self._log = log
        self._on_event = on_event
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waiting: deque[asyncio.Future[Message]] = deque()

    @property
    def pid(self) -> int:
        """Its process id; raises `LabProcessError` before the start."""
        return self._running().pid

    @property
    def alive(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Starts the process; returns at once. Its first answer shows that it works."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self._module,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=LINE_LIMIT,
                start_new_session=True,  # Ctrl-C is the parent's to handle
            )
        self._reader = asyncio.create_task(self._read(self._process), name=f"lab {self.name}")

    async def ask(self, command: Message, *, timeout: float = ANSWER_S) -> Message:
        """Sends a command and returns the answer; raises `LabProcessError` for an error or silence (s)."""
        process = self._running()
        if process.stdin is None or not self.alive:
            raise LabProcessError(self.name, f"has ended{self._last_words()}")
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            process.stdin.write(json.dumps(command).encode() + b"\n")
            await process.stdin.drain()
            answer = await asyncio.wait_for(asyncio.shield(future), timeout)
        except TimeoutError as error:
            raise LabProcessError(self.name, f"gave no answer within {timeout:g} s") from error
        except (ConnectionError, EOFError) as error:
            raise LabProcessError(self.name, f"has ended{self._last_words()}") from error
        if not answer.get("ok"):
            raise LabProcessError(self.name, str(answer.get("error", answer)))
        return answer

    async def close(self) -> None:
        """Ends the process: standard input closes, SIGKILL after three seconds."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()
        if self._reader is not None:
            await self._reader

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise LabProcessError(self.name, "has not been started")
        return self._process

    def _last_words(self) -> str:
        tail = self._log.read_text(errors="replace")[-TAIL:].strip() if self._log.exists() else ""
        return f"; it said:\n{tail}" if tail else ""

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        if process.stdout is None:
            return
        async for line in process.stdout:
            try:
                message: Message = json.loads(line)
            except ValueError:  # cut off by a SIGKILL
                continue
            if "event" in message:
                if self._on_event is not None:
                    self._on_event(message)
            elif self._waiting:
                future = self._waiting.popleft()
                if not future.done():
                    future.set_result(message)
        for future in self._waiting:
            if not future.done():
                future.set_exception(EOFError())
                future.exception()  # marked as seen: nobody may be waiting any more
        self._waiting.clear()
