import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import BadReplyError, ObjectChangedError
from fastfuse.objects import ObjectRef
from fastfuse.store.replies import check_length, check_version, if_match_value, parse_content_range

REF = ObjectRef("bucket", "key", 100, '"abc"')


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
    assert if_match_value("abc") == '"abc"'
    assert if_match_value('"abc"') == '"abc"'


@pytest.mark.parametrize("etag", ['"abc"', "abc", 'W/"abc"'])
def test_the_same_version_passes_however_its_etag_is_written(etag: str) -> None:
    check_version(REF, etag=etag, total_bytes=100)
    check_version(REF, etag=etag, total_bytes=None)


def test_another_etag_is_a_changed_object() -> None:
    with pytest.raises(ObjectChangedError, match="ETag"):
        check_version(REF, etag='"abd"', total_bytes=100)


def test_another_size_is_a_changed_object() -> None:
    with pytest.raises(ObjectChangedError, match="100 bytes and now has 99"):
        check_version(REF, etag='"abc"', total_bytes=99)


@pytest.mark.parametrize("etag", [None, ""])
def test_a_reply_that_names_no_version_is_refused(etag: str | None) -> None:
    with pytest.raises(BadReplyError, match="no ETag"):
        check_version(REF, etag=etag, total_bytes=100)


def test_an_object_listed_without_etag_is_known_by_its_size() -> None:
    ref = ObjectRef("bucket", "key", 100, "")
    check_version(ref, etag='"abd"', total_bytes=100)
    with pytest.raises(ObjectChangedError):
        check_version(ref, etag='"abd"', total_bytes=101)


def test_fewer_or_more_bytes_than_asked_for_are_refused() -> None:
    check_length(REF, wanted_bytes=10, got_bytes=10)
    for got_bytes in (9, 11):
        with pytest.raises(BadReplyError, match=rf"sent {got_bytes} bytes of 'key' where 10"):
            check_length(REF, wanted_bytes=10, got_bytes=got_bytes)
