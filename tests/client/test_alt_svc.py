"""A client reads Alt-Svc as RFC 7838 says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.client.alt_svc import LONGEST_AGE, Alternative, AltSvcError, parse_alt_svc
from isochrone.client.errors import NoAlternativeError
from isochrone.lab.client import choose


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("clear", ()),
        (
            'h3="eu.isochrone.test:8443"; ma=3600; persist=1',
            (Alternative("h3", "eu.isochrone.test", 8443, 3600, persist=True),),
        ),
        ('h3=":443"', (Alternative("h3", "", 443),)),
        ('h2=":443";ma=1 , h3="x:1"', (Alternative("h2", "", 443, 1), Alternative("h3", "x", 1))),
        ('w%3Dx%3Ay#z="x:80"', (Alternative("w=x:y#z", "x", 80),)),  # the example of section 3
        ('h3="[2001:db8::1]:443"', (Alternative("h3", "[2001:db8::1]", 443),)),
        ('h3="e\\u:1"; unknown="a,b;c"; persist=2', (Alternative("h3", "eu", 1),)),
        (' ,h3="x:1",, h2="x:2" ,', (Alternative("h3", "x", 1), Alternative("h2", "x", 2))),
        ('h3="x:1"; ma="60"', (Alternative("h3", "x", 1, 60),)),
        (f'h3="x:1"; ma=1{"0" * 5000}', (Alternative("h3", "x", 1, LONGEST_AGE),)),
    ],
)
def test_values(value, expected):
    assert parse_alt_svc(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        "",
        "h3",
        "h3=:443",
        'h3="x"',
        'h3="x:99999"',
        'h3="x:1" ma=1',
        ",",
        'h3="x:1" , clear',
        'h3="x:1"; ma=-1',
        "Clear",
    ],
)
def test_malformed(value):
    with pytest.raises(AltSvcError):
        parse_alt_svc(value)


def quoted(text, *, always=False):
    """A quoted string (RFC 9110 section 5.6.4): what must be escaped is, and everything if `always`."""
    return '"' + "".join(f"\\{c}" if always or c in '"\\' else c for c in text) + '"'


HOST = st.from_regex(r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?(\.[a-z]{2,8}){0,3}", fullmatch=True)
ALTERNATIVES = st.lists(
    st.builds(
        Alternative,
        protocol=st.sampled_from(["h2", "h3", "h3-29"]),
        host=HOST | st.just(""),
        port=st.integers(0, 65_535),
        max_age=st.integers(0, LONGEST_AGE),
        persist=st.booleans(),
    ),
    min_size=1,
    max_size=4,
)


@given(ALTERNATIVES, st.sampled_from(["", " ", "\t "]))
def test_what_is_written_is_read(alternatives, space):
    value = f"{space},{space}".join(
        f'{a.protocol}="{a.host}:{a.port}"{space};{space}ma={a.max_age}'
        + ("; persist=1" if a.persist else "")
        for a in alternatives
    )
    assert parse_alt_svc(value) == tuple(alternatives)


TOKEN = "!#$&'*+-.^_`|~0123456789abcXYZ"  # what needs no percent-encoding, RFC 7838 section 3
OTHERS = st.lists(
    st.tuples(
        st.text("abcxyz-_", min_size=3, max_size=8).filter(lambda name: name.lower() != "persist"),
        st.text(TOKEN, min_size=1, max_size=8) | st.text('ab,;= "\\', max_size=12).map(quoted),
    ),
    max_size=3,
)


@given(
    st.lists(
        st.tuples(
            st.binary(min_size=1, max_size=6), HOST | st.just(""), st.integers(0, 65_535), st.integers(0, LONGEST_AGE), OTHERS,
            st.booleans(),
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([", ", ",", " ,, ", ",\t"]),
)  # fmt: skip
def test_any_protocol_any_quoting_any_parameter(alternatives, comma):
    """What RFC 7838's grammar allows is read, whatever stands in it that this client does not know."""
    value = comma.join(
        "".join(chr(o) if chr(o) in TOKEN else f"%{o:02X}" for o in protocol)
        + "=" + quoted(f"{host}:{port}", always=escape)
        + "".join(f"; {name}={text}" for name, text in others)
        + (f'; MA="{age}"' if escape else f" ;\tma={age}")
        for protocol, host, port, age, others, escape in alternatives
    )  # fmt: skip
    assert parse_alt_svc(value) == tuple(
        Alternative(protocol.decode("latin-1"), host, port, age)
        for protocol, host, port, age, _, _ in alternatives
    )


@given(st.text(max_size=80))
def test_anything_is_read_or_refused(value):
    try:
        parsed = parse_alt_svc(value)
    except AltSvcError:
        return
    assert all(0 <= a.port <= 65_535 and a.max_age >= 0 for a in parsed)


def test_a_client_takes_the_first_http3_alternative():
    assert choose('h2="a:1", h3="b:2", h3="c:3"', "www").host == "b"
    with pytest.raises(NoAlternativeError, match="no h3 alternative"):
        choose("clear", "www.isochrone.test")
