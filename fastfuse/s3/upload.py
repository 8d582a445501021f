"""Writes whole objects through aiobotocore: index files and whatever else a command stores in S3.

A write may be conditional: it replaces one version only, or makes an object where none is.

Uploads are few and large, so a kept library serves them. Its retries are off; `retries` is the one policy.
"""

import base64
import copy
import hashlib
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import trio
from botocore.exceptions import BotoCoreError, ClientError

from fastfuse.errors import (
    AccessError,
    ConditionsUnsupportedError,
    FastfuseError,
    MissingObjectError,
    RefusedError,
    ServiceError,
    UploadGoneError,
    WriteConflictError,
    raise_alone,
)
from fastfuse.objects import EMPTY_ETAG, bare_etag
from fastfuse.s3.aws import S3Session
from fastfuse.s3.checks import parse_date
from fastfuse.s3.checksums import etag_of
from fastfuse.s3.client import S3Client
from fastfuse.s3.credentials import retry_if_passing
from fastfuse.s3.failures import Kind, failure_of_exception, safe_cause
from fastfuse.s3.retries import Retries, RetryableError
from fastfuse.s3.retry_policy import UNTIL_DEADLINE
from fastfuse.s3.upload_clients import UPLOADS_IN_FLIGHT, UploadClient
from fastfuse.s3.whole import read_all

T = TypeVar("T")

_log = logging.getLogger(__name__)

# The size of one part of a multipart upload. S3 takes at least 5 MiB a part, and 10,000 parts.
_UPLOAD_PART_BYTES = 64 << 20
# The deadline of one request, of a whole part too, retries included. While none is answered, the time of those that
# have failed counts; each has a few seconds all the same.
_UPLOAD_DEADLINE_S = 300.0
_LEAST_DEADLINE_S = 10.0
# Shorter than what a caller gives a writer that was told to end: what is left behind must be told.
_HURRIED_ABORT_S = 8.0
# Stands for the ETag of an object that must not exist yet.
NO_OBJECT = "*"
# 404: the version to replace was deleted. 409: another conditional write is under way.
_CONFLICTS = (404, 409, 412)


async def upload(client: S3Client, fd: int, bucket: str, key: str) -> None:
    """Make the object `key` hold what the file `fd` holds, all or nothing.

    Raises:
        AccessError, SourceError, ConfigurationError, ServiceError: it cannot be written.
    """
    async with AsyncExitStack() as exits:
        await ObjectWriter(client, exits, bucket, key).write(fd)


async def load_writer(session: S3Session) -> None:
    """Read and load all that a writer of `session` needs, in a process that may not do so later.

    Raises `ConfigurationError` where the certificates cannot be read.
    """
    await UploadClient(session, AsyncExitStack()).load()


@dataclass(frozen=True, slots=True)
class ObjectState:
    """What an object is now; the age is by the service's own clock, in whole seconds."""

    etag: str
    size_bytes: int
    age_s: float
    # The object was written with it: see `ObjectWriter.metadata`.
    metadata: Mapping[str, str]


