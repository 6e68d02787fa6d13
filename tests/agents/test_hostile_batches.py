"""Ten thousand hostile batches at the real API: none is accepted, none ends the process, its memory stays flat."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import random
import time
import zlib

import aiohttp
import pytest
from agents_support import TOKENS, Forker, control_document, status, until, write
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from isochrone.agents import wire
from isochrone.store.sqlite import Store
from ports import free_port

pytestmark = [pytest.mark.system, pytest.mark.timeout(170)]

HOSTILE = 10_000
AT_ONCE = 4  # of one origin the API takes no more
RSS_GROWTH = 40 << 20  # bytes, after the first tenth
TARGETS = [
    {
        "address": "127.0.0.1",
        "port": 4000 + n,
        "asn": 64512 + n,
        "latitude": 35.7,
        "longitude": 139.7,
    }  # Tokyo
    for n in range(20)
]
REFUSALS = {400, 409, 413, 415, 422}


class Forge:
    """Batches that are wrong, each in one way or many."""

    def __init__(self, plan: str, now: float, rng: random.Random) -> None:
        self.plan, self.now, self.rng = plan, now, rng

    def id(self) -> str:
        return f"{self.rng.getrandbits(128):032x}"

    def header(self, count=3, **changes):
        return {
            "isochrone": 1, "batch": self.id(), "origin": "eu-1", "plan": self.plan, "samples": count,
        } | changes  # fmt: skip

    def rows(self, count=3, **changes):
        return [
            {"at": self.now - 5 - n, "address": "127.0.0.1", "port": 4000 + n % 20, "method": "tcp", "rtt_ms": 250.0 + n}
            | changes
            for n in range(count)
        ]  # fmt: skip

    def good(self, count=3) -> list[dict]:
        return [self.header(count), *self.rows(count)]

    def wrong_fields(self) -> tuple[list[dict], list[dict]]:
        """Fields of a header, and of a sample, each of which makes a batch wrong."""
        far, old = self.now + 3600, self.now - 10 * 86_400
        headers = [
            {"origin": "us-1"}, {"origin": ""}, {"origin": None}, {"plan": "0" * 64}, {"plan": "x"}, {"batch": ""},
            {"batch": "../../etc/passwd"}, {"batch": "A" * 32}, {"batch": 7}, {"isochrone": 2}, {"isochrone": True},
            {"samples": 0}, {"samples": -1}, {"samples": 4}, {"samples": 2}, {"samples": 10**30}, {"samples": "3"},
            {"samples": 3.5}, {"extra": 1}, {"clock": "x" * 101},
        ]  # fmt: skip
        rows = [
            {"at": far}, {"at": old}, {"at": -1}, {"at": 0}, {"at": 1e300}, {"at": "now"}, {"at": None}, {"at": True},
            {"address": "127.0.0.2"}, {"address": "8.8.8.8"}, {"address": "x" * 100_000}, {"address": 1}, {"address": ""},
            {"port": 1}, {"port": 0}, {"port": 65_536}, {"port": 10**20}, {"port": "4000"}, {"port": 4000.5},
            {"method": "icmp"}, {"method": ""}, {"method": None}, {"rtt_ms": 0}, {"rtt_ms": -1}, {"rtt_ms": 1e9},
            {"rtt_ms": 1e308}, {"rtt_ms": None}, {"rtt_ms": "5"}, {"rtt_ms": True}, {"rtt_ms": 0.5}, {"rtt_ms": 60.0},
            {"outcome": "target_failed"}, {"outcome": "fine"}, {"outcome": 0}, {"outcome": None}, {"asn": 15169},
            {"origin": "us-1"}, {"__proto__": {}},
        ]  # fmt: skip
        return headers, rows

    def wrong_values(self) -> list[list[dict]]:
        """By hand: what each check is for."""
        headers, rows = self.wrong_fields()
        made = [[self.header(**change), *self.rows()] for change in headers]
        made += [[self.header(), *self.rows(2), self.rows(3)[2] | change] for change in rows]
        same = self.rows(1)[0]
        made.append([self.header(2), same, same])
        made.append(
            [self.header(40), *(self.rows(1, at=self.now - 5 - n / 100)[0] for n in range(40))]
        )  # a flood
        return made

    def wrong_bodies(self) -> list[bytes]:
        """By hand: what is no batch at all."""
        good = self.body(self.good())
        plain = gzip.decompress(good)
        bombs = [gzip.compress(bytes(200 << 20), 9), gzip.compress(b"\n" * (8 << 20), 9)]
        bombs.append(gzip.compress(b'{"a":' * 1_000_000, 9))
        long_number = plain.replace(b'"samples": 3', b'"samples": ' + b"9" * 5000)
        return [
            *bombs, b"", b"\x00", b"x" * (1 << 20), b"x" * ((1 << 20) + 1), good[:-1], good[:20], good[5:], good + b"x", good + good,
            plain, zlib.compress(plain), good[:-8] + bytes(8), gzip.compress(b""), gzip.compress(b"\n"), gzip.compress(b"null\n"),
            gzip.compress(b"[]\n[]\n"), gzip.compress(plain[:-1]), gzip.compress(plain + b"\n"), gzip.compress(b"\xff" + plain),
            gzip.compress(plain.replace(b"250.0", b"NaN")), gzip.compress(plain.replace(b"250.0", b"Infinity")),
            gzip.compress(plain.replace(b"250.0", b"1e999")), gzip.compress(long_number), gzip.compress(b"[" * 100_000),
            gzip.compress(plain.replace(b"tcp", b"tc\\u0000")), gzip.compress(plain.replace(b"tcp", b"\\ud800")),
            gzip.compress(plain.replace(b"\n", b"\n\n")),
        ]  # fmt: skip

    @staticmethod
    def body(lines) -> bytes:
        return gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode(), 1)

    def twisted(self) -> bytes:
        """A batch with wrong values in some of its lines; mostly one of the right form, so that more than its form is judged."""
        body = self._twisted()
        while self.rng.random() < 0.8 and not _is_of_the_form(body):
            body = self._twisted()
        return body

    def _twisted(self) -> bytes:
        rng = self.rng
        headers, rows = self.wrong_fields()
        count = rng.randint(1, 12)
        lines = self.good(count)
        for _ in range(rng.randint(1, 3)):
            if rng.random() < 0.2:
                lines[0] |= rng.choice(headers)
            else:
                place = rng.randint(1, count)
                lines[place] = lines[place] | rng.choice(rows)
        return self.body(lines)

    def mutated(self) -> bytes:
        """A good batch with bytes of it changed, before or after it was packed. What is still good is not sent."""
        rng = self.rng
        plain = bytearray(gzip.decompress(self.body(self.good(rng.randint(1, 5)))))
        packed = rng.random() < 0.3
        data = bytearray(gzip.compress(plain, 1)) if packed else plain
        for _ in range(rng.randint(1, 6)):
            place = rng.randrange(len(data))
            match rng.randrange(5):
                case 0:
                    data[place] = rng.randrange(256)
                case 1:
                    del data[place : place + rng.randint(1, 40)]
                case 2:
                    data[place:place] = rng.randbytes(rng.randint(1, 20))
                case 3:
                    data[place:place] = data[max(0, place - 30) : place]
                case _:
                    data[place:place] = rng.choice(
                        [b"{", b"}", b"[", b'"', b"-", b"e9", b"\n", b"null", b","]
                    )
            if not data:
                break
        return bytes(data) if packed else gzip.compress(data, 1)


def _is_of_the_form(body: bytes) -> bool:
    try:
        wire.decode(body)
    except wire.MalformedError:
        return False
    return True


def is_good(body: bytes, forge: Forge) -> bool:
    """Whether a mutation left a batch that an honest agent could have sent: other digits of a time or of an id."""
    try:
        batch = wire.decode(body)
    except wire.MalformedError:
        return False
    known = {(target["address"], target["port"]) for target in TARGETS}
    keys = {(row.at, row.address, row.port, row.method) for row in batch.rows}
    return (
        batch.header.origin == "eu-1"
        and batch.header.plan == forge.plan
        and len(keys) == len(batch.rows)
        and all(
            (row.address, row.port) in known
            and row.method == "tcp"
            and -86_400 - 60 < row.at - forge.now < 120
            and (
                0 < row.rtt_ms <= 2000
                if row.outcome == "ok" and row.rtt_ms is not None
                else row.rtt_ms is None
            )
            for row in batch.rows
        )
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
LINES = st.lists(
    JSON
    | st.fixed_dictionaries(
        {
            "at": st.floats() | st.integers(), "address": st.text(max_size=20) | st.ip_addresses().map(str),
            "port": st.integers(), "method": st.sampled_from(["tcp", "quic", ""]), "rtt_ms": st.floats() | st.none(),
        }
    ),
    max_size=6,
)  # fmt: skip


def generated(forge: Forge, count: int) -> list[bytes]:
    """From hypothesis: a right header before anything, or anything at all."""
    found: list[bytes] = []

    @settings(
        max_examples=count, database=None, deadline=None, phases=[Phase.generate], derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(LINES, st.booleans(), st.binary(max_size=60))
    def collect(lines, headed, raw):
        found.append(forge.body([forge.header(len(lines)), *lines] if headed else lines))
        found.append(raw)

    collect()
    return found


async def test_hostile_batches_leave_no_trace(tmp_path):
    port = free_port()
    document = control_document(
        port=port, targets=TARGETS, state_dir=tmp_path / "state", agents=("eu-1", "us-1"), origins=("eu-1", "us-1"),
        probing={"interval_seconds": 60},
    )  # fmt: skip
    log = tmp_path / "control.log"
    with Forker() as forker:
        control = forker.start("run", "-c", str(write(tmp_path / "isochrone.toml", document)), log=log)
        await until(lambda: status(port), log=log)
        url = f"http://127.0.0.1:{port}/agents/eu-1"
        headers = {"Authorization": f"Bearer {TOKENS['eu-1']}", "Content-Encoding": "gzip"}
        connector = aiohttp.TCPConnector(limit=AT_ONCE)
        async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
            async with session.get(url + "/plan", headers={"Content-Encoding": ""}) as answer:
                assert answer.status == 200
                plan = answer.headers["ETag"].strip('"')
            forge = Forge(plan, time.time(), random.Random(3))
            codes: dict[str, int] = {}

            async def send(body: bytes) -> None:
                try:
                    async with session.post(url + "/batches", data=io.BytesIO(body)) as answer:
                        document = await answer.json(content_type=None)
                        assert answer.status in REFUSALS, (answer.status, document, body[:300])
                        assert answer.content_type == "application/problem+json"
                        codes[document["code"]] = codes.get(document["code"], 0) + 1
                except (aiohttp.ClientConnectionError, ConnectionError):
                    assert len(body) > 1 << 16  # hung up on while it was still sending far too much
                    codes["hung_up"] = codes.get("hung_up", 0) + 1

            async def send_all(bodies) -> None:
                queue = iter(bodies)

                async def work():
                    for body in queue:
                        await send(body)

                async with asyncio.TaskGroup() as tasks:
                    for _ in range(AT_ONCE):
                        tasks.create_task(work())

            by_hand = [forge.body(lines) for lines in forge.wrong_values()] + forge.wrong_bodies()
            fuzzed = [body for body in generated(forge, 400) if not is_good(body, forge)]
            made_up = _made(forge, HOSTILE - len(by_hand) - len(fuzzed))
            first = len(made_up) // 10
            await send_all(by_hand + made_up[:first])
            warm = control.rss()
            await send_all(made_up[first:] + fuzzed)
            await send_all(by_hand[:1])
            assert control.alive()
            assert control.rss() - warm < RSS_GROWTH

            # Whoever has no token, or another's, learns nothing.
            for path, token, wanted in (
                ("/batches", "", 401), ("/batches", "x" * 600, 401), ("/batches", TOKENS["us-1"], 404),
                ("/plan", "\xe4", 401), ("/../us-1/batches", TOKENS["eu-1"], 404), ("/x", TOKENS["eu-1"], 404),
            ):  # fmt: skip
                ask = session.post if path.endswith("batches") else session.get
                async with ask(url + path, headers={"Authorization": f"Bearer {token}"}, data=b"x") as answer:
                    assert answer.status == wanted, path

            # An honest batch among them is stored, and stored once.
            good = forge.body([forge.header(), *forge.rows()])
            for repeat in (False, True):
                async with session.post(url + "/batches", data=good) as answer:
                    assert answer.status == 200, await answer.text()
                    assert (await answer.json())["repeat"] is repeat
            told = await status(port)
        agent = told["agents"][0]
        assert agent["state"] == "flagged"
        assert agent["refused"]["total"] >= HOSTILE - codes.get("hung_up", 0) - 10
        wanted = {
            "malformed", "too_large", "unknown_origin", "unknown_plan", "unknown_target", "unknown_method", "time_ahead", "time_past",
            "rtt_missing", "rtt_unexpected", "rtt_impossible", "faster_than_light", "duplicate", "flood",
        }  # fmt: skip
        assert wanted <= codes.keys() | {"hung_up"}, codes
        assert (agent["batches"], agent["repeats"], agent["samples"]["total"]) == (1, 1, 3)
        await control.kill(15)
    assert "Traceback" not in log.read_text()
    with Store.open(tmp_path / "state" / "isochrone.db") as store:
        assert len(store.sample_columns()) == 3


def _made(forge: Forge, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        body = forge.twisted() if len(found) % 2 else forge.mutated()
        if not is_good(body, forge):
            found.append(body)
    return found
