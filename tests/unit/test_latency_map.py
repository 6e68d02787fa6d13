"""The format: what is written is what is read and found, and damage is refused."""

import json
import math
import random
import re
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.mapping.lookup import Lookup
from isochrone.mapping.sound import sound
from isochrone.mapping.unpack import unpack
from isochrone_edge.latency_map import (
    COUNTRY_SHIFT,
    EVERYWHERE,
    HELD,
    INFERRED,
    KINDS,
    MAJOR,
    NOWHERE,
    OVERRIDE,
    PREFIX,
    RTT_MAX_MS,
    SECTION,
    Facts,
    LatencyMap,
    MapError,
    evidence_code,
    evidence_count,
    grid_key,
    home_of,
    letters,
    unletters,
)
from isochrone_edge.latency_map_writer import Colour, encode

DOCUMENT = Path(__file__).parents[2] / "docs" / "MAP_FORMAT.md"
ORIGINS = [{"id": name, "host": f"{name}.example.com"} for name in ("fra", "iad", "sin")]
PALETTE = [
    Colour(((0, 10.0, 40), (1, 95.5, 200), (2, 160.0, 3))),
    Colour(((1, 8.02, 0), (0, 90.0, 12)), INFERRED),
    Colour(((2, 4.0, 5),), HELD),
    Colour(((2, 5.0, 5), (1, 5.0, 5)), OVERRIDE | INFERRED),
]
CODES = ("DE", "US", "T1", "ZZ")

asns = st.one_of(
    st.integers(0, 2**32 - 1),
    st.integers(60_000, 70_000),
    st.sampled_from([0, 255, 256, 65535, 65536, 2**32 - 1]),
)
codes = st.sampled_from(CODES)
colos = st.sampled_from(("FRA", "IAD", "SIN", "00A", "ZZZ"))
continents = st.sampled_from(("EU", "NA"))
degrees = st.sampled_from((0.5, 1.0, 2.0, 2.5, 10.0, 90.0))
clients = st.builds(
    Facts,
    st.none() | asns,
    st.none() | codes,
    st.none() | colos,
    st.none() | continents,
    st.none() | st.floats(-90, 90),
    st.none() | st.floats(-180, 180),
)


def small(**changes):
    arguments = {
        "built_at": 1_800_000_000,
        "origins": ORIGINS,
        "palette": PALETTE,
        "default": 0,
        "cells": {
            "asn_country": {3320 << 16 | letters("US"): 1},
            "asn": {701: 1, 3320: 0, 400_000: 2},
            "colo": {letters("FRA"): 3},
            "grid": {grid_key(50, 8, 2): 2},
            "country": {letters("US"): 1, letters("DE"): 0},
            "continent": {letters("EU"): 2},
        },
        "grid_step": 2.0,
    }
    return encode(**{**arguments, **changes})


@st.composite
def worlds(draw):
    """A precedence, a grid, and cells as a dict by the facts themselves."""
    colour = st.integers(0, len(PALETTE) - 1)
    step = draw(degrees)
    places = st.tuples(st.floats(-90, 90), st.floats(-180, 180)).map(lambda place: grid_key(*place, step))
    keys = {
        "asn_country": st.tuples(asns, codes),
        "asn": asns,
        "country_grid": st.tuples(codes, places),
        "grid": places,
        "colo": colos,
        "country": codes,
        "continent": continents,
    }
    cells = {kind: draw(st.dictionaries(key, colour, max_size=40)) for kind, key in keys.items()}
    return step, tuple(draw(st.permutations(list(KINDS)))), cells, draw(colour)


def naive(world, facts):
    step, precedence, cells, default = world
    place = None
    if facts.latitude is not None and facts.longitude is not None:
        place = grid_key(facts.latitude, facts.longitude, step)
    keys = {
        "asn_country": None if None in {facts.asn, facts.country} else (facts.asn, facts.country),
        "asn": facts.asn,
        "country_grid": None if None in {facts.country, place} else (facts.country, place),
        "grid": place,
        "colo": facts.colo,
        "country": facts.country,
        "continent": facts.continent,
    }
    for kind in precedence:
        if keys[kind] in cells[kind]:
            return kind, cells[kind][keys[kind]]
    return "default", default


