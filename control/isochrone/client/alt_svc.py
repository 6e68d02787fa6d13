"""A client's reading of Alt-Svc (RFC 7838 section 3).

Written apart from the edge's writer: a client that shared its code would share its mistakes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

DEFAULT_MAX_AGE = 86_400  # seconds, RFC 7838 section 3.1
LONGEST_AGE = 1 << 31  # seconds, what a larger number means (RFC 9111 section 1.2.2)

_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # RFC 9110 section 5.6.2
_QUOTED = r'"(?:[^"\\\x00-\x08\x0a-\x1f\x7f]|\\[\t\x20-\x7e\x80-\xff])*"'
_ALTERNATIVE = re.compile(rf"({_WORD})=({_QUOTED})")
_PARAMETER = re.compile(rf"[ \t]*;[ \t]*({_WORD})=({_WORD}|{_QUOTED})")
_COMMAS = re.compile(r"(?:[ \t]*,)+[ \t]*")  # empty elements are ignored, RFC 9110 section 5.6.1.2
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._~%-]*):([0-9]{1,5})")


class AltSvcError(ValueError):
    """A field value that RFC 7838 does not allow; a client ignores such a field."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One alternative service: where, and for how long (`max_age` in seconds)."""

    protocol: str  # ALPN id, an octet a character
    host: str  # empty: the origin's own host
    port: int
    max_age: int = DEFAULT_MAX_AGE
    persist: bool = False


def _unquote(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text


def parse_alt_svc(value: str) -> tuple[Alternative, ...]:
    """The alternatives in order of preference; none for `clear`, which stands alone and in lower case.

    Unknown parameters are ignored, as is a `persist` other than 1. Several fields are one, joined with commas.
    Raises `AltSvcError`: then the whole field is ignored.
    """
    text = value.strip(" \t")
    if text == "clear":
        return ()
    found = []
    leading = _COMMAS.match(text)
    at = leading.end() if leading else 0
    while True:
        head = _ALTERNATIVE.match(text, at)
        authority = _AUTHORITY.fullmatch(_unquote(head[2])) if head else None
        if head is None or authority is None or int(authority[2]) > 65_535:
            raise AltSvcError(f"not an alternative at character {at} of Alt-Svc {value!r}")
        at = head.end()
        parameters = {}
        while part := _PARAMETER.match(text, at):
            parameters[part[1].lower()] = _unquote(part[2])
            at = part.end()
        age = parameters.get("ma", str(DEFAULT_MAX_AGE))
        if not (age.isascii() and age.isdigit()):
            raise AltSvcError(f"ma={age!r} is not a number of seconds in Alt-Svc {value!r}")
        found.append(
            Alternative(
                protocol=unquote(head[1], "latin-1"),  # octets, percent-encoded
                host=authority[1],
                port=int(authority[2]),
                max_age=min(int(age.lstrip("0")[:11] or "0"), LONGEST_AGE),
                persist=parameters.get("persist") == "1",
            )
        )
        commas = _COMMAS.match(text, at)
        if commas is not None:
            at = commas.end()
        elif at < len(text):
            raise AltSvcError(f"unexpected {text[at]!r} at character {at} of Alt-Svc {value!r}")
        if at == len(text):
            return tuple(found)
