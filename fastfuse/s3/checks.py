"""Asks for the listed version, and checks that a reply's bytes are those that were asked for (semantics D1, D2)."""

import re
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime

from fastfuse.errors import BadReplyError, ObjectChangedError
from fastfuse.objects import EMPTY_ETAG, ObjectRef, bare_etag, known_etag
from fastfuse.s3.http1 import ReplyHead

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NS_PER_S = 10**9
# The largest size, and the largest time in nanoseconds, that a file system can hold.
_LARGEST = 2**63 - 1
# These would end a header, or no header can carry them (RFC 9110, 5.5).
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")
# What unpacked the bytes may say so (RFC 7234, 5.5.6).
_TRANSFORMED = "214"
UNPACKED_HINT = (
    "Check that nothing unpacks objects on their way. Google Cloud Storage does, where Content-Encoding is gzip: set"
    " their Cache-Control to no-transform."
)
_CONTENT_RANGE = re.compile(r"\s*bytes\s+([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)\s*", re.IGNORECASE | re.ASCII)


def check_range_arguments(ref: ObjectRef, start: int, end: int) -> None:
    if not 0 <= start < end <= ref.size_bytes:
        raise ValueError(f"range {start}-{end} is not inside the {ref.size_bytes} bytes of {ref.key!r}")


def condition_line(ref: ObjectRef) -> str:
    """Return the header line that asks for the listed version; empty where nothing is known of it.

    Raises `BadReplyError` for an ETag that no header can carry.
    """
    if _CONTROL_CHARACTER.search(ref.etag):
        raise BadReplyError(f"The service listed {ref.key!r} with an ETag that holds control characters.")
    if ref.etag:
        # Some servers list it without the quotes that If-Match requires.
        etag = ref.etag if '"' in ref.etag else f'"{ref.etag}"'
        return f"if-match: {etag}\r\n"
    if not ref.modified_ns:
        return ""
    # Rounded up: the header has whole seconds, and some servers compare it with the fraction that they list.
    modified = _EPOCH + timedelta(seconds=-(-ref.modified_ns // _NS_PER_S))
    return f"if-unmodified-since: {format_datetime(modified, usegmt=True)}\r\n"


def check_version(ref: ObjectRef, *, etag: str | None, modified: datetime | None, total_bytes: int | None) -> None:
    """Refuse a reply that is of another version of `ref`, or that does not say of which.

    If-Match and If-Unmodified-Since do not suffice: there are servers that ignore them.
    """
    name, sent = ("ETag", etag) if ref.etag else ("Last-Modified", modified)
    # Checked before the size: the page of a proxy or a portal has none of them, and the object did not change.
    if not sent and (ref.etag or ref.modified_ns):
        raise BadReplyError(
            f"The reply for {ref.key!r} has no {name}, so it may be of another version of the object.",
            hint="Check that no proxy or sign-in page answers in place of the S3 service.",
        )
    if ref.etag and bare_etag(etag or "") != bare_etag(ref.etag):
        raise ObjectChangedError(f"{ref.key!r} has changed since it was listed: its ETag is another one.")
    if total_bytes is not None and total_bytes != ref.size_bytes:
        if ref.etag:
            raise BadReplyError(
                f"The service says that {ref.key!r} has {total_bytes} bytes, and not the {ref.size_bytes} that it was"
                " listed with under the same ETag."
            )
        raise ObjectChangedError(
            f"{ref.key!r} has changed: it was listed with {ref.size_bytes} bytes and now has {total_bytes}."
        )
    if not ref.etag and ref.modified_ns and modified is not None:
        # Last-Modified has whole seconds, and a listing may have fractions of them.
        listed = _EPOCH + timedelta(microseconds=ref.modified_ns // 1000)
        if abs(modified - listed) >= timedelta(seconds=1):
            raise ObjectChangedError(f"{ref.key!r} has changed since it was listed: its time is another one.")


def check_body(head: ReplyHead, ref: ObjectRef, start: int, end: int) -> None:
    """Check that the body behind `head` begins with the bytes from `start` to `end` of the listed version of `ref`.

    Some servers (rclone) answer a range with 200, which is sound as long as Content-Range says what it is. A body
    without range and length may be another form of the object, of the same ETag, so only its end shows what it is.

    Raises:
        ObjectChangedError: the body is of another version.
        BadReplyError: the head does not say what the body is, or it is not what was asked for.
    """
    sent = head.headers.get("content-range")
    modified = None if ref.etag else parse_date(head.headers.get("last-modified", ""))
    if sent is not None:
        match = _CONTENT_RANGE.fullmatch(sent)
        if match is None or (int(match[1]), int(match[2]) + 1) != (start, end):
            raise BadReplyError(f"The service sent another range of {ref.key!r} than {start}-{end}.")
        total_bytes = None if match[3] == "*" else int(match[3])
        check_version(ref, etag=head.headers.get("etag"), modified=modified, total_bytes=total_bytes)
        if head.body_bytes not in (None, end - start):
            raise BadReplyError(
                f"The service sent {head.body_bytes} bytes of {ref.key!r} where {end - start} were asked for."
            )
        return
    if head.status == 206:
        raise BadReplyError(f"The service does not say which range of {ref.key!r} it sent.")
    check_version(ref, etag=head.headers.get("etag"), modified=modified, total_bytes=head.body_bytes)
    is_whole = (start, end) == (0, ref.size_bytes)
    if head.body_bytes is None and (not is_whole or head.headers.get("warning", "")[:3] == _TRANSFORMED):
        raise BadReplyError(
            f"The service sent {ref.key!r} without a length, and perhaps not as it is stored.", hint=UNPACKED_HINT
        )
    if start:
        raise BadReplyError(f"The service ignores Range: {ref.key!r} can be read from its beginning only.")


def object_of(head: ReplyHead, bucket: str, key: str) -> ObjectRef | None:
    """Return the object that the reply to a HEAD describes; None unless it has a length and a time.

    Apache, as a proxy, leaves out the length of an empty object.
    """
    size_bytes, modified = head.body_bytes, parse_date(head.headers.get("last-modified", ""))
    if size_bytes is None and bare_etag(head.headers.get("etag", "")) == EMPTY_ETAG:
        size_bytes = 0
    if size_bytes is None or modified is None:
        return None
    modified_ns = round(modified.timestamp()) * _NS_PER_S
    if max(size_bytes, modified_ns) > _LARGEST or modified_ns < 0:
        return None
    return ObjectRef(
        bucket=bucket,
        key=key,
        size_bytes=size_bytes,
        etag=known_etag(head.headers.get("etag", "")),
        modified_ns=modified_ns,
        storage_class=head.headers.get("x-amz-storage-class", "STANDARD"),
    )


def parse_date(value: str) -> datetime | None:
    """Return the time in a header, in UTC where it names no zone; None if it makes no sense."""
    try:
        at = parsedate_to_datetime(value)
    except (OverflowError, ValueError):
        return None
    return at.replace(tzinfo=at.tzinfo or UTC)
