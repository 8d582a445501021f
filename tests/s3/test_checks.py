from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import BadReplyError, ObjectChangedError
from fastfuse.objects import ObjectRef
from fastfuse.s3.checks import check_body, check_version, condition_line
from fastfuse.s3.http1 import ReplyHead

LISTED = datetime(2024, 1, 1, tzinfo=UTC)
LISTED_NS = 1_704_067_200 * 10**9
REF = ObjectRef("bucket", "key", 100, '"abc"', LISTED_NS)


def head_of(content_range: str, body_bytes: int | None = None) -> ReplyHead:
    return ReplyHead(206, {"content-range": content_range, "etag": REF.etag}, True, body_bytes)


@given(st.data(), st.sampled_from(["/100", "/*"]))
def test_the_range_that_was_asked_for_is_taken_with_its_total_or_without(data: st.DataObject, total: str) -> None:
    start = data.draw(st.integers(0, 99))
    end = data.draw(st.integers(start + 1, 100))
    check_body(head_of(f"bytes {start}-{end - 1}{total}"), REF, start, end)
    for other in ((start, end + 1), (start + 1, end), (start + 1, end + 1)):
        with pytest.raises(BadReplyError, match="another range"):
            check_body(head_of(f"bytes {other[0]}-{other[1] - 1}{total}"), REF, start, end)


@given(
    st.text(max_size=50)
    | st.sampled_from(["", "bytes", "bytes 1-2", "bytes a-b/c", "items 1-2/3", "bytes 1-2/100;x", "bytes ١-٢/١٠٠"])
    | st.sampled_from(["bytes */100", "bytes 2-1/100", "bytes -1-2/100", f"bytes {'9' * 30}-{'9' * 31}/{'9' * 32}"])
)
def test_anything_else_is_no_content_range(value: str) -> None:
    with pytest.raises(BadReplyError, match="another range"):
        check_body(head_of(value), REF, 1, 3)


def test_a_body_without_range_and_length_is_taken_only_as_a_whole_object_that_nothing_transformed() -> None:
    whole = ReplyHead(200, {"etag": REF.etag}, True, None)
    check_body(whole, REF, 0, 100)
    check_body(replace(whole, body_bytes=100), REF, 0, 99)
    unpacked = replace(whole, headers=whole.headers | {"warning": "214 UploadServer gunzipped"})
    for head, start, end in ((whole, 0, 99), (whole, 1, 100), (unpacked, 0, 100)):
        with pytest.raises(BadReplyError, match="without a length"):
            check_body(head, REF, start, end)


def test_the_time_is_asked_for_where_there_is_no_etag_and_to_the_next_whole_second() -> None:
    assert condition_line(replace(REF, etag="", modified_ns=0)) == ""
    for later_ns, second in ((0, "00"), (1_000_000, "01")):
        line = condition_line(replace(REF, etag="", modified_ns=LISTED_NS + later_ns))
        assert line == f"if-unmodified-since: Mon, 01 Jan 2024 00:00:{second} GMT\r\n"


@given(st.integers(-(1 << 63), (1 << 63) - 1).filter(bool))
def test_every_time_that_a_listing_can_hold_can_be_asked_for(modified_ns: int) -> None:
    ref = replace(REF, etag="", modified_ns=modified_ns)
    asked = parsedate_to_datetime(condition_line(ref).partition(": ")[2])
    answered = asked - timedelta(seconds=1 if modified_ns % 10**9 else 0)
    check_version(ref, etag=None, modified=answered, total_bytes=None)


WITHOUT_ETAG = replace(REF, etag="", modified_ns=LISTED_NS + 999_000_000)
WITHOUT_TIME = replace(REF, etag="", modified_ns=0)


@pytest.mark.parametrize(
    ("ref", "etag", "modified", "total_bytes", "error", "message"),
    [
        # Another ETag is a changed object, whatever its size.
        *((REF, '"abd"', None, size, ObjectChangedError, "its ETag is another one") for size in (100, 99)),
        (REF, '"abc"', None, 99, BadReplyError, "has 99 bytes, and not the 100 that it was listed with"),
        # A portal's page has another size, too.
        *((REF, etag, None, size, BadReplyError, "no ETag") for etag in (None, "") for size in (100, 20)),
        (WITHOUT_ETAG, '"abd"', LISTED, 101, ObjectChangedError, "100 bytes and now has 101"),
        (WITHOUT_ETAG, '"abd"', LISTED - timedelta(seconds=1), 100, ObjectChangedError, "its time is another one"),
        (WITHOUT_ETAG, '"abd"', LISTED + timedelta(seconds=2), 100, ObjectChangedError, "its time is another one"),
        (WITHOUT_ETAG, '"abd"', None, 100, BadReplyError, "no Last-Modified"),
        (WITHOUT_TIME, None, LISTED, 99, ObjectChangedError, "100 bytes and now has 99"),
    ],
)
def test_another_version_is_found_out_and_so_is_a_reply_that_names_none(
    ref: ObjectRef, etag: str | None, modified: datetime | None, total_bytes: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        check_version(ref, etag=etag, modified=modified, total_bytes=total_bytes)


@pytest.mark.parametrize(
    ("ref", "etag", "modified", "total_bytes"),
    [
        *((REF, etag, None, size) for etag in ('"abc"', "abc", 'W/"abc"') for size in (100, None)),
        (WITHOUT_ETAG, '"abd"', LISTED, 100),
        (WITHOUT_TIME, None, None, 100),
    ],
)
def test_the_same_version_passes_by_etag_time_or_size(
    ref: ObjectRef, etag: str | None, modified: datetime | None, total_bytes: int | None
) -> None:
    check_version(ref, etag=etag, modified=modified, total_bytes=total_bytes)
