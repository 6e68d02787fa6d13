"""What a client remembers of Alt-Svc (RFC 7838 section 2.2), in the format of curl's file, so that both can share one. Pure.

A line, times in UTC: `h2 www.example.com 443 h3 eu.example.com 443 "20261130 17:36:38" 1 0`: by which protocol the origin
told it, the origin's host and port; the alternative's protocol, host and port; when it expires, `persist`, and a priority
that curl keeps at 0. Lines that are none of these are comments, or are kept as they are and tell of themselves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from isochrone.client.alt_svc import AltSvcError, parse_alt_svc

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

HEAD = """\
# Your alt-svc cache. https://curl.se/docs/alt-svc.html
# Shared by curl and isochrone. Edit at your own risk.
"""
_TIME = "%Y%m%d %H:%M:%S"
_LATEST = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp())
#: curl's names of protocols, and their ALPN ids; it knows no others
_ALPN = {"h1": "http/1.1", "h2": "h2", "h3": "h3"}
_CURL = {alpn: name for name, alpn in _ALPN.items()}
_LINE = re.compile(
    r"[ \t]*(h1|h2|h3|http/1\.1) ([!-~]{1,512}) ([0-9]{1,5}) (h1|h2|h3|http/1\.1) ([!-~]{1,512}) ([0-9]{1,5}) "
    r'"([0-9]{8} [0-9]{2}:[0-9]{2}:[0-9]{2})" ([01]) ([0-9]{1,10})[ \t]*'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One alternative of one origin. Hosts in lower case without a last dot; IPv6 addresses in brackets."""

    told_by: str  # ALPN id of the answer that told it
    host: str  # the origin's
    port: int
    protocol: str  # ALPN id of the alternative
    alt_host: str
    alt_port: int
    expires: int  # Unix time
    persist: bool = False
    priority: int = 0

    @property
    def authority(self) -> str:
        """The alternative's host:port, as Alt-Used has it (RFC 7838 section 5)."""
        return f"{self.alt_host}:{self.alt_port}"

    def line(self) -> str:
        """As it stands in the file."""
        expires = datetime.fromtimestamp(self.expires, UTC)
        return (
            f"{_CURL[self.told_by]} {self.host} {self.port} {_CURL[self.protocol]} {self.alt_host} {self.alt_port} "
            f'"{expires.year:04}{expires:%m%d %H:%M:%S}" {int(self.persist)} {self.priority}'
        )


class Learnt(StrEnum):
    """What an Alt-Svc field did to the cache."""

    NOTHING = "nothing"  # there was none
    LEARNT = "learnt"  # it replaced what was known
    CLEARED = "cleared"
    IGNORED = "ignored"  # it is malformed, or names no protocol that is known


@dataclass(slots=True)
class AltSvcCache:
    """The lines of a file, entries among them. `problems` has a sentence for each line that could not be read."""

    lines: list[Entry | str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The cache in `text`. Never raises: a bad line stays as it is."""
        cache = cls()
        for number, line in enumerate(text.split("\n"), 1):
            bare = line.removesuffix("\r")
            if not bare.strip() or bare.lstrip().startswith("#"):
                cache.lines.append(line)
                continue
            entry = _entry(bare)
            if entry is None:
                cache.problems.append(
                    f"line {number} is no entry of an Alt-Svc cache; it is left as it is: {bare[:80]!r}"
                )
            cache.lines.append(line if entry is None else entry)
        if cache.lines and cache.lines[-1] == "":
            cache.lines.pop()  # what follows the last line's end
        return cache

    def text(self) -> str:
        """The file's content: comments, bad lines and priorities as they were read."""
        lines = [line.line() if isinstance(line, Entry) else line for line in self.lines]
        return "".join(f"{line}\n" for line in lines)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries in order."""
        return tuple(line for line in self.lines if isinstance(line, Entry))

    def find(
        self, host: str, port: int, *, now: float, protocols: Collection[str] = ("h3",)
    ) -> tuple[Entry, ...]:
        """The fresh alternatives of an origin that speak one of `protocols`, in the order of preference."""
        key = (normal(host), port)
        return tuple(
            e for e in self.entries if (e.host, e.port) == key and e.expires > now and e.protocol in protocols
        )

    def learn(
        self, host: str, port: int, value: str | None, *, told_by: str, now: float, age: int = 0
    ) -> Learnt:
        """Take in the Alt-Svc of an authenticated answer: it replaces all that was known of the origin.

        `age` is the answer's Age in seconds, which counts against `ma` (RFC 7838 section 3.1). An alternative whose time
        is over at once (`ma=0`) is not kept; one that curl's format has no name for is passed over, as curl does.
        """
        if value is None:
            return Learnt.NOTHING
        try:
            alternatives = parse_alt_svc(value)
        except AltSvcError:
            return Learnt.IGNORED
        usable = [a for a in alternatives if a.protocol in _ALPN.values() and a.port]
        if alternatives and not usable:
            return Learnt.IGNORED
        host = normal(host)
        self.clear(host, port)
        if not self.lines:
            self.lines += HEAD.splitlines()
        for a in usable:
            expires = min(int(now) + a.max_age - age, _LATEST)
            if expires > now:
                self.lines.append(
                    Entry(
                        told_by=told_by, host=host, port=port, protocol=a.protocol,
                        alt_host=normal(a.host) or host, alt_port=a.port, expires=expires, persist=a.persist,
                    )
                )  # fmt: skip
        return Learnt.LEARNT if alternatives else Learnt.CLEARED

    def clear(self, host: str, port: int) -> None:
        """Forget all alternatives of an origin."""
        key = (normal(host), port)
        self._keep(lambda entry: (entry.host, entry.port) != key)

    def forget(self, entry: Entry) -> None:
        """Forget one that failed (RFC 7838 section 2.4), whoever told it."""
        key = _place(entry)
        self._keep(lambda other: _place(other) != key)

    def network_changed(self) -> None:
        """Forget what does not persist (RFC 7838 section 3.1)."""
        self._keep(lambda entry: entry.persist)

    def prune(self, now: float) -> None:
        """Forget what has expired."""
        self._keep(lambda entry: entry.expires > now)

    def _keep(self, wanted: Callable[[Entry], bool]) -> None:
        self.lines = [line for line in self.lines if not isinstance(line, Entry) or wanted(line)]


def normal(host: str) -> str:
    """One spelling of a host name."""
    return host.lower().removesuffix(".")


def _place(entry: Entry) -> tuple[str, int, str, str, int]:
    return entry.host, entry.port, entry.protocol, entry.alt_host, entry.alt_port


def _entry(line: str) -> Entry | None:
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    told_by, host, port, protocol, alt_host, alt_port, expires, persist, priority = match.groups()
    if not (0 < int(port) < 65_536 and 0 < int(alt_port) < 65_536):
        return None
    try:
        time = datetime.strptime(expires, _TIME).replace(tzinfo=UTC)
    except ValueError:
        return None
    return Entry(
        told_by=_ALPN.get(told_by, told_by), host=normal(host), port=int(port), protocol=_ALPN.get(protocol, protocol),
        alt_host=normal(alt_host), alt_port=int(alt_port), expires=int(time.timestamp()),
        persist=persist == "1", priority=int(priority),
    )  # fmt: skip
