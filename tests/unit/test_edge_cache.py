"""What the edge's cache may keep."""

from hypothesis import given
from hypothesis import strategies as st

from isochrone_edge import cache

LENGTH = {"content-length": "10"}
NOW = 1_796_133_600.0
LATE = "Tue, 01 Dec 2026 13:59:56 GMT"  # four seconds before


def test_lifetimes():
    for status, fields, expected in (
        (200, {}, 60), (203, {}, 60), (301, {}, 60), (302, {}, 0), (404, {}, 0), (500, {"cache-control": "max-age=9"}, 0), (206, {}, 0),
        (404, {"cache-control": "max-age=9"}, 9), (200, {"cache-control": "max-age=9"}, 9), (200, {"cache-control": "max-age=99"}, 60),
        (200, {"cache-control": "max-age=99, s-maxage=5"}, 5), (200, {"cache-control": "s-maxage=0, max-age=99"}, 0),
        (200, {"cache-control": "private"}, 0), (200, {"cache-control": "No-Store"}, 0), (200, {"cache-control": 'no-cache="x"'}, 0),
        (200, {"cache-control": "max-age=x"}, 0), (200, {"cache-control": "max-age=9", "age": "4"}, 5), (200, {"cache-control": "max-age=9", "age": "40"}, 0),
        (200, {"cache-control": "max-age=9", "age": "4, 1"}, 5), (200, {"cache-control": "max-age=9", "age": "9" * 40}, 0),
        (200, {"cache-control": "max-age=9", "date": LATE}, 5), (200, {"cache-control": "max-age=9", "date": LATE, "age": "7"}, 2),
        (200, {"cache-control": "max-age=9", "date": "once"}, 9), (200, {"cache-control": 'x="a, max-age=40", max-age=9'}, 9),
        (200, {"cache-control": 'max-age="9"'}, 9), (200, {"vary": "TE"}, 0), (200, {"vary": "Upgrade, accept"}, 0),
        (200, {"cache-control": "public"}, 60), (200, {"expires": "0"}, 0), (200, {"set-cookie": "a=1"}, 0), (200, {"vary": "*"}, 0), (200, {"vary": "a, *"}, 0),
        (200, {"vary": "accept"}, 60), (200, {"content-length": ""}, 0), (200, {"content-length": "999999999"}, 0), (200, {"content-encoding": "gzip"}, 0),
    ):  # fmt: skip
        assert cache.lifetime(status, {**LENGTH, **fields}, 60, NOW) == expected, (status, fields)


def test_what_was_asked_for_with_a_cookie_is_kept_only_when_the_answer_says_for_how_long():
    for control, expected in (
        (None, 0),
        ("immutable", 0),
        ("public", 60),
        ("max-age=9", 9),
        ("s-maxage=9", 9),
        ("private", 0),
    ):
        fields = {**LENGTH, "cache-control": control} if control else LENGTH
        assert cache.lifetime(200, fields, 60, NOW, cookie=True) == expected, control


@given(st.text(max_size=60), st.integers(0, 1000))
def test_no_field_makes_a_lifetime_longer_than_the_limit(control, limit):
    assert 0 <= cache.lifetime(200, {**LENGTH, "cache-control": control}, limit, NOW) <= limit


def test_requests():
    assert cache.may_answer("GET", {})
    for method, fields in (
        ("HEAD", {}),
        ("POST", {}),
        ("GET", {"authorization": "x"}),
        ("GET", {"range": "x"}),
        ("GET", {"upgrade": "websocket"}),
        ("GET", {"if-match": "x"}),
        ("GET", {"connection": "accept-language", "accept-language": "de"}),
        ("GET", {"if-unmodified-since": "x"}),
        ("GET", {"cache-control": "no-cache"}),
        ("GET", {"cache-control": "max-age=0"}),
    ):
        assert not cache.may_answer(method, fields)


OCTOBER, NOVEMBER = "Wed, 21 Oct 2026 07:28:00 GMT", "Sat, 21 Nov 2026 07:28:00 GMT"


