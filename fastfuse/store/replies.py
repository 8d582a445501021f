"""Which version is asked for, and checks that a reply's bytes are those that were asked for (semantics D1, D2)."""

import re
from datetime import UTC, datetime, timedelta

from fastfuse.errors import BadReplyError, ObjectChangedError
from fastfuse.objects import ObjectRef

__all__ = [
    "check_length",
    "check_range_arguments",
    "check_version",
    "error_code",
    "error_region",
    "if_match_value",
    "if_unmodified_since",
    "is_whole_page",
    "parse_content_range",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NS_PER_S = 10**9
# What would end a header, or what no header can carry (RFC 9110, 5.5).
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")
_CONTENT_RANGE = re.compile(r"\s*bytes\s+([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)\s*", re.IGNORECASE | re.ASCII)
# Of an error document; a text that holds more than such a word is none to show.
_CODE = re.compile(rb"<Code>\s*([A-Za-z0-9._-]{1,64})\s*</Code>")
_REGION = re.compile(rb"<Region>\s*([A-Za-z0-9._-]{1,64})\s*</Region>")


def check_range_arguments(ref: ObjectRef, start: int, end: int) -> None:
    if not 0 <= start < end <= ref.size_bytes:
        raise ValueError(f"range {start}-{end} is not inside the {ref.size_bytes} bytes of {ref.key!r}")


def parse_content_range(value: str) -> tuple[int, int, int | None] | None:
    """``(start, end, total)`` with exclusive end; total is None for ``*``; None if this is not a Content-Range."""
    match = _CONTENT_RANGE.fullmatch(value)
    if match is None:
        return None
    first, last, total = match.groups()
    return int(first), int(last) + 1, None if total == "*" else int(total)


def if_match_value(ref: ObjectRef) -> str:
    """The listed ETag as a header value; empty where none was listed.

    Raises `BadReplyError` for one that no header can carry.
    """
    if _CONTROL_CHARACTER.search(ref.etag):
        raise BadReplyError(f"The service listed {ref.key!r} with an ETag that holds control characters.")
    # Some servers list it without the quotes that If-Match requires.
    return ref.etag if '"' in ref.etag or not ref.etag else f'"{ref.etag}"'


def if_unmodified_since(ref: ObjectRef) -> datetime | None:
    """What is asked for in place of If-Match where no ETag was listed, if a time was.

    Rounded up: the header has whole seconds, and some servers compare it with the fraction that they list.
    """
    if ref.etag or not ref.modified_ns:
        return None
    return _EPOCH + timedelta(seconds=-(-ref.modified_ns // _NS_PER_S))


def check_version(ref: ObjectRef, *, etag: str | None, modified: datetime | None, total_bytes: int | None) -> None:
    """Refuses a reply that is of another version of `ref`, or that does not say of which.

    Needed beside If-Match and If-Unmodified-Since: there are servers that ignore these headers.
    """
    if total_bytes is not None and total_bytes != ref.size_bytes:
        raise ObjectChangedError(
            f"{ref.key!r} has changed: it was listed with {ref.size_bytes} bytes and now has {total_bytes}."
        )
    if not ref.etag:
        _check_time(ref, modified)
        return
    if not etag:
        raise BadReplyError(f"The reply for {ref.key!r} has no ETag, so it may be of another version of the object.")
    if _bare(etag) != _bare(ref.etag):
        raise ObjectChangedError(f"{ref.key!r} has changed since it was listed: its ETag is another one.")


def _check_time(ref: ObjectRef, modified: datetime | None) -> None:
    """Last-Modified has whole seconds, and a listing may have fractions of them."""
    if not ref.modified_ns:
        return
    if modified is None:
        raise BadReplyError(f"The reply for {ref.key!r} has no Last-Modified, so it may be of another version of it.")
    listed = _EPOCH + timedelta(microseconds=ref.modified_ns // 1000)
    if abs(modified - listed) >= timedelta(seconds=1):
        raise ObjectChangedError(f"{ref.key!r} has changed since it was listed: its time is another one.")


def check_length(ref: ObjectRef, *, wanted_bytes: int, got_bytes: int) -> None:
    if got_bytes != wanted_bytes:
        raise BadReplyError(f"The service sent {got_bytes} bytes of {ref.key!r} where {wanted_bytes} were asked for.")


def _bare(etag: str) -> str:
    return etag.strip().removeprefix("W/").strip('"')


def error_code(document: bytes | bytearray) -> str:
    """S3's code in an error document; empty where there is none."""
    found = _CODE.search(document)
    return found[1].decode() if found else ""


def error_region(document: bytes | bytearray) -> str:
    """The region that an error document names; empty where it names none."""
    found = _REGION.search(document)
    return found[1].decode() if found else ""


def is_whole_page(body: bytes) -> bool:
    """Whether `body` is a listing from its beginning to its end."""
    return b"<ListBucketResult" in body[:512] and body.rstrip().endswith((b"ListBucketResult>", b"/>"))
