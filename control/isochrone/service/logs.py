"""One line for each event on standard error: time, level, where, what."""

from __future__ import annotations

import logging
import sys
import time

from aiohttp import ClientError
from aiohttp.http_exceptions import HttpProcessingError

#: libraries that would tell every request or tick
_QUIET = ("apscheduler", "httpx", "cloudflare", "aiohttp.access", "quic", "asyncio")


def not_a_strangers_doing(record: logging.LogRecord) -> bool:
    """Whether a record tells of more than a request that was malformed or cut off: anybody could fill the log with these."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | ClientError | ConnectionError)


class LineFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678Z INFO publisher: ...`; a traceback is folded into its last place and its sentence."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802, ARG002  logging's name
        """Milliseconds, UTC."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f"{stamp}.{int(record.msecs):03d}Z"

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever the message holds."""
        where = record.name.rpartition(".")[2]
        text = " ".join(record.getMessage().split())
        if record.exc_info and record.exc_info[2]:
            trace = record.exc_info[2]
            while trace.tb_next:
                trace = trace.tb_next
            code = trace.tb_frame.f_code
            text += f" (at {code.co_filename.rpartition('/')[2]}:{trace.tb_lineno} in {code.co_name})"
        return f"{self.formatTime(record)} {record.levelname} {where}: {text}"


def set_up(level: int = logging.INFO) -> None:
    """Send everything to standard error, one line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("aiohttp.server").addFilter(not_a_strangers_doing)
    for name in ("apscheduler.scheduler", "apscheduler.executors"):
        logging.getLogger(name).setLevel(logging.ERROR)  # what is skipped or late is counted
