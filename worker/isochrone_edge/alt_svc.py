"""Alt-Svc field values (RFC 7838 section 3)."""

CLEAR = "clear"


def field_value(authority: str, max_age: int) -> str:
    """The value that pins a client to an HTTP/3 endpoint on `authority` (host:port) for `max_age` seconds.

    `persist=1`: a change of the client's network does not drop it. Host and port stand in the quoted authority:
    RFC 7838 knows no other parameters. Raises ValueError for what could not be quoted safely or is no authority.
    """
    host, colon, port = authority.rpartition(":")
    if not colon or not port.isdecimal() or not port.isascii() or not 0 < int(port) < 65536:
        raise ValueError(f"{authority!r} is not host:port")
    if not host or not all(c.isascii() and (c.isalnum() or c in "-._") for c in host):
        raise ValueError(f"{host!r} is not a host name")
    if max_age < 0:
        raise ValueError(f"max-age {max_age} is negative")
    return f'h3="{authority}"; ma={int(max_age)}; persist=1'
