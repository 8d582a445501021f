"""Writes whole objects through aiobotocore: index files and whatever else a command stores in S3.

A write may be conditional: it replaces one version only, or makes an object where none is.

Uploads are few and large, so a kept library serves them. Its retries are off; `retries` is the one policy.
"""

import base64
import copy
import hashlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

import trio
from aiobotocore.config import AioConfig
from botocore import UNSIGNED
from botocore.exceptions import BotoCoreError, ClientError

from fastfuse.errors import (
    AccessError,
    ConditionsUnsupportedError,
    FastfuseError,
    MissingObjectError,
    ServiceError,
    WriteConflictError,
    first_of,
)
from fastfuse.s3.aws import S3Session, bad_ca_bundle, stall_timeout_s
from fastfuse.s3.client import S3Client
from fastfuse.s3.credentials import Credentials
from fastfuse.s3.failures import (
    Kind,
    failure_of_exception,
    resolution_error,
    safe_cause,
)
from fastfuse.s3.retries import Retries, RetryableError, attempts

__all__ = ["NO_OBJECT", "ObjectState", "ObjectWriter", "upload"]

_log = logging.getLogger(__name__)

# The size of one part of a multipart upload. S3 takes at least 5 MiB a part, and 10,000 parts.
_UPLOAD_PART_BYTES = 64 << 20
_UPLOADS_IN_FLIGHT = 4
# The deadline of one request, of a whole part too, retries included.
_UPLOAD_DEADLINE_S = 300.0
# Stands for the ETag of an object that must not exist yet.
NO_OBJECT = "*"
# 404: the version to replace was deleted. 409: another conditional write is under way.
_CONFLICTS = (404, 409, 412)


async def upload(client: S3Client, fd: int, bucket: str, key: str) -> None:
    """Make the object `key` hold what the file `fd` holds, all or nothing. `client` knows the region of `bucket`.

    Raises:
        AccessError, SourceError, ConfigurationError, ServiceError: it cannot be written.
    """
    region = await client.region(bucket)
    async with AsyncExitStack() as exits:
        await ObjectWriter(client.session, exits, bucket, key, region).write(fd)


@dataclass(frozen=True, slots=True)
class ObjectState:
    """What an object is now; the age is by the service's own clock, in whole seconds."""

    etag: str
    size_bytes: int
    age_s: float


