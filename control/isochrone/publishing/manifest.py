"""The manifest: the small KV value that names the live map, with its checksum. Pure.

The edge has a reader of its own (`isochrone_edge.snapshot`), since it must not depend on the control plane;
what both agree on is the JSON below, and keys that a reader does not know are left alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass
from typing import Any

from isochrone.mapping.sound import sound
from isochrone_edge.latency_map import LatencyMap, MapError

MANIFEST_KEY = "map/current"
MAP_PREFIX = "map/"

#: versions are part of a KV key, of file names and of header fields
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_RESERVED = MANIFEST_KEY.removeprefix(MAP_PREFIX)


class ManifestError(ValueError):
    """The value at `map/current` names no map; the message says why."""


class DamagedMapError(ValueError):
    """The value under a map's key is not what its manifest promises: cut short, altered, or another map."""

    def __init__(self, key: str, why: str) -> None:
        self.key = key
        self.why = why
        super().__init__(f"the map at {key} is damaged: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What `map/current` says."""

    version: str
    key: str  # where the map is: map/<version>
    sha256: str  # of the map's bytes, lower-case hex
    built_at: float  # Unix seconds
    origins: tuple[str, ...]  # ids, in the map's order
    cells: int
    canary: dict[str, Any] | None = None  # passed through as it is


def map_key(version: str) -> str:
    """The KV key of a map's version.

    Raises:
        ManifestError: the version can't be part of a key.
    """
    if not _VERSION.match(version) or version == _RESERVED:
        raise ManifestError(f"{version!r} is not a map version")
    return MAP_PREFIX + version


def describe(
    data: bytes, latency_map: LatencyMap | None = None, *, canary: dict[str, Any] | None = None
) -> Manifest:
    """The manifest for a map's bytes.

    Raises:
        MapError: the bytes are no latency map.
        ManifestError: the map's version can't be part of a key.
    """
    live = latency_map or LatencyMap(data)
    return Manifest(
        version=live.version,
        key=map_key(live.version),
        sha256=hashlib.sha256(data).hexdigest(),
        built_at=live.built_at,
        origins=tuple(str(origin["id"]) for origin in live.origins),
        cells=live.cells,
        canary=canary,
    )


def encode(manifest: Manifest) -> bytes:
    """The manifest as it is stored: compact JSON, keys in a fixed order."""
    document: dict[str, Any] = {
        "version": manifest.version,
        "key": manifest.key,
        "sha256": manifest.sha256,
        "built_at": manifest.built_at,
        "origins": list(manifest.origins),
        "cells": manifest.cells,
    }
    if manifest.canary is not None:
        document["canary"] = manifest.canary
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def parse(data: bytes) -> Manifest:
    """The manifest in `data`; keys that are not known are ignored.

    Raises:
        ManifestError: it is not JSON, or a key is missing or malformed.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):  # no UTF-8, no JSON, or brackets without end
        raise ManifestError(
            f"the manifest at {MANIFEST_KEY} is not JSON ({len(data)} bytes): cut short or altered"
        ) from None
    if not isinstance(document, dict):
        raise ManifestError(f"the manifest at {MANIFEST_KEY} is not a JSON object")
    origins, cells, canary = (
        _take(document, "origins", list),
        _take(document, "cells", int),
        document.get("canary"),
    )
    if not all(isinstance(origin, str) and origin.isprintable() for origin in origins):
        raise ManifestError("the manifest's origins are not all ids")
    if canary is not None and not isinstance(canary, dict):
        raise ManifestError("the manifest's canary is not a JSON object")
    manifest = Manifest(
        version=_take(document, "version", str),
        key=_take(document, "key", str),
        sha256=_take(document, "sha256", str),
        built_at=_seconds(_take(document, "built_at", int, float)),
        origins=tuple(origins),
        cells=cells,
        canary=canary,
    )
    if manifest.key != map_key(manifest.version):
        raise ManifestError(
            f"the manifest's key {manifest.key!r} is not that of its version {manifest.version!r}"
        )
    if not _SHA256.match(manifest.sha256):
        raise ManifestError("the manifest's sha256 is not 64 hexadecimal digits")
    return manifest


def verified(manifest: Manifest, data: bytes | None) -> LatencyMap:
    """The map that the manifest promises, if `data` is it.

    Raises:
        DamagedMapError: it is missing, cut short, altered or another map.
    """
    if data is None:
        raise DamagedMapError(manifest.key, "the key is missing")
    found = hashlib.sha256(data).hexdigest()
    if found != manifest.sha256:
        raise DamagedMapError(
            manifest.key,
            f"{len(data)} bytes with the SHA-256 {found[:12]}..., where the manifest promises {manifest.sha256[:12]}...",
        )
    try:
        latency_map = sound(data)
    except MapError as error:
        raise DamagedMapError(manifest.key, str(error)) from error
    if latency_map.version != manifest.version:
        raise DamagedMapError(manifest.key, f"it is version {latency_map.version}, not {manifest.version}")
    return latency_map


def _seconds(value: float) -> float:
    """A Unix time; JSON as Python reads it has NaN, infinities and integers that no float holds."""
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise ManifestError("the manifest's built_at is not a time")
    return seconds


def _take(document: dict[str, Any], key: str, *kinds: type) -> Any:
    value = document.get(key)
    if not isinstance(value, kinds) or isinstance(value, bool):
        wanted = "missing" if key not in document else f"not {' or '.join(kind.__name__ for kind in kinds)}"
        raise ManifestError(f"the manifest's {key} is {wanted}")
    return value
