"""`isochrone fetch` as a process: documents, sentences and exit status."""

import asyncio
import json
import sys

import pytest
from client_support import a_world

from isochrone.cli import main

MAIN = "from isochrone.cli import main; main()"


async def run(*arguments):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MAIN, "fetch", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )  # fmt: skip
    out, err = await process.communicate()
    assert b"Traceback" not in err
    return process.returncode, out.decode(), err.decode()


async def test_two_fetches_share_a_file(tmp_path):
    async with a_world(tmp_path) as world:
        url, options = str(world.url), world.options()
        world.apps["site"].alt_svc = [world.pin("eu")]
        world.apps["site"].extra = [("server-timing", 'colour;desc="7", origin;desc="eu";dur=1.0')]
        status, out, err = await run(url, *options)
        assert (status, err) == (0, "")
        told = json.loads(out)
        assert (told["region"], told["route"], told["protocol"], told["alt_svc"]["cache"]) == (
            "edge", "origin", "h2", "learnt",
        )  # fmt: skip
        assert told["edge"] == {"colour": "7", "origin": "eu"}
        with world.cache.path.open("a") as file:
            file.write("rubbish\n")
        status, out, err = await run(url, *options)
        assert status == 0
        assert "line 4 is no entry" in err
        told = json.loads(out)
        assert (told["region"], told["route"], told["protocol"]) == ("eu", "alternative", "h3")
        assert set(told["phases_ms"]) == {"dns", "connect", "tls", "first_byte", "total"}
        status, out, _ = await run(url, *options[:-2], "--http1", "--timeout=20")
        assert out.startswith(f"{url}: 200 from edge over http/1.1\n")
        world.apps["eu"].status = 500
        assert (await run(url, *options))[0] == 1
        for key in ("site", "eu"):
            await world.stop(key)
        status, out, err = await run(url, *options)
        assert status == 1
        assert json.loads(out)["status"] is None
        assert err.count("\n") == 2


CONFIG = """\
site = "www.example.test"
[verification]
trust_store = "{store}"
[[origins]]
id = "eu"
host = "eu.example.test:{eu}"
alt_svc = "eu.example.test:{eu}"
addresses = ["127.0.0.2"]
latitude = 1
longitude = 1
[[origins]]
id = "us"
host = "us.example.test:{eu}"
addresses = ["127.0.0.2"]
latitude = 1
longitude = 1
"""


async def test_a_region_by_its_configuration(tmp_path):
    async with a_world(tmp_path) as world:
        config = tmp_path / "isochrone.toml"
        config.write_text(CONFIG.format(store=world.authority.ca_pem, eu=world.fronts["eu"].port))
        common = (str(world.url), f"-c{config}", "--timeout=20")
        for flags, protocol in (((), "h3"), (("--http2", "--http1"), "h2")):
            status, out, _ = await run(*common, "--region=eu", "--json", *flags)
            assert status == 0
            assert (json.loads(out)["protocol"], json.loads(out)["region"]) == (protocol, "eu")
        status, _, err = await run(*common, "--region=us")
        assert status == 1
        assert "was answered by 'eu', not by 'us'" in err
        status, _, err = await run(*common, "--region=mars")
        assert status == 2
        assert "has no origin 'mars'; it has eu, us" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["http://a.test/"], "does not begin with https://"),
        (["https://a.test/", "--region=x"], "--region needs -c FILE"),
        (["https://a.test/", "--resolve=a:b"], "is not HOST:PORT:ADDRESS"),
        (["https://a.test/", "--cacert=/nowhere"], "--cacert: /nowhere: holds no certificates"),
        (["https://a.test/", "--alt-svc=/dev/null"], "/dev/null is not a file"),
        (["https://a.test/", "--new-network"], "needs --alt-svc FILE"),
        (["https://a.test/", "-c/nowhere.toml"], "/nowhere.toml"),
        (["https://a.test/", "--timeout=nan"], "not a finite number"),
    ],
)
def test_wrong_usage_is_one_sentence(arguments, sentence, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["isochrone", "fetch", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert sentence in err
