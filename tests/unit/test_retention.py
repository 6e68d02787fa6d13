"""Old samples go, the file shrinks, and nobody else waits for it; schemas are migrated whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.model import Sample
from isochrone.store import retention, schema
from isochrone.store.errors import StoreError
from isochrone.store.sqlite import Store

NOW = 1_790_000_000.0


def samples(count, begin=0.0, step=1.0):
    return [Sample(NOW + begin + step * n, "fra-1", 3320, "DE", 12.5, "quic") for n in range(count)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "isochrone.db"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with Store.open(tmp_path_factory.mktemp("store") / "isochrone.db") as store:
        yield store


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(-1, 32), st.integers(1, 7))
@settings(max_examples=40, deadline=None)
def test_all_that_is_older_goes_and_nothing_else(shared, times, before, step):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "STEP_ROWS", step)
        retention.forget(shared, float("inf"))
        shared.add_samples([Sample(float(t), "fra-1", 3320, "DE", 1.0) for t in times])
        assert retention.forget(shared, float(before)) == sum(t < before for t in times)
        assert shared.sample_columns().timestamp.tolist() == sorted(t for t in times if t >= before)


def test_it_stops_when_asked_and_goes_on_later(path, monkeypatch):
    monkeypatch.setattr(retention, "STEP_ROWS", 10)
    with Store.open(path) as store:
        store.add_samples(samples(100))
        asked = iter([False, False, False, True])
        assert retention.forget(store, NOW + 80, stop=lambda: next(asked)) == 30
        assert store.sample_columns().timestamp[0] == NOW + 30  # the oldest went first
        assert retention.forget(store, NOW + 80) == 50


def test_the_file_shrinks_and_keeps_some_room(path):
    with Store.open(path) as store:
        store.add_samples(samples(20_000))
        full = store.file_bytes()
        retention.forget(store, NOW + 18_000)
        assert store.file_bytes() == full
        steps = []
        freed = retention.compact(store, stop=lambda: steps.append(1) or False)
        assert len(steps) <= 2 + freed // (retention.STEP_PAGES * 4096)  # each gave back all that a step may
        assert store.file_bytes() == full - freed
        assert freed > 0.7 * full
        assert store.empty_share() <= retention.SLACK
        assert retention.compact(store) == 0
        assert len(store.sample_columns()) == 2_000
    with Store.open(path) as store:
        assert len(store.sample_columns()) == 2_000
    assert path.stat().st_size < 0.3 * full  # on the disk too, once what was written is merged


def test_writers_and_readers_have_their_turn(path, monkeypatch):
    """While much is forgotten, others do many things: each between two steps, none after them all."""
    monkeypatch.setattr(retention, "STEP_ROWS", 100)
    with Store.open(path) as store:
        store.add_samples(samples(6_000))
        store.add_samples(samples(10, begin=1e6))
        begun = threading.Event()
        ended = threading.Event()

        def clean():
            retention.forget(store, NOW + 20_000, stop=lambda: bool(begun.set()))
            retention.compact(store)
            ended.set()

        thread = threading.Thread(target=clean)
        thread.start()
        begun.wait()
        did = 0
        while not ended.is_set():
            store.add_samples(samples(10, begin=2e6))
            store.sample_counts(since=NOW + 5e5)
            did += 1
        thread.join()
        assert did > 10
        assert store.sample_counts() == {"ok": 10 + 10 * did}


def test_a_file_from_before_files_could_shrink_is_made_so(path):
    connection = sqlite3.connect(path)
    for statement in schema.MIGRATIONS[0]:
        connection.execute(statement)
    connection.execute("INSERT INTO names (name) VALUES ('fra-1'), ('quic')")
    connection.executemany(
        "INSERT INTO samples VALUES (?,1,3320,0,0,0,2,0,1.0,NULL,NULL)", [(NOW + n,) for n in range(20_000)]
    )
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()
    with Store.open(path) as store:
        columns = store.sample_columns()
        assert (len(columns), columns.origins, columns.methods) == (20_000, ("fra-1",), ("quic",))
        retention.forget(store, NOW + 19_000)
        assert retention.compact(store) > 0
    connection = sqlite3.connect(path)
    assert schema.version_of(connection) == schema.VERSION
    connection.close()


@pytest.mark.parametrize("version", range(1, schema.VERSION))
def test_every_older_schema_is_brought_up_to_this_one(tmp_path, version):
    def tables(path):
        connection = sqlite3.connect(path)
        try:
            return sorted(
                connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
            )
        finally:
            connection.close()

    old, new = tmp_path / "old.db", tmp_path / "new.db"
    connection = sqlite3.connect(old)
    for statements in schema.MIGRATIONS[:version]:
        for statement in statements:
            connection.execute(statement)
    connection.execute("INSERT INTO state VALUES ('kept', 'yes')")
    connection.execute(f"PRAGMA user_version = {version}")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match="start the daemon to migrate it"):
        Store.open(old, read_only=True)
    with Store.open(old) as store:
        assert store.state("kept") == "yes"
    Store.open(new).close()
    assert tables(old) == tables(new)


MIGRATING = """
import sys
from isochrone.store import schema
from isochrone.store.sqlite import Store

slow = "INSERT INTO extra WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < " + sys.argv[2] + ") SELECT x FROM c"
added = ("CREATE TABLE extra (x INTEGER)", slow, "DELETE FROM samples", "CREATE TABLE more (x INTEGER)")
schema.MIGRATIONS = (*schema.MIGRATIONS, added)
schema.VERSION += 1
print("begins", flush=True)
Store.open(sys.argv[1]).close()
print("done", flush=True)
"""


def test_a_migration_killed_midway_leaves_the_old_or_the_new(path, tmp_path):
    rng = random.Random(5)
    with Store.open(path) as store:
        store.add_samples(samples(5_000))
    takes = 0.0
    for attempt in range(7):
        copy = tmp_path / f"copy-{attempt}.db"
        shutil.copy(path, copy)
        process = subprocess.Popen(
            [sys.executable, "-c", MIGRATING, str(copy), "100000000" if attempt == 1 else "300000"],
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            assert process.stdout.readline() == "begins\n"
            begun = time.monotonic()
            if attempt == 0:  # to its end: how long it takes
                assert process.stdout.readline() == "done\n"
                takes = time.monotonic() - begun
            else:
                time.sleep(rng.uniform(0.0, takes))
                process.send_signal(signal.SIGKILL)
            process.wait()
        with contextlib.closing(sqlite3.connect(copy)) as connection:
            version = schema.version_of(connection)
            names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            (kept,) = connection.execute("SELECT count(*) FROM samples").fetchone()
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        found = (version - schema.VERSION, kept, {"extra", "more"} & names)
        assert found in ((0, 5_000, set()), (1, 0, {"extra", "more"}))
        if attempt < 2:
            assert found[0] == 1 - attempt  # the new one when it ended, the old one when it could not
        if found[0] == 0:
            with Store.open(copy) as store:  # and this version goes on with it
                assert store.sample_counts() == {"ok": 5_000}


def test_released_migrations_are_never_changed():
    """An entry that files in the world were made by; a new need is a new entry."""
    first = hashlib.sha256("\n".join(schema.MIGRATIONS[0]).encode()).hexdigest()
    assert first == "ca2717c75c306c0ce46956582e70918dea4775bf415a8c962f0b526093eabcdb"
