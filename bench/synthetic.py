"""A synthetic Internet for measurements of scale: as many networks, origins and samples as the real thing, as skewed.

    .venv/bin/python bench/synthetic.py FOLDER [--samples N] [--asns N] [--origins N] [--seed N] [--plain] [--files N]

Writes FOLDER/origins.csv and FOLDER/samples-*.csv.gz. The same arguments give the same bytes. Everything is made up
but the cities of the origins and, roughly, where networks are: countries have their rough share of the world's ASNs.
Two of five samples are spread evenly, as a schedule would, the others are mostly those of a few big networks. Round-trip
times are distance times a detour drawn once for each path, plus an access delay drawn once for each network, plus
queueing with a heavy tail drawn for each sample.
"""

from __future__ import annotations

import argparse
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from isochrone.estimation.samples import SampleColumns
from isochrone.model import Origin
from isochrone_edge.latency_map import letters
from synthetic_places import COUNTRIES, REGIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

CHUNK = 1 << 19
KM_PER_MS = 99.93  # of round-trip time in fibre
EARTH_RADIUS_KM = 6371.0
SPANNING = 0.05  # of the networks are in several countries
EVEN = 0.4  # of the samples are of a schedule that gives every path as many
FAILED = 0.01  # of the probes get no answer


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How big, and which of all such worlds."""

    asns: int = 92_000
    origins: int = 36
    samples: int = 66_000_000
    hours: float = 24.0
    now: float = 1_790_000_000.0  # where the samples end
    seed: int = 1


class World:
    """The networks and paths that the samples are drawn from; p (ASN, country) pairs, m origins."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        random = np.random.default_rng([scale.seed, 0])
        self.regions = [REGIONS[i % len(REGIONS)] for i in range(scale.origins)]
        names = [
            f"{region[0]}{'' if i < len(REGIONS) else f'-x{i}'}" for i, region in enumerate(self.regions)
        ]
        self.ids = tuple(names)
        shares = np.array([country[6] for country in COUNTRIES], float)
        pool = np.r_[1:23456, 23457:64496, 131_072:402_000]
        asn = np.sort(random.choice(pool, scale.asns, replace=False)).astype(np.uint32)
        size = random.pareto(0.9, scale.asns) + 0.02  # a few have most of the samples, many have a handful
        size = np.minimum(size, size.sum() / 50)
        spans = np.where(random.random(scale.asns) < SPANNING, random.integers(2, 6, scale.asns), 1)
        network = np.repeat(np.arange(scale.asns), spans)
        country = random.choice(len(COUNTRIES), len(network), p=shares / shares.sum())
        _, first = np.unique(network * len(COUNTRIES) + country, return_index=True)
        network, self.country = network[first], country[first]
        self.asn = asn[network]
        p, m = len(network), scale.origins
        centre = np.array([(c[3], c[4], c[5]) for c in COUNTRIES], float)[self.country]
        self.latitude = np.round(np.clip(centre[:, 0] + random.normal(0, 0.5, p) * centre[:, 2], -60, 75), 2)
        self.longitude = np.round(centre[:, 1] + random.normal(0, 0.5, p) * centre[:, 2], 2)
        self.longitude = np.round((self.longitude + 180) % 360 - 180, 2)
        place = np.array([region[1:] for region in self.regions], float)
        km = _distance_km(
            self.latitude[:, None], self.longitude[:, None], place[None, :, 0], place[None, :, 1]
        )
        detour = 1.1 + random.lognormal(-1.2, 0.7, (p, m))
        access = random.lognormal(0.8, 0.8, p)[:, None]
        self.base_ms = ((km + 30) / KM_PER_MS * detour + access).astype(np.float32)
        pull = size[network][:, None] * random.lognormal(0, 0.5, m) * random.lognormal(0, 1.0, (p, m))
        self.upto = np.cumsum(EVEN / pull.size + (1 - EVEN) * pull.ravel() / pull.sum())
        self.upto /= self.upto[-1]

    def origins(self) -> tuple[Origin, ...]:
        """For the aggregator and the map."""
        return tuple(
            Origin(id=name, host=f"{name}.example.net", latitude=lat, longitude=lon)
            for name, (_, lat, lon) in zip(self.ids, self.regions, strict=True)
        )

    def chunk(
        self, number: int, count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """`count` samples: the path (pair * m + origin), the time in Unix seconds, the RTT in ms (NaN: no answer)."""
        random = np.random.default_rng([self.scale.seed, 1, number])
        path = np.searchsorted(self.upto, np.sort(random.random(count)))
        random.shuffle(path)
        when = self.scale.now - random.random(count) * (self.scale.hours * 3600)
        noise = random.standard_exponential(count, np.float32)
        rare = random.random(count, np.float32)
        rtt = self.base_ms.ravel()[path] + noise * np.float32(1.5)
        rtt = np.where(rare < 0.02, rtt * (1 + noise), rtt)  # a queue was full
        return (
            path,
            np.round(when, 3),
            np.round(np.where(rare > 1 - FAILED, np.nan, rtt), 3).astype(np.float64),
        )

    def chunks(self) -> list[tuple[int, int]]:
        """Arguments for `chunk` that make up the whole."""
        return [
            (i, min(CHUNK, self.scale.samples - at))
            for i, at in enumerate(range(0, self.scale.samples, CHUNK))
        ]

    def columns(self) -> Iterator[SampleColumns]:
        """The samples that have an answer as columns, part by part."""
        codes = {
            k: np.array([letters(str(c[i])) for c in COUNTRIES], np.uint16)
            for k, i in (("cc", 0), ("cont", 1), ("colo", 2))
        }
        for number, count in self.chunks():
            path, when, rtt = self.chunk(number, count)
            answered = ~np.isnan(rtt)
            path, when, rtt = path[answered], when[answered], rtt[answered]
            pair = path // self.scale.origins
            country = self.country[pair]
            yield SampleColumns(
                origins=self.ids,
                timestamp=when,
                origin=(path % self.scale.origins).astype(np.uint16),
                asn=self.asn[pair],
                country=codes["cc"][country],
                colo=codes["colo"][country],
                continent=codes["cont"][country],
                rtt_ms=rtt.astype(np.float32),
                latitude=self.latitude[pair].astype(np.float32),
                longitude=self.longitude[pair].astype(np.float32),
            )


class CsvWriter:
    """Rows as text, a chunk at a time: fixed-width pieces side by side, then the padding (NUL) taken out."""

    HEADER = b"timestamp,origin,asn,country,rtt_ms,colo,continent,latitude,longitude,method,outcome\n"

    def __init__(self, world: World) -> None:
        self._world = world
        self._origin = np.array([f",{name}," for name in world.ids], "S")
        country = [COUNTRIES[c] for c in world.country]
        self._network = np.array([f"{asn},{c[0]}," for asn, c in zip(world.asn, country, strict=True)], "S")
        self._place = np.array(
            [
                f",{c[2]},{c[1]},{lat:g},{lon:g},icmp,"
                for c, lat, lon in zip(country, world.latitude, world.longitude, strict=True)
            ],
            "S",
        )

    def text(self, number: int, count: int) -> bytes:
        """One chunk."""
        path, when, rtt = self._world.chunk(number, count)
        pair, origin = np.divmod(path, self._world.scale.origins)
        failed = np.isnan(rtt)
        pieces = (
            _decimal(np.rint(when * 1000).astype(np.int64), 14),
            self._origin[origin],
            self._network[pair],
            np.where(failed, b"", _decimal(np.rint(np.nan_to_num(rtt) * 1000).astype(np.int64), 10)),
            self._place[pair],
            np.where(failed, b"target_failed\n", b"ok\n"),
        )
        rows = np.empty(count, [(f"f{i}", piece.dtype) for i, piece in enumerate(pieces)])
        for i, piece in enumerate(pieces):
            rows[f"f{i}"] = piece
        return rows.tobytes().translate(None, b"\0")


def _decimal(thousandths: NDArray[np.int64], width: int) -> NDArray[np.bytes_]:
    """1234 -> b"1.234", padded on the left with NUL, as an array of byte strings of `width`."""
    digits = np.zeros((len(thousandths), width), np.uint8)
    rest = thousandths
    for at in range(width - 1, -1, -1):
        if at == width - 4:
            digits[:, at] = ord(".")
            continue
        wanted = (rest > 0) | (at >= width - 5)
        rest, digit = np.divmod(rest, 10)
        digits[:, at] = np.where(wanted, digit + ord("0"), 0)
    return digits.view(f"S{width}").ravel()


def write(world: World, folder: Path, *, plain: bool = False, files: int = 1) -> list[Path]:
    """origins.csv, and the samples in `files` files, plain or gzip; the samples' paths."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        "id,latitude,longitude,host",
        *(f"{o.id},{o.latitude},{o.longitude},{o.host}" for o in world.origins()),
    ]
    (folder / "origins.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    writer, chunks = CsvWriter(world), world.chunks()
    suffix = "csv" if plain else "csv.gz"
    paths = [folder / f"samples-{i}.{suffix}" for i in range(files)]

    def pack(chunk: tuple[int, int]) -> bytes:
        text = writer.text(*chunk)
        return text if plain else zlib.compress(text, 1, 31)  # gzip files may be put one after the other

    with ThreadPoolExecutor(2) as pool:
        for i, path in enumerate(paths):
            with path.open("wb") as file:
                file.write(writer.HEADER if plain else zlib.compress(writer.HEADER, 1, 31))
                mine = chunks[i::files]
                for at in range(0, len(mine), 4):  # a few at a time, so that memory stays small
                    for data in pool.map(pack, mine[at : at + 4]):
                        file.write(data)
    return paths


def _distance_km(
    lat_a: NDArray[np.float64],
    lon_a: NDArray[np.float64],
    lat_b: NDArray[np.float64],
    lon_b: NDArray[np.float64],
) -> NDArray[np.float64]:
    a, b = np.radians(lat_a), np.radians(lat_b)
    h = np.sin((b - a) / 2) ** 2 + np.cos(a) * np.cos(b) * np.sin(np.radians(lon_b - lon_a) / 2) ** 2
    return 2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(np.clip(h, 0, 1)))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write synthetic samples.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=Scale.samples)
    parser.add_argument("--asns", type=int, default=Scale.asns)
    parser.add_argument("--origins", type=int, default=Scale.origins)
    parser.add_argument("--seed", type=int, default=Scale.seed)
    parser.add_argument("--files", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="not compressed")
    arguments = parser.parse_args()
    scale = Scale(
        asns=arguments.asns, origins=arguments.origins, samples=arguments.samples, seed=arguments.seed
    )
    for path in write(World(scale), arguments.folder, plain=arguments.plain, files=arguments.files):
        print(f"{path}: {path.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
