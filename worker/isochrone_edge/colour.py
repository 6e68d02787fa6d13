"""Request facts. Everything in `request.cf` may be missing or odd: what is not believable is unknown."""

from collections.abc import Callable

from .latency_map import Facts


def facts_of(
    asn: object = None,
    country: object = None,
    colo: object = None,
    continent: object = None,
    latitude: object = None,
    longitude: object = None,
) -> Facts:
    """Facts from raw `request.cf` values of any type. Latitude and longitude arrive as decimal strings."""
    return Facts(
        _asn(asn),
        _code(country),
        _code(colo, 3),
        _code(continent),
        _degrees(latitude),
        _degrees(longitude, 180.0),
    )


def _asn(value: object) -> int | None:
    return value if type(value) is int and 0 < value < 4294967296 else None


def _code(value: object, width: int = 2) -> str | None:
    if type(value) is str and len(value) == width and value.isascii() and value.isalnum():
        return value.upper()
    return None


def _degrees(value: object, limit: float = 90.0) -> float | None:
    if type(value) is not str and type(value) is not float and type(value) is not int:
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if -limit <= number <= limit else None


#: one fact of each kind, for those who want few
BELIEVED: dict[str, Callable[[object], object]] = {
    "asn": _asn,
    "country": _code,
    "colo": lambda value: _code(value, 3),
    "continent": _code,
    "latitude": _degrees,
    "longitude": lambda value: _degrees(value, 180.0),
}
