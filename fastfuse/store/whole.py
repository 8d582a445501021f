"""Whole objects, in and out: index files, inventories and what else is read once and not through a mount."""

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import trio
from botocore.exceptions import BotoCoreError, ClientError

from fastfuse.errors import (
    AccessError,
    FastfuseError,
    ForbiddenObjectError,
    MissingObjectError,
    ObjectChangedError,
    ObjectDeniedError,
    ReadError,
    ServiceError,
    SourceError,
    StoreUnsuitableError,
    first_of,
)
from fastfuse.objects import ObjectRef
from fastfuse.store.boto import S3Client
from fastfuse.store.buffers import PartBuffers
from fastfuse.store.direct import DirectRangeReader
from fastfuse.store.failures import Failure, Kind, failure_of_exception, safe_cause, start_error
from fastfuse.store.receivers import Receivers
from fastfuse.store.retries import RetryableError, retrying
from fastfuse.store.router import reader_of
from fastfuse.store.session import S3Session, stall_timeout_s

__all__ = ["WholeObjects"]

_log = logging.getLogger(__name__)

# One GET, and one part of an upload that is made in parts (S3 takes no smaller ones than 5 MiB, and 10,000 of them).
_PART_BYTES = 8 << 20
_UPLOAD_PART_BYTES = 64 << 20
# Parts in flight: 16 of 90 MB/s fill a 10 Gbit/s host, and 128 MiB of memory.
_MAX_IN_FLIGHT = 16
_UPLOADS_IN_FLIGHT = 4
# What is asked again after a first client had no answer has as long at least.
_LEAST_DEADLINE_S = 5.0
# A whole upload part has this long, with its retries.
_UPLOAD_DEADLINE_S = 300.0
# For who reads no bodies.
_NO_BUFFERS = PartBuffers(part_bytes=0, limit_bytes=0)


