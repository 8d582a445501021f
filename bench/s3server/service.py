"""Implements S3's semantics: it answers parsed requests, without sockets and without a clock.

Headers: https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html; error codes:
https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html.
"""

import hashlib
import os
import re
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from email.utils import formatdate, parsedate_to_datetime
from urllib.parse import unquote_to_bytes

from bench.s3server.buckets import (
    DEFAULT_MODIFIED_S,
    Content,
    FileSpan,
    MemoryContent,
    MemoryObjects,
    ObjectSet,
    StoredObject,
)
from bench.s3server.faults import Action, Answer, Flip, Replace, ShortPage, WrongEtag, WrongLength, WrongRange
from bench.s3server.pages import ListQuery, render_page, select_page
from bench.s3server.server_config import ServerConfig
from bench.s3server.wire import Reply, Request
from bench.s3server.xml import DECLARATION, error_document, escape
from fastfuse.objects import ARCHIVE_STORAGE_CLASSES

_CREDENTIAL = re.compile(r"Credential=([^/,\s]*)/\d*/([^/,\s]*)/")
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_NAMESPACE = b' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


class _S3Error(Exception):
    """Ends a request with an error document as its reply."""

    def __init__(self, status: int, code: str, message: str, fields: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.fields = fields or {}


@dataclass(frozen=True, slots=True)
class Call:
    """A request as S3 understands it; `operation` is S3's name for it, or ``Unsupported``."""

    request: Request
    operation: str
    bucket: str
    key: bytes

    @property
    def key_text(self) -> str:
        return self.key.decode(errors="surrogateescape")


@dataclass(frozen=True, slots=True)
class _FlippedContent:
    """The bytes of another content, with a bit of each byte at `offsets` flipped."""

    content: Content
    offsets: Callable[[int, int], Iterable[int]]

    def spans(self, start: int, end: int) -> Generator[FileSpan | memoryview, None, None]:
        data = bytearray()
        for span in self.content.spans(start, end):
            data += os.pread(span.fd, span.length_bytes, span.offset_bytes) if isinstance(span, FileSpan) else span
        for offset in self.offsets(start, end):
            if start <= offset < end:
                data[offset - start] ^= 1
        yield memoryview(data)


def _operation(request: Request, bucket: str, key: bytes) -> str:
    if request.method == "PUT" and bucket and key and not request.query:
        return "PutObject"
    if request.method not in ("GET", "HEAD") or not bucket:
        return "Unsupported"
    if key:
        return "GetObject" if request.method == "GET" else "HeadObject"
    if request.method == "HEAD":
        return "HeadBucket"
    if "location" in request.query:
        return "GetBucketLocation"
    return "ListObjectsV2" if request.query.get("list-type") == b"2" else "Unsupported"


def _parse_range(header: str, size_bytes: int) -> tuple[int, int] | None:
    """Return the half-open range to serve; None where S3 ignores the header, or there is none."""
    match = _RANGE.fullmatch(header)
    if match is None:
        return None
    first, last = match.groups()
    if not first:
        start, end = max(0, size_bytes - int(last)), size_bytes
    else:
        start, end = int(first), min(int(last) + 1, size_bytes) if last else size_bytes
    if start >= end:
        raise _S3Error(
            416,
            "InvalidRange",
            "The requested range is not satisfiable",
            {"RangeRequested": header, "ActualObjectSize": str(size_bytes)},
        )
    return start, end


def _is_etag_listed(header: str, etag: str) -> bool:
    return header == "*" or header.strip('"') == etag.strip('"')


def _failed_condition(headers: Mapping[str, str], stored: StoredObject) -> str:
    """Return the header whose condition does not hold; empty if there is none."""
    if "if-match" in headers:  # takes precedence over the other (RFC 9110, 13.2.2)
        return "" if _is_etag_listed(headers["if-match"], stored.etag) else "If-Match"
    try:
        limit_s = parsedate_to_datetime(headers.get("if-unmodified-since", "")).timestamp()
    except ValueError:  # S3 ignores what is no time
        return ""
    return "" if stored.modified_s <= limit_s else "If-Unmodified-Since"


def _replaced(stored: StoredObject, data: bytes) -> StoredObject:
    return StoredObject(
        key=stored.key,
        size_bytes=len(data),
        etag=f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"',
        content=MemoryContent(data),
        modified_s=stored.modified_s + 1,
    )


def _object_headers(stored: StoredObject, etag: str) -> dict[str, str]:
    headers = {
        "Last-Modified": formatdate(stored.modified_s, usegmt=True),
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Content-Type": "binary/octet-stream",
    }
    if stored.storage_class != "STANDARD":
        headers["x-amz-storage-class"] = stored.storage_class
    return headers


def _list_query(query: Mapping[str, bytes]) -> ListQuery:
    max_keys = query.get("max-keys", b"1000")
    if not max_keys.isdigit():
        raise _S3Error(400, "InvalidArgument", "Provided max-keys not an integer or within integer range")
    encoding = query.get("encoding-type", b"")
    if encoding not in (b"", b"url"):
        raise _S3Error(400, "InvalidArgument", "Invalid Encoding Method specified in Request")
    token = query.get("continuation-token")
    return ListQuery(
        prefix=query.get("prefix", b""),
        delimiter=query.get("delimiter", b""),
        start_after=query.get("start-after", b""),
        token=None if token is None else token.decode("latin-1"),
        max_keys=min(int(max_keys), 1000),
        url_encoded=encoding == b"url",
    )


def _falsified(reply: Reply, action: Action) -> Reply:
    """Return the reply with the lie that `action` asks for in its headers; any other action changes nothing."""
    if isinstance(action, WrongLength):
        return replace(reply, extra_length_bytes=action.extra_bytes)
    if isinstance(action, WrongRange) and "Content-Range" in reply.headers:
        first, last = reply.start + action.shift_bytes, reply.end - 1 + action.shift_bytes
        total = reply.headers["Content-Range"].rpartition("/")[2]
        return replace(reply, headers={**reply.headers, "Content-Range": f"bytes {first}-{last}/{total}"})
    return reply


class Service:
    """Answers requests to a set of buckets."""

    def __init__(self, buckets: Mapping[str, ObjectSet], config: ServerConfig) -> None:
        self._buckets = buckets
        self._config = config
        self._writing = threading.Lock()

    def understand(self, request: Request) -> Call:
        """Return the operation, bucket and key of a request."""
        raw_bucket, _, path = request.path[1:].partition(b"/")
        bucket, key = unquote_to_bytes(raw_bucket).decode("latin-1"), unquote_to_bytes(path)
        return Call(request, _operation(request, bucket, key), bucket, key)

    def answer(self, call: Call, actions: Iterable[Action]) -> Reply:
        """Return the reply to any request; errors are replies, too."""
        try:
            return self._answer(call, list(actions))
        except _S3Error as error:
            body = error_document(error.code, error.message, {**error.fields, "RequestId": "FASTFUSE"})
            return self._xml_reply(call, body, error.status)

    def _answer(self, call: Call, actions: list[Action]) -> Reply:
        for action in actions:
            if isinstance(action, Answer):
                raise _S3Error(action.status, action.code, action.message)
        is_write = call.operation == "PutObject" and self._config.writes != "refused"
        if call.request.method not in ("GET", "HEAD") and not is_write:
            raise _S3Error(405, "MethodNotAllowed", "The specified method is not allowed against this resource.")
        if call.operation == "Unsupported":
            raise _S3Error(501, "NotImplemented", "A header you provided implies functionality that is not implemented")
        self._check_access(call)
        if call.operation == "HeadBucket":
            return Reply(status=200, headers=self._common_headers(call), is_head=True)
        if call.operation == "GetBucketLocation":
            return self._location(call)
        if call.operation == "ListObjectsV2":
            return self._list(call, actions)
        return self._put(call) if is_write else self._object(call, actions)

    def _region(self, bucket: str) -> str:
        return self._config.regions.get(bucket, "us-east-1")

    def _common_headers(self, call: Call) -> dict[str, str]:
        headers = {"x-amz-request-id": "FASTFUSE"}
        if self._config.clock_s is not None:
            headers["Date"] = formatdate(self._config.clock_s(), usegmt=True)
        if call.bucket in self._buckets:
            headers["x-amz-bucket-region"] = self._region(call.bucket)
        return headers

    def _check_access(self, call: Call) -> None:
        credential = _CREDENTIAL.search(call.request.headers.get("authorization", ""))
        if credential and self._config.access_key_id not in ("", credential[1]):
            raise _S3Error(
                403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records."
            )
        if (clock_s := self._config.clock_s) and (signed := call.request.headers.get("x-amz-date")):
            signed_s = datetime.strptime(f"{signed}+0000", "%Y%m%dT%H%M%SZ%z").timestamp()
            if abs(signed_s - clock_s()) > self._config.most_skew_s:
                raise _S3Error(403, "RequestTimeTooSkewed", "The difference between the two times is too large.")
        if call.bucket not in self._buckets:
            raise _S3Error(404, "NoSuchBucket", "The specified bucket does not exist", {"BucketName": call.bucket})
        region = self._config.regions.get(call.bucket)
        # Only GetBucketLocation may be signed for any region: clients find the right region by it.
        if credential and region and credential[2] != region and call.operation != "GetBucketLocation":
            raise self._wrong_region(call.bucket, credential[2], region)

    def _wrong_region(self, bucket: str, signed: str, region: str) -> _S3Error:
        if self._config.wrong_region == "malformed":
            message = f"The authorization header is malformed; the region '{signed}' is wrong; expecting '{region}'"
            return _S3Error(400, "AuthorizationHeaderMalformed", message, {"Region": region})
        return _S3Error(
            301,
            "PermanentRedirect",
            "The bucket you are attempting to access must be addressed using the specified endpoint. "
            "Please send all future requests to this endpoint.",
            {"Endpoint": f"{bucket}.s3.{region}.amazonaws.com", "Bucket": bucket},
        )

    def _xml_reply(self, call: Call, body: bytes, status: int = 200) -> Reply:
        headers = {**self._common_headers(call), "Content-Type": "application/xml"}
        is_head = call.request.method == "HEAD"
        end = 0 if is_head else len(body)
        return Reply(status=status, headers=headers, content=MemoryContent(body), end=end, is_head=is_head)

    def _location(self, call: Call) -> Reply:
        region = self._region(call.bucket)
        constraint = b"" if region == "us-east-1" else escape(region.encode())
        tag = b"LocationConstraint"
        return self._xml_reply(call, DECLARATION + b"<%b%b>%b</%b>" % (tag, _NAMESPACE, constraint, tag))

    def _list(self, call: Call, actions: list[Action]) -> Reply:
        query = _list_query(call.request.query)
        view = self._buckets[call.bucket].view()
        limits = [action.keys for action in actions if isinstance(action, ShortPage)]
        try:
            page = select_page(view, query, min(self._config.page_keys_max, *limits, query.max_keys))
        except ValueError as error:
            raise _S3Error(400, "InvalidArgument", "The continuation token provided is incorrect") from error
        return self._xml_reply(call, render_page(call.bucket, view, query, page))

    def _object(self, call: Call, actions: list[Action]) -> Reply:
        stored = self._buckets[call.bucket].view().lookup(call.key)
        if stored is None:
            raise _S3Error(404, "NoSuchKey", "The specified key does not exist.", {"Key": call.key_text})
        etag = stored.etag
        for action in actions:
            if isinstance(action, Replace):
                stored = _replaced(stored, action.data)
                etag = stored.etag
            elif isinstance(action, WrongEtag):
                etag = action.etag
            elif isinstance(action, Flip):
                stored = replace(stored, content=_FlippedContent(stored.content, action.offsets))
        failed = _failed_condition(call.request.headers, stored) if self._config.honour_conditions else ""
        if failed:
            message = "At least one of the pre-conditions you specified did not hold"
            raise _S3Error(412, "PreconditionFailed", message, {"Condition": failed})
        if call.operation == "GetObject" and stored.storage_class in ARCHIVE_STORAGE_CLASSES:
            message = "The operation is not valid for the object's storage class"
            raise _S3Error(403, "InvalidObjectState", message, {"StorageClass": stored.storage_class})
        reply = self._object_reply(call, stored, {**self._common_headers(call), **_object_headers(stored, etag)})
        for action in actions:
            reply = _falsified(reply, action)
        return reply

    def _put(self, call: Call) -> Reply:
        """Replace the object if the conditions hold; none comes between the look and the write."""
        objects = self._buckets[call.bucket]
        assert isinstance(objects, MemoryObjects), "only objects in memory can be written"
        clock_s, headers = self._config.clock_s, call.request.headers
        modified_s = DEFAULT_MODIFIED_S if clock_s is None else int(clock_s())
        with self._writing:
            stored = objects.view().lookup(call.key)
            if self._config.writes != "unconditional" and self._is_refused(headers, stored):
                raise _S3Error(412, "PreconditionFailed", "At least one of the pre-conditions did not hold")
            if self._config.writes == "conditional" and "if-match" in headers and stored is None:
                raise _S3Error(404, "NoSuchKey", "The specified key does not exist.", {"Key": call.key_text})
            made = objects.put(call.key, call.request.body, modified_s=modified_s)
        return Reply(status=200, headers={**self._common_headers(call), "ETag": made.etag})

    def _is_refused(self, headers: Mapping[str, str], stored: StoredObject | None) -> bool:
        """Return whether a condition of a PUT fails, in the way in which the service keeps them."""
        if "if-match" in headers and self._config.writes in {"creating", "bare"}:
            return self._config.writes == "creating" or stored is None or headers["if-match"] != stored.etag.strip('"')
        if stored is None or "if-none-match" in headers:
            return stored is not None
        return self._config.writes != "replacing" and bool(_failed_condition(headers, stored))

    def _object_reply(self, call: Call, stored: StoredObject, headers: dict[str, str]) -> Reply:
        is_head = call.operation == "HeadObject"
        tells_checksums = call.request.headers.get("x-amz-checksum-mode") == "ENABLED"
        number = call.request.query.get("partNumber", b"")
        if number and stored.parts:
            return self._part_reply(stored, headers, int(number), tells_checksums=tells_checksums, is_head=is_head)
        wanted = _parse_range(call.request.headers.get("range", ""), stored.size_bytes)
        if wanted is None or not self._config.honour_ranges:
            if tells_checksums:
                headers.update(stored.checksums)
            return Reply(status=200, headers=headers, content=stored.content, end=stored.size_bytes, is_head=is_head)
        start, end = wanted
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{stored.size_bytes}"
        return Reply(status=206, headers=headers, content=stored.content, start=start, end=end, is_head=is_head)

    def _part_reply(
        self, stored: StoredObject, headers: dict[str, str], number: int, *, tells_checksums: bool, is_head: bool
    ) -> Reply:
        """Return one part of an upload, counted from 1, as S3 does for ``partNumber``."""
        if not 1 <= number <= len(stored.parts):
            raise _S3Error(416, "InvalidPartNumber", "The requested partnumber is not satisfiable")
        start = sum(part.size_bytes for part in stored.parts[: number - 1])
        end = start + stored.parts[number - 1].size_bytes
        headers["x-amz-mp-parts-count"] = str(len(stored.parts))
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{stored.size_bytes}"
        if tells_checksums:
            headers.update(stored.parts[number - 1].checksums)
        return Reply(status=206, headers=headers, content=stored.content, start=start, end=end, is_head=is_head)
