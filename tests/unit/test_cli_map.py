"""`isochrone map`, as real processes."""

import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

from isochrone.cli.map_files import write_whole
from isochrone_edge.latency_map import LatencyMap

COMMAND = [sys.executable, "-m", "isochrone.cli"]
NOW = 1_800_000_000
ORIGINS = "id,latitude,longitude,host\nfra,50.1,8.7,fra.example.com\niad,39,-77.5,iad.example.com\nsin,1.35,103.8,sin.example.com\n"
NETWORKS = {
    3320: ("DE", "EU", (10, 95, 160)),
    701: ("US", "NA", (95, 8, 220)),
    9506: ("SG", "AS", (170, 230, 4)),
    3352: ("ES", "EU", (30, 100, 190)),
}


def samples(shift=0.0, now=NOW):
    lines = ["timestamp,origin,asn,country,continent,rtt_ms"]
    for asn, (country, continent, row) in NETWORKS.items():
        for origin, rtt_ms in zip(("fra", "iad", "sin"), row, strict=True):
            lines += [
                f"{now - 60 * i},{origin},{asn},{country},{continent},{rtt_ms + shift + i / 100}"
                for i in range(20)
            ]
    return "\n".join(lines) + "\n"


def run(*arguments, status=0, **options):
    done = subprocess.run(
        [*COMMAND, "map", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done


def refused(*arguments, status=2):
    done = run(*arguments, status=status)
    assert done.stdout == ""
    return done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("map")
    (path / "origins.csv").write_text(ORIGINS)
    (path / "a.csv").write_text(samples())
    (path / "b.csv.gz").write_bytes(gzip.compress(samples(shift=0.3).encode()))
    build(path, "--samples", path / "a.csv", path / "b.csv.gz", "--out", path / "live.map")
    return path


def build(folder, *arguments, **options):
    return run("build", "--origins", folder / "origins.csv", "--now", NOW, *arguments, **options)


@pytest.mark.parametrize(
    "given",
    [
        ("--samples", "a.csv", "b.csv.gz", "--out", "x.map", "--json"),
        ("--samples", "a.csv", "--samples", "b.csv.gz", "--json", "--out", "x.map"),
        ("--json", "--out", "x.map", "--samples", "a.csv", "b.csv.gz"),
        ("--out=x.map", "--json", "--samples=a.csv", "--samples", "b.csv.gz"),
    ],
)
def test_build_takes_several_samples_after_one_flag_or_each_after_its_own(folder, given):
    report = json.loads(build(folder, *given, cwd=folder).stdout)
    live = LatencyMap((folder / "x.map").read_bytes())
    assert report["map"] == report["version"] == live.version
    assert report["samples"]["used"] == 480
    assert report["cells"]["asn"] == 4
    assert report["bytes"] == live.size
    assert live.content == LatencyMap((folder / "live.map").read_bytes()).content
    assert [origin.get("alt_svc") for origin in live.origins] == [None] * 3


def test_build_on_a_previous_map_changes_nothing_without_need(folder):
    def report(*names):
        files = [folder / name for name in names]
        more = ("--out", folder / "next.map", "--previous", folder / "live.map", "--json")
        return json.loads(build(folder, "--samples", *files, *more).stdout)

    same = report("a.csv", "b.csv.gz")
    assert same["unchanged"]
    assert same["changed"] == same["held"] == 0
    # Other samples of the same network: what is inferred may drift, who is first does not.
    half = report("a.csv")
    assert half["changed"] == half["held"] == 0
    assert half["kept"] > 0.9 * sum(half["cells"].values())


def test_lookup_answers_with_its_keys(folder):
    answer = json.loads(run("lookup", folder / "live.map", "--asn", 3320, "--country", "de", "--json").stdout)
    assert list(answer) == ["map", "asn", "country", "level", "colour", "candidates", "reason"]
    assert (answer["asn"], answer["country"], answer["level"], answer["reason"]) == (
        3320,
        "DE",
        "asn",
        "asn:measured",
    )
    assert [candidate["origin"] for candidate in answer["candidates"]] == ["fra", "iad", "sin"]
    assert list(answer["candidates"][0]) == ["origin", "rtt_ms", "samples"]
    assert answer["candidates"][0]["samples"] == 40
    answer = json.loads(run("lookup", folder / "live.map", "--continent", "AS", "--json").stdout)
    assert (answer["asn"], answer["level"], answer["candidates"][0]["origin"]) == (None, "continent", "sin")
    assert "fra" in run("lookup", folder / "live.map").stdout


def test_lookup_of_many_clients_in_their_order(folder):
    clients = folder / "clients.csv"
    clients.write_bytes(
        b"\xef\xbb\xbfASN,country,note,latitude,longitude\r\n3320,DE,x,,\r\nAS701,US,x,,\r\n,SG,x,91,0\n1,,x,50,\n"
        b"-5,D\xff,x,nan,0\n4294967296,DEU,x,1e400,0\n701\n9506,SG,x,50.1,8.7,more\n"
    )
    done = run("lookup", folder / "live.map", "--batch", clients, status=1)
    assert "clients.csv: 5 of 8 rows have a `problem`" in done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["candidates"][0]["origin"] for row in rows] == [
        "fra",
        "iad",
        "sin",
        "fra",
        "fra",
        "fra",
        "iad",
        "sin",
    ]
    assert [row["level"] for row in rows] == [
        "asn",
        "country",
        "country",
        "default",
        "default",
        "default",
        "asn",
        "asn",
    ]
    assert [row["asn"] for row in rows] == [3320, None, None, 1, None, None, 701, 9506]
    problems = [row.get("problem") for row in rows]
    assert problems[1] == "asn 'AS701' is not a number from 0 to 4294967295"
    assert problems[2] == "latitude '91' is not a number from -90 to 90"
    assert problems[3] == "longitude is missing: a place needs both"
    assert problems[4].count(";") == 2
    assert problems[5].count(";") == 2
    assert [problems[n] for n in (0, 6, 7)] == [None] * 3
    clients.write_text("asn\n701\n\n3320")
    rows = [
        json.loads(line)
        for line in run("lookup", folder / "live.map", "--batch", clients).stdout.splitlines()
    ]
    assert [row["asn"] for row in rows] == [701, None, 3320]


def test_export_lists_every_cell(folder):
    cells = [json.loads(line) for line in run("export", folder / "live.map").stdout.splitlines()]
    assert len(cells) == LatencyMap((folder / "live.map").read_bytes()).cells
    assert {cell["level"] for cell in cells} >= {"asn", "country", "continent", "default"}
    assert [cell["asn"] for cell in cells if cell["level"] == "asn"] == [701, 3320, 3352, 9506]
    assert {cell["country"] for cell in cells if cell["level"] == "country"} >= {"DE", "US", "SG", "ES"}
    assert all({"colour", "candidates"} <= cell.keys() for cell in cells)


def test_diff_tells_what_moves(folder):
    (folder / "other.csv").write_text(
        samples()
        .replace(",fra,3352,", ",x,3352,")
        .replace(",iad,3352,", ",fra,3352,")
        .replace(",x,", ",iad,")
    )
    build(folder, "--samples", folder / "other.csv", "--out", folder / "other.map")
    diff = json.loads(run("diff", folder / "live.map", folder / "other.map", "--json").stdout)
    assert not diff["same_content"]
    assert diff["moved_share"] == 0.25
    assert diff["levels"]["asn"]["moved"] == 1
    (folder / "users.csv").write_text("asn,users\n3352,300\n701,50\n701,50\n")
    diff = json.loads(
        run(
            "diff", folder / "live.map", folder / "other.map", "--users", folder / "users.csv", "--json"
        ).stdout
    )
    assert diff["moved_share"] == 0.75
    assert "25.00% of the weight moves" in run("diff", folder / "live.map", folder / "other.map").stdout
    assert "same content" in run("diff", folder / "live.map", folder / "live.map").stdout


def test_settings_come_from_a_configuration(folder):
    config = folder / "some.toml"
    config.write_text(
        'site = "www.example.com"\n[steering]\nmax_candidates = 1\n'
        '[[overrides]]\nasn = 3320\norigin = "sin"\nreason = "test"\nexpires = 2100-01-01\n'
    )
    report = json.loads(
        build(folder, "--samples", folder / "a.csv", "--out", folder / "c.map", "-c", config, "--json").stdout
    )
    assert report["overrides"][0] | {"expires": 0} == {
        "level": "asn", "key": 3320, "origin": "sin", "reason": "test", "expires": 0, "status": "applied",
    }  # fmt: skip
    answer = json.loads(run("lookup", folder / "c.map", "--asn", 3320, "--json").stdout)
    assert [candidate["origin"] for candidate in answer["candidates"]] == ["sin"]
    assert answer["reason"] == "asn:override"
    config.write_text("[steering]\nmax_candidatez = 1\n[estimation]\nquantile = 2\n")
    told = refused(
        "build",
        "--origins",
        folder / "origins.csv",
        "--samples",
        folder / "a.csv",
        "--out",
        folder / "d.map",
        "-c",
        config,
    )
    assert "did you mean 'max_candidates'?" in told
    assert "estimation.quantile" in told
    assert not (folder / "d.map").exists()


def test_bad_input_ends_in_a_sentence(folder):
    live, given = folder / "live.map", ("--origins", folder / "origins.csv", "--samples", folder / "a.csv")
    (folder / "half.map").write_bytes(live.read_bytes()[:-9])
    (folder / "empty").write_bytes(b"")
    assert "cut short" in refused("lookup", folder / "half.map", "--asn", 1)
    assert "too few" in refused("export", folder / "empty")
    assert "No such file" in refused("diff", live, folder / "nothing")
    assert "can't be read" in refused("lookup", folder, "--asn", 1)
    assert "not a number" in refused("lookup", live, "--asn", "x")
    assert "longitude is missing" in refused("lookup", live, "--latitude", 1)
    assert "leave out --asn" in refused("lookup", live, "--asn", 1, "--batch", folder / "a.csv")
    told = refused("lookup", live, "--batch", folder / "empty")
    assert "empty: the first line has to name the columns asn or country or colo" in told
    (folder / "twice.csv").write_text("asn,country,ASN \n1,DE,2\n")
    assert "names asn more than once" in refused("lookup", live, "--batch", folder / "twice.csv")
    for text, told in {
        "": "the first line has to name the columns asn and users or users_est or weight, separated by commas, and names none",
        "\x01\x7f garbage;;": "has to name the columns asn and users or users_est or weight, separated by commas, and is '\\x01",
        "asn,user\n1,2\n": "and is 'asn,user'",
        "asn,users\n": "has no row",
    }.items():
        (folder / "users.bad").write_text(text)
        assert told in refused("diff", live, live, "--users", folder / "users.bad")
    told = refused("build", "--origins", folder / "origins.csv", "--samples", "--out", folder / "y.map")
    assert "Option '--samples' requires an argument, and '--out' follows" in told
    assert "can't be read" in refused("lookup", live, "--batch", folder / "nothing")
    assert "--samples" in refused("build", "--origins", folder / "origins.csv", "--out", folder / "y.map")
    assert "folder that exists" in refused("build", *given, "--out", folder / "no" / "y.map")
    assert "folder that exists" in refused("build", *given, "--out", folder)
    assert "no such file" in refused(
        "build", "--origins", folder / "nothing", "--samples", folder / "a.csv", "--out", folder / "y.map"
    )
    assert "nothing" in refused("build", *given, folder / "nothing", "--out", folder / "y.map")
    assert "cut short" in refused(
        "build", *given, "--out", folder / "y.map", "--previous", folder / "half.map"
    )
    assert not (folder / "y.map").exists()


def test_a_map_whose_cells_do_not_fit_is_refused_by_every_command(folder, tmp_path):
    data = (folder / "live.map").read_bytes()
    colos = bytes(LatencyMap(data).sections[b"COLO"])
    other = data.replace(colos, colos[:-2] + b"\xff\xff")
    (tmp_path / "odd.map").write_bytes(other[:8] + zlib.crc32(other[12:]).to_bytes(4, "little") + other[12:])
    for arguments in (
        ("lookup", tmp_path / "odd.map", "--asn", 1),
        ("diff", folder / "live.map", tmp_path / "odd.map"),
        ("build", "--origins", folder / "origins.csv", "--samples", folder / "a.csv", "--now", NOW,
         "--previous", tmp_path / "odd.map", "--out", tmp_path / "z.map"),
    ):  # fmt: skip
        told = refused(*arguments)
        assert "odd.map: its colo cells name colour 65535 of" in told
        assert "name a file that `isochrone map build` wrote" in told


def test_nothing_usable_ends_with_one_and_no_map(folder):
    out = folder / "z.map"
    (folder / "bad.csv").write_text("timestamp,origin,asn,country,rtt_ms\nx,fra,1,DE,5\n")
    told = refused(
        "build", "--origins", folder / "origins.csv", "--samples", folder / "bad.csv", "--out", out, status=1
    )
    assert "none of 1 rows is a usable sample" in told
    arguments = (
        "build",
        "--origins",
        folder / "origins.csv",
        "--samples",
        folder / "a.csv",
        "--out",
        out,
        "--now",
        NOW + 10_000_000,
    )
    assert "240 outside window; is --now right?" in refused(*arguments, status=1)
    assert not out.exists()


def many(path, asns=400):
    lines = ["timestamp,origin,asn,country,rtt_ms"]
    for asn in range(1, asns):
        lines += [
            f"{NOW - i},{origin},{asn},DE,{20 + asn % 50 + i}"
            for origin in ("fra", "iad", "sin")
            for i in range(4)
        ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_full_disk_leaves_what_was_there(folder):
    out = folder / "full.map"
    out.write_bytes((folder / "live.map").read_bytes())

    def little():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))

    arguments = ("--samples", many(folder / "many.csv"), "--out", out)
    done = build(
        folder, *arguments, status=2, preexec_fn=little, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    )
    assert "can't be written: File too large; what was there before is as it was" in done.stderr
    assert out.read_bytes() == (folder / "live.map").read_bytes()
    assert not [path for path in folder.iterdir() if path.name.startswith(".full.map")]


