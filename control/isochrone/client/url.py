"""The URLs that this client fetches."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from isochrone.checks import host_name
from isochrone.probing.prober import is_address


class BadUrl(ValueError):
    """It names nothing that can be fetched; one sentence."""


@dataclass(frozen=True, slots=True)
class Url:
    """An https URL."""

    host: str  # IPv6 addresses in brackets
    port: int
    path: str  # and query

    @property
    def authority(self) -> str:
        """As the request has it."""
        return self.host if self.port == 443 else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"https://{self.authority}{self.path}"

    @classmethod
    def parse(cls, text: str) -> Url:
        """Raises BadUrl."""
        try:
            parts = urlsplit(text)
            port, host = parts.port, parts.hostname or ""
        except ValueError as error:
            raise BadUrl(f"{text!r} is not a URL: {error}") from None
        if parts.scheme != "https":
            raise BadUrl(f"{text!r} does not begin with https://, and Alt-Svc is believed over TLS only")
        if not host or parts.username is not None or port == 0:
            raise BadUrl(f"{text!r} must have a host, and no user name or port 0")
        if not is_address(host):
            try:
                host = host_name(host.encode("idna").decode("ascii"))
            except ValueError:  # a UnicodeError is one
                raise BadUrl(f"{text!r}: {host!r} is not a host name") from None
        target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._") + (
            "?" + quote(parts.query, safe="/%:@!$&'()*+,;=~-._?") if parts.query else ""
        )
        return cls(f"[{host}]" if ":" in host else host, port or 443, target)
