"""Checks that the bytes of a reply are the bytes that were asked for (semantics D1, D2)."""

import re

from fastfuse.errors import BadReplyError, ObjectChangedError
from fastfuse.objects import ObjectRef

__all__ = ["check_length", "check_range_arguments", "check_version", "if_match_value", "parse_content_range"]

_CONTENT_RANGE = re.compile(r"\s*bytes\s+([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)\s*", re.IGNORECASE | re.ASCII)


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


def if_match_value(etag: str) -> str:
    """`etag` as a header value: some servers list it without the quotes that If-Match requires."""
    return etag if '"' in etag else f'"{etag}"'


def check_version(ref: ObjectRef, *, etag: str | None, total_bytes: int | None) -> None:
    """Refuses a reply that is of another version of `ref`, or that does not say of which.

    Needed beside If-Match: there are servers that ignore the header.
    """
    if total_bytes is not None and total_bytes != ref.size_bytes:
        raise ObjectChangedError(
            f"{ref.key!r} has changed: it was listed with {ref.size_bytes} bytes and now has {total_bytes}."
        )
    if not ref.etag:
        return
    if not etag:
        raise BadReplyError(f"The reply for {ref.key!r} has no ETag, so it may be of another version of the object.")
    if _bare(etag) != _bare(ref.etag):
        raise ObjectChangedError(f"{ref.key!r} has changed since it was listed: its ETag is another one.")


def check_length(ref: ObjectRef, *, wanted_bytes: int, got_bytes: int) -> None:
    if got_bytes != wanted_bytes:
        raise BadReplyError(f"The service sent {got_bytes} bytes of {ref.key!r} where {wanted_bytes} were asked for.")


def _bare(etag: str) -> str:
    return etag.strip().removeprefix("W/").strip('"')