def packed(world, homes=None):
    step, precedence, cells, default = world
    number = {
        "asn_country": lambda key: key[0] << 16 | letters(key[1]),
        "country_grid": lambda key: letters(key[0]) << COUNTRY_SHIFT | key[1],
        "colo": letters,
        "country": letters,
        "continent": letters,
    }
    tables = {
        kind: {number.get(kind, int)(key): c for key, c in table.items()} for kind, table in cells.items()
    }
    return tables, encode(
        built_at=1.8e9,
        origins=ORIGINS,
        palette=PALETTE,
        default=default,
        cells=tables,
        grid_step=step,
        precedence=precedence,
        homes=homes,
    )


@settings(max_examples=150, deadline=None)
@given(worlds(), st.lists(clients, max_size=20), st.data())
def test_finds_what_a_dict_would(world, facts, data):
    tables, encoded = packed(world)
    live = LatencyMap(encoded)
    known = list(world[2]["asn_country"]) + [(asn, None) for asn in world[2]["asn"]]
    if known:
        asn, country = data.draw(st.sampled_from(known))
        facts = [
            *facts,
            Facts(asn, country),
            Facts(asn ^ 1, country),
            Facts(asn, "US", "FRA", "EU", 1.0, 2.0),
        ]
    for client in facts:
        assert live.find(client) == naive(world, client)
    for kind, table in tables.items():
        assert live.items(kind) == sorted(table.items())
    assert live.items("default") == [(0, world[3])]
    assert live.cells == 1 + sum(map(len, tables.values()))


def test_large_tables_find_every_key_and_no_other():
    rng = random.Random(1)
    asn = {rng.randrange(2**32): rng.randrange(4) for _ in range(3000)} | {
        n: n % 4 for n in range(2000, 4000)
    }
    pairs = {rng.randrange(400_000) << 16 | letters(rng.choice(CODES)): rng.randrange(4) for _ in range(3000)}
    grid = {key: key % 4 for key in rng.sample(range(16_200), 5000)}
    live = LatencyMap(small(cells={"asn": asn, "asn_country": pairs, "grid": grid}))
    for number in rng.sample(sorted(asn), 1500) + [rng.randrange(2**32) for _ in range(500)]:
        assert live.find(Facts(number)) == (("asn", asn[number]) if number in asn else ("default", 0))
    for key, colour in pairs.items():
        assert live.find(Facts(key >> 16, unletters(key & 0xFFFF, 2))) == ("asn_country", colour)
    for latitude in range(-90, 91, 3):
        key = grid_key(latitude, 77.7, 2)
        assert live.find(Facts(latitude=latitude, longitude=77.7)) == (
            ("grid", grid[key]) if key in grid else ("default", 0)
        )


def test_candidates_flags_and_reasons():
    live = LatencyMap(small())
    assert live.candidates(0) == [("fra", 10.0, 40), ("iad", 95.5, 198), ("sin", 160.0, 3)]
    assert live.candidates(1) == [("iad", 8.02, 0), ("fra", 90.0, 12)]
    assert [live.order(colour) for colour in range(4)] == [[0, 1, 2], [1, 0], [2], [2, 1]]
    assert [live.reason("asn", colour) for colour in range(4)] == [
        "asn:measured",
        "asn:inferred",
        "asn:held",
        "asn:override",
    ]
    assert live.origins == ORIGINS
    assert live.version.startswith("20270115T080000Z-")


@pytest.mark.parametrize(
    "facts",
    [
        Facts(latitude=math.nan, longitude=0.0),
        Facts(latitude=0.0, longitude=math.inf),
        Facts(latitude=91.0, longitude=0.0),
        Facts(latitude=50.0),
        Facts(country="Germany"),
        Facts(country="", colo="", continent=""),
        Facts(country="é1"),
        Facts(asn=-1),
    ],
)
def test_odd_facts_are_unknown(facts):
    assert LatencyMap(small()).find(facts) == ("default", 0)


def test_edges_of_the_grid():
    live = LatencyMap(small(cells={"grid": {grid_key(90, 180, 2): 1, grid_key(-90, -180, 2): 2}}))
    assert live.find(Facts(latitude=90, longitude=180)) == ("grid", 1)
    assert live.find(Facts(latitude=90, longitude=-180)) == ("grid", 1)
    assert live.find(Facts(latitude=-90, longitude=-180)) == ("grid", 2)


def test_every_truncation_and_every_flipped_bit_of_a_small_map_is_refused():
    data = small()
    for length in range(len(data)):
        with pytest.raises(MapError):
            LatencyMap(data[:length])
    with pytest.raises(MapError):
        LatencyMap(data + b"\0")
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(MapError):
                LatencyMap(bytes(damaged))


