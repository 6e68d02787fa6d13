"""`--origins FILE` in its three notations: the same origins from each, and every problem told at once."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isochrone.estimation.origins_file import load_origins
from isochrone.model import AltSvcEndpoint, Origin
from isochrone.settings import SettingsError

US = Origin(id="aws:us-west-2", host="", latitude=45.5, longitude=-122.7)
FRA = Origin(
    id="fra-1", host="fra.example.net:8443", latitude=50.1, longitude=8.7, weight=2.0,
    alt_svc=AltSvcEndpoint("fra.example.net:443", 300), draining=True,
)  # fmt: skip
TOML = """
site = "www.example.net"
[[origins]]
id = "aws:us-west-2"
latitude = 45.5
longitude = -122.7
[[origins]]
id = "fra-1"
host = "fra.example.net:8443"
latitude = 50.1
longitude = 8.7
weight = 2
alt_svc = "fra.example.net:443"
draining = true
"""
CSV = """id,latitude,longitude,city,host,weight,alt_svc,draining
aws:us-west-2,45.5,-122.7,Portland,,,,

fra-1,50.1,8.7,"Frankfurt, Main",fra.example.net:8443,2,fra.example.net:443,true
"""
JSON = [
    {"id": "aws:us-west-2", "latitude": 45.5, "longitude": -122.7, "city": "Portland", "host": None},
    {
        "id": "fra-1", "latitude": 50.1, "longitude": 8.7, "host": "fra.example.net:8443", "weight": 2,
        "alt_svc": "fra.example.net:443", "draining": True,
    },
]  # fmt: skip


@pytest.fixture
def load(tmp_path):
    def load(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return load_origins(path)

    return load


@pytest.fixture
def problems(load):
    def problems(name, content):
        with pytest.raises(SettingsError) as caught:
            load(name, content)
        assert str(caught.value).startswith(caught.value.path)
        return caught.value.problems

    return problems


@pytest.mark.parametrize("name", ["file.{}", "file", "file.txt"])
@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("toml", TOML),
        ("csv", CSV),
        ("json", json.dumps(JSON)),
        ("json", json.dumps({"origins": JSON}, indent=1)),
        ("json", json.dumps(JSON, indent=1)),
    ],
)
def test_three_notations(load, name, kind, content):
    for text in (content, "\ufeff" + content, content.replace("\n", "\r\n")):
        found = load(name.format(kind), text)
        assert found.origins == (US, FRA)
        assert found.site == ("www.example.net" if kind == "toml" else "")


def test_a_whole_configuration_works(load):
    found = load(
        "isochrone.toml",
        f"{TOML}\n[kv]\naccount_id = 'x'\nunknown = 1\n[alt_svc]\nmax_age_seconds = 60\n[nonsense]\n",
    )
    assert found.origins[1].alt_svc == AltSvcEndpoint("fra.example.net:443", 60)
    assert load("off.toml", f"{TOML}\n[alt_svc]\nenabled = false").origins[1].alt_svc is None


def test_every_problem_of_a_csv_with_its_line(problems):
    text = "id,latitude,longitude\nok,1,2\nnorth,91,2\n,3,4\nbad id,5,x\nok,6,7\nshort,8\n"
    found = problems("o.csv", text)
    for line, words in (
        (3, "latitude"),
        (4, "id"),
        (5, "id"),
        (5, "longitude"),
        (6, "'ok' is already the id of line 2"),
        (7, "2 fields"),
    ):
        assert any(f"line {line}" in problem and words in problem for problem in found), (line, found)
    assert len(found) == 6


def test_every_problem_of_a_toml(problems):
    text = '[[origins]]\nid = "a"\nlatitude = -91\nlongitude = 181\nwieght = 3\nhost = "192.0.2.1"\n[[origins]]\nid = "a"\n'
    found = "\n".join(problems("o.toml", text))
    for words in (
        "origins[0].latitude", "origins[0].longitude", "did you mean 'weight'?", "origins[0].host: '192.0.2.1' is a bare IP",
        "origins[1].latitude: missing", "origins[1].longitude: missing", "origins[1].id: 'a' is already the id of origins[0]",
    ):  # fmt: skip
        assert words in found


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("o.csv", "", "empty"),
        ("o.toml", " \n", "empty"),
        ("o.toml", "x = 1", "origins: missing"),
        ("o.toml", "origins = []", "origins: "),
        ("o.toml", "[[origins", "not valid TOML"),
        ("o.toml", "origins = 3", "origins: "),
        ("o.toml", "x = " + "9" * 5000, "too many digits"),
        ("o.toml", "x = " + "[" * 20_000, "nested too deeply"),
        ("o.json", "9" * 5000, "too many digits"),
        ("o.json", "[]", "origins: "),
        ("o.json", "{", "not valid JSON"),
        ("o.json", '{"a": 1}', "no list of origins"),
        ("o.json", "[" * 100_000, "not valid JSON"),
        ("o.json", "[1]", "origins[0]"),
        ("o.csv", "id,latitude\na,1", "lacks longitude"),
        ("o.csv", "id,latitude,longitude", "origins: "),
        ("o.csv", 'id,latitude,longitude\n"a,1,2', "not valid CSV"),
        ("o.csv", b"id,latitude,longitude\n\xff,1,2", "not UTF-8"),
        ("o.csv", "id,latitude,longitude\n" + "".join(f"o{i},1,1\n" for i in range(257)), "256"),
        ("o.json", json.dumps([{"id": "a", "latitude": float("nan"), "longitude": 1}]), "latitude"),
    ],
)
def test_refused_as_a_whole(problems, name, content, words):
    assert any(words in problem for problem in problems(name, content))


def test_two_hundred_and_fifty_six_are_not_too_many(load):
    assert (
        len(load("o.csv", "id,latitude,longitude\n" + "".join(f"o{i},1,1\n" for i in range(256))).origins)
        == 256
    )


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(SettingsError, match="no such file"):
        load_origins(tmp_path / "none.csv")
    with pytest.raises(SettingsError, match="can't be read"):
        load_origins(tmp_path)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["o.csv", "o.toml", "o.json", "o"]),
    st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)),
    st.booleans(),
)
def test_any_bytes(load, name, data, begun):
    start = (
        {
            "o.csv": b"id,latitude,longitude\n",
            "o.toml": b"[[origins]]\nid=",
            "o.json": b'[{"id":"a",',
            "o": b"id,",
        }[name]
        if begun
        else b""
    )
    try:
        found = load(name, start + data).origins
    except SettingsError as error:
        found = error.problems
    assert found
