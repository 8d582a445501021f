"""Reply heads: what is one is understood, what is none is refused, whatever it is."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.store.http1 import BadHeadError, parse_head


def test_a_head_is_status_and_headers_by_lower_case_names() -> None:
    head = parse_head(b'HTTP/1.1 206 Partial Content\r\nContent-Length: 10\r\nETag:"a:b"\t\r\nX-Empty:')
    assert (head.status, head.body_bytes, head.is_persistent) == (206, 10, True)
    assert head.headers == {"content-length": "10", "etag": '"a:b"', "x-empty": ""}


@pytest.mark.parametrize(
    ("head", "is_persistent"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close", False),
        (b"HTTP/1.1 200 OK\r\nConnection: Keep-Alive, Close", False),
        (b"HTTP/1.0 200 OK", False),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive", True),
        (b"HTTP/1.1 200", True),
    ],
)
def test_a_connection_is_kept_as_its_version_and_header_say(head: bytes, is_persistent: bool) -> None:
    assert parse_head(head).is_persistent == is_persistent


def test_a_length_may_be_told_twice() -> None:
    assert parse_head(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\ncontent-length: 5").body_bytes == 5


def test_a_length_that_is_not_told_is_none() -> None:
    assert parse_head(b"HTTP/1.1 200 OK").body_bytes is None
    assert parse_head(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3").body_bytes is None


@pytest.mark.parametrize("length", [b"-1", b"+1", b"1_0", b"x", b"", b"9" * 20, "\u0663".encode()])
def test_a_length_that_is_no_number_is_refused(length: bytes) -> None:
    with pytest.raises(BadHeadError):
        _ = parse_head(b"HTTP/1.1 200 OK\r\nContent-Length: " + length).body_bytes


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"HTTP/2 200",
        b"HTTP/1.1 20",
        b"HTTP/1.1 2000",
        b"\x16\x03\x01",
        b"HTTP/1.1 200 OK\r\n folded",
        b"HTTP/1.1 200 OK\r\na b: c",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\ncontent-length: 7",
    ],
)
def test_what_is_no_head_is_refused(head: bytes) -> None:
    with pytest.raises(BadHeadError):
        parse_head(head)


@given(st.binary())
def test_no_bytes_do_more_harm_than_that(rest: bytes) -> None:
    with contextlib.suppress(BadHeadError):
        _ = parse_head(b"HTTP/1.1 200 OK\r\n" + rest).body_bytes