def test_random_damage_of_a_larger_map_is_refused():
    rng = random.Random(2)
    data = small(cells={"asn": {n: n % 4 for n in range(20_000)}})
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(rng.choice((1, 2, 3, 50))):
            damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        if rng.random() < 0.3:
            start = rng.randrange(len(data))
            damaged[start : start + rng.randrange(1, 2000)] = b""
        if bytes(damaged) != data:
            with pytest.raises(MapError):
                LatencyMap(bytes(damaged))


def resealed(data):
    """With length and checksum made right: what an unlucky or unkind writer could produce."""
    rest = struct.pack("<I", len(data)) + data[16:]
    return data[:8] + struct.pack("<I", zlib.crc32(rest)) + rest


def test_damage_under_a_right_checksum_raises_nothing_but_map_errors_on_loading():
    rng = random.Random(3)
    data = small()
    for position in range(12, len(data)):
        for value in (0, 255, rng.randrange(256)):
            damaged = bytearray(data)
            damaged[position] = value
            try:
                LatencyMap(resealed(bytes(damaged)))
            except MapError:
                continue
    for length in range(PREFIX.size, len(data)):
        with pytest.raises(MapError):
            LatencyMap(resealed(data[:length]))


def altered(data, tag, change):
    """With other bytes of the same length in a section."""
    live = LatencyMap(data)
    old = bytes(live.sections[tag])
    new = change(old)
    assert len(new) == len(old)
    return resealed(data.replace(old, new, 1))


def json_of(text):
    return lambda old: text.encode().ljust(len(old))


def at(offset, form, *values):
    def change(old):
        new = bytearray(old)
        struct.pack_into(form, new, offset, *values)
        return bytes(new)

    return change


