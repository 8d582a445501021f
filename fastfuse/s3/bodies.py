"""Receives the bodies of replies: pages of listings, and ranges of objects."""

from fastfuse.errors import BadReplyError, ServiceError
from fastfuse.objects import ObjectRef
from fastfuse.s3.checks import body_start, unzipped
from fastfuse.s3.connection import Connection
from fastfuse.s3.http1 import ReplyHead

__all__ = ["MAX_PAGE_BYTES", "read_page", "read_range"]

# A thousand keys of 1,024 bytes, each byte encoded as three, with 400 bytes about each, are 3.5 MB.
MAX_PAGE_BYTES = 8 << 20
# A server that ignores Range sends the object from its start. A read that would skip more than this is refused.
_LONGEST_SKIP_BYTES = 64 << 20
_SKIPPED_AT_ONCE_BYTES = 256 << 10


async def read_page(connection: Connection, head: ReplyHead, bucket: str) -> bytes:
    """Return the body of a reply to LIST, unzipped.

    Raises:
        ServiceError: it is longer than any page.
        OSError, BadReplyHeadError: it did not come whole.
    """
    page = await connection.read_all(MAX_PAGE_BYTES + 1)
    if head.body_bytes is not None and len(page) < head.body_bytes <= MAX_PAGE_BYTES:
        raise ConnectionResetError("the connection was cut off")
    page = unzipped(head, page, MAX_PAGE_BYTES + 1)
    if len(page) > MAX_PAGE_BYTES:
        raise ServiceError(
            f"The service sent a page of the bucket {bucket!r} of more than {MAX_PAGE_BYTES >> 20} MiB.",
            hint="Check that --endpoint-url is an S3 service.",
        )
    return page


async def read_range(connection: Connection, head: ReplyHead, ref: ObjectRef, start: int, into: memoryview) -> None:
    """Fill `into` with the bytes of `ref` from `start` on, which come behind `head`.

    Raises:
        ObjectChangedError, BadReplyError: what comes is something else.
        OSError, BadReplyHeadError: it did not come whole.
    """
    sent_from = body_start(head, ref, start, start + len(into))
    if sent_from < start:
        await _skip(connection, start - sent_from, ref)
    if await connection.read_into(into) < len(into):
        raise ConnectionResetError("the connection was cut off")
    # The head has no length. More bytes than asked for are wrong; more than the beginning of an object are not.
    is_all = "content-range" in head.headers or len(into) == ref.size_bytes
    if head.body_bytes is None and is_all and not await connection.is_at_end():
        raise BadReplyError(f"The service sent more of {ref.key!r} than the {len(into)} bytes asked for.")


async def _skip(connection: Connection, size_bytes: int, ref: ObjectRef) -> None:
    """Read past the beginning of an object that a server sends from its start."""
    if size_bytes > _LONGEST_SKIP_BYTES:
        raise BadReplyError(
            f"The service ignores Range: {ref.key!r} cannot be read at {size_bytes} without all before it."
        )
    scratch = memoryview(bytearray(min(size_bytes, _SKIPPED_AT_ONCE_BYTES)))
    while size_bytes:
        count = await connection.read_into(scratch[:size_bytes])
        if not count:
            raise ConnectionResetError("the connection was cut off")
        size_bytes -= count