def test_killed_at_any_moment_there_is_the_old_map_or_the_new_one(folder):
    out, source = folder / "killed.map", many(folder / "kill.csv", 1500)
    command = [
        *COMMAND,
        "map",
        "build",
        "--origins",
        folder / "origins.csv",
        "--samples",
        source,
        "--out",
        out,
        "--now",
        str(NOW),
    ]
    start = time.monotonic()
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    whole = time.monotonic() - start
    new = LatencyMap(out.read_bytes()).content
    old = (folder / "live.map").read_bytes()
    for step in range(8):
        out.write_bytes(old)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            time.sleep(whole * (0.6 + 0.08 * step))
            process.kill()
        assert LatencyMap(out.read_bytes()).content in {new, LatencyMap(old).content}


def test_a_map_keeps_its_permissions_and_a_new_one_has_the_usual(folder, tmp_path):
    out = tmp_path / "mode.map"
    arguments = ("--samples", folder / "a.csv", "--out", out)
    build(folder, *arguments, umask=0o027)
    assert out.stat().st_mode & 0o777 == 0o640
    out.chmod(0o604)
    build(folder, *arguments)
    assert out.stat().st_mode & 0o777 == 0o604
    assert [path.name for path in Path(tmp_path).iterdir()] == ["mode.map"]


