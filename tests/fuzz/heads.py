"""Heads of replies: parsed, in Python and as threads do, and used as the client uses them."""

from collections.abc import Mapping
from contextlib import suppress

from fastfuse.errors import BadReplyError, ObjectChangedError
from fastfuse.objects import ObjectRef
from fastfuse.s3.checks import check_body, object_of
from fastfuse.s3.checksums import given_checksum, is_composite, md5_checksum
from fastfuse.s3.failures import failure_of_reply
from fastfuse.s3.http1 import MAX_HEAD_BYTES, BadReplyHeadError, ReplyHead, parse_head
from tests.fuzz.direct_heads import direct_headers

TOKENS = (
    *(b"HTTP/1.1 ", b"HTTP/1.0 ", b"200", b"206", b"204", b"304", b"100", b"503", b"\r\n", b"\n", b"\r", b": ", b" "),
    *(b"content-length", b"transfer-encoding", b"chunked", b"content-range", b"bytes 0-9/10", b"*", b"etag", b'"a"'),
    *(b"connection", b"close", b"keep-alive", b"last-modified", b"Mon, 23 Nov 2026 10:00:00 GMT", b"-0000", b"+9999"),
    *(b"x-amz-checksum-crc32c", b"x-amz-checksum-type", b"COMPOSITE", b"x-amz-storage-class", b"\x00", b"\xff", b"W/"),
)

_END = b"\r\n\r\n"
_SIZE_BYTES = 10
_PART = 2, 5
_VERSIONS = (
    ObjectRef("bucket", "key", _SIZE_BYTES, '"a"'),
    ObjectRef("bucket", "key", _SIZE_BYTES, "", 1_795_428_000_000_000_000),
    ObjectRef("bucket", "key", _SIZE_BYTES, ""),
)


def try_one(data: bytes) -> None:
    # Threads look for the first empty line.
    is_whole = (data + _END).find(_END) == len(data)
    small = direct_headers(data, _VERSIONS[0]) if is_whole else None
    part = direct_headers(data, _VERSIONS[0], *_PART) if is_whole else None
    try:
        head = parse_head(data)
    except BadReplyHeadError:
        assert small is None
        assert part is None
        return
    if small is not None:
        _compare(head, small, 200, 0, _SIZE_BYTES)
    if part is not None:
        _compare(head, part, 206, *_PART)
    assert head == parse_head(data)
    assert 100 <= head.status <= 999
    assert head.body_bytes is None or 0 <= head.body_bytes < 10**19
    assert not (head.is_chunked and head.body_bytes is not None)
    for name, value in head.headers.items():
        assert name == name.lower() or not name.isascii()
        assert not {"\r", "\n", "\0"} & {*name, *value}
    _use(head)


def _compare(head: ReplyHead, accepted: Mapping[str, bytes | None], status: int, start: int, end: int) -> None:
    """Compare with what threads accept: the client accepts it, too, and decides by the same headers."""
    assert head.status == status
    assert head.body_bytes == end - start
    check_body(head, _VERSIONS[0], start, end)
    for name, value in accepted.items():
        assert head.headers.get(name) == (value if value is None else value.decode(errors="replace"))


def _use(head: ReplyHead) -> None:
    for ref in _VERSIONS:
        for start, end in ((0, _SIZE_BYTES), _PART):
            with suppress(BadReplyError, ObjectChangedError):
                check_body(head, ref, start, end)
    described = object_of(head, "bucket", "key")
    assert described is None or min(described.size_bytes, described.modified_ns) >= 0
    assert described is None or max(described.size_bytes, described.modified_ns) < 1 << 63
    for checksum in (given_checksum(head.headers, is_part=True), given_checksum(head.headers)):
        assert checksum is None or checksum.digest
    md5_checksum(head.headers)
    is_composite(head.headers)
    region, location, request_id = (
        head.headers.get(name, "") for name in ("x-amz-bucket-region", "location", "x-amz-request-id")
    )
    shown = str(failure_of_reply(head.status, "", region, location, request_id))
    assert shown.isprintable()
    assert len(shown) < MAX_HEAD_BYTES // 64
