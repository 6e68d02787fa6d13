"""The configuration: what is refused, in which words, and what `check` finds beyond the file itself."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from isochrone import checks
from isochrone.cli import FiniteRange
from isochrone.settings import SettingsError, load

TOKEN = {"CLOUDFLARE_API_TOKEN": "token"}
BASE = """
site = "www.example.com"
{top}
[[origins]]
id = "fra"
host = "fra.example.com"
latitude = 50
longitude = 8.68
{origin}
[[targets]]
address = "192.0.2.1"
{target}
[kv]
account_id = "a"
namespace_id = "n"
{kv}
{sections}
"""
MAIN = "from isochrone.cli import main; main()"


@pytest.fixture
def config(tmp_path):
    def write(text=BASE, **parts):
        path = tmp_path / "isochrone.toml"
        values = {"top": "", "origin": "", "target": "asn = 3320", "kv": "", "sections": ""} | parts
        for name, value in values.items():
            text = text.replace("{" + name + "}", value)
        path.write_text(text)
        return path

    return write


def problems(path, environ=TOKEN):
    with pytest.raises(SettingsError) as caught:
        load(path, environ)
    assert all("\n" not in problem for problem in caught.value.problems)
    return caught.value.problems


def test_a_whole_number_is_a_number(config):
    settings = load(config(), TOKEN)
    assert settings.origins[0].latitude == 50.0
    assert load(config(sections="[probing]\ninterval_seconds = 60"), TOKEN).probing.interval_seconds == 60.0


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"origin": "weight = true"}, "origins[0].weight: must be a number (it is true)"),
        ({"origin": 'weight = "2"'}, "origins[0].weight: must be a number, without quotes (it is '2')"),
        ({"origin": 'draining = "no"'}, "origins[0].draining: must be true or false (it is 'no')"),
        ({"origin": "draining = 0"}, "origins[0].draining: must be true or false (it is 0)"),
        ({"origin": "weight = nan"}, "origins[0].weight: must be a finite number (it is nan)"),
        ({"origin": "weight = 0"}, "origins[0].weight: must be above 0 (it is 0)"),
        ({"origin": "addresses = 3"}, "origins[0].addresses: must be a list in brackets (it is 3)"),
        (
            {"origin": 'country = "de"'},
            "origins[0].country: must be a two-letter country code in capitals (ISO 3166) (it is 'de')",
        ),
        ({"target": 'asn = "3320"'}, "targets[0].asn: must be a whole number (it is '3320')"),
        ({"target": "asn = 3320.0"}, "targets[0].asn: must be a whole number (it is 3320.0)"),
        ({"target": "asn = 3320\nport = true"}, "targets[0].port: must be a whole number (it is true)"),
        ({"target": "asn = 3320\nlatitude = true"}, "targets[0].latitude: must be a number (it is true)"),
        ({"target": "asn = 0"}, "targets[0].asn: must be 1 or above (it is 0)"),
        ({"sections": "[probing]\nmethods = []"}, "probing.methods: needs at least one"),
        ({"sections": "[probing]\nlab = 1"}, "probing.lab: must be true or false (it is 1)"),
        (
            {"sections": "[probing]\ninterval_seconds = nan"},
            "probing.interval_seconds: must be a finite number (it is nan)",
        ),
        ({"sections": "[steering]\ntolerance_share = 1.5"}, "steering.tolerance_share: must be below 1 (it is 1.5)"),
        ({"origin": "weight = 1e3\nwieght = 1"}, "origins[0].wieght: unknown key; did you mean 'weight'?"),
        ({"top": "steering = 3"}, "steering: must be a table (it is 3)"),
        ({"top": "targets_file = 3"}, "targets_file: must be a path in quotes (it is 3)"),
        ({"kv": 'token_env = ""'}, "kv.token_env: is empty; name the environment variable that holds the API token"),
        ({"kv": "timeout_seconds = true"}, "kv.timeout_seconds: must be a number (it is true)"),
    ],
)  # fmt: skip
def test_one_sentence_without_the_library_s_words(config, parts, says):
    assert problems(config(**parts)) == [says]


@pytest.mark.parametrize(
    ("key", "section", "bad", "good"),
    [
        ("region_header", "verification", ["", "a b", "a:b", "x\\r\\ny", "ü"], ["x-region", "X_1"]),
        ("path", "verification", ["", "healthz", "/a b", "/a\\nb", "/ü", "/a#b"], ["/", "/a?b=%20"]),
        (
            "base_url", "kv",
            ["", "ftp://a", "https://", "https://:443", "https://a:0", "https://a:", "https://a:99999", "https://a:x",
             "https://[::1", "https://a b", "https://a\\n", "https://u:p@a", "https://a?b"],
            ["https://api.example.com/client/v4", "http://127.0.0.1:8080", "http://[::1]:1", "http://localhost:9/x"],
        ),
        (
            "listen", "service",
            ["", "9475", ":9475", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:٣", "127.0.0.1:²",
             "127.0.0.1:" + "1" * 5000, "::1:80", "a b:80"],
            ["127.0.0.1:0", "[::1]:9475", "localhost:80", "0.0.0.0:9475"],
        ),
        ("alt_svc", "origin", ["a:0", "a:²", "a:٣", "a:65536", "a:" + "1" * 5000, "192.0.2.1:443"], ["a.example:8443"]),
    ],
)  # fmt: skip
def test_values_that_travel_are_checked_in_full(config, key, section, bad, good):
    def written(value):
        line = f'{key} = "{value}"'
        if section in {"kv", "origin"}:
            return config(**{section: line})
        return config(sections=f"[{section}]\n{line}")

    for value in bad:
        (problem,) = problems(written(value))
        assert f"{key}: " in problem
        assert "int()" not in problem
    for value in good:
        load(written(value), TOKEN)


@pytest.mark.parametrize("asn", [23456, 64496, 64511, 65535, 65536, 65551, 65552, 131071])
def test_a_target_in_a_reserved_asn_is_refused(config, asn):
    (problem,) = problems(config(target=f"asn = {asn}"))
    assert problem.startswith(f"targets[0].asn: {asn} is reserved")


@pytest.mark.parametrize("asn", [1, 3320, 64512, 65534, 131072, 4200000000, 4294967294])
def test_other_asns_are_the_user_s_own(config, asn):
    assert load(config(target=f"asn = {asn}"), TOKEN).targets[0].asn == asn


def test_one_host_or_endpoint_for_two_origins_whatever_the_spelling(config):
    second = '[[origins]]\nid = "iad"\nhost = "FRA.example.com.:443"\nlatitude = 1\nlongitude = 1\nalt_svc = "A.example."'
    found = problems(config(origin='alt_svc = "a.example:0443"', sections=second))
    assert len(found) == 2
    assert "origins[1].host: 'FRA.example.com.:443' is already the host of origins[0]" in found[0]
    assert "origins[1].alt_svc: 'A.example.' is already the affinity endpoint of origins[0]" in found[1]
    load(config(sections=second.replace(":443", ":8443")), TOKEN)


def test_toml_that_python_can_t_read(config, tmp_path):
    assert problems(config("x = " + "1" * 5000)) == ["not valid TOML: a number has too many digits"]
    for deep in ("x = " + "[" * 100_000, "x = " + "{a=" * 50_000):
        assert problems(config(deep)) == ["not valid TOML: arrays or tables are nested too deeply"]
    (huge,) = problems(config(target="asn = 0x" + "f" * 5000))
    assert huge.startswith("targets[0].asn: must be")
    assert problems(tmp_path) == ["can't be read: Is a directory"]
    assert "can't be read" in problems(tmp_path / ("x" * 300))[0]
    assert "there is no file" in problems(config(top=f'targets_file = "{"x" * 300}"'))[0]


def isochrone(*arguments, stdout=subprocess.PIPE, **options):
    return subprocess.run(
        [sys.executable, "-c", MAIN, *map(str, arguments)], stdout=stdout, stderr=subprocess.PIPE, text=True,
        env=os.environ | TOKEN, timeout=60, check=False, **options,
    )  # fmt: skip


def test_check_finds_what_run_refuses(config, tmp_path):
    assert isochrone("check", "-c", config()).returncode == 0
    (tmp_path / "targets.csv").write_text("address,asn\nnonsense,1\n192.0.2.7,64500\n192.0.2.8,3320\n")
    for name in ("ca.pem", "as.mmdb", "anchor", "state"):
        (tmp_path / name).write_text("nothing of the kind\n")
    path = config(
        top='targets_file = "targets.csv"',
        sections='[verification]\ntrust_store = "ca.pem"\n[dns]\ntrust_store = "ca.pem"\ntrust_anchor = "anchor"',
    )
    path.write_text(re.sub(r"\[kv\][^\[]*", "", path.read_text()))
    done = isochrone("check", "-c", path)
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert all(line.startswith(f"isochrone: {path}: ") for line in lines)
    wrong = ("dns.trust_anchor", "dns.trust_store", "service.state_dir", "verification.trust_store")
    assert sorted(line.split(": ")[2] for line in lines) == list(wrong)
    path.write_text(re.sub(r"\[(verification|dns)\][^\[]*", "", path.read_text()))
    (tmp_path / "state").unlink()
    done = isochrone("check", "-c", path)
    assert (done.returncode, done.stderr) == (0, "")
    for words in (
        "note: kv: missing", "the address is not an IP address",
        "the ASN is reserved (documentation or special use) (192.0.2.7 in AS64500)",
    ):  # fmt: skip
        assert words in done.stdout
    broken = isochrone("check", "-c", config(sections='[probing]\nasn_database = "as.mmdb"'))
    assert broken.returncode == 2
    assert "not a readable MaxMind database" in broken.stderr
    for command in ("check", "run"):
        done = isochrone(command, "-c", config(target=""))
        assert done.returncode == 2
        assert "no usable target" in done.stderr
        assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("arguments", [["--help"], ["check"]])
def test_output_that_can_t_be_written(config, arguments):
    arguments = [*arguments, "-c", config()] if arguments == ["check"] else arguments
    with Path("/dev/full").open("w") as full:
        done = isochrone(*arguments, stdout=full)
    assert done.returncode == 1
    assert done.stderr.startswith("isochrone: standard output can't be written: " + os.strerror(errno.ENOSPC))
    assert done.stderr.count("\n") == 1
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = isochrone(*arguments, stdout=writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_daemon_told_to_end_at_once_ends_well(config):
    begun = (
        "import signal, os, sys, threading\nfrom isochrone.cli import cli, main\n"
        "threading.Timer(float(sys.argv.pop(1)), os.kill, (os.getpid(), signal.SIGTERM)).start()\nmain()"
    )
    for delay in ("0.02", "0.3"):
        process = subprocess.run(
            [sys.executable, "-c", begun, delay, "run", "-c", str(config(sections='[service]\nlisten = "127.0.0.1:0"'))],
            env=os.environ | TOKEN, timeout=30, check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert process.returncode == 0, process.stderr
        assert "Traceback" not in process.stderr


@pytest.mark.parametrize("value", ["nan", "inf", "-nan"])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(click.BadParameter):
        FiniteRange(0).convert(value, None, None)
    assert FiniteRange(0, 5).convert("2.5", None, None) == 2.5
    done = isochrone("probe", "192.0.2.1", "--timeout", value)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_file_without_an_end_is_told_and_not_read_to_it(monkeypatch):
    monkeypatch.setattr(checks, "LARGEST_TEXT", 1 << 20)
    with pytest.raises(SettingsError) as found:
        load(Path("/dev/zero"))
    assert [p.split(": ", 1)[-1] for p in found.value.problems] == ["it is larger than 1 MiB"]