def test_export_into_a_pipe_that_closes_is_quiet(folder):
    with subprocess.Popen(
        [*COMMAND, "map", "export", folder / "live.map"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


def test_what_is_no_ordinary_file_is_never_written_over(folder):
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    assert "is no ordinary file" in refused(
        "build",
        "--origins",
        folder / "origins.csv",
        "--now",
        NOW,
        "--samples",
        folder / "a.csv",
        "--out",
        pipe,
    )
    assert pipe.is_fifo()
    (folder / "link.map").symlink_to(folder / "linked.map")
    build(folder, "--samples", folder / "a.csv", "--out", folder / "link.map")
    assert (folder / "link.map").is_symlink()
    assert (folder / "linked.map").read_bytes().startswith(b"ISOMAP")


def test_build_tells_what_the_estimates_set_aside(folder, tmp_path):
    head, *rows = samples().splitlines()
    old = samples(now=NOW - 90_000).splitlines()[1:]
    (tmp_path / "some.csv").write_text("\n".join([head, *rows, *old, "x"]) + "\n")
    done = build(folder, "--samples", tmp_path / "some.csv", "--out", tmp_path / "x.map")
    assert "240 of 481 samples used" in done.stdout
    assert "set aside: 240 outside window\n" in done.stderr
    (tmp_path / "old.csv").write_text("\n".join([head, *old, "x"]) + "\n")
    told = refused(
        "build", "--origins", folder / "origins.csv", "--now", NOW, "--samples", tmp_path / "old.csv",
        "--out", tmp_path / "y.map", status=1,
    )  # fmt: skip
    assert "old.csv:242" in told
    assert "240 outside window" in told
    assert not (tmp_path / "y.map").exists()


def test_build_names_the_cells_of_overrides(folder, tmp_path):
    text = '[[overrides]]\n{}\norigin = "sin"\nreason = "x"\nexpires = 2100-01-01\n'
    cells = ('asn = 3320\ncountry = "DE"', "asn = 701", 'colo = "FRA"', 'country = "ES"')
    (tmp_path / "c.toml").write_text("".join(text.format(cell) for cell in cells))
    told = build(
        folder, "--samples", folder / "a.csv", "--out", tmp_path / "x.map", "-c", tmp_path / "c.toml"
    ).stdout
    for cell in ("asn_country 3320 DE", "asn 701", "colo FRA", "country ES"):
        assert f"override applied: {cell} -> sin\n" in told


def test_a_file_without_end_is_no_map():
    assert "more than 25 MiB" in refused("lookup", "/dev/zero", "--asn", 1)


def test_an_interrupted_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    (tmp_path / "x.map").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "x.map", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("x.map", b"old")]


@pytest.mark.parametrize("name", ["a.csv", "origins.csv", "c.toml"])
def test_build_does_not_write_over_what_it_reads(folder, tmp_path, name):
    for file in ("a.csv", "origins.csv"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    (tmp_path / "c.toml").write_text("")
    before = (tmp_path / name).read_bytes()
    told = refused(
        "build", "--origins", tmp_path / "origins.csv", "--samples", tmp_path / "a.csv", "-c", tmp_path / "c.toml",
        "--now", NOW, "--out", tmp_path / name,
    )  # fmt: skip
    assert "would be lost" in told
    assert (tmp_path / name).read_bytes() == before