def test_a_client_that_has_the_copy_already():
    copy = {"etag": '"a,b"', "last-modified": OCTOBER}
    for asked, expected in (
        ({}, False), ({"if-none-match": '"a,b"'}, True), ({"if-none-match": 'W/"x", W/"a,b"'}, True), ({"if-none-match": "*"}, True),
        ({"if-none-match": '"a"'}, False), ({"if-none-match": "a,b"}, False), ({"if-none-match": ""}, False),
        ({"if-modified-since": OCTOBER}, True), ({"if-modified-since": NOVEMBER}, True),
        ({"if-modified-since": "Tue, 20 Oct 2026 07:28:00 GMT"}, False), ({"if-modified-since": "soon"}, False),
        ({"if-none-match": '"x"', "if-modified-since": NOVEMBER}, False),  # the tag alone decides
    ):  # fmt: skip
        assert cache.unchanged(200, copy, asked) is expected, asked
        assert not cache.unchanged(404, copy, asked)
    assert cache.unchanged(200, {"etag": 'W/"a"'}, {"if-none-match": '"a"'})
    assert not cache.unchanged(200, {}, {"if-none-match": '""', "if-modified-since": NOVEMBER})
    assert not cache.unchanged(200, {}, {"if-modified-since": NOVEMBER})


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_any_condition_is_judged(tag, modified, asked):
    copy = {"etag": tag, "last-modified": modified}
    assert cache.unchanged(200, copy, {"if-none-match": asked}) in (True, False)
    assert cache.unchanged(200, copy, {"if-modified-since": asked}) in (True, False)


def test_variants():
    assert cache.variant(None, {"accept": "x"}) == ""
    assert cache.variant("Accept", {"accept": "x"}) != cache.variant("Accept", {"accept": "y"})
    assert cache.variant("Accept, Origin", {"accept": "x", "other": "1"}) == cache.variant(
        "origin,ACCEPT", {"accept": "x"}
    )
    assert cache.key("https://a.test/x?y") == "https://a.test/x?y"
    assert (
        cache.variant("Cookie", {"cookie": "u=\ufffd"}) is None
    )  # bytes that are no text can't be told apart
    own = {
        cache.key(url, chosen, generation)
        for url in ("https://a.test/x", "https://a.test/x?y")
        for chosen in ("ab", "cd")
        for generation in ("1", "2")
    }
    assert len(own) == 8
    assert all(key.startswith("https://a.test/.isochrone/variant/") for key in own)  # no public URL


def test_what_is_written_into_a_copy_is_taken_out_again():
    fields = {"cache-control": "max-age=9", "vary": "accept", "age": "2"}
    put, gone = cache.kept(fields, 7, "ab", 1000.7)
    assert put["cache-control"] == "public, max-age=7"
    assert {"vary", "alt-svc"} <= set(gone)
    back, out = cache.given(put, 1004.0)
    assert back == {"age": "6", "cache-control": "max-age=9", "vary": "accept"}
    assert set(cache.BOOKKEEPING) <= set(out)
    back, out = cache.given(cache.kept({}, 7, "", 1000.0)[0], 1000.0)
    assert "cache-control" in out
    assert back == {"age": "0"}


def test_what_is_of_the_connection_is_not_kept():
    gone = cache.kept({"connection": "x-internal, Cookie", "x-internal": "1"}, 7, "", NOW)[1]
    assert {"x-internal", "connection", "keep-alive", "proxy-authenticate"} <= set(gone)


def test_what_is_held_for_copies_is_limited():
    held, most = cache.Held(), cache.HELD_BYTES
    assert held.take(100, 0.0) == 0
    first = held.take(most - 20_000, 0.0)
    assert first
    assert held.take(20_001, 0.0) is None
    assert held.take(20_000, 0.0)
    held.give_back(first)
    assert held.take(most - 20_000, 0.0)
    assert held.take(20_000, 0.0) is None
    assert held.take(most, cache.HELD_SECONDS)  # a request that was ended has given nothing back


def test_an_answer_to_a_body_is_neither_given_nor_kept():
    assert not cache.may_answer("GET", {"content-length": "4"})
    assert not cache.may_answer("GET", {"transfer-encoding": "chunked"})
    assert cache.may_answer("GET", {"content-length": "0"})


def test_a_lifetime_of_any_length_is_a_number():
    fields = {"content-length": "2", "cache-control": "max-age=" + "9" * 5000}
    assert cache.lifetime(200, fields, 60, NOW) == 60
