"""The store keeps what it acknowledged, whatever happens, and says in one sentence what it can't do."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from isochrone.model import Outcome, Sample, Standing, TargetState
from isochrone.store import schema
from isochrone.store.columns import OUTCOMES
from isochrone.store.errors import StoreError, explain
from isochrone.store.retention import forget
from isochrone.store.sqlite import Publication, Store
from isochrone.store.targets import save_target_states, target_states
from isochrone_edge.latency_map import letters

NOW = 1_790_000_000.0


def sample(number: int = 0, **changes) -> Sample:
    values = {
        "timestamp": NOW + number, "origin": "fra-1", "asn": 64500, "country": "DE", "rtt_ms": 12.5, "method": "quic",
        "outcome": Outcome.OK, "colo": "FRA", "continent": "EU", "latitude": 50.1, "longitude": 8.7,
    }  # fmt: skip
    return Sample(**(values | changes))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "isochrone.db"


def test_samples_come_back_as_columns(path):
    failed = sample(
        1,
        origin="ams-1",
        outcome=Outcome.TARGET_FAILED,
        rtt_ms=None,
        country="",
        colo="",
        latitude=None,
        longitude=None,
    )
    with Store.open(path) as store:
        assert store.add_samples([sample(0), failed, sample(2, asn=4_294_967_294)]) == 3
        columns = store.sample_columns()
    assert len(columns) == 3
    assert [columns.origins[i] for i in columns.origin] == ["fra-1", "ams-1", "fra-1"]
    assert columns.timestamp.tolist() == [NOW, NOW + 1, NOW + 2]
    assert columns.asn.tolist() == [64500, 64500, 4_294_967_294]
    assert columns.country.tolist() == [letters("DE"), 0, letters("DE")]
    assert columns.colo.tolist() == [letters("FRA"), 0, letters("FRA")]
    assert columns.continent.tolist() == [letters("EU")] * 3
    assert columns.methods == ("quic",)
    assert [OUTCOMES[i] for i in columns.outcome] == [Outcome.OK, Outcome.TARGET_FAILED, Outcome.OK]
    np.testing.assert_array_equal(columns.rtt_ms, [12.5, np.nan, 12.5])
    np.testing.assert_array_equal(columns.latitude, [50.1, np.nan, 50.1])
    assert columns.rtt_ms.dtype == np.float64
    assert columns.asn.dtype == np.uint32
    assert columns.origin_in(["x", "ams-1"]).tolist() == [-1, 1, -1]


def test_an_empty_store_gives_empty_columns(path):
    with Store.open(path) as store:
        columns = store.sample_columns()
        assert len(columns) == 0
        assert columns.origins == ()
        assert columns.origin_in(["fra-1"]).tolist() == []
        assert store.sample_counts() == {}
        assert store.last_sample_at() is None
        assert store.add_samples([]) == 0


def test_windows_counts_and_retention(path):
    with Store.open(path) as store:
        store.add_samples([sample(i) for i in range(10)])
        store.add_samples([sample(10, outcome=Outcome.PROBER_FAILED, rtt_ms=None)])
        assert len(store.sample_columns(since=NOW + 4)) == 7
        assert len(store.sample_columns(since=NOW + 4, until=NOW + 6)) == 2
        assert store.sample_counts() == {"ok": 10, "prober_failed": 1}
        assert store.sample_counts(since=NOW + 9) == {"ok": 1, "prober_failed": 1}
        assert store.last_sample_at() == NOW + 10
        assert forget(store, NOW + 5) == 5
        assert len(store.sample_columns()) == 6


def test_order_is_by_time_whatever_the_order_of_arrival(path):
    with Store.open(path) as store:
        store.add_samples([sample(i) for i in (5, 1, 3)])
        assert store.sample_columns().timestamp.tolist() == [NOW + 1, NOW + 3, NOW + 5]


def test_state_survives_closing(path):
    standing = Standing(offered=True, proved=True, good=7, failed=0, changed_at=NOW, checked_at=NOW + 1)
    published = Publication(published_at=NOW, version="v1", sha256="ab", published_by="daemon")
    with Store.open(path) as store:
        store.set_state("last_good", "v1")
        store.set_state("last_good", "v2")
        store.set_state("gone", "x")
        store.set_state("gone", None)
        store.save_standings({("fra-1", "fra.example.com:443"): Standing()})
        store.save_standings(
            {("fra-1", "fra.example.com:443"): standing, ("ams-1", "https"): Standing(failed=2)}
        )
        store.add_publication(published)
        store.add_publication(
            Publication(
                published_at=NOW + 1, version="v2", sha256="cd", published_by="rollback", detail="by hand"
            )
        )
        store.close()
    with Store.open(path) as store:
        assert store.state("last_good") == "v2"
        assert store.state("gone") is None
        assert store.standings() == {
            ("fra-1", "fra.example.com:443"): standing,
            ("ams-1", "https"): Standing(failed=2),
        }
        assert [p.version for p in store.publications()] == ["v2", "v1"]
        assert store.publications(limit=5)[1] == published


def test_what_is_known_of_targets_survives_closing(path):
    first = {
        ("192.0.2.1", 443): TargetState(active=True, answered=True, good=3),
        ("2001:db8::1", 8443): TargetState(silent=3, falls=2, retry_at=NOW + 0.25),
    }
    with Store.open(path) as store:
        assert target_states(store) == {}
        save_target_states(store, first)
        save_target_states(store, {("192.0.2.1", 443): TargetState(answered=True, silent=1)})
    with Store.open(path) as store:
        assert target_states(store) == first | {("192.0.2.1", 443): TargetState(answered=True, silent=1)}


def test_a_batch_is_stored_whole_or_not_at_all(path):
    with Store.open(path) as store:
        store.add_samples([sample(0)])
        with pytest.raises(StoreError) as caught:
            store.add_samples([sample(1, origin="new-1"), sample(float("nan"))])
        assert caught.value.kind == "other"
        assert len(store.sample_columns()) == 1
        # The id of "new-1" was rolled back with the batch and must not be remembered.
        store.add_samples([sample(2, origin="new-1")])
        assert store.sample_columns().origins == ("fra-1", "new-1")


def test_two_daemons_on_one_store_are_refused(path):
    with Store.open(path):
        with pytest.raises(StoreError, match=r"already in use by process [0-9]+; stop that daemon") as caught:
            Store.open(path)
        assert caught.value.kind == "locked"
    Store.open(path).close()


def test_another_process_is_refused_too(path):
    with Store.open(path):
        code = "import sys; from isochrone.store.sqlite import Store; Store.open(sys.argv[1])"
        ended = subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
        )
    assert ended.returncode == 1
    assert f"in use by process {os.getpid()}" in ended.stderr


def test_reading_beside_the_daemon_needs_no_lock(path):
    with pytest.raises(StoreError) as caught:
        Store.open(path, read_only=True)
    assert caught.value.kind == "missing"
    with Store.open(path) as store:
        store.add_samples([sample()])
        with Store.open(path, read_only=True) as reader:
            assert reader.sample_counts() == {"ok": 1}
            with pytest.raises(StoreError) as caught:
                reader.set_state("a", "b")
            assert caught.value.kind == "unreadable"


def test_a_closed_store_says_so(path):
    store = Store.open(path)
    store.close()
    with pytest.raises(StoreError) as caught:
        store.add_samples([sample()])
    assert caught.value.kind == "closed"


@pytest.mark.parametrize(
    "content",
    [b"this is no database, but a text of some length\n" * 100, b"SQLite format 3\0" + b"\xff" * 5000],
)
def test_a_foreign_file_is_not_a_database(path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(StoreError, match="move it away") as caught:
        Store.open(path)
    assert caught.value.kind == "not_a_database"
    assert path.read_bytes() == content


def test_a_newer_schema_is_refused_untouched(path):
    Store.open(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    connection.close()
    with pytest.raises(StoreError, match="newer isochrone") as caught:
        Store.open(path)
    assert caught.value.kind == "newer_schema"


def test_a_migration_is_done_once_and_whole(path, monkeypatch):
    with Store.open(path) as store:
        store.add_samples([sample()])
    added = (*schema.MIGRATIONS, ("CREATE TABLE extra (x INTEGER)",))
    monkeypatch.setattr(schema, "VERSION", len(added))
    monkeypatch.setattr(schema, "MIGRATIONS", (*added[:-1], ("CREATE TABLE extra (x INTEGER)", "not SQL")))
    with pytest.raises(StoreError):
        Store.open(path)
    monkeypatch.setattr(schema, "MIGRATIONS", added)
    with Store.open(path) as store:
        assert store.sample_counts() == {"ok": 1}
    connection = sqlite3.connect(path)
    assert schema.version_of(connection) == len(added)
    connection.close()


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"check service\.state_dir") as caught:
        Store.open(tmp_path / "file" / "state" / "isochrone.db")
    assert caught.value.kind == "unreadable"


def test_a_full_disk_is_told_and_the_store_goes_on(path):
    with Store.open(path) as store:
        store.add_samples([sample()])
        store._connection.execute(
            f"PRAGMA max_page_count = {store._connection.execute('PRAGMA page_count').fetchone()[0] + 2}"
        )
        with pytest.raises(StoreError, match="the disk is full, nothing was stored") as caught:
            store.add_samples([sample(i) for i in range(10_000)])
        assert caught.value.kind == "disk_full"
        assert len(store.sample_columns()) == 1
        store._connection.execute("PRAGMA max_page_count = 1000000")
        assert store.add_samples([sample(i) for i in range(10_000)]) == 10_000


def test_every_error_of_the_database_has_a_sentence():
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    assert explain(Path("x"), error).kind == "unreadable"
    assert explain(Path("x"), sqlite3.OperationalError("odd")).kind == "other"


def test_threads_write_and_read_at_once(path):
    with Store.open(path) as store:
        errors = []

        def write(origin):
            try:
                for number in range(20):
                    store.add_samples([sample(number, origin=origin) for _ in range(50)])
            except Exception as error:  # noqa: BLE001
                errors.append(error)

        threads = [threading.Thread(target=write, args=(f"o-{i}",)) for i in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert len(store.sample_columns()) % 50 == 0  # never half a batch
        for thread in threads:
            thread.join()
        assert errors == []
        assert store.sample_counts() == {"ok": 4000}


WRITER = """
import sys
from isochrone.model import Sample
from isochrone.store.sqlite import Store

store = Store.open(sys.argv[1])
number = int(sys.argv[2])
while True:
    store.add_samples([Sample(float(number), f"o-{number % 5}", 64500, "DE", 1.0) for _ in range(40)])
    store.set_state("last", str(number))
    print(number, flush=True)
    number += 1
"""


def test_sigkill_loses_nothing_that_was_acknowledged(path):
    rng = random.Random(7)
    acknowledged = -1
    for _ in range(12):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(acknowledged + 1)],
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            first = process.stdout.readline()
            time.sleep(rng.uniform(0, 0.15))
            process.send_signal(signal.SIGKILL)
            lines = [first, *process.stdout.readlines()]
        acknowledged = max(int(line) for line in lines if line.endswith("\n"))
        with Store.open(path) as store:
            columns = store.sample_columns()
            batches, counts = np.unique(columns.timestamp, return_counts=True)
            assert set(counts.tolist()) == {40}  # whole batches only
            assert batches.tolist() == list(range(len(batches)))  # none lost, none twice
            stored = len(batches) - 1
            assert acknowledged <= stored <= acknowledged + 1
            assert int(store.state("last")) >= acknowledged
            acknowledged = stored
    assert acknowledged > 12