@pytest.mark.parametrize(
    ("tag", "change", "why"),
    [
        (b"ORIG", json_of("{}"), "its origins are no list"),
        (b"ORIG", json_of("[]"), "its origins are no list"),
        (b"ORIG", json_of("[7]"), "no id or no host"),
        (b"ORIG", json_of('[{"id": "fra", "host": 7}]'), "no id or no host"),
        (b"ORIG", json_of('[{"id": "a", "host": "x"}, {"id": "a", "host": "x"}]'), "have one id"),
        (b"ORIG", json_of('[{"id": "fra", "host": "x"}]'), "origin 2 of 1"),
        (b"PALC", at(0, "B", 250), "its palette names origin 250 of 3"),
        (b"PALO", at(0, "<I", 1), "its palette is incomplete"),
        (b"PALO", at(16, "<I", 400), "its palette is incomplete"),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_together_are_refused_on_loading(tag, change, why):
    with pytest.raises(MapError, match=why):
        LatencyMap(altered(small(), tag, change))


@pytest.mark.parametrize(
    ("tag", "change", "why"),
    [
        (b"PALO", at(8, "<I", 1), "its colour 2 has no candidates|its colour 1 has no candidates"),
        (b"PALO", at(4, "<I", 6), "its colour 1 has no candidates, or the colours are out of order"),
        (b"CTRY", at(4, "<HH", 1, 9), "its country cells name colour 9 of 4"),
        (b"CTRY", lambda old: old[2:4] + old[:2] + old[4:], "its country cells are out of order"),
        (b"ASN ", lambda old: old[:-2] + b"\x04\x00", "its asn cells name colour 4 of 4"),
        (b"ASN ", at(8, "<I", 0), "its asn cells have a head of none"),
        (b"ASNC", lambda old: old[:-2] + b"\xff\xff", "its asn_country cells name colour 65535 of 4"),
    ],
)  # fmt: skip
def test_what_the_edge_takes_on_trust_is_refused_by_whoever_publishes(tag, change, why):
    data = altered(small(), tag, change)
    LatencyMap(data)
    with pytest.raises(MapError, match=why):
        sound(data)


def test_a_map_that_was_found_sound_can_be_read_to_its_end():
    rng, data, passed = random.Random(4), small(), 0
    first = min(offset for _, offset, _ in sections_of(data))
    for position in range(first, len(data)):
        damaged = bytearray(data)
        damaged[position] = rng.randrange(256)
        try:
            live = sound(resealed(bytes(damaged)))
        except MapError:
            continue
        passed += 1
        assert len(list(Lookup(live).cells())) == live.cells
        unpack(live)
        for facts in (Facts(701, "US", "FRA", "EU", 50, 8), Facts()):
            assert live.candidates(live.find(facts)[1])
    assert passed > 20  # a round-trip time, a count, a flag


def sections_of(data):
    count = PREFIX.unpack_from(data)[5]
    return [SECTION.unpack_from(data, PREFIX.size + n * SECTION.size) for n in range(count)]


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_what_is_written_is_sound(world):
    sound(packed(world)[1])


def test_a_newer_minor_version_works_and_a_newer_major_version_says_so():
    data = bytearray(small())
    struct.pack_into("<H", data, 18, 7)
    assert LatencyMap(resealed(bytes(data))).find(Facts(701)) == ("asn", 1)
    struct.pack_into("<H", data, 16, MAJOR + 1)
    with pytest.raises(MapError, match=r"format version 2\.7; this reader knows 1\.x: upgrade it"):
        LatencyMap(resealed(bytes(data)))


def test_unknown_sections_notes_and_kinds_are_skipped():
    extra = {b"WHAT": b"\xff" * 13, b"CALM": bytes(16)}
    data = small(extra=extra, notes={"tolerance": {"ms": 2}}, precedence=("prefix", *KINDS))
    live = LatencyMap(data)
    assert live.find(Facts(701, "US")) == ("asn", 1)
    assert bytes(live.sections[b"WHAT"]) == extra[b"WHAT"]
    assert live.meta["tolerance"] == {"ms": 2}
    plain = LatencyMap(small(precedence=("prefix", *KINDS)))
    assert plain.content == live.content  # what decides nothing is no part of the content


def test_the_content_is_the_same_at_another_time_and_another_for_another_choice():
    first, later = LatencyMap(small()), LatencyMap(small(built_at=1_900_000_000))
    assert first.content == later.content
    assert first.version != later.version
    others = [
        small(default=1),
        small(precedence=("asn",)),
        small(cells={}),
        small(origins=ORIGINS[::-1]),
        small(grid_step=3),
    ]
    assert first.content not in {LatencyMap(data).content for data in others}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"origins": []}, "1 to 256 origins"),
        ({"origins": ORIGINS * 90}, "1 to 256 origins"),
        ({"palette": []}, "1 to 65536 colours"),
        ({"palette": [Colour(())]}, "no candidates"),
        ({"palette": [Colour(((3, 1.0, 1),))], "cells": {}}, "names origin 3 of 3"),
        ({"palette": [Colour(((0, math.nan, 1),))], "cells": {}}, "nan ms"),
        ({"palette": [Colour(((0, -1.0, 1),))], "cells": {}}, "-1.0 ms"),
        ({"default": 4}, "a default cell names a colour"),
        ({"cells": {"asn": {1: 4}}}, "a asn cell names a colour"),
        ({"cells": {"asn": {1: -1}}}, "a asn cell names a colour"),
        ({"cells": {"asn": {2**32: 1}}}, "has the key 4294967296"),
        ({"cells": {"asn": {-1: 1}}}, "has the key -1"),
        ({"cells": {"asn_country": {2**48: 1}}}, "can't hold"),
        ({"cells": {"colo": {2**16: 1}}}, "can't hold"),
        ({"cells": {"planet": {1: 1}}}, "no kind of cell"),
    ],
)
def test_what_the_format_cannot_hold_is_an_error(changes, why):
    with pytest.raises(ValueError, match=why):
        small(**changes)


def test_round_trip_times_end_at_the_largest():
    live = LatencyMap(small(palette=[Colour(((0, 1e9, 1), (1, math.inf, 1), (2, 0.0, 1)))], cells={}))
    assert [candidate.rtt_ms for candidate in live.candidates(0)] == [RTT_MAX_MS, RTT_MAX_MS, 0.0]


@given(st.integers(0, 2**31 - 1))
def test_evidence_is_a_lower_bound_that_keeps_its_code(samples):
    code = evidence_code(samples)
    assert 0 <= code <= 255
    assert evidence_count(code) <= samples
    assert evidence_code(evidence_count(code)) == code
    assert samples <= 128 or code == 255 or evidence_count(code) > samples / 1.1


@given(st.integers(0, 36**3 - 1))
def test_letters_and_back(number):
    assert letters(unletters(number, 3)) == number
    assert letters(unletters(number, 3).lower()) == number


