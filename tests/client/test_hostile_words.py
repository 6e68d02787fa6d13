"""What servers say reaches the terminal as it is: never as markup, which would end a command in a traceback, nor as commands."""

import asyncio
import sys

import pytest
from client_support import SITE, a_world

from isochrone.cli.visible import cell, visible
from isochrone.lab.dns_server import DnsServer
from isochrone.lab.dns_zone import read_zone

MAIN = "from isochrone.cli import main; main()"
HOSTILE = "[/x]\x1b[31mred"
SHOWN = "[/x]\\x1b[31mred"


async def isochrone(*arguments):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MAIN, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={"COLUMNS": "300"},
    )  # fmt: skip
    out, err = await process.communicate()
    assert b"Traceback" not in err, err.decode()
    return process.returncode, out.decode()


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("eu é 1", "eu é 1"),
        ("[bold]x[/]", "[bold]x[/]"),
        ("\x1b[2J\x07\x9b", "\\x1b[2J\\x07\\x9b"),
        ("\udcff", "\\udcff"),
        ("\u202e", "\\u202e"),
    ],
)
def test_visible(said, shown):
    assert visible(said) == shown
    assert cell(f"{said}\n{said}").plain == f"{shown}\n{shown}"


async def test_hostile_answers(tmp_path):
    async with a_world(tmp_path) as world:
        zone = read_zone(
            "example.test", 'eu 300 IN A 127.0.0.2\neu 300 IN HTTPS 1 . alpn="h3,[/x]\\027[31mred"\n'
        )
        world.apps["site"].alt_svc, world.apps["site"].region = [HOSTILE], HOSTILE
        async with DnsServer([zone]) as server:
            port = world.fronts["site"].port
            config = tmp_path / "isochrone.toml"
            config.write_text(f"""
site = "{SITE}"
origins = [{{ id = "eu", host = "eu.example.test", latitude = 50.1, longitude = 8.7, addresses = ["127.0.0.2"] }}]
verification = {{ trust_store = "{world.authority.ca_pem}" }}
dns = {{ authoritative = ["{server.at()}"], resolvers = ["{server.at()}"] }}
edge = {{ port = {port}, addresses = ["127.0.0.1"] }}
""")
            for words in (
                ("verify", "edge"),
                ("verify", "dns"),
                ("fetch", f"https://{SITE}:{port}/", f"--resolve={SITE}:{port}:127.0.0.1"),
            ):
                _, out = await isochrone(*words, f"-c{config}")
                assert SHOWN in out, words
                assert "\x1b" not in out
