"""Request facts. Everything in `request.cf` may be missing or odd: what is not believable is unknown."""

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
        asn if type(asn) is int and 0 < asn < 4294967296 else None,
        _code(country, 2),
        _code(colo, 3),
        _code(continent, 2),
        _degrees(latitude, 90.0),
        _degrees(longitude, 180.0),
    )


def _code(value: object, width: int) -> str | None:
    if type(value) is str and len(value) == width and value.isascii() and value.isalnum():
        return value.upper()
    return None


def _degrees(value: object, limit: float) -> float | None:
    if type(value) is not str and type(value) is not float and type(value) is not int:
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if -limit <= number <= limit else None
