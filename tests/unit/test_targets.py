"""Targets from the configuration and from files, and what is said of bad rows."""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path

import pytest

from isochrone.model import Origin, Outcome, Target
from isochrone.probing.agent import Agent
from isochrone.probing.databases import Annotator, TargetsError
from isochrone.probing.limiter import Cap, Limiter
from isochrone.probing.prober import ProbeResult
from isochrone.probing.targets import load_targets, read_csv
from isochrone.settings import OriginSettings, Probing, Settings, TargetSettings

ASN_DATABASE = Path(__file__).parents[1] / "data" / "GeoLite2-ASN-Test.mmdb"
ORIGIN = OriginSettings(id="fra-1", host="fra.example.com", latitude=50.1, longitude=8.7)


def settings(**values):
    return Settings(site="www.example.com", origins=(ORIGIN,), **values)


@pytest.fixture
def csv_file(tmp_path):
    def write(text, encoding="utf-8"):
        path = tmp_path / "targets.csv"
        path.write_bytes(text.encode(encoding))
        return path

    return write


def test_all_columns(csv_file):
    path = csv_file(
        "address,port,asn,country,colo,continent,latitude,longitude\n192.0.2.1,8443,64500,de,fra,eu,50.1,8.7\n"
    )
    assert read_csv(path).targets == (Target("192.0.2.1", 8443, 64500, "DE", "FRA", "EU", 50.1, 8.7),)


def test_only_an_address_is_needed_and_ip_is_its_other_name(csv_file):
    path = csv_file("\ufeffsource,IP , asn\r\nx,2001:DB8::1,AS64500\r\n\r\ny,192.0.2.1,\r\n")
    found = read_csv(path)
    assert found.targets == (Target("2001:db8::1", 443, 64500), Target("192.0.2.1", 443, 0))
    assert found.problems == ()


def test_bad_rows_are_counted_by_kind_with_their_first_lines(csv_file):
    rows = [
        "address,port,asn,country,colo,continent,latitude,longitude",
        "nonsense,443,64500,DE,FRA,EU,1,2",
        "192.0.2.1,0,64500,DE,FRA,EU,1,2",
        "192.0.2.2,443,-1,DE,FRA,EU,1,2",
        "192.0.2.3,443,99999999999999999999,DE,FRA,EU,1,2",
        "192.0.2.4,443,64500,DEU,FRA,EU,1,2",
        "192.0.2.5,443,64500,DE,FR,EU,1,2",
        "192.0.2.6,443,64500,DE,FRA,XX,1,2",
        "192.0.2.7,443,64500,DE,FRA,EU,91,2",
        "192.0.2.8,443,64500,DE,FRA,EU,nan,2",
        "192.0.2.9,443",
        '"192.0.2.9,443,64500,DE,FRA,EU,1,2',
        "also nonsense,443,64500,DE,FRA,EU,1,2",
        "1.2.3,443,64500,DE,FRA,EU,1,2",
        "192.0.2.256,443,64500,DE,FRA,EU,1,2",
        '"192.0.2.10",443,64500,DE,FRA,EU,1,',
    ]
    found = read_csv(csv_file("\n".join(rows)))
    assert found.targets == (Target("192.0.2.10", 443, 64500, "DE", "FRA", "EU"),)
    assert found.problems == (
        "4 targets left out: the address is not an IP address (targets.csv:2, targets.csv:13, targets.csv:14, ...)",
        "1 target left out: the port is not a number from 1 to 65535 (targets.csv:3)",
        "2 targets left out: the ASN is not a number from 1 to 4294967294 (targets.csv:4, targets.csv:5)",
        "1 target left out: the country is not a two-letter ISO 3166 code (targets.csv:6)",
        "1 target left out: the colo is not a three-letter IATA code (targets.csv:7)",
        "1 target left out: the continent is none of AF, AN, AS, EU, NA, OC, SA (targets.csv:8)",
        "2 targets left out: a coordinate is not a number of degrees within 90 (targets.csv:9, targets.csv:10)",
        "1 target left out: not the header's 8 fields (targets.csv:11)",
        "1 target left out: the quotes are unbalanced (targets.csv:12)",
    )


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "192.0.2.1,443\n", "\0\n"])
def test_a_file_without_a_header_is_refused(csv_file, text):
    with pytest.raises(TargetsError, match="first line must name the columns"):
        read_csv(csv_file(text))


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(TargetsError, match="can't be read"):
        read_csv(tmp_path / "none.csv")


def test_a_file_in_another_encoding_loses_only_the_odd_rows(csv_file):
    found = read_csv(csv_file("address,asn,name\n192.0.2.1,64500,Zürich\n192.0.2.2,64500,x\n", "latin-1"))
    assert len(found.targets) == 2


def test_configuration_and_file_together_without_doubles(csv_file):
    path = csv_file("address,asn\n192.0.2.1,64501\n192.0.2.2,64502\n192.0.2.3,\n")
    found = load_targets(
        settings(targets=(TargetSettings(address="192.0.2.1", asn=64500),), targets_file=path)
    )
    assert [(t.address, t.asn) for t in found.targets] == [("192.0.2.1", 64500), ("192.0.2.2", 64502)]
    assert found.problems == (
        "1 target left out: the same address and port again (targets.csv:2)",
        "1 target left out: no ASN is stated and no database knows one (targets.csv:4)",
    )


def test_the_database_gives_the_asn_that_is_not_stated():
    found = load_targets(
        settings(
            targets=(
                TargetSettings(address="1.128.0.1"),
                TargetSettings(address="1.128.0.2", asn=64500),
                TargetSettings(address="127.0.0.1"),
            ),
            probing=Probing(asn_database=ASN_DATABASE),
        )
    )
    assert [(t.address, t.asn) for t in found.targets] == [("1.128.0.1", 1221), ("1.128.0.2", 64500)]
    assert found.problems == ("1 target left out: no ASN is stated and no database knows one (targets[2])",)