class ObjectWriter:
    """Writes and inspects one object.

    `replaces` makes a write conditional: the ETag of the version that it replaces, or `NO_OBJECT`. Such a write raises
    `WriteConflictError` if the object is another one, and `ConditionsUnsupportedError` if the service says that it
    has no such writes. A service that ignores conditions says nothing.
    """

    def __init__(
        self,
        client: S3Client,
        exits: AsyncExitStack,
        bucket: str,
        key: str,
        *,
        kms_key_id: str = "",
        retries: Retries | None = None,
        outlives_outages: bool = False,
    ) -> None:
        """Open no client yet; `exits` closes those that are opened later. `client` finds the region of `bucket`.

        With a `kms_key_id` S3 encrypts what is written with that key of KMS. A writer that `outlives_outages` tries
        to reach a service until the deadline, as a read does, and waits for expired credentials to be renewed.
        `retries` may be shared.
        """
        self._client = client
        self._session = client.session
        self._uploads = UploadClient(client.session, exits)
        self._bucket = bucket
        self.key = key
        self._encryption: dict[str, Any] = (
            {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key_id} if kms_key_id else {}
        )
        # The service keeps it with each object that is written, for whoever looks at it later.
        self.metadata: Mapping[str, str] = {}
        self._retries = retries or Retries()
        self._outlives_outages = outlives_outages
        # The service knows ETags only without their quotes, and conditions only of a PUT (Ceph's gateway 16).
        self.has_bare_etags = False

    def beside(self, key: str) -> "ObjectWriter":
        """Return a writer of another object of the bucket, which shares this one's client."""
        other = copy.copy(self)
        other.key = key
        return other

    async def state(self) -> ObjectState | None:
        """Return what the object is now, or None if there is none."""
        try:
            reply = await self._request("head_object")
        except MissingObjectError:
            return None
        date = parse_date(self._field(reply["ResponseMetadata"]["HTTPHeaders"], "date"))
        if date is None:
            raise self._bad_reply("a date that makes no sense")
        age_s = (date - self._field(reply, "LastModified")).total_seconds()
        etag, size_bytes = self._field(reply, "ETag"), self._length(reply)
        return ObjectState(etag, size_bytes, age_s, reply.get("Metadata", {}))

    async def check_access(self) -> None:
        """Begin an upload of the object and abort it: that takes the bucket, the rights and the key that a write takes.

        A part is sent, too: a key of KMS takes kms:Decrypt for that, and a bucket that locks objects takes its MD5.

        Raises:
            FastfuseError: the object cannot be written.
        """
        request = partial(self._request, deadline_s=self._session.config.deadline_s)
        upload_id = self._field(await request("create_multipart_upload", **self._made), "UploadId")
        try:
            part: dict[str, Any] = {"PartNumber": 1, "Body": b"-", "ContentMD5": _base64(await md5_of(b"-"))}
            await request("upload_part", UploadId=upload_id, **part)
        finally:
            await self._abort(upload_id, self._session.config.deadline_s)

    @property
    def _made(self) -> dict[str, Any]:
        """The arguments of each request that begins an object."""
        return self._encryption | {"Metadata": self.metadata}

    async def put(self, body: bytes, *, replaces: str = "", deadline_s: float = _UPLOAD_DEADLINE_S) -> str:
        """Make the object hold `body`, and return its ETag. A bucket that locks objects takes its MD5."""
        digest = await md5_of(body)
        extra = self._made | self._condition(replaces) | {"ContentMD5": _base64(digest)}
        try:
            reply = await self._request("put_object", deadline_s=deadline_s, Body=body, **extra)
        except WriteConflictError:
            # An attempt before may have written it, and its answer was lost.
            if not await self._has(etag := f'"{digest.hex()}"'):
                raise
            return etag
        return str(self._field(reply, "ETag"))

    async def write(self, fd: int, *, replaces: str = "") -> None:
        """Make the object hold what the file `fd` holds, all or nothing."""
        is_one_put = self.has_bare_etags and replaces != ""
        part_bytes = max(1, os.fstat(fd).st_size) if is_one_put else _UPLOAD_PART_BYTES
        await self.stream(_pieces_of(fd, part_bytes), replaces=replaces, is_checked=False)

    async def check_conditions(self, etag: str, make_body: Callable[[], bytes]) -> str:
        """Write the object anew, whose ETag is `etag`, and return the new one; each body that is made is another one.

        Raises:
            ConditionsUnsupportedError: the service ignores a condition that fails, or refuses one that holds. The
                object is empty then.
        """
        try:
            await self._check_refusal("If-None-Match", make_body(), NO_OBJECT)
            try:
                written = await self.put(make_body(), replaces=etag)
            except WriteConflictError:
                self.has_bare_etags = True
                written = await self.put(make_body(), replaces=etag)
            await self._check_refusal("If-Match", make_body(), etag)
        except ConditionsUnsupportedError:
            await self.put(b"")
            raise
        except WriteConflictError as error:
            await self.put(b"")
            raise refused_condition() from error
        return written

    async def _check_refusal(self, header: str, body: bytes, replaces: str) -> None:
        with suppress(WriteConflictError):
            await self.put(body, replaces=replaces)
            raise ConditionsUnsupportedError(f"The service ignores the conditions of writes ({header}).")

    def _condition(self, replaces: str) -> dict[str, Any]:
        if not replaces:
            return {}
        if replaces == NO_OBJECT:
            return {"IfNoneMatch": "*"}
        return {"IfMatch": replaces.strip('"') if self.has_bare_etags else replaces}

    async def stream(self, pieces: AsyncIterator[bytes], *, replaces: str = "", is_checked: bool = True) -> str:
        """Make the object hold `pieces` one after the other, all or nothing, and return its ETag.

        Each piece but the last has at least 5 MiB, and there are at most 10,000. `pieces` is not closed. The service
        refuses a piece whose MD5 is another one. At the end it is asked for the length and the ETag, if it lets us
        read; not where `is_checked` is false, as of a key that several hosts write to.

        Raises:
            FastfuseError: it cannot be written, or another object is there at the end. What `pieces` raises comes as it
                is. The parts that were sent are gone then.
        """
        begun = deque((await anext(pieces, b""), await anext(pieces, None)))  # no other name holds a piece
        if begun[1] is None:
            body = begun[0] or b""
            etag = await self.put(body, replaces=replaces)
            if is_checked:
                await self._check_stored(etag, len(body))
            return etag
        upload_id = self._field(await self._request("create_multipart_upload", **self._made), "UploadId")
        try:
            parts, digests, size_bytes = await self._send_parts(upload_id, begun, pieces)
            etag = await self._complete(upload_id, parts, digests, self._condition(replaces))
            if is_checked:
                await self._check_stored(etag, size_bytes)
        except BaseException:
            await self._abort(upload_id)
            raise
        return etag

    async def _check_stored(self, etag: str, size_bytes: int) -> None:
        """Compare the object with what was sent."""
        try:
            reply = await self._request("head_object")
        except AccessError as error:
            _log.info("what was stored in %s is not looked at again: %s", self._shown, error)
            return
        found_bytes, found_etag = self._length(reply), self._field(reply, "ETag")
        if (found_bytes, found_etag) != (size_bytes, etag):
            raise RefusedError(
                f"{self._shown} is not what was written: {found_bytes:,} bytes with ETag {found_etag} are there, and "
                f"{size_bytes:,} bytes with ETag {etag} were sent",
                hint="Does something else write to this key?",
            )

    async def _complete(
        self, upload_id: str, parts: list[dict[str, Any]], digests: list[bytes], condition: dict[str, Any]
    ) -> str:
        """End the upload, and return the ETag of the object.

        If the service does not tell it, it must be the one that follows from the `digests`: the MD5 of the MD5s. Ceph's
        gateway 16 gives none. After a lost answer to an attempt that succeeded, the next one hears that there is no
        such upload, or that its condition does not hold. Anything may answer 200 that is no S3 service.
        """
        try:
            reply = await self._request(
                "complete_multipart_upload", UploadId=upload_id, MultipartUpload={"Parts": parts}, **condition
            )
            if etag := reply.get("ETag"):
                return str(etag)
            failed: ServiceError = self._bad_reply("no ETag")
        except ServiceError as error:
            failed = error
        # Objects that KMS encrypts have other ETags.
        are_md5s = all(part["ETag"].strip('"') == digest.hex() for part, digest in zip(parts, digests, strict=True))
        made = etag_of(digests)
        if are_md5s and await self._has(made):
            return made
        raise failed

    async def _has(self, etag: str) -> bool:
        """Return whether the object is there with this ETag, and can be looked at."""
        with suppress(FastfuseError):
            reply = await self._request("head_object", deadline_s=self._session.config.deadline_s)
            return bool(self._field(reply, "ETag") == etag)
        return False

    async def _send_parts(
        self, upload_id: str, begun: deque[bytes | None], others: AsyncIterator[bytes]
    ) -> tuple[list[dict[str, Any]], list[bytes], int]:
        """Send the pieces that have `begun` and the `others`, a few at a time; take none before there is room for it.

        Return the parts, as the request that completes them names them, their MD5s, and their length.
        """
        room = trio.Semaphore(UPLOADS_IN_FLIGHT)
        parts: list[dict[str, Any]] = []
        digests: list[bytes] = []
        size_bytes = 0

        async def send(part: dict[str, Any], body: bytes) -> None:
            number: int = part["PartNumber"]
            digests[number - 1] = digest = await md5_of(body)
            md5 = _base64(digest)
            reply = await self._request("upload_part", UploadId=upload_id, PartNumber=number, Body=body, ContentMD5=md5)
            part["ETag"] = self._field(reply, "ETag")
            room.release()

        try:
            async with trio.open_nursery() as nursery:
                while True:
                    await room.acquire()
                    body = begun.popleft() if begun else await anext(others, None)
                    if body is None:
                        break
                    parts.append({"PartNumber": len(parts) + 1})
                    digests.append(b"")
                    size_bytes += len(body)
                    nursery.start_soon(send, parts[-1], body)
        except BaseExceptionGroup as group:  # with `trio.Cancelled`, too, if a part failed at that moment
            raise_alone(group.exceptions[0])
        return parts, digests, size_bytes

    async def _abort(self, upload_id: str, deadline_s: float = _UPLOAD_DEADLINE_S) -> None:
        """Abort the upload, in a hurry once we are cancelled. A failure is only logged: the caller raises its own."""
        abort = partial(self._request, "abort_multipart_upload", UploadId=upload_id)
        try:
            with suppress(UploadGoneError):
                try:
                    await abort(deadline_s=deadline_s)
                except trio.Cancelled:
                    with trio.CancelScope(shield=True):
                        await abort(deadline_s=_HURRIED_ABORT_S)
                    raise
        except FastfuseError as error:
            _log.warning(
                "the parts of a failed upload to %s are still there, and cost money until you abort the upload %s "
                "(s3:AbortMultipartUpload), or a rule of the bucket's lifecycle does: %s",
                *(self._shown, upload_id, error),
            )

    async def _request(
        self, operation: str, *, deadline_s: float = _UPLOAD_DEADLINE_S, **arguments: object
    ) -> dict[str, Any]:
        if self._session.config.request_payer:
            arguments["RequestPayer"] = "requester"
        arguments |= {"Bucket": self._bucket, "Key": self.key}
        reply: dict[str, Any] = await self._patiently(partial(self._request_once, operation, arguments), deadline_s)
        return reply

    async def find_region(self) -> None:
        """Find out the region of the bucket, without which no request can be made, as patiently as any is made."""
        await self._patiently(partial(self._client.region, self._bucket, is_read=self._outlives_outages))

    async def _patiently(self, once: Callable[[], Awaitable[T]], deadline_s: float = _UPLOAD_DEADLINE_S) -> T:
        deadline_s = min(deadline_s, max(_LEAST_DEADLINE_S, _UPLOAD_DEADLINE_S - self._retries.silent_s))
        with trio.move_on_after(deadline_s):
            return await self._retries.run(once, name=self._shown)
        raise ServiceError(f"The S3 service did not answer for {self._shown} within {deadline_s:.3g} s.")

    async def _request_once(self, operation: str, arguments: dict[str, object]) -> dict[str, Any]:
        region = await self._client.region(self._bucket, is_read=self._outlives_outages)
        credentials = None
        try:
            boto, credentials = await self._uploads.current(region)
            reply: dict[str, Any] = await getattr(boto, operation)(**arguments)
        except FastfuseError as error:  # of credentials
            if self._outlives_outages:
                retry_if_passing(error)
            raise
        except (BotoCoreError, ClientError) as error:
            failure = failure_of_exception(error, is_read=self._outlives_outages)
            headers = error.response["ResponseMetadata"]["HTTPHeaders"] if isinstance(error, ClientError) else {}
            date, is_head = headers.get("date", ""), operation == "head_object"
            is_mended, _ = await self._session.mend(failure.kind, date, credentials, is_head=is_head)
            verb = "read" if is_head else "write"
            final = self._session.command_error(failure, self._bucket, self.key, region, operation=verb)
            if {"IfMatch", "IfNoneMatch"} & arguments.keys():
                final = _conditional_error(error, final)
            failed = RetryableError(final, failure, is_read=self._outlives_outages, is_mended=is_mended)
            if self._outlives_outages and failure.kind is Kind.EXPIRED:
                # Whatever renews the credentials may be late.
                failed.attempts = UNTIL_DEADLINE
            raise failed from safe_cause(error.with_traceback(None))  # see `Retries`
        except ValueError as error:  # botocore raises it for a malformed header
            raise self._bad_reply("a header that makes no sense") from error
        return reply

    def _field(self, reply: dict[str, Any], name: str) -> Any:  # noqa: ANN401 - each has its own type
        if name not in reply:
            raise self._bad_reply(f"no {name}")
        return reply[name]

    def _length(self, reply: dict[str, Any]) -> int:
        """Return the length in the reply to a HEAD. Apache, as a proxy, leaves out that of an empty object."""
        if bare_etag(reply.get("ETag", "")) == EMPTY_ETAG:
            return int(reply.get("ContentLength", 0))
        return int(self._field(reply, "ContentLength"))

    def _bad_reply(self, what: str) -> ServiceError:
        return ServiceError(
            f"The service's reply for {self._shown} has {what}.", hint="Check that --endpoint-url is an S3 service."
        )

    @property
    def _shown(self) -> str:
        """The object's URI as Python writes it: a key may hold what a terminal obeys."""
        return repr(f"s3://{self._bucket}/{self.key}")


