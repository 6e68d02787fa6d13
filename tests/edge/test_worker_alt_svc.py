"""Alt-Svc as the Worker writes it, and what it makes of the fields and authorities that clients are tested with.

curl (tests/unit/unit1654.c) and Chromium (spdy_alt_svc_wire_format_test.cc) test how they read fields, good and malformed.
The edge writes fields: whatever an origin says, clients get the edge's own field or none; whatever authority a map names,
it is written so that a reader of RFC 7838's grammar finds that authority and nothing else, or the map is refused.
"""

import re

import pytest
import pytest_asyncio
from edge_support import a_site, make_map
from hypothesis import given
from hypothesis import strategies as st

from isochrone_edge.latency_map import LatencyMap
from isochrone_edge.steer import Steering

PIN = 'h3="a.origins.test:443"; ma=60; persist=1'

#: what an origin may send: read by curl, in its tests
CURL = (
    'h2="example.com:8080"', 'h3=":8080"', 'h2="example.com:8080", h3="yesyes.com"', 'h2="example.com:443"; ma = 120;',
    'h2="example.net:443"; ma="180";', 'h2=":443", h3=":443"; ma = 120; persist = 1', "clear;", "clear",
)  # fmt: skip
#: by Chromium: well-formed ones
CHROMIUM = (
    'a=":42"', 'a%3Db%25c="foo\\"bar\\\\baz:42"; ma=1111; v="24,25"', ' a = "b:42" ; ma = 1 ; ignored=x , , c=":1" ',
    'a="[2003:8:0:16::509d:9615]:443"', 'h3-29=":443"; ma=86400, h3=":443"; ma=86400', 'h3=":65535"; ma=4294967296',
)  # fmt: skip
#: and what it finds malformed
MALFORMED = (
    "a%", "a%x", "a%b", "a%9z", "a=", 'a="', 'a="b"', 'a=":"', 'a="c:"', 'a="c:foo"', 'a="c:42foo"', 'a="b:42"bar', 'a="b:42" ; m',
    'a="b:42" ; min-age', 'a="b:42" ; ma', 'a="b:42" ; ma=', 'a="b:42" ; v=".."', 'a="b:42" ; ma=ma', 'a="b:42" ; ma=123bar',
    'a="b:42" ; v=24', 'a="b:42" ; v=24,25', 'a="b:42" ; v="-3"', 'a="b:42" ; v="1.2"', 'a="b:42" ; v="24,"', 'a=":13', 'a%25="foo\\', "",
)  # fmt: skip
#: authorities that Chromium refuses, and others that mean something else than a host and a port of their own
NO_AUTHORITIES = (
    "", ":", "foo:", ":bar", ":0", "foo:0", ":12bar", "foo:23bar", " ", ":12 ", "foo:12 ", "[2003:8:0:16::509d:9615]",
    "[2003:8:0:16::509d:9615]:", "[2003:8:0:16::509d:9615]foo:443", "[2003:8:0:16::509d:9615:443", "2003:8:0:16::509d:9615]:443",
    "[2003:8:0:16::509d:9615]:443", ":42", "foo:65536", "foo:4294967739", "foo:-1", "foo:4_2", 'foo"bar\\baz:42', "foo:42, b=c:1",
)  # fmt: skip


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["on", "off"], ids=["crossing", "no_crossing"]
)
async def site(request):
    async with a_site("a", "b", CROSSING=request.param) as site:
        proved = {"alt_svc": {"authority": "a.origins.test:443", "ma": 60}}
        await site.publish(make_map(["a", "b"], orders=[["b", "a"]], a=proved))
        yield site


@pytest.mark.edge
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", ["alt-svc", "ALT-SVC", "Alt-Svc"])
async def test_of_an_origin_s_own_field_nothing_is_left(site, name):
    for value in (*CURL, *CHROMIUM, *MALFORMED):
        line = f"{name}: {value}\r\n"
        for lines in (line, line + 'alt-svc: h3=":1"\r\n'):
            for origin in (site.a, site.b):
                origin.answer = f"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n{lines}\r\n".encode()
            promised, _ = await site.get(cf={"asn": 100})
            assert promised.headers.getall("alt-svc") == [PIN], value
            unproved, _ = await site.get(cf={"asn": 101})
            assert "alt-svc" not in unproved.headers, value


TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
QUOTED = r'"(?:[\t !\x23-\x5b\x5d-\x7e]|\\[\t -~])*"'
ALTERNATIVE = (
    rf"(?P<alpn>{TOKEN})=(?P<authority>{QUOTED})(?P<rest>(?:[ \t]*;[ \t]*{TOKEN}=(?:{TOKEN}|{QUOTED}))*)"
)


def read(value):
    """By the grammar of RFC 7838 section 3, one alternative: ALPN, host, port, parameters."""
    found = re.fullmatch(ALTERNATIVE, value)
    assert found, value
    host, _, port = re.sub(r"\\(.)", r"\1", found["authority"][1:-1]).rpartition(":")
    return found["alpn"], host, int(port), re.findall(rf"({TOKEN})=({TOKEN}|{QUOTED})", found["rest"])


def promise_of(authority, max_age, **notes):
    endpoint = {"alt_svc": {"authority": authority, "ma": max_age}}
    steering = Steering(LatencyMap(make_map(["a"], notes=notes, a=endpoint)))
    return steering, steering.promise(steering.origins[0], 0.0)


@pytest.mark.parametrize("authority", NO_AUTHORITIES)
def test_a_map_that_names_no_authority_is_refused(authority):
    with pytest.raises(ValueError, match="is no"):
        promise_of(authority, 60)


HOSTS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?(\.[a-z0-9]{1,8}){0,3}", fullmatch=True)


@given(HOSTS, st.integers(1, 65535), st.integers(1, 2**31), st.none() | st.integers(1, 2**31))
def test_what_is_promised_is_read_as_it_was_meant(host, port, max_age, until):
    notes = {} if until is None else {"valid_until": until}
    _, value = promise_of(f"{host}:{port}", max_age, **notes)
    shorter = max_age if until is None else min(max_age, until)
    assert read(value) == ("h3", host, port, [("ma", str(shorter)), ("persist", "1")])