class WholeObjects:
    """Objects of any bucket that `session` reaches."""

    def __init__(self, session: S3Session) -> None:
        self._session = session
        self._reader = reader_of(session)
        self._clients: dict[str, S3Client] = {}
        # What HEADs are sent with, at a tenth of botocore's CPU time; None for a bucket that is not reached so.
        self._direct: dict[str, DirectRangeReader | None] = {}

    @property
    def max_connections(self) -> int:
        """See `ObjectSource.max_connections`."""
        return self._session.config.max_connections

    async def head(self, bucket: str, key: str) -> ObjectRef:
        """See `ObjectSource.head`."""
        deadline_s, began_s = self._session.config.deadline_s, trio.current_time()
        ref = await self._head_directly(bucket, key)
        if ref is not None:
            return ref
        left_s = began_s + deadline_s - trio.current_time()
        reply = await self._request(bucket, key, "head_object", deadline_s=max(left_s, _LEAST_DEADLINE_S))
        return ObjectRef(
            bucket=bucket,
            key=key,
            size_bytes=_told(reply, "ContentLength", bucket, key),
            etag=reply.get("ETag", ""),
            modified_ns=round(_told(reply, "LastModified", bucket, key).timestamp()) * 10**9,
            storage_class=reply.get("StorageClass", "STANDARD"),
        )

    async def _head_directly(self, bucket: str, key: str) -> ObjectRef | None:
        """None where botocore has to ask, which knows all kinds of buckets, tries again, and tells what is wrong."""
        if bucket not in self._direct:
            slots = trio.Semaphore(self.max_connections)
            self._direct[bucket] = DirectRangeReader(self._session, bucket, _NO_BUFFERS, slots, Receivers())
        client = self._direct[bucket]
        if client is None:
            return None
        try:
            return await client.head(key)
        except StoreUnsuitableError as reason:
            if self._direct[bucket] is not None:
                _log.info("Asking for the objects of %r with the slower client: %s", bucket, reason)
                self._direct[bucket] = None
                await client.aclose()
            return None

    async def read(self, ref: ObjectRef, *, limit_bytes: int) -> bytes:
        """See `ObjectSource.read`."""
        if ref.size_bytes > limit_bytes:
            raise SourceError(f"{_shown(ref.bucket, ref.key)} has {ref.size_bytes:,} bytes, more than is plausible.")
        with _one_error():
            return bytes(await self._reader.get_range(ref, 0, ref.size_bytes)) if ref.size_bytes else b""

    async def read_into(self, ref: ObjectRef, fd: int) -> None:
        """See `ObjectSource.read_into`; several ranges at a time."""
        limiter = trio.CapacityLimiter(_MAX_IN_FLIGHT)

        async def fetch(start: int) -> None:
            async with limiter:
                data = await self._reader.get_range(ref, start, min(start + _PART_BYTES, ref.size_bytes))
            _write_all(fd, data, start)

        with _one_error():
            async with trio.open_nursery() as nursery:
                for start in range(0, ref.size_bytes, _PART_BYTES):
                    nursery.start_soon(fetch, start)

    async def write_from(self, fd: int, bucket: str, key: str) -> None:
        """Make the object `key` hold what `fd` holds, all or nothing.

        Raises:
            AccessError, SourceError, ConfigurationError, ServiceError: it cannot be written.
        """
        size_bytes = os.fstat(fd).st_size
        if size_bytes <= _UPLOAD_PART_BYTES:
            await self._request(bucket, key, "put_object", Body=os.pread(fd, size_bytes, 0))
            return
        async with self._upload(bucket, key) as send:
            limiter = trio.CapacityLimiter(_UPLOADS_IN_FLIGHT)

            async def send_one(number: int) -> None:
                async with limiter:
                    body = os.pread(fd, _UPLOAD_PART_BYTES, (number - 1) * _UPLOAD_PART_BYTES)
                    await send(number, body)

            with _one_error():
                async with trio.open_nursery() as nursery:
                    for number in range(1, -(-size_bytes // _UPLOAD_PART_BYTES) + 1):
                        nursery.start_soon(send_one, number)

    @asynccontextmanager
    async def _upload(self, bucket: str, key: str) -> AsyncIterator[Callable[[int, bytes], Awaitable[None]]]:
        """A multipart upload that is completed at the end of the block, or given up."""
        request = partial(self._request, bucket, key)
        upload_id = _told(await request("create_multipart_upload"), "UploadId", bucket, key)
        etags: dict[int, str] = {}

        async def send(number: int, body: bytes) -> None:
            reply = await request("upload_part", UploadId=upload_id, PartNumber=number, Body=body)
            etags[number] = _told(reply, "ETag", bucket, key)

        try:
            yield send
            parts = [{"PartNumber": number, "ETag": etags[number]} for number in sorted(etags)]
            await request("complete_multipart_upload", UploadId=upload_id, MultipartUpload={"Parts": parts})
        except BaseException:
            await self._give_up(bucket, key, upload_id)
            raise

    async def _give_up(self, bucket: str, key: str, upload_id: str) -> None:
        """Parts that stay behind cost money; that they do is no reason to hide why the upload failed."""
        with trio.CancelScope(shield=True):
            try:
                await self._request(
                    bucket,
                    key,
                    "abort_multipart_upload",
                    deadline_s=self._session.config.deadline_s,
                    UploadId=upload_id,
                )
            except FastfuseError as error:
                _log.warning("the parts of a failed upload to %s are still there: %s", _shown(bucket, key), error)

    async def _request(
        self, bucket: str, key: str, operation: str, *, deadline_s: float = _UPLOAD_DEADLINE_S, **arguments: object
    ) -> dict[str, Any]:
        region = await self._session.region(bucket)
        if bucket not in self._clients:
            self._clients[bucket] = S3Client(self._session, stall_s=stall_timeout_s(self._session.config))
        client = self._clients[bucket]
        if self._session.config.request_payer:
            arguments["RequestPayer"] = "requester"
        call = getattr(await client.get(region), operation)

        async def once() -> dict[str, Any]:
            try:
                async with client.slots:
                    reply: dict[str, Any] = await call(Bucket=bucket, Key=key, **arguments)
            except (BotoCoreError, ClientError) as error:
                failure = failure_of_exception(error)
                final = self._error(failure, operation, bucket, key, region)
                raise RetryableError(final, attempts=failure.attempts) from safe_cause(error)
            except ValueError as error:  # botocore's, for a header that is not what it should be
                raise _bad_reply(bucket, key, "a header that makes no sense") from error
            return reply

        with trio.move_on_after(deadline_s):
            return await retrying(once)
        raise ServiceError(f"The S3 service did not answer for {_shown(bucket, key)} within {deadline_s:g} s.")

    def _error(self, failure: Failure, operation: str, bucket: str, key: str, region: str) -> FastfuseError:
        shown = _shown(bucket, key)
        match failure.kind:
            case Kind.CHANGED if operation == "head_object":
                return MissingObjectError(f"There is no object {shown}.")
            case Kind.DENIED | Kind.ARCHIVED:
                return ForbiddenObjectError(
                    f"The service denies access to {shown} ({failure.detail}).",
                    hint="It takes s3:GetObject to read it, and s3:PutObject to write it.",
                )
            case Kind.BUSY | Kind.OTHER | Kind.CHANGED:
                what = "tell about" if operation == "head_object" else "store"
                return ServiceError(f"The S3 service failed to {what} {shown} ({failure.detail}).")
        return start_error(failure, bucket=bucket, endpoint=self._session.endpoint_url or "", region=region)

    async def aclose(self) -> None:
        """Close connections."""
        await self._reader.aclose()
        for client in (*self._direct.values(), *self._clients.values()):
            if client is not None:
                await client.aclose()


def _told(reply: dict[str, Any], name: str, bucket: str, key: str) -> Any:  # noqa: ANN401 - each has its own type
    if name not in reply:
        raise _bad_reply(bucket, key, f"no {name}")
    return reply[name]


def _bad_reply(bucket: str, key: str, what: str) -> ServiceError:
    return ServiceError(
        f"The service's reply for {_shown(bucket, key)} has {what}.", hint="Check that --endpoint-url is an S3 service."
    )


def _shown(bucket: str, key: str) -> str:
    """An object's URI as Python writes it: a key may hold what a terminal obeys."""
    return repr(f"s3://{bucket}/{key}")


def _write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, offset)
        rest, offset = rest[written:], offset + written


@contextmanager
def _one_error() -> Iterator[None]:
    """Raise the first error of a nursery instead of their group, and that of a read as one that stops a command."""
    try:
        yield
    except (FastfuseError, ExceptionGroup) as error:
        first = first_of(error)
        if isinstance(first, ObjectChangedError):
            raise SourceError(str(first), hint=first.hint) from first
        if isinstance(first, ReadError):
            kind = AccessError if isinstance(first, ObjectDeniedError) else ServiceError
            raise kind(str(first), hint=first.hint) from first
        raise first from error.__cause__
