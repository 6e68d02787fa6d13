"""`isochrone replay`: what is judged, what it is compared with, what bad input does."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from isochrone.cli import Failure, cli
from isochrone.estimation.samples import SampleColumns
from isochrone.replay.clients import clients_of
from isochrone.replay.doubts import shared_samples
from isochrone.replay.judge import Judged, report, summary
from isochrone.replay.learn import whole_window
from isochrone.settings import Estimation
from isochrone_edge.latency_map import Facts, letters

ORIGINS = "id,latitude,longitude\nfra,50.1,8.7\niad,39.0,-77.5\nsin,1.3,103.8\n"
HEADER = "timestamp,origin,asn,country,rtt_ms,colo,continent,latitude,longitude\n"
START = 1_800_000_000


def line(asn, country, origin, rtt, at=START, place="52.5,13.4", colo="TXL"):
    return f"{at},{origin},{asn},{country},{rtt},{colo},EU,{place}\n"


def network(asn, country, rtts, at=START, times=4, **more):
    return "".join(
        line(asn, country, origin, rtt + 0.1 * n, at + n, **more)
        for n in range(times)
        for origin, rtt in zip(("fra", "iad", "sin"), rtts, strict=True)
    )


# Networks 1 to 8 are nearest to Frankfurt. Network 9 says that it is in Berlin, and Washington answers it first.
TRAIN = "".join(network(asn, "DE", (10 + asn, 95, 170)) for asn in range(1, 9)) + network(
    9, "DE", (150, 90, 260)
)
TEST_AT = START + 86_400 * 30


@pytest.fixture
def files(tmp_path):
    def write(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.csv").write_text(text)
        return {name: str(tmp_path / f"{name}.csv") for name in texts}

    paths = write(origins=ORIGINS, train=HEADER + TRAIN, test=HEADER + test_samples())
    paths["write"] = write
    paths["folder"] = tmp_path
    return paths


def test_samples():
    return (
        "".join(network(asn, "DE", (10 + asn, 95, 170), TEST_AT) for asn in range(1, 9))
        + network(9, "DE", (150, 90, 260), TEST_AT)
        + line(10, "DE", "fra", 9.0, TEST_AT)
    )


test_samples.__test__ = False


def run(*arguments):
    now = () if "--now" in arguments else ("--now", str(TEST_AT + 60))
    return CliRunner().invoke(cli, ["replay", *arguments, *now], catch_exceptions=True)


def replayed(files, *more, **other):
    paths = {**files, **other}
    result = run(
        "--origins", paths["origins"], "--train", paths["train"], "--test", paths["test"], "--json", *more
    )
    assert result.exception is None, result.exception
    return json.loads(result.stdout)


def failed(*arguments):
    result = run(*arguments)
    assert isinstance(result.exception, Failure), result.exception
    return result.exception


def test_the_whole_report(files):
    document = replayed(files)
    assert document["train"]["used"] == 108
    assert document["judged"] == {
        "clients": 9, "samples": 108, "left_out": 1, "asns": 9, "horizon_days": pytest.approx(30, abs=0.01),
    }  # fmt: skip
    overall = document["overall"]
    assert overall["clients"] == 9
    assert overall["wrong_share"] == 0
    assert overall["regret_ms"] == {"mean": 0, "p50": 0, "p90": 0, "p99": 0}
    nearest = overall["against"]["nearest"]
    assert nearest["better_by_10ms"] == 1
    assert nearest["better_by_10ms_share"] == pytest.approx(1 / 9, abs=1e-4)
    assert nearest["worse_by_10ms_share"] == 0
    assert nearest["mean_regret_ms"] == pytest.approx(60 / 9, abs=0.01)
    assert set(overall["against"]) == {"nearest", "one_best", "country"}
    assert document["by_level"].keys() == {"asn"}
    assert document["map"]["cells"]["asn"] == 9
    assert document["map"]["learnt_until"] == START + 3


def test_for_people(files):
    result = run("--origins", files["origins"], "--train", files["train"], "--test", files["test"])
    assert result.exit_code == 0
    assert "9 clients judged by the median of their 108 samples, 30 days later" in result.stdout
    assert "1 left out: measured to one origin only" in result.stdout
    assert "learnt from 108 of 108 samples, up to 2027-01-15 08:00:03 UTC" in result.stdout
    assert "all clients: 9 clients, 0.0% wrong choices" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines()]
    nearest = ["the", "nearest", "by", "geography"]
    assert ["all", *nearest, "11.1%", "6.67", "11.1%", "0.0%"] in rows
    assert ["asn", *nearest, "11.1%", "6.67", "11.1%", "0.0%"] in rows
    assert ["asn", "9", "0.0%", "0.00", "0.00", "0.00", "0.00"] in rows
    assert result.stderr == ""


def test_rows_of_the_future_are_set_aside_and_move_nothing(files):
    paths = files["write"](train=HEADER + TRAIN + line(1, "DE", "sin", 1.0, 3_900_000_000))
    document = replayed(files, train=paths["train"])
    assert document["train"]["rejected"]["timestamp_future"]["count"] == 1
    assert document["map"]["learnt_until"] == START + 3
    assert document["map"]["set_aside"]["used"] == 108
    clean = files["write"](train=HEADER + TRAIN)
    assert replayed(files, train=clean["train"])["overall"] == document["overall"]


def test_samples_after_now_are_of_the_future(files):
    error = failed(
        "--origins", files["origins"], "--train", files["train"], "--test", files["test"], "--now", str(START + 60)
    )  # fmt: skip
    assert error.status == 1
    assert "the time is in the future" in str(error)


def test_what_the_window_leaves_out_is_told(files):
    old = network(1, "DE", (11, 95, 170), START - 86_400 * 90)
    paths = files["write"](train=HEADER + old + TRAIN, config="[estimation]\nwindow_seconds = 3600\n")
    result = run(
        "--origins", files["origins"], "--train", paths["train"], "--test", files["test"], "-c", paths["config"]
    )  # fmt: skip
    assert "learnt from 108 of 120 samples" in result.stdout
    assert "train: set aside: 12 outside window\n" in result.stderr


def test_a_map_judged_on_what_it_has_seen_is_doubted(files):
    result = run("--origins", files["origins"], "--train", files["train"], "--test", files["train"])
    assert f"warning: {files['train']}: is both learnt from and judged on" in result.stderr
    assert "warning: 108 of the 108 samples to judge on are among those learnt from" in result.stderr
    # A copy in another file, in part.
    paths = files["write"](copy=HEADER + TRAIN + test_samples())
    document = replayed(files, test=paths["copy"])
    assert [warning.partition(":")[0] for warning in document["warnings"]] == [
        "108 of the 217 samples to judge on are among those learnt from"
    ]


def test_a_past_judged_by_its_future_is_doubted(files):
    document = replayed(files, train=files["test"], test=files["train"])
    (warning,) = document["warnings"]
    assert "wrong way round" in warning
    assert "end at 2027-01-15 08:00:03 UTC" in warning
    assert replayed(files)["warnings"] == []


@given(st.lists(st.integers(0, 1), max_size=60), st.integers(0, 2**32))
def test_shared_samples_are_counted_one_by_one(both, seed):
    random = np.random.default_rng(seed)
    train = samples([(asn, 0, rtt, 0.0, 1.0, "") for asn, rtt in random.integers(1, 9, (len(both) + 1, 2))])
    fresh = samples(
        [(asn, 0, rtt + 0.5, 0.0, 1.0, "") for asn, rtt in random.integers(1, 9, (len(both) + 1, 2))]
    )
    taken = np.array([*both, 0], bool)
    test = replace(
        fresh, rtt_ms=np.where(taken, train.rtt_ms, fresh.rtt_ms), asn=np.where(taken, train.asn, fresh.asn)
    )
    assert shared_samples(train, test) == sum(both)


def test_the_same_input_gives_the_same_answer(files):
    assert replayed(files) == replayed(files)


def test_users_weigh(files):
    users = files["write"](users="rank,asn,cc,users_est\n1,9,DE,900\n2,1,DE,100\n3,77777,US,5\n")["users"]
    document = replayed(files, "--users", users)
    weighted = document["weighted_by_users"]["overall"]
    assert weighted["clients"] == 2
    assert weighted["against"]["nearest"]["better_by_10ms_share"] == 0.9
    assert document["overall"]["against"]["nearest"]["better_by_10ms_share"] < 0.2
    assert document["weighted_by_users"]["by_level"]["asn"]["weight"] == 1000
    assert document["weighted_by_users"]["asns"] == 2
    assert document["weighted_by_users"]["file_share"] == pytest.approx(1000 / 1005, abs=1e-4)
    told = run(
        "--origins", files["origins"], "--train", files["train"], "--test", files["test"], "--users", users
    ).stdout
    assert "have 99.5% of the weight in the users file, which names 2 of the 9" in told


def test_several_files_after_one_flag_and_gzip(files):
    folder = files["folder"]
    (folder / "more.csv.gz").write_bytes(gzip.compress((HEADER + network(11, "DE", (14, 95, 170))).encode()))
    result = run(
        "--origins",
        files["origins"],
        "--train",
        files["train"],
        str(folder / "more.csv.gz"),
        "--test",
        files["test"],
        "--json",
    )
    assert json.loads(result.stdout)["map"]["cells"]["asn"] == 10


def test_the_window_is_all_of_train_unless_the_configuration_says_otherwise(files):
    old = HEADER + network(1, "DE", (11, 95, 170), START - 86_400 * 90) + TRAIN
    paths = files["write"](
        train=old, config="[estimation]\nwindow_seconds = 3600\n", quiet="[steering]\nmax_candidates = 2\n"
    )
    assert replayed(files, train=paths["train"])["map"]["set_aside"]["outside_window"] == 0
    assert (
        replayed(files, "-c", paths["quiet"], train=paths["train"])["map"]["set_aside"]["outside_window"] == 0
    )
    assert (
        replayed(files, "-c", paths["config"], train=paths["train"])["map"]["set_aside"]["outside_window"]
        == 12
    )


def test_a_client_is_judged_over_what_it_was_measured_to(files):
    paths = files["write"](
        test=HEADER + "".join(line(1, "DE", o, r, TEST_AT) for o, r in (("iad", 95), ("sin", 170)))
    )
    document = replayed(files, test=paths["test"])
    assert document["overall"]["wrong_share"] == 0
    assert document["first_choice_not_measured"] == 1


def test_bad_rows_are_counted(files):
    paths = files["write"](
        test=HEADER + test_samples() + "x,fra,1,DE,5,,,,\n" + line(64512, "DE", "fra", 5.0)
    )
    document = replayed(files, test=paths["test"])
    assert document["test"]["rejected"]["timestamp"]["count"] == 1
    assert document["test"]["rejected"]["asn_reserved"]["count"] == 1
    assert document["overall"]["clients"] == 9


def test_nothing_to_judge_is_a_bad_answer(files):
    paths = files["write"](test=HEADER + line(1, "DE", "fra", 10.0))
    error = failed("--origins", files["origins"], "--train", files["train"], "--test", paths["test"])
    assert error.status == 1
    assert "measured to two of the 3 origins" in str(error)


@pytest.mark.parametrize("part", ["train", "test"])
def test_nothing_usable_is_a_bad_answer(files, part):
    paths = {**files, **files["write"](**{part: HEADER})}
    error = failed("--origins", paths["origins"], "--train", paths["train"], "--test", paths["test"])
    assert error.status == 1
    assert "usable" in str(error)


def test_wrong_usage(files):
    missing = str(files["folder"] / "none.csv")
    for arguments in (
        ("--origins", missing, "--train", files["train"], "--test", files["test"]),
        ("--origins", files["origins"], "--train", missing, "--test", files["test"]),
        ("--origins", files["origins"], "--train", files["train"], "--test", missing),
        (
            "--origins",
            files["origins"],
            "--train",
            files["train"],
            "--test",
            files["test"],
            "--users",
            missing,
        ),
        ("--origins", files["origins"], "--train", files["train"], "--test", files["test"], "-c", missing),
    ):
        error = failed(*arguments)
        assert error.status == 2
        assert "none.csv" in str(error)


def test_users_of_none_that_are_judged(files):
    users = files["write"](users="asn,users\n4711,10\n")["users"]
    error = failed(
        "--origins", files["origins"], "--train", files["train"], "--test", files["test"], "--users", users
    )
    assert error.status == 2
    assert "none of the 9 ASNs" in str(error)


def samples(rows):
    """Rows of (asn, origin index, ms, latitude, longitude, colo)."""
    n = len(rows)
    return SampleColumns(
        origins=("fra", "iad"),
        timestamp=np.arange(n, dtype=float),
        origin=np.array([row[1] for row in rows], np.uint16),
        asn=np.array([row[0] for row in rows], np.uint32),
        country=np.full(n, letters("DE"), np.uint16),
        colo=np.array([letters(row[5]) or 0 for row in rows], np.uint16),
        continent=np.zeros(n, np.uint16),
        rtt_ms=np.array([row[2] for row in rows], np.float32),
        latitude=np.array([row[3] for row in rows], np.float32),
        longitude=np.array([row[4] for row in rows], np.float32),
    )


def test_clients_are_told_apart_by_all_that_is_known():
    nan = float("nan")
    found = clients_of(
        samples(
            [
                (1, 0, 10.0, 50.0, 8.0, "FRA"),
                (1, 0, 30.0, 50.0, 8.0, "FRA"),
                (1, 1, 90.0, 50.0, 8.0, "FRA"),
                (1, 0, 20.0, 51.0, 8.0, "FRA"),
                (1, 0, 40.0, nan, nan, ""),
                (1, 0, 60.0, nan, nan, ""),
                (1, 0, 70.0, nan, nan, ""),
            ]
        )
    )
    assert sorted(found.rtt_ms[:, 0].tolist()) == [20.0, 20.0, 60.0]  # the medians
    assert sorted(found.samples.tolist()) == [1, 3, 3]
    assert Facts(1, "DE", None, None, None, None) in list(found.facts())
    assert Facts(1, "DE", "FRA", None, 51.0, 8.0) in list(found.facts())


def judged(regret, nearest, asn=None):
    n = len(regret)
    baseline = {"nearest": np.array(nearest, float), "one_best": np.full(n, np.nan), "country": np.zeros(n)}
    levels = np.array(["asn"] * (n - 1) + ["grid"])
    return Judged(
        np.array(regret, float), baseline, levels, np.zeros(n, np.int64), 0, np.array(asn or range(1, n + 1))
    )


def test_summary_counts_shares():
    found = summary(judged([0, 0, 5, 20], [10, 9.9, 0, 9]), np.ones(4))
    assert found["wrong_share"] == 0.5
    assert found["regret_ms"] == {"mean": 6.25, "p50": 0, "p90": 20, "p99": 20}
    assert found["against"]["nearest"]["better_by_10ms"] == 1
    assert found["against"]["nearest"]["worse_by_10ms"] == 1
    assert "one_best" not in found["against"]


def test_clients_of_one_network_share_its_weight():
    document = report(judged([0, 10, 0], [0, 0, 0], [1, 1, 2]), {1: 50.0, 2: 50.0})
    assert document["weighted_by_users"]["overall"]["regret_ms"]["mean"] == 2.5
    assert document["by_level"]["grid"]["clients"] == 1
    assert summary(judged([1.0], [1.0]), np.zeros(1)) == {"clients": 0}


def test_the_window_holds_every_sample():
    estimation, now = whole_window(samples([(1, 0, 1.0, 0.0, 1.0, "")] * 3), Estimation())
    assert now == 2
    assert estimation.window_seconds == 86_400
