"""Knot DNS on a loopback port, with a configuration made for the test."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import dns.exception
import dns.message
import dns.query

from isochrone.nameserver import NameServer
from ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

KNOTD = shutil.which("knotd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
_CONFIG = """\
server:
    rundir: "{folder}"
    listen: 127.0.0.1@{port}
    udp-workers: 1
    tcp-workers: 1
    background-workers: 1
{server}
log:
  - target: stderr
    any: warning
database:
    storage: "{folder}"
{modules}
policy:
  - id: short
    algorithm: ecdsap256sha256
    single-type-signing: on
template:
  - id: default
    storage: "{folder}"
    semantic-checks: off
    zonefile-sync: -1
zone:
{zones}
"""


class Knot:
    def __init__(self, folder: Path, port: int, process: subprocess.Popen):
        self.folder, self.port, self.process = folder, port, process

    def at(self) -> NameServer:
        return NameServer("127.0.0.1", self.port, authoritative=True, plain=True)

    @contextlib.contextmanager
    def paused(self):
        """A server that hangs: it keeps its sockets and answers nothing."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def knot(
    folder: Path,
    zones: dict[str, str | None],
    *,
    options: dict[str, str] | None = None,
    modules="",
    server="",
):
    """Serves `zones` (name -> text; None: configured, but without a file). `options`: zone -> more lines of its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for number, (name, text) in enumerate(zones.items()):
        file = folder / f"{number}.zone"
        if text is not None:
            file.write_text(text)
        entries.append(f'  - domain: {name}\n    file: "{file}"\n' + (options or {}).get(name, ""))
    port = free_port()
    config = folder / "knot.conf"
    config.write_text(
        _CONFIG.format(folder=folder, port=port, zones="".join(entries), modules=modules, server=server)
    )
    log = folder / "knot.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [KNOTD, "-c", str(config)], stdout=sink, stderr=sink, start_new_session=True
        )
    try:
        first = next(name for name, text in zones.items() if text is not None)
        query = dns.message.make_query(first, "SOA")
        for _ in range(200):
            if process.poll() is not None:
                raise RuntimeError(f"knotd ended: {log.read_text()[-2000:]}")
            with contextlib.suppress(OSError, dns.exception.DNSException):
                if dns.query.udp(query, "127.0.0.1", port=port, timeout=0.2).answer:
                    break
            time.sleep(0.05)
        else:
            raise RuntimeError(f"knotd does not answer: {log.read_text()[-2000:]}")
        yield Knot(folder, port, process)
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