async def _pieces_of(fd: int, part_bytes: int) -> AsyncIterator[bytes]:
    """Yield what the file `fd` holds, in parts of an upload."""
    size_bytes = os.fstat(fd).st_size
    for start in range(0, size_bytes, part_bytes):
        yield read_all(fd, min(part_bytes, size_bytes - start), start)


async def md5_of(body: bytes) -> bytes:
    """Return the MD5 of `body`, made in a thread: 20 ms for 16 MiB."""
    return await trio.to_thread.run_sync(lambda: hashlib.md5(body, usedforsecurity=False).digest())


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def refused_condition() -> ConditionsUnsupportedError:
    return ConditionsUnsupportedError("The service refuses to replace objects that have not changed (If-Match).")


def _conditional_error(error: Exception, final: FastfuseError) -> FastfuseError:
    """Return what the `error` of a conditional write means; `final` if it is not about the condition."""
    status = error.response["ResponseMetadata"]["HTTPStatusCode"] if isinstance(error, ClientError) else 0
    if status in _CONFLICTS and error.response["Error"].get("Code") != "NoSuchBucket":  # type: ignore[attr-defined]
        return WriteConflictError(str(final), hint=final.hint)
    return ConditionsUnsupportedError(str(final), hint=final.hint) if status == 501 else final
