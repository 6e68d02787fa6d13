"""What a value of the configuration must look like, and how what is wrong with it is told in one sentence each."""

from __future__ import annotations

import difflib
import ipaddress
import re
import tomllib
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError

if TYPE_CHECKING:
    from pathlib import Path

Problems = list[str]

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)\Z")
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
    if not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ValueError(f"{value!r}: {port!r} is not a port (1 to 65535)")
    return f"{host_name(host)}:{int(port)}"


def read_toml(path: Path, problems: Problems) -> dict[str, Any] | None:
    """The TOML document in `path`, or None and a problem."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        problems.append("there is no such file; name one with -c")
    except UnicodeDecodeError as error:
        problems.append(f"not UTF-8 text (byte {error.start})")
    except tomllib.TOMLDecodeError as error:
        problems.append(f"not valid TOML: {error}")
    except OSError as error:
        problems.append(f"can't be read: {error.strerror}")
    return None


def tell(error: ValidationError, model: type[BaseModel]) -> Problems:
    """Each validation error as one sentence with the key's place and, for an unknown key, the nearest known one."""
    problems = []
    for item in error.errors(include_url=False):
        where = _place(item["loc"])
        kind, value = item["type"], item.get("input")
        if kind == "extra_forbidden":
            known = _fields_at(model, item["loc"][:-1])
            near = difflib.get_close_matches(str(item["loc"][-1]), known, n=1, cutoff=0.5)
            problems.append(
                f"{where}: unknown key"
                + (f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(known))}")
            )
        elif kind == "missing":
            problems.append(f"{where}: missing; it must be given")
        elif kind == "value_error":
            problems.append(f"{where}: {item['ctx']['error']}" if where else str(item["ctx"]["error"]))
        else:
            shown = "" if isinstance(value, dict | list | tuple) else f" (it is {value!r})"
            problems.append(f"{where}: {_lower(item['msg'])}{shown}")
    return problems


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
