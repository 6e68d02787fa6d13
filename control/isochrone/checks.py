"""What a value of the configuration must look like, and how what is wrong with it is told in one sentence each."""

from __future__ import annotations

import difflib
import ipaddress
import re
import tomllib
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic_core import ErrorDetails

Problems = list[str]
LARGEST_TEXT = (
    64 << 20
)  # bytes of a file that people write: what is larger, or has no end, is another kind of file

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)\Z")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}\Z")
_PATH = re.compile(r"/[!-\"$-~]*\Z")
_VISIBLE = re.compile(r"[!-~]+\Z")
_REGION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}\Z")


def region_id(value: str) -> str:
    """An origin's id travels in header fields, metrics and file names: letters, digits and `._:-`."""
    if not _REGION.match(value):
        raise ValueError(
            f"{value!r} is not an id: use 1 to 64 letters, digits and ._:- that begin with a letter or digit"
        )
    return value


def ip_address(value: str) -> str:
    """An IPv4 or IPv6 address."""
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise ValueError(f"{value!r} is not an IP address") from None


def host_name(value: str) -> str:
    """A DNS host name. A bare IP is refused: a Worker's fetch to one fails with error 1003."""
    try:
        ipaddress.ip_address(value.strip("[]"))
    except ValueError:
        pass
    else:
        raise ValueError(
            f"{value!r} is a bare IP address, which the edge can't fetch (error 1003): give a host name"
        )
    name = value.lower().removesuffix(".")
    if len(name) > 253 or not all(_LABEL.match(label) for label in name.split(".")):
        raise ValueError(f"{value!r} is not a host name")
    return name


def authority(value: str) -> str:
    """A host, or host:port."""
    host, colon, port = value.rpartition(":")
    if not colon or (":" in host and not value.endswith("]")):
        return host_name(value)
    if not is_port(port):
        raise ValueError(f"{value!r}: {port!r} is not a port (1 to 65535)")
    return f"{host_name(host)}:{int(port)}"


def is_port(text: str, low: int = 1) -> bool:
    """Whether this is a port's number: ASCII digits only, for other digits travel no further than Python."""
    return text.isascii() and text.isdigit() and len(text) <= 5 and low <= int(text) <= 65535


def header_name(value: str) -> str:
    """The name of an HTTP field: a token of RFC 9110."""
    if not _TOKEN.match(value):
        raise ValueError(f"{value!r} is not the name of an HTTP field: use letters, digits and -")
    return value


def request_path(value: str) -> str:
    """The path of an HTTP request, as it travels."""
    if not _PATH.match(value):
        raise ValueError(
            f"{value!r} is not a path: it must begin with / and have visible ASCII characters only, no space and no #"
        )
    return value


def http_url(value: str) -> str:
    """An http or https URL with a host, and at most a port and a path."""
    try:
        parts = urlsplit(value)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise ValueError(f"{value!r} is not a URL with a valid host and port (1 to 65535)") from None
    if parts.scheme not in {"http", "https"} or not _VISIBLE.match(value):
        raise ValueError(f"{value!r} is not a URL that begins with https:// or http://, without spaces")
    if not host:
        raise ValueError(f"{value!r} has no host")
    if not _is_host(host):
        raise ValueError(f"{value!r}: {host!r} is not a host name and not an IP address")
    if port == 0 or parts.netloc.endswith(":"):
        raise ValueError(f"{value!r} has no valid port (1 to 65535)")
    if "@" in parts.netloc or "?" in value or "#" in value:
        raise ValueError(f"{value!r}: give scheme, host, port and path only")
    return value


def listen_address(value: str) -> str:
    """ADDRESS:PORT to listen on; port 0: any."""
    host, _, port = value.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not is_port(port, 0) or (":" in host and bare == host) or not _is_host(bare):
        raise ValueError(f"{value!r} is not ADDRESS:PORT")
    return value


def same_authority(value: str) -> str:
    """One spelling for all that mean the same host and port."""
    host, colon, port = value.strip().lower().rpartition(":")
    if not colon or not is_port(port):
        host, port = value.strip().lower(), "443"
    return f"{host.removesuffix('.')}:{int(port)}"


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        try:
            return bool(host_name(text))
        except ValueError:
            return False
    return True