def test_a_file_that_is_no_database(tmp_path):
    wrong = tmp_path / "wrong.mmdb"
    wrong.write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(TargetsError, match="not a readable MaxMind database"):
        Annotator(wrong)
    with pytest.raises(
        TargetsError, match="a database of type 'GeoLite2-ASN', where one of type 'Country' is needed"
    ):
        Annotator(ASN_DATABASE, ASN_DATABASE)


class SlowProber:
    """Answers after a while; remembers how many it had at once."""

    method = "quic"

    def __init__(self, seconds=0.0):
        self.seconds, self.now, self.most, self.sources = seconds, 0, 0, set()

    async def run_once(self, target, *, source_address=None, timeout):
        self.now += 1
        self.most = max(self.most, self.now)
        self.sources.add(source_address)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.now -= 1
        if target.asn == 64999:
            return ProbeResult(outcome=Outcome.TARGET_FAILED, detail="no answer")
        return ProbeResult(outcome=Outcome.OK, rtt_ms=5.0)


def agent(prober, **changes):
    origin = Origin(id="fra-1", host="fra.example.com", latitude=0, longitude=0, source_address="127.0.0.9")
    return Agent(origin, prober, **({"concurrency": 4, "timeout": 0.1, "rng": random.Random(1)} | changes))


TARGETS = [Target(f"192.0.2.{i}", 443, 64500 if i else 64999, "DE", "FRA", "EU", 1.0, 2.0) for i in range(20)]


async def test_a_round_gives_one_sample_a_target():
    prober = SlowProber()
    done = await agent(prober, clock=lambda: 1e9).run_round(TARGETS, seconds=0.3)
    assert (done.origin, done.planned, done.missed, len(done.samples)) == ("fra-1", 20, 0, 20)
    assert dict(done.details) == {"no answer": 1}
    assert {s.outcome for s in done.samples} == {Outcome.OK, Outcome.TARGET_FAILED}
    assert all((s.rtt_ms is None) == (s.outcome is not Outcome.OK) for s in done.samples)
    assert {(s.timestamp, s.method, s.country, s.colo, s.continent, s.latitude) for s in done.samples} == {(1e9, "quic", "DE", "FRA", "EU", 1.0)}  # fmt: skip
    assert prober.sources == {"127.0.0.9"}


async def test_concurrency_is_bounded_and_the_deadline_ends_the_round():
    prober = SlowProber(0.05)
    done = await agent(prober, concurrency=2).run_round(TARGETS, seconds=0.2)
    assert prober.most == 2
    assert prober.now == 0  # nothing goes on after the round
    assert done.missed > 0
    assert done.missed + len(done.samples) == 20


async def test_a_round_without_targets_or_with_a_short_deadline():
    assert (await agent(SlowProber()).run_round([], seconds=0.1)).samples == ()
    hung = await agent(SlowProber(30)).run_round(TARGETS, seconds=0.05)
    assert (hung.samples, hung.missed) == ((), 20)


async def test_every_method_of_the_configuration_measures_every_target():
    class Named(SlowProber):
        def __init__(self, method):
            super().__init__(0)
            self.method = method

    both = Agent(ORIGIN, Named("one"), Named("two"), concurrency=4, timeout=0.1, rng=random.Random(1))
    done = await both.run_round(TARGETS, seconds=2.0)
    assert (done.planned, done.missed) == (2 * len(TARGETS), 0)
    assert sorted((s.asn, s.method) for s in done.samples) == sorted(
        (t.asn, name) for t in TARGETS for name in ("one", "two")
    )


class CountingProber(SlowProber):
    """Notes when it was asked."""

    def __init__(self, method, times, outcome=Outcome.OK):
        super().__init__(0.01)
        self.method, self.times, self.outcome = method, times, outcome

    async def run_once(self, target, *, source_address=None, timeout):
        self.times.setdefault(target.address, []).append(asyncio.get_running_loop().time())
        await super().run_once(target, source_address=source_address, timeout=timeout)
        return ProbeResult(outcome=self.outcome, rtt_ms=5.0 if self.outcome is Outcome.OK else None)


async def test_every_probe_counts_in_the_caps_whatever_its_method():
    times = {}
    both = Agent(
        ORIGIN, CountingProber("one", times), CountingProber("two", times), CountingProber("three", times),
        concurrency=8, timeout=0.1, rng=random.Random(1), limiter=Limiter(target=Cap(20.0, 1)),
    )  # fmt: skip
    done = await both.run_round(TARGETS[:3], seconds=1.8)
    assert (done.planned, done.missed) == (9, 0)
    for seen in times.values():
        assert all(later - earlier > 0.025 for earlier, later in itertools.pairwise(seen))


@pytest.mark.parametrize(
    ("seen", "best"),
    [
        (("ok", "target_failed"), "ok"), (("target_failed", "ok"), "ok"), (("prober_failed", "target_failed"), "target_failed"),
        (("target_failed", "prober_failed"), "target_failed"), (("prober_failed", "prober_failed"), "prober_failed"),
    ],
)  # fmt: skip
async def test_a_round_tells_the_best_that_was_seen_of_each_target(seen, best):
    probers = [CountingProber(str(number), {}, Outcome(outcome)) for number, outcome in enumerate(seen)]
    measured = Agent(ORIGIN, *probers, concurrency=4, timeout=0.1, rng=random.Random(1))
    done = await measured.run_round(TARGETS[:2], seconds=0.4)
    assert done.outcomes == {(t.address, t.port): Outcome(best) for t in TARGETS[:2]}
