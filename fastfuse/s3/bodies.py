"""Receives the bodies of replies, and classifies those that are not what was requested.

A web page, a sign-in portal or another protocol answers at a mistyped endpoint. What it sends is hostile input, and it
may repeat the request, which holds an access key and perhaps a token. So an error shows only short words of it.
"""

import re
import zlib
from contextlib import suppress
from dataclasses import replace

from fastfuse.errors import BadReplyError, ServiceError
from fastfuse.objects import ObjectRef
from fastfuse.s3.checks import UNPACKED_HINT, check_body
from fastfuse.s3.connection import Connection
from fastfuse.s3.failures import Failure, Kind, NoReplyError, failure_of_reply
from fastfuse.s3.http1 import BadReplyHeadError, ReplyHead, first_words

# A thousand keys of 1,024 bytes, each byte encoded as three, with 400 bytes about each, are 3.5 MB.
MAX_PAGE_BYTES = 8 << 20
_MAX_ERROR_BYTES = 64 << 10  # a longer error document is not read
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9.+-]{1,32}/[A-Za-z0-9.+-]{1,32}", re.ASCII)
_ROOT = re.compile(rb"<(?:ListBucketResult|Error)[\s/>]")


async def read_page(connection: Connection, head: ReplyHead, bucket: str) -> bytes:
    """Return the body of a reply to LIST, unzipped.

    Raises:
        ServiceError: it is longer than any page.
        OSError, BadReplyHeadError: it did not come whole.
    """
    page = await connection.read_all(MAX_PAGE_BYTES + 1)
    if head.body_bytes is not None and len(page) < head.body_bytes <= MAX_PAGE_BYTES:
        raise ConnectionResetError("the connection was cut off")
    page = _unzipped(head, page, MAX_PAGE_BYTES + 1)
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
    check_body(head, ref, start, start + len(into))
    if await connection.read_into(into) < len(into):
        raise ConnectionResetError("the connection was cut off")
    # A body without a length is all of the range, or of the object.
    if head.body_bytes is None and await connection.receive_more():
        raise BadReplyError(
            f"The service sent more of {ref.key!r} than the {len(into)} bytes asked for.", hint=UNPACKED_HINT
        )


async def read_document(connection: Connection, head: ReplyHead) -> bytes:
    """Return the error document of a refusal, unzipped; less of it, or nothing, where it is cut off.

    Raises:
        NoReplyError: it is cut off, and the status alone does not say what is wrong.
    """
    document, is_whole = b"", False
    with suppress(BadReplyHeadError, OSError):
        document = await connection.read_all(_MAX_ERROR_BYTES)
        is_whole = head.body_bytes is None or len(document) >= min(head.body_bytes, _MAX_ERROR_BYTES)
    document = _unzipped(head, document, _MAX_ERROR_BYTES)
    if not is_whole and failure_of_refusal(head, document).kind is Kind.OTHER:
        raise NoReplyError(f"the connection was cut off in a refusal ({head.status})")
    return document


def _unzipped(head: ReplyHead, document: bytes, most_bytes: int) -> bytes:
    """Return an XML document as it was before its Content-Encoding, its first `most_bytes` at most.

    A document that is not encoded as it says is returned as it came.
    """
    if head.headers.get("content-encoding", "").lower() not in ("gzip", "deflate"):
        return document
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(document, most_bytes)
    except zlib.error:
        return document


def is_whole_page(body: bytes) -> bool:
    """Return whether `body` is a listing from its beginning to its end."""
    return b"<ListBucketResult" in body[:512] and body.rstrip().endswith((b"ListBucketResult>", b"/>"))


def is_of_s3(head: ReplyHead, document: bytes) -> bool:
    """Return whether an S3 service sent this reply: it names the request, or it is a listing or an error."""
    return "x-amz-request-id" in head.headers or _ROOT.search(document[:512]) is not None


def failure_of_refusal(head: ReplyHead, document: bytes) -> Failure:
    """Classify a reply whose status refuses the request. `document` is its body, empty where there is none."""
    failure = failure_of_reply(
        head.status,
        _word_in(b"Code", document),
        head.headers.get("x-amz-bucket-region") or _word_in(b"Region", document),
        head.headers.get("location", ""),
        head.headers.get("x-amz-request-id", ""),
    )
    # An empty refusal may be of S3, and a page behind a 5xx of a gateway whose service is down for a while.
    if is_of_s3(head, document) or not (document or 200 <= head.status < 300):
        return failure
    return _foreign(failure, head, document, is_certain=failure.kind not in (Kind.THROTTLED, Kind.BUSY))


def failure_of_page(head: ReplyHead, page: bytes) -> Failure:
    """Classify a reply to LIST with status 200 whose body is no whole page."""
    if is_of_s3(head, page):
        # S3 may report an error that came late with a status of 200.
        return failure_of_reply(500, _word_in(b"Code", page))
    return _foreign(Failure(kind=Kind.BUSY, detail="200"), head, page, is_certain=True)


def _foreign(failure: Failure, head: ReplyHead, document: bytes, *, is_certain: bool) -> Failure:
    """Return `failure` with the beginning of what came."""
    media_type = _MEDIA_TYPE.match(head.headers.get("content-type", ""))
    shown = f"{media_type[0] if media_type else 'text'}: {first_words(document)}" if document else "an empty body"
    return replace(failure, detail=f"{failure.detail}, {shown}", is_foreign=is_certain)


def _word_in(name: bytes, document: bytes) -> str:
    """Return the text of an element of an error document; empty where it has none, or more than a word to show."""
    found = re.search(rb"<%b>\s*([A-Za-z0-9._-]{1,64})\s*</%b>" % (name, name), document)
    return found[1].decode() if found else ""