def documented(data, facts):
    """A reader of its own, made of docs/MAP_FORMAT.md alone."""
    assert data[:8] == bytes.fromhex("49534f4d41500d0a")
    crc, length, major, _minor, count = struct.unpack_from("<IIHHI", data, 8)
    assert (crc, length, major) == (zlib.crc32(data[12:]), len(data), 1)
    parts = {}
    for number in range(count):
        tag, offset, size = struct.unpack_from("<4sII", data, 24 + 12 * number)
        assert offset % 8 == 0
        parts[tag.decode()] = data[offset : offset + size]
    meta, origins = json.loads(parts["META"]), json.loads(parts["ORIG"])

    def numbers(part, code, start, amount):
        return struct.unpack_from(f"<{amount}{code}", part, start)

    def plain(tag, key):
        n = len(parts[tag]) // 4
        keys, colours = numbers(parts[tag], "H", 0, n), numbers(parts[tag], "H", 2 * n, n)
        return dict(zip(keys, colours, strict=True)).get(key)

    def split(tag, bits, key, speaks=lambda place: True):
        part = parts[tag]
        (heads,) = numbers(part, "I", 0, 1)
        pairs = [numbers(part, "I", 4 + 8 * head, 2) for head in range(heads)]
        n = pairs[-1][1] if pairs else 0
        at = 4 + 8 * heads
        lowers, colours = (
            numbers(part, "B" if bits == 8 else "H", at, n),
            numbers(part, "H", at + n * bits // 8, n),
        )
        start = 0
        for upper, end in pairs:
            for place in range(start, end):
                if upper << bits | lowers[place] == key:
                    return colours[place] if speaks(place) else None
            start = end
        return None

    def code(text):
        return int(text, 36)

    asn, country = facts.get("asn"), facts.get("country")
    latitude, longitude = facts.get("latitude"), facts.get("longitude")
    located = latitude is not None and longitude is not None

    def square():
        step = meta["grid_step"]
        r, k = int(180 / step), int(360 / step)
        return min(r - 1, math.floor((latitude + 90) / step)) * k + math.floor((longitude + 180) / step) % k

    def speaks(tag, place):
        home = parts[tag][place] if tag in parts else 255
        if home == 255 or not located:
            return True
        row, column = math.floor((latitude + 90) / 2), math.floor((longitude + 180) / 2)
        return (
            home != 254 and (row - home // 15) % 16 in {0, 1, 15} and (column - home % 15) % 15 in {0, 1, 14}
        )

    colour = None
    for kind in meta["precedence"]:
        if kind == "asn_country" and "ASNC" in parts and asn is not None and country is not None:
            colour = split("ASNC", 16, code(country) * 2**32 + asn, lambda place: speaks("HASC", place))
        elif kind == "asn" and "ASN " in parts and asn is not None:
            colour = split("ASN ", 8, asn, lambda place: speaks("HASN", place))
        elif kind == "country_grid" and "CGRD" in parts and country is not None and located:
            colour = split("CGRD", 16, code(country) * 2**20 + square())
        elif kind == "grid" and "GRID" in parts and located:
            colour = split("GRID", 16, square())
        elif kind in {"colo", "country", "continent"} and facts.get(kind) is not None:
            tag = {"colo": "COLO", "country": "CTRY", "continent": "CONT"}[kind]
            colour = plain(tag, code(facts[kind])) if tag in parts else None
        if colour is not None:
            break
    colour = meta["default"] if colour is None else colour
    start, end = numbers(parts["PALO"], "I", 4 * colour, 2)
    candidates = [struct.unpack_from("<BBH", parts["PALC"], 4 * place) for place in range(start, end)]
    return (
        colour,
        [(origins[o]["id"], e, round(u * 0.02, 2)) for o, e, u in candidates],
        parts["FLAG"][colour],
    )


def test_the_example_of_the_documentation_is_what_is_written_and_says_what_is_read():
    dump = re.search(r"```hexdump\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)[1]
    example = bytes.fromhex("".join(line[6:53] for line in dump.splitlines()))
    us = letters("US")
    written = encode(
        built_at=1_800_000_000,
        origins=[{"host": "fra.example.com", "id": "fra"}, {"host": "iad.example.com", "id": "iad"}],
        palette=[Colour(((0, 10.0, 40), (1, 95.5, 200))), Colour(((1, 8.02, 0),), INFERRED)],
        default=0,
        cells={"asn_country": {3320 << 16 | us: 1}, "asn": {701: 1, 3320: 0}, "country": {us: 1}},
        precedence=("asn_country", "asn", "country"),
    )
    assert example == written
    first, second = (0, [("fra", 40, 10.0), ("iad", 133, 95.5)], 0), (1, [("iad", 0, 8.02)], INFERRED)
    assert (
        documented(example, {"asn": 3320})
        == documented(example, {})
        == documented(example, {"asn": 3320, "country": "DE"})
        == first
    )
    assert documented(example, {"asn": 3320, "country": "US"}) == second
    assert documented(example, {"asn": 701}) == documented(example, {"asn": 1, "country": "US"}) == second


@settings(max_examples=60, deadline=None)
@given(worlds(), st.lists(clients, max_size=8), st.data())
def test_a_reader_made_of_the_documentation_agrees(world, facts, data):
    places = st.sampled_from([NOWHERE, EVERYWHERE]) | st.builds(
        home_of, st.floats(-90, 90), st.floats(-180, 180)
    )
    tables, _ = packed(world)
    homes = {kind: {key: data.draw(places) for key in tables[kind]} for kind in ("asn", "asn_country")}
    _, encoded = packed(world, homes)
    live = LatencyMap(encoded)
    where = st.tuples(st.none() | st.floats(-90, 90), st.floats(-180, 180))
    known = [
        *(Facts(asn, country) for asn, country in world[2]["asn_country"]),
        *(Facts(asn) for asn in world[2]["asn"]),
    ]
    for client in [*facts, *known, *(client._replace(**_place(data.draw(where))) for client in known)]:
        stated = {name: value for name, value in client._asdict().items() if value is not None}
        assert documented(encoded, stated)[0] == live.find(client)[1]


def _place(place):
    return dict(zip(("latitude", "longitude"), place, strict=True))


def test_sections_are_aligned_and_apart():
    data = small()
    (count,) = struct.unpack_from("<I", data, 20)
    end = PREFIX.size + count * SECTION.size
    for index in range(count):
        _, offset, length = SECTION.unpack_from(data, PREFIX.size + index * SECTION.size)
        assert offset % 8 == 0
        assert end <= offset < end + 8
        end = offset + length
    assert end == len(data)


def test_a_networks_cell_speaks_for_clients_near_it():
    home = home_of(50.1, 8.7)
    asns = {10: 1, 20: 1, 30: 1, 40: 1}
    pairs = {10 << 16 | letters("DE"): 2}
    live = LatencyMap(
        small(
            cells={"asn": asns, "asn_country": pairs},
            homes={
                "asn": {10: home, 20: NOWHERE, 30: EVERYWHERE},
                "asn_country": {10 << 16 | letters("DE"): home},
            },
        )
    )
    near, far = {"latitude": 51.9, "longitude": 7.0}, {"latitude": 48.9, "longitude": 2.3}
    assert live.find(Facts(10, "DE", **near)) == ("asn_country", 2)
    assert live.find(Facts(10, "FR", **near)) == ("asn", 1)
    assert live.find(Facts(10, "DE", **far)) == ("default", 0)
    assert live.find(Facts(10, "DE")) == ("asn_country", 2)
    assert live.find(Facts(20, **near)) == ("default", 0)
    assert live.find(Facts(20)) == ("asn", 1)
    assert live.find(Facts(30, **far)) == ("asn", 1)
    assert live.find(Facts(40, **far)) == ("asn", 1)
    assert live.homes("asn") == {10: home, 20: NOWHERE, 30: EVERYWHERE, 40: EVERYWHERE}
    assert live.homes("asn_country") == {10 << 16 | letters("DE"): home}


@given(st.floats(-90, 90), st.floats(-180, 180))
def test_home_is_near_home_everywhere_on_the_globe(latitude, longitude):
    live = LatencyMap(small(cells={"asn": {7: 1}}, homes={"asn": {7: home_of(latitude, longitude)}}))
    assert live.find(Facts(7, latitude=latitude, longitude=longitude)) == ("asn", 1)
    # Homes are told up to multiples of 32 x 30 degrees: half of that away is far.
    far = latitude - 16 if latitude > 0 else latitude + 16
    assert live.find(Facts(7, latitude=far, longitude=longitude)) == ("default", 0)
