"""Classifies replies that are not what was requested: refusals of S3, and what answers in place of an S3 service.

A web page, a sign-in portal or another protocol answers at a mistyped endpoint. What it sends is hostile input, and it
may repeat the request, which holds an access key and perhaps a token. So an error shows only short words of it.
"""

import re
from dataclasses import replace

from fastfuse.s3.checks import error_code, error_region
from fastfuse.s3.failures import Failure, Kind, failure_of_reply
from fastfuse.s3.http1 import ReplyHead, first_words

__all__ = ["failure_of_page", "failure_of_refusal", "is_of_s3"]

_MEDIA_TYPE = re.compile(r"[A-Za-z0-9.+-]{1,32}/[A-Za-z0-9.+-]{1,32}", re.ASCII)
_ROOT = re.compile(rb"<(?:ListBucketResult|Error)[\s/>]")


def is_of_s3(head: ReplyHead, document: bytes) -> bool:
    """Return whether an S3 service sent this reply: it names the request, or it is a listing or an error."""
    return "x-amz-request-id" in head.headers or _ROOT.search(document[:512]) is not None


def failure_of_refusal(head: ReplyHead, document: bytes) -> Failure:
    """Classify a reply whose status refuses the request. `document` is its body, empty where there is none."""
    failure = failure_of_reply(
        head.status,
        error_code(document),
        head.headers.get("x-amz-bucket-region") or error_region(document),
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
        return failure_of_reply(500, error_code(page))
    return _foreign(Failure(kind=Kind.BUSY, detail="200"), head, page, is_certain=True)


def _foreign(failure: Failure, head: ReplyHead, document: bytes, *, is_certain: bool) -> Failure:
    """Return `failure` with the beginning of what came."""
    media_type = _MEDIA_TYPE.match(head.headers.get("content-type", ""))
    shown = f"{media_type[0] if media_type else 'text'}: {first_words(document)}" if document else "an empty body"
    return replace(failure, detail=f"{failure.detail}, {shown}", is_foreign=is_certain)