def read_toml(path: Path, problems: Problems) -> dict[str, Any] | None:
    """The TOML document in `path`, or None and a problem."""
    text = read_text(path, "-c", problems)
    return None if text is None else parse_toml(text, problems)


def read_text(path: Path, option: str, problems: Problems) -> str | None:
    """The text in `path`, which the user named with `option`, or None and a problem."""
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_TEXT + 1)
        if len(raw) > LARGEST_TEXT:
            problems.append(f"can't be read: it is larger than {LARGEST_TEXT >> 20} MiB")
            return None
        return raw.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        problems.append(f"there is no such file; name one with {option}")
    except UnicodeDecodeError as error:
        problems.append(f"not UTF-8 text (byte {error.start})")
    except OSError as error:
        problems.append(f"can't be read: {error.strerror}")
    except ValueError:
        problems.append("can't be read: its name has a null byte")
    return None


def parse_toml(text: str, problems: Problems) -> dict[str, Any] | None:
    """The TOML document, or None and a problem."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problems.append(f"not valid TOML: {error}")
    except ValueError:  # Python reads no integer of thousands of digits
        problems.append("not valid TOML: a number has too many digits")
    except RecursionError:
        problems.append("not valid TOML: arrays or tables are nested too deeply")
    return None


def tell(error: ValidationError, model: type[BaseModel]) -> Problems:
    """Each validation error as one sentence with the key's place and, for an unknown key, the nearest known one."""
    problems = []
    items = error.errors(include_url=False)
    for item in items:
        if item["type"] == "too_short" and any(
            len(other["loc"]) > len(item["loc"]) and other["loc"][: len(item["loc"])] == item["loc"]
            for other in items
        ):
            continue  # bad entries were not counted, and are told themselves
        where = _place(item["loc"])
        kind, value = item["type"], item.get("input")
        if kind == "unexpected_keyword_argument":  # a table that stands for a DNS server
            problems.append(f"{where}: unknown key")
        elif kind == "extra_forbidden":
            known = _fields_at(model, item["loc"][:-1])
            near = difflib.get_close_matches(str(item["loc"][-1]), known, n=1, cutoff=0.5)
            problems.append(
                f"{where}: unknown key"
                + (f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(known))}")
            )
        elif kind in {"missing", "missing_argument"}:
            problems.append(f"{where}: missing; it must be given")
        elif kind == "value_error":
            problems.append(f"{where}: {item['ctx']['error']}" if where else str(item["ctx"]["error"]))
        else:
            shown = (
                "" if isinstance(value, dict | list | tuple) or value == "" else f" (it is {_shown(value)})"
            )
            problems.append(f"{where}: {_sentence(item)}{shown}")
    return problems


_SENTENCES = {
    "too_short": "needs at least one",
    "too_long": "takes at most {max_length}",
    "string_too_short": "is empty",
    "string_too_long": "takes at most {max_length} characters",
    "string_type": "must be text in quotes",
    "string_unicode": "must be text in quotes",
    "path_type": "must be a path in quotes",
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
    "dict_type": "must be a table",
    "dataclass_type": "must be text in quotes or a table",
    "tuple_type": "must be a list in brackets",
    "list_type": "must be a list in brackets",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of fewer digits",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be {ge:g} or above",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be {le:g} or below",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
}
_PATTERNS = {
    "country": "must be a two-letter country code in capitals (ISO 3166)",
    "colo": "must be a three-letter airport code in capitals (IATA)",
    "continent": "must be one of AF, AN, AS, EU, NA, OC and SA",
}


def _sentence(item: ErrorDetails) -> str:
    """What is wrong, in words of the configuration; the library's own only for what can't be foreseen."""
    if item["type"] == "string_pattern_mismatch":
        return _PATTERNS.get(str(item["loc"][-1]), "has characters that it can't have")
    words = _SENTENCES.get(item["type"])
    return words.format(**item.get("ctx", {})) if words else _lower(item["msg"])


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits, from hexadecimal
        return "very large"
    return text if len(text) <= 80 else text[:77] + "..."


def _place(loc: tuple[int | str, ...]) -> str:
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _fields_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """The names that the model knows at a place."""
    current: Any = model
    for part in loc:
        if isinstance(part, int):
            continue
        annotation = current.model_fields[part].annotation
        choices = [annotation, *get_args(annotation)]
        current = next(c for c in choices if isinstance(c, type) and issubclass(c, BaseModel))
    return list(current.model_fields)
