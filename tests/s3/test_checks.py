from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import BadReplyError, ObjectChangedError
from fastfuse.objects import ObjectRef
from fastfuse.s3.checks import (
    check_length,
    check_version,
    if_match_value,
    if_unmodified_since,
    parse_content_range,
)

LISTED = datetime(2024, 1, 1, tzinfo=UTC)
LISTED_NS = 1_704_067_200 * 10**9
REF = ObjectRef("bucket", "key", 100, '"abc"', LISTED_NS)


@given(start=st.integers(0, 10**15), length=st.integers(1, 10**12), total=st.integers(1, 10**15))
def test_a_content_range_is_read_with_an_exclusive_end(start: int, length: int, total: int) -> None:
    value = f"bytes {start}-{start + length - 1}/{total}"
    assert parse_content_range(value) == (start, start + length, total)


def test_a_content_range_may_leave_the_total_open() -> None:
    assert parse_content_range("bytes 2-4/*") == (2, 5, None)


@pytest.mark.parametrize(
    "value", ["", "bytes", "bytes 1-2", "bytes a-b/c", "items 1-2/3", "bytes 1-2/3;x", "bytes ١-٢/٣"]
)
def test_anything_else_is_no_content_range(value: str) -> None:
    assert parse_content_range(value) is None


@given(st.text(max_size=50))
def test_no_text_breaks_the_content_range_parser(value: str) -> None:
    parse_content_range(value)


def test_if_match_has_quotes_even_where_the_listing_has_none() -> None:
    assert if_match_value(replace(REF, etag="abc")) == '"abc"'
    assert if_match_value(REF) == '"abc"'
    assert if_match_value(replace(REF, etag="")) == ""


@given(st.text())
def test_no_etag_gets_a_control_character_into_a_header(etag: str) -> None:
    try:
        value = if_match_value(replace(REF, etag=etag))
    except BadReplyError:
        return
    assert not [character for character in value if character < " " or character == "\x7f"]


def test_the_time_is_asked_for_where_there_is_no_etag_and_to_the_next_whole_second() -> None:
    assert if_unmodified_since(REF) is None
    assert if_unmodified_since(replace(REF, etag="", modified_ns=0)) is None
    assert if_unmodified_since(replace(REF, etag="")) == LISTED
    later = LISTED + timedelta(seconds=1)
    assert if_unmodified_since(replace(REF, etag="", modified_ns=LISTED_NS + 1_000_000)) == later


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_every_time_that_a_listing_can_hold_can_be_asked_for(modified_ns: int) -> None:
    ref = replace(REF, etag="", modified_ns=modified_ns)
    asked = if_unmodified_since(ref)
    if asked is not None:
        answered = asked - timedelta(seconds=1 if modified_ns % 10**9 else 0)
        check_version(ref, etag=None, modified=answered, total_bytes=None)


@pytest.mark.parametrize("etag", ['"abc"', "abc", 'W/"abc"'])
def test_the_same_version_passes_however_its_etag_is_written(etag: str) -> None:
    check_version(REF, etag=etag, modified=None, total_bytes=100)
    check_version(REF, etag=etag, modified=None, total_bytes=None)


def test_another_etag_is_a_changed_object() -> None:
    with pytest.raises(ObjectChangedError, match="ETag"):
        check_version(REF, etag='"abd"', modified=None, total_bytes=100)


def test_the_same_etag_with_another_size_is_a_bad_reply() -> None:
    with pytest.raises(BadReplyError, match="has 99 bytes, and not the 100 that it was listed with"):
        check_version(REF, etag='"abc"', modified=None, total_bytes=99)


def test_another_etag_and_size_is_a_changed_object() -> None:
    with pytest.raises(ObjectChangedError, match="ETag"):
        check_version(REF, etag='"abd"', modified=None, total_bytes=99)


@pytest.mark.parametrize("etag", [None, ""])
def test_a_reply_that_names_no_version_is_refused(etag: str | None) -> None:
    with pytest.raises(BadReplyError, match="no ETag"):
        check_version(REF, etag=etag, modified=None, total_bytes=100)
    with pytest.raises(BadReplyError, match="no ETag"):  # a portal's page has another size, too
        check_version(REF, etag=etag, modified=None, total_bytes=20)


def test_an_object_listed_without_etag_is_known_by_its_size_and_time() -> None:
    ref = replace(REF, etag="", modified_ns=LISTED_NS + 999_000_000)
    check_version(ref, etag='"abd"', modified=LISTED, total_bytes=100)
    with pytest.raises(ObjectChangedError, match="100 bytes and now has 101"):
        check_version(ref, etag='"abd"', modified=LISTED, total_bytes=101)
    for other in (LISTED - timedelta(seconds=1), LISTED + timedelta(seconds=2)):
        with pytest.raises(ObjectChangedError, match="its time is another one"):
            check_version(ref, etag='"abd"', modified=other, total_bytes=100)
    with pytest.raises(BadReplyError, match="no Last-Modified"):
        check_version(ref, etag='"abd"', modified=None, total_bytes=100)


def test_an_object_listed_without_etag_and_time_is_known_by_its_size() -> None:
    ref = replace(REF, etag="", modified_ns=0)
    check_version(ref, etag=None, modified=None, total_bytes=100)
    with pytest.raises(ObjectChangedError):
        check_version(ref, etag=None, modified=LISTED, total_bytes=99)


def test_fewer_or_more_bytes_than_asked_for_are_refused() -> None:
    check_length(REF, wanted_bytes=10, got_bytes=10)
    for got_bytes in (9, 11):
        with pytest.raises(BadReplyError, match=rf"sent {got_bytes} bytes of 'key' where 10"):
            check_length(REF, wanted_bytes=10, got_bytes=got_bytes)