class ObjectWriter:
    """Writes and inspects one object.

    `replaces` makes a write conditional: the ETag of the version that it replaces, or `NO_OBJECT`. Such a write raises
    `WriteConflictError` if the object is another one, and `ConditionsUnsupportedError` if the service says that it
    has no such writes. A service that ignores conditions says nothing.
    """

    def __init__(
        self, session: S3Session, exits: AsyncExitStack, bucket: str, key: str, region: str, *, kms_key_id: str = ""
    ) -> None:
        """Open no client yet; `exits` closes those that are opened later.

        With a `kms_key_id` S3 encrypts what is written with that key of KMS.
        """
        self._session = session
        self._clients = _Clients(session, exits, region)
        self._bucket = bucket
        self.key = key
        self._region = region
        self._encryption: dict[str, Any] = (
            {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key_id} if kms_key_id else {}
        )
        self._retries = Retries()

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
        date = parsedate_to_datetime(self._field(reply["ResponseMetadata"]["HTTPHeaders"], "date"))
        age_s = (date - self._field(reply, "LastModified")).total_seconds()
        return ObjectState(self._field(reply, "ETag"), self._field(reply, "ContentLength"), age_s)

    async def put(self, body: bytes, *, replaces: str = "", deadline_s: float = _UPLOAD_DEADLINE_S) -> str:
        """Make the object hold `body`, and return its ETag."""
        extra = self._encryption | _condition(replaces)
        reply = await self._request("put_object", deadline_s=deadline_s, Body=body, **extra)
        etag: str = self._field(reply, "ETag")
        return etag

    async def write(self, fd: int, *, replaces: str = "") -> None:
        """Make the object hold what the file `fd` holds, all or nothing."""
        size_bytes = os.fstat(fd).st_size
        if size_bytes <= _UPLOAD_PART_BYTES:
            await self.put(os.pread(fd, size_bytes, 0), replaces=replaces)
            return
        async with self._parts(_condition(replaces)) as parts:
            limiter = trio.CapacityLimiter(_UPLOADS_IN_FLIGHT)

            async def send_one(number: int) -> None:
                async with limiter:
                    await parts.send(number, os.pread(fd, _UPLOAD_PART_BYTES, (number - 1) * _UPLOAD_PART_BYTES))

            try:
                async with trio.open_nursery() as nursery:
                    for number in range(1, -(-size_bytes // _UPLOAD_PART_BYTES) + 1):
                        nursery.start_soon(send_one, number)
            except ExceptionGroup as group:
                raise first_of(group) from group

    async def stream(self, pieces: AsyncIterator[bytes]) -> str:
        """Make the object hold `pieces` one after the other, all or nothing, and return its ETag.

        Each piece but the last has at least 5 MiB, and there are at most 10,000. The service refuses a piece whose MD5
        is another one; at the end it is asked for the length and the ETag, if it lets us read. `pieces` is not closed.

        Raises:
            FastfuseError: it cannot be written, or another object is there at the end. What `pieces` raises comes as it
                is. The parts that were sent are gone then.
        """
        first, second = await anext(pieces, b""), await anext(pieces, None)
        if second is None:
            reply = await self._request("put_object", Body=first, ContentMD5=await _md5(first), **self._encryption)
            etag, size_bytes = self._field(reply, "ETag"), len(first)
        else:
            async with self._parts({}) as parts:
                size_bytes = await parts.send_all(first, second, pieces)
            etag = parts.etag
        await self._check_stored(etag, size_bytes)
        return str(etag)

    async def _check_stored(self, etag: str, size_bytes: int) -> None:
        try:
            reply = await self._request("head_object")
        except AccessError as error:
            _log.info("what was stored in %s is not looked at again: %s", self._shown, error)
            return
        found_bytes, found_etag = self._field(reply, "ContentLength"), self._field(reply, "ETag")
        if found_bytes != size_bytes or found_etag != etag:
            raise ServiceError(
                f"{self._shown} is not what was written: {found_bytes:,} bytes with ETag {found_etag} are there, and "
                f"{size_bytes:,} bytes with ETag {etag} were sent",
                hint="Does something else write to this key?",
            )

    @asynccontextmanager
    async def _parts(self, condition: dict[str, Any]) -> AsyncIterator["_Parts"]:
        """Begin a multipart upload that is completed at the end of the block, or aborted."""
        upload_id = self._field(await self._request("create_multipart_upload", **self._encryption), "UploadId")

        async def send(number: int, body: bytes, checks: Mapping[str, str]) -> str:
            sending = {"UploadId": upload_id, "PartNumber": number, "Body": body, **checks}
            etag: str = self._field(await self._request("upload_part", **sending), "ETag")
            return etag

        parts = _Parts(send)
        try:
            yield parts
            reply = await self._request(
                "complete_multipart_upload", UploadId=upload_id, MultipartUpload={"Parts": parts.sent()}, **condition
            )
            parts.etag = reply.get("ETag", "")
        except BaseException:
            await self._abort(upload_id)
            raise

    async def _abort(self, upload_id: str) -> None:
        """Abort the upload. A failure is only logged: the caller raises why the upload failed."""
        deadline_s = self._session.config.deadline_s
        with trio.CancelScope(shield=True):
            try:
                await self._request("abort_multipart_upload", deadline_s=deadline_s, UploadId=upload_id)
            except FastfuseError as error:
                _log.warning("the parts of a failed upload to %s are still there: %s", self._shown, error)

    async def _request(
        self, operation: str, *, deadline_s: float = _UPLOAD_DEADLINE_S, **arguments: object
    ) -> dict[str, Any]:
        if self._session.config.request_payer:
            arguments["RequestPayer"] = "requester"
        arguments |= {"Bucket": self._bucket, "Key": self.key}
        with trio.move_on_after(deadline_s):
            return await self._retries.run(partial(self._request_once, operation, arguments), name=self._shown)
        raise ServiceError(f"The S3 service did not answer for {self._shown} within {deadline_s:g} s.")

    async def _request_once(self, operation: str, arguments: dict[str, object]) -> dict[str, Any]:
        boto, credentials = await self._clients.current()
        try:
            reply: dict[str, Any] = await getattr(boto, operation)(**arguments)
        except (BotoCoreError, ClientError) as error:
            failure = failure_of_exception(error)
            is_mended = await self._session.replace_refused(credentials, failure.kind)
            count = attempts(failure.kind, is_read=False, is_mended=is_mended)
            verb = "read" if operation == "head_object" else "write"
            final = self._session.command_error(failure, self._bucket, self.key, self._region, operation=verb)
            if {"IfMatch", "IfNoneMatch"} & arguments.keys():
                final = _conditional_error(error, final)
            raise RetryableError(final, failure, attempts=count, is_mended=is_mended) from safe_cause(error)
        except ValueError as error:  # botocore raises it for a malformed header
            raise self._bad_reply("a header that makes no sense") from error
        return reply

    def _field(self, reply: dict[str, Any], name: str) -> Any:  # noqa: ANN401 - each has its own type
        if name not in reply:
            raise self._bad_reply(f"no {name}")
        return reply[name]

    def _bad_reply(self, what: str) -> ServiceError:
        return ServiceError(
            f"The service's reply for {self._shown} has {what}.", hint="Check that --endpoint-url is an S3 service."
        )

    @property
    def _shown(self) -> str:
        """The object's URI as Python writes it: a key may hold what a terminal obeys."""
        return repr(f"s3://{self._bucket}/{self.key}")


class _Parts:
    """The parts of one multipart upload."""

    def __init__(self, send: Callable[[int, bytes, Mapping[str, str]], Awaitable[str]]) -> None:
        """Send each part with `send`: its number, its bytes and arguments that check them, for its ETag."""
        self._send = send
        # By number, from 1.
        self._etags: dict[int, str] = {}
        # The object's own; empty until it is complete.
        self.etag = ""

    async def send(self, number: int, body: bytes, **checks: str) -> None:
        self._etags[number] = await self._send(number, body, checks)

    def sent(self) -> list[dict[str, Any]]:
        """Return the parts as the request that completes them names them."""
        return [{"PartNumber": number, "ETag": self._etags[number]} for number in sorted(self._etags)]

    async def send_all(self, first: bytes, second: bytes, others: AsyncIterator[bytes]) -> int:
        """Send them in this order, a few at a time, and return their bytes; take no other before there is room."""
        room = trio.Semaphore(_UPLOADS_IN_FLIGHT)
        number = size_bytes = 0

        async def send_one(number: int, body: bytes) -> None:
            await self.send(number, body, ContentMD5=await _md5(body))
            room.release()

        async def start(nursery: trio.Nursery, body: bytes) -> None:
            nonlocal number, size_bytes
            await room.acquire()
            number, size_bytes = number + 1, size_bytes + len(body)
            nursery.start_soon(send_one, number, body)

        try:
            async with trio.open_nursery() as nursery:
                await start(nursery, first)
                await start(nursery, second)
                async for body in others:
                    await start(nursery, body)
        except ExceptionGroup as group:
            raise first_of(group) from group
        return size_bytes


class _Clients:
    """botocore's client of a region: opened when it is first needed, and again when the credentials change."""

    def __init__(self, session: S3Session, exits: AsyncExitStack, region: str) -> None:
        self._session = session
        self._exits = exits
        self._region = region
        self._opening = trio.Lock()
        self._boto: Any = None
        # Those that the client signs with.
        self._credentials: Credentials | None = None

    async def current(self) -> tuple[Any, Credentials | None]:
        """Return a client that signs with the current credentials, and these."""
        source = self._session.credentials
        credentials = None if source is None else await source.current()
        async with self._opening:
            if self._boto is None or credentials is not self._credentials:
                self._boto = await _open_boto(self._session, self._region, self._exits, credentials)
                self._credentials = credentials
            return self._boto, credentials


async def _md5(body: bytes) -> str:
    """Return the Content-MD5 of `body`, made in a thread: 20 ms for 16 MiB."""
    digest = await trio.to_thread.run_sync(lambda: hashlib.md5(body, usedforsecurity=False).digest())
    return base64.b64encode(digest).decode()


def _condition(replaces: str) -> dict[str, Any]:
    if not replaces:
        return {}
    return {"IfNoneMatch": "*"} if replaces == NO_OBJECT else {"IfMatch": replaces}


def _conditional_error(error: Exception, final: FastfuseError) -> FastfuseError:
    """Return what the `error` of a conditional write means; `final` if it is not about the condition."""
    status = error.response["ResponseMetadata"]["HTTPStatusCode"] if isinstance(error, ClientError) else 0
    if status in _CONFLICTS and error.response["Error"].get("Code") != "NoSuchBucket":  # type: ignore[attr-defined]
        return WriteConflictError(str(final), hint=final.hint)
    return ConditionsUnsupportedError(str(final), hint=final.hint) if status == 501 else final


async def _open_boto(session: S3Session, region: str, exits: AsyncExitStack, credentials: Credentials | None) -> Any:  # noqa: ANN401 - the class is made at run time
    keys = {}
    if credentials is not None:
        keys = {
            "aws_access_key_id": credentials.access_key,
            "aws_secret_access_key": credentials.secret_key,
            "aws_session_token": credentials.token,
        }
    try:
        boto = await exits.enter_async_context(
            session.aws.create_client(
                "s3",
                region_name=region,
                endpoint_url=session.endpoint_url,
                verify=session.authorities or False,
                config=_boto_config(session),
                **keys,
            )
        )
    except (BotoCoreError, ValueError) as error:
        raise resolution_error(error) from error
    except OSError as error:
        raise bad_ca_bundle(session) from error
    boto.meta.events.register_first("needs-retry.s3", _stop_botocore_from_redirecting)
    return boto


def _boto_config(session: S3Session) -> AioConfig:
    config = session.config
    options: dict[str, Any] = {}
    if not config.sign_request:
        options["signature_version"] = UNSIGNED
    if config.force_path_style:
        options["s3"] = session.s3_settings | {"addressing_style": "path"}
    return AioConfig(
        connect_timeout=config.connect_timeout_s,
        read_timeout=stall_timeout_s(config),
        max_pool_connections=_UPLOADS_IN_FLIGHT,
        retries={"mode": "standard", "total_max_attempts": 1},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        **options,
    )


def _stop_botocore_from_redirecting(response: Any, **_: object) -> None:  # noqa: ANN401
    """Raise in place of following a bucket into its region, which `S3Client.region` has found."""
    if response is None:
        return
    http, parsed = response
    if http.status_code >= 300:
        error = ClientError(parsed, "S3")
        if failure_of_exception(error).kind is Kind.WRONG_REGION:
            raise error
