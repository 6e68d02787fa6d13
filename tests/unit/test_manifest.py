from __future__ import annotations

import json
from dataclasses import replace

import pytest

from isochrone.publishing.manifest import (
    DamagedMapError,
    ManifestError,
    describe,
    encode,
    map_key,
    parse,
    verified,
)
from isochrone_edge.latency_map import MapError
from isochrone_edge.latency_map_writer import Colour
from isochrone_edge.latency_map_writer import encode as encode_map

NOW = 1_790_000_000.0


def a_map(built_at: float = NOW) -> bytes:
    return encode_map(
        built_at=built_at,
        origins=[{"id": "fra", "host": "fra.example.test"}, {"id": "iad", "host": "iad.example.test"}],
        palette=[Colour(((0, 10.0, 5), (1, 90.0, 5)))],
        default=0,
        cells={"asn": {3320: 0, 7018: 0}},
    )


def test_a_manifest_survives_its_own_encoding():
    manifest = describe(a_map())
    assert manifest.key == f"map/{manifest.version}"
    assert manifest.origins == ("fra", "iad")
    assert manifest.cells == 3
    assert manifest.built_at == NOW
    assert parse(encode(manifest)) == manifest
    with_canary = replace(manifest, canary={"version": "x", "percent": 5})
    assert parse(encode(with_canary)) == with_canary
    assert "canary" not in json.loads(encode(manifest))


def test_the_edge_reads_the_same_names():
    document = json.loads(encode(describe(a_map())))
    assert set(document) == {"version", "key", "sha256", "built_at", "origins", "cells"}


def test_keys_of_a_newer_writer_are_ignored():
    document = json.loads(encode(describe(a_map()))) | {"later": [1]}
    assert parse(json.dumps(document).encode()) == describe(a_map())


@pytest.mark.parametrize("cut", [0, 1, 20, -1])
def test_a_cut_manifest_is_refused(cut):
    with pytest.raises(ManifestError, match="not JSON"):
        parse(encode(describe(a_map()))[:cut])


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("version", 5, "version is not str"),
        ("version", "a/b", "not a map version"),
        ("version", "current", "not a map version"),
        ("key", "map/other", "not that of its version"),
        ("sha256", "ABC", "64 hexadecimal"),
        ("built_at", "yesterday", "built_at"),
        ("built_at", True, "built_at"),
        ("origins", [1], "not all ids"),
        ("cells", 1.5, "cells"),
        ("canary", "x", "canary"),
        ("sha256", None, "sha256"),
    ],
)
def test_each_malformed_key_is_told(key, value, says):
    document = json.loads(encode(describe(a_map()))) | {key: value}
    with pytest.raises(ManifestError, match=says):
        parse(json.dumps(document).encode())


@pytest.mark.parametrize("data", [b"[]", b"3", b"null", b"\xff\xfe", b"{}"])
def test_what_is_no_manifest_at_all_is_refused(data):
    with pytest.raises(ManifestError):
        parse(data)


def test_a_map_is_taken_only_when_it_is_the_promised_one():
    data = a_map()
    manifest = describe(data)
    assert verified(manifest, data).version == manifest.version
    altered = bytearray(data)
    altered[len(data) // 2] ^= 1
    for wrong, says in (
        (None, "missing"),
        (b"", "0 bytes"),
        (data[:-7], "SHA-256"),
        (bytes(altered), "SHA-256"),
        (a_map(NOW + 60), "SHA-256"),
    ):
        with pytest.raises(DamagedMapError, match=says):
            verified(manifest, wrong)
    other = a_map(NOW + 60)
    with pytest.raises(DamagedMapError, match="not 2"):
        verified(replace(manifest, sha256=describe(other).sha256), other)
    cut = data[:-7]
    import hashlib

    with pytest.raises(DamagedMapError, match="cut short"):
        verified(replace(manifest, sha256=hashlib.sha256(cut).hexdigest()), cut)


def test_bytes_that_are_no_map_get_no_manifest():
    with pytest.raises(MapError):
        describe(b"ISOMAP")


@pytest.mark.parametrize("version", ["", "current", "../x", "a b", "x" * 129, "\n"])
def test_versions_that_could_be_another_key_are_refused(version):
    with pytest.raises(ManifestError):
        map_key(version)


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b'{"a":' * 100_000, b"1" * 5000, b"\xff", b'{"version": ' + b"1" * 5000]
)
def test_json_that_python_can_t_read_is_a_damaged_manifest(data):
    with pytest.raises(ManifestError, match="not JSON"):
        parse(data)


@pytest.mark.parametrize("built_at", ["NaN", "Infinity", "1" + "0" * 400])
def test_a_time_that_is_none(built_at):
    document = encode(describe(a_map())).replace(str(NOW).encode(), built_at.encode())
    with pytest.raises(ManifestError, match="built_at is not a time"):
        parse(document)
