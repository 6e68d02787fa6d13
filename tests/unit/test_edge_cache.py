"""What the edge's cache may keep."""

from hypothesis import given
from hypothesis import strategies as st

from isochrone_edge import cache

LENGTH = {"content-length": "10"}


def test_lifetimes():
    for status, fields, expected in (
        (200, {}, 60), (203, {}, 60), (301, {}, 60), (302, {}, 0), (404, {}, 0), (500, {"cache-control": "max-age=9"}, 0), (206, {}, 0),
        (404, {"cache-control": "max-age=9"}, 9), (200, {"cache-control": "max-age=9"}, 9), (200, {"cache-control": "max-age=99"}, 60),
        (200, {"cache-control": "max-age=99, s-maxage=5"}, 5), (200, {"cache-control": "s-maxage=0, max-age=99"}, 0),
        (200, {"cache-control": "private"}, 0), (200, {"cache-control": "No-Store"}, 0), (200, {"cache-control": 'no-cache="x"'}, 0),
        (200, {"cache-control": "max-age=x"}, 0), (200, {"cache-control": "max-age=9", "age": "4"}, 5), (200, {"cache-control": "max-age=9", "age": "40"}, 0),
        (200, {"cache-control": "public"}, 60), (200, {"expires": "0"}, 0), (200, {"set-cookie": "a=1"}, 0), (200, {"vary": "*"}, 0), (200, {"vary": "a, *"}, 0),
        (200, {"vary": "accept"}, 60), (200, {"content-length": ""}, 0), (200, {"content-length": "999999999"}, 0), (200, {"content-encoding": "gzip"}, 0),
    ):  # fmt: skip
        assert cache.lifetime(status, {**LENGTH, **fields}, 60) == expected, (status, fields)


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
        assert cache.lifetime(200, fields, 60, cookie=True) == expected, control


@given(st.text(max_size=60), st.integers(0, 1000))
def test_no_field_makes_a_lifetime_longer_than_the_limit(control, limit):
    assert 0 <= cache.lifetime(200, {**LENGTH, "cache-control": control}, limit) <= limit


def test_requests():
    assert cache.may_answer("GET", {})
    for method, fields in (
        ("HEAD", {}),
        ("POST", {}),
        ("GET", {"authorization": "x"}),
        ("GET", {"range": "x"}),
        ("GET", {"upgrade": "websocket"}),
        ("GET", {"if-match": "x"}),
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
    assert cache.key("https://a.test/x?y", "ab") == "https://a.test/.isochrone/variant/ab/x?y"


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


def test_an_answer_to_a_body_is_neither_given_nor_kept():
    assert not cache.may_answer("GET", {"content-length": "4"})
    assert not cache.may_answer("GET", {"transfer-encoding": "chunked"})
    assert cache.may_answer("GET", {"content-length": "0"})


def test_a_lifetime_of_any_length_is_a_number():
    fields = {"content-length": "2", "cache-control": "max-age=" + "9" * 5000}
    assert cache.lifetime(200, fields, 60) == 60
