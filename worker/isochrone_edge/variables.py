"""The Worker's variables: what can be set in wrangler.toml, read into a form that requests use. Pure.

A value that can't be used is replaced by its default, and named in `problems`: a typing error must not take a site down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from . import shallow
from .hop import is_token
from .hosts import host_allowed
from .record import Record
from .steer import Origin, built_in_origins

T = TypeVar("T")

DEFAULTS = {
    "ORIGINS": "[]",  # the built-in order, JSON: [{"id": ..., "host": ...}, ...]
    "SITE": "",  # public hosts, with commas between; empty: any
    "MAP_REFRESH_SECONDS": "60",
    "MAP_REFRESH_FLOOR_SECONDS": "30",  # KV itself is no fresher; lowered at the local edge
    "COLD_MAP_WAIT_MS": "500",  # how long an isolate's first requests wait for the map; 0: not at all
    "BUDGET_MS": "2500",
    "TRY_MS": "2000",
    "MAX_TRIES": "4",
    "RETRY_STATUSES": "502,503,504",
    "KEEP_BODY_BYTES": "16384",  # a body up to this is kept, so that it can be sent once more
    "ALT_SVC": "on",  # on, off, or clear: the kill switch
    "BAND_MS": "0",
    "SESSION": "",  # cookie:NAME or header:NAME; empty: the client's address
    "CACHE_TTL_SECONDS": "0",
    "HEDGE": "off",
    "SLOW_MS": "2000",
    "LOG_SHARE": "0",
    "CROSSING": "on",  # off: without crossing.mjs, slower
    "ISOCHRONE_SECRET": "",  # opens /.isochrone/*; a secret, not a variable
}


class Limits(Record):
    """Seconds. The budget ends with the first byte of the answer: a body that has begun is never cut."""

    budget: float = 2.5
    each_try: float = 2.0
    tries: int = 4
    retry_statuses: frozenset[int] = frozenset()
    shortened: bool = False  # the client gave less than the budget


class Variables(Record):
    """What the variables say. Times in seconds."""

    origins: tuple[Origin, ...]
    site: frozenset[str]
    refresh: float
    cold_wait: float
    limits: Limits
    keep_body: int
    alt_svc: str
    band_ms: float
    session: tuple[str, str]  # ("cookie" | "header" | "", name)
    cache_ttl: int
    hedge: bool
    slow: float
    log_share: float
    crossing: bool
    secret: str
    problems: tuple[str, ...]


def read(get: Callable[[str], object]) -> Variables:
    """The variables, from what gives the value of one by its name; None: not set."""
    problems: list[str] = []

    def value(name: str, parse: Callable[[str], T]) -> T:
        text = get(name)
        if isinstance(text, str):
            try:
                return parse(text)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                problems.append(f"{name} is not usable, its default is in force: {error}")
        elif text is not None:
            problems.append(f"{name} is not usable, its default is in force: it is no string")
        return parse(DEFAULTS[name])

    floor = value("MAP_REFRESH_FLOOR_SECONDS", _floor)
    return Variables(
        origins=value("ORIGINS", lambda text: built_in_origins(shallow.loads(text))),
        site=value("SITE", lambda text: _hosts(text, problems)),
        refresh=value("MAP_REFRESH_SECONDS", lambda text: _at_least(floor, text)),
        cold_wait=value("COLD_MAP_WAIT_MS", _number) / 1000,
        limits=Limits(
            budget=value("BUDGET_MS", _positive) / 1000,
            each_try=value("TRY_MS", _positive) / 1000,
            tries=value("MAX_TRIES", lambda text: _whole(text, 1)),
            retry_statuses=value("RETRY_STATUSES", _statuses),
        ),
        keep_body=value("KEEP_BODY_BYTES", _whole),
        alt_svc=value("ALT_SVC", lambda text: _one_of(text, "on", "off", "clear")),
        band_ms=value("BAND_MS", _number),
        session=value("SESSION", _session),
        cache_ttl=value("CACHE_TTL_SECONDS", _whole),
        hedge=value("HEDGE", lambda text: _one_of(text, "on", "off")) == "on",
        slow=value("SLOW_MS", _number) / 1000,
        log_share=value("LOG_SHARE", _share),
        crossing=value("CROSSING", lambda text: _one_of(text, "on", "off")) == "on",
        secret=value("ISOCHRONE_SECRET", str.strip),
        problems=tuple(problems),
    )


def _number(text: str) -> float:
    number = float(text)
    if not 0 <= number < 1e9:
        raise ValueError(f"{text!r} is not between 0 and 1e9")
    return number


def _whole(text: str, least: float = 0) -> int:
    number = _at_least(least, text)
    if number != int(number):
        raise ValueError(f"{text!r} is no whole number")
    return int(number)


def _positive(text: str) -> float:
    number = _number(text)
    if number < 1:
        raise ValueError(f"{text!r} is below 1")
    return number


def _share(text: str) -> float:
    number = _number(text)
    if number > 1:
        raise ValueError(f"{text!r} is above 1")
    return number


def _floor(text: str) -> float:
    number, usual = _number(text), float(DEFAULTS["MAP_REFRESH_SECONDS"])
    if number > usual:  # or the default of the interval itself would be refused
        raise ValueError(f"{text!r} is above {usual:g}")
    return number


def _at_least(floor: float, text: str) -> float:
    number = _number(text)
    if number < floor:
        raise ValueError(f"{text!r} is below {floor:g}")
    return number


def _one_of(text: str, *allowed: str) -> str:
    if text not in allowed:
        raise ValueError(f"{text!r} is none of {', '.join(allowed)}")
    return text


def _statuses(text: str) -> frozenset[int]:
    numbers = frozenset(int(part) for part in text.split(",") if part.strip())
    if any(not 400 <= number <= 599 for number in numbers):
        raise ValueError("only 400 to 599 can count as failures")
    return numbers


def _hosts(text: str, problems: list[str]) -> frozenset[str]:
    """Those that are hosts: one that is none must not open the edge to any. A usual port is none of its own."""
    named = [part.strip().lower() for part in text.split(",") if part.strip()]
    hosts = {host for host in named if host_allowed(host, frozenset())}
    wrong = ", ".join(repr(host) for host in named if host not in hosts)
    if wrong and not hosts:
        raise ValueError(f"{wrong}: no host")
    if wrong:
        problems.append(f"SITE holds what is no host: {wrong}; the others are in force")
    return frozenset(host.removesuffix(":443").removesuffix(":80") for host in hosts)


def _session(text: str) -> tuple[str, str]:
    if not text:
        return "", ""
    kind, _, name = text.partition(":")
    name = name.strip()
    if kind not in ("cookie", "header") or not is_token(name):
        raise ValueError(f"{text!r} is neither cookie:NAME nor header:NAME")
    return kind, name.lower() if kind == "header" else name
