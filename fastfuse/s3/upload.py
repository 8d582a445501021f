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
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
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
from fastfuse.s3.aws import DEFAULT_REGION, S3Session, bad_ca_bundle, stall_timeout_s
from fastfuse.s3.client import S3Client
from fastfuse.s3.credentials import Credentials, retry_if_passing
from fastfuse.s3.failures import Kind, failure_of_exception, resolution_error, safe_cause
from fastfuse.s3.retries import Retries, RetryableError

__all__ = [
    *("NO_OBJECT", "UPLOAD_DEADLINE_S", "ObjectState", "ObjectWriter", "load_writer", "refused_condition", "upload")
]

_log = logging.getLogger(__name__)

# The size of one part of a multipart upload. S3 takes at least 5 MiB a part, and 10,000 parts.
_UPLOAD_PART_BYTES = 64 << 20
_UPLOADS_IN_FLIGHT = 4
# The deadline of one request, of a whole part too, retries included.
UPLOAD_DEADLINE_S = 300.0
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


async def load_writer(session: S3Session) -> None:
    """Read and load all that a writer of `session` needs, in a process that may not do so later.

    Raises `ConfigurationError` where the certificates cannot be read.
    """
    await _Clients(session, AsyncExitStack(), DEFAULT_REGION).make(session.aws.load_client, None)


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
        self,
        session: S3Session,
        exits: AsyncExitStack,
        bucket: str,
        key: str,
        region: str,
        *,
        kms_key_id: str = "",
        retries: Retries | None = None,
        outlives_outages: bool = False,
    ) -> None:
        """Open no client yet; `exits` closes those that are opened later. `retries` may be shared.

        With a `kms_key_id` S3 encrypts what is written with that key of KMS. A writer that `outlives_outages` tries
        to reach a service until the deadline, as a read does.
        """
        self._session = session
        self._clients = _Clients(session, exits, region)
        self._bucket = bucket
        self.key = key
        self._region = region
        self._encryption: dict[str, Any] = (
            {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key_id} if kms_key_id else {}
        )
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
        date = parsedate_to_datetime(self._field(reply["ResponseMetadata"]["HTTPHeaders"], "date"))
        age_s = (date - self._field(reply, "LastModified")).total_seconds()
        return ObjectState(self._field(reply, "ETag"), self._field(reply, "ContentLength"), age_s)

    async def put(self, body: bytes, *, replaces: str = "", deadline_s: float = UPLOAD_DEADLINE_S) -> str:
        """Make the object hold `body`, and return its ETag."""
        extra = self._encryption | self._condition(replaces)
        reply = await self._request("put_object", deadline_s=deadline_s, Body=body, **extra)
        return str(self._field(reply, "ETag"))

    async def write(self, fd: int, *, replaces: str = "") -> None:
        """Make the object hold what the file `fd` holds, all or nothing."""
        is_one_put = self.has_bare_etags and replaces != ""
        part_bytes = max(1, os.fstat(fd).st_size) if is_one_put else _UPLOAD_PART_BYTES
        await self._send(_pieces_of(fd, part_bytes), self._condition(replaces))

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

    async def stream(self, pieces: AsyncIterator[bytes]) -> str:
        """Make the object hold `pieces` one after the other, all or nothing, and return its ETag.

        Each piece but the last has at least 5 MiB, and there are at most 10,000. At the end the service is asked for
        the length and the ETag, if it lets us read. `pieces` is not closed.

        Raises:
            FastfuseError: it cannot be written, or another object is there at the end. What `pieces` raises comes as it
                is. The parts that were sent are gone then.
        """
        return await self._check_stored(*await self._send(pieces, {}))

    async def _check_stored(self, etag: str, size_bytes: int) -> str:
        """Compare the object with what was sent, and return its ETag; an empty `etag` is not compared."""
        try:
            reply = await self._request("head_object")
        except AccessError as error:
            _log.info("what was stored in %s is not looked at again: %s", self._shown, error)
            return etag
        found_bytes, found_etag = self._field(reply, "ContentLength"), self._field(reply, "ETag")
        if found_bytes != size_bytes or (etag and found_etag != etag):
            raise ServiceError(
                f"{self._shown} is not what was written: {found_bytes:,} bytes with ETag {found_etag} are there, and "
                f"{size_bytes:,} bytes with ETag {etag or 'unknown'} were sent",
                hint="Does something else write to this key?",
            )
        return str(found_etag)

    async def _send(self, pieces: AsyncIterator[bytes], condition: dict[str, Any]) -> tuple[str, int]:
        """Make the object hold `pieces`, in an upload of parts if there are several; return its ETag and length.

        The ETag is empty if the service does not tell it at the end of an upload of parts. The service refuses a piece
        whose MD5 is another one.
        """
        begun = await _beginning_of(pieces)
        if len(begun) < 2:
            body = begun.pop() if begun else b""
            made = self._encryption | condition
            reply = await self._request("put_object", Body=body, ContentMD5=await _md5(body), **made)
            return self._field(reply, "ETag"), len(body)
        upload_id = self._field(await self._request("create_multipart_upload", **self._encryption), "UploadId")
        try:
            parts, size_bytes = await self._send_parts(upload_id, begun, pieces)
            reply = await self._request(
                "complete_multipart_upload", UploadId=upload_id, MultipartUpload={"Parts": parts}, **condition
            )
        except BaseException:
            await self._abort(upload_id)
            raise
        # Ceph's gateway 16 completes an upload of parts with an empty ETag.
        return reply.get("ETag", ""), size_bytes

    async def _send_parts(
        self, upload_id: str, begun: deque[bytes], others: AsyncIterator[bytes]
    ) -> tuple[list[dict[str, Any]], int]:
        """Send the pieces that have `begun` and the `others`, a few at a time; take none before there is room for it.

        Return the parts, as the request that completes them names them, and their length.
        """
        room = trio.Semaphore(_UPLOADS_IN_FLIGHT)
        parts: list[dict[str, Any]] = []
        size_bytes = 0

        async def send(part: dict[str, Any], body: bytes) -> None:
            sending = {"UploadId": upload_id, "PartNumber": part["PartNumber"], "ContentMD5": await _md5(body)}
            part["ETag"] = self._field(await self._request("upload_part", Body=body, **sending), "ETag")
            room.release()

        try:
            async with trio.open_nursery() as nursery:
                while True:
                    await room.acquire()
                    body = begun.popleft() if begun else await anext(others, None)
                    if body is None:
                        break
                    parts.append({"PartNumber": len(parts) + 1})
                    size_bytes += len(body)
                    nursery.start_soon(send, parts[-1], body)
        except ExceptionGroup as group:
            raise first_of(group) from group
        return parts, size_bytes

    async def _abort(self, upload_id: str) -> None:
        """Abort the upload. A failure is only logged: the caller raises why the upload failed."""
        deadline_s = self._session.config.deadline_s
        with trio.CancelScope(shield=True):
            try:
                await self._request("abort_multipart_upload", deadline_s=deadline_s, UploadId=upload_id)
            except FastfuseError as error:
                _log.warning("the parts of a failed upload to %s are still there: %s", self._shown, error)

    async def _request(
        self, operation: str, *, deadline_s: float = UPLOAD_DEADLINE_S, **arguments: object
    ) -> dict[str, Any]:
        if self._session.config.request_payer:
            arguments["RequestPayer"] = "requester"
        arguments |= {"Bucket": self._bucket, "Key": self.key}
        with trio.move_on_after(deadline_s):
            return await self._retries.run(partial(self._request_once, operation, arguments), name=self._shown)
        raise ServiceError(f"The S3 service did not answer for {self._shown} within {deadline_s:g} s.")

    async def _request_once(self, operation: str, arguments: dict[str, object]) -> dict[str, Any]:
        try:
            boto, credentials = await self._clients.current()
        except FastfuseError as error:
            if self._outlives_outages:
                retry_if_passing(error)
            raise
        try:
            reply: dict[str, Any] = await getattr(boto, operation)(**arguments)
        except (BotoCoreError, ClientError) as error:
            failure = failure_of_exception(error)
            is_mended, _ = await self._session.replace_refused(credentials, failure.kind)
            verb = "read" if operation == "head_object" else "write"
            final = self._session.command_error(failure, self._bucket, self.key, self._region, operation=verb)
            if {"IfMatch", "IfNoneMatch"} & arguments.keys():
                final = _conditional_error(error, final)
            raise RetryableError(final, failure, is_read=self._outlives_outages, is_mended=is_mended) from safe_cause(
                error
            )
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
                self._boto, self._credentials = await self.make(self._open, credentials), credentials
            return self._boto, credentials

    async def _open(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - the class is made at run time
        boto = await self._exits.enter_async_context(self._session.aws.create_client(*arguments, **options))
        boto.meta.events.register_first("needs-retry.s3", _stop_botocore_from_redirecting)
        return boto

    async def make(self, make: Callable[..., Awaitable[Any]], credentials: Credentials | None) -> Any:  # noqa: ANN401
        """Return what `make` returns for the arguments of a client that signs with `credentials`, if there are any."""
        session = self._session
        # botocore would look for keys itself, for a client that signs and is only loaded.
        keys = credentials or Credentials(access_key="-", secret_key="-")  # noqa: S106
        try:
            return await make(
                "s3",
                region_name=self._region,
                endpoint_url=session.endpoint_url,
                verify=session.authorities or False,
                config=_boto_config(session),
                aws_access_key_id=keys.access_key,
                aws_secret_access_key=keys.secret_key,
                aws_session_token=keys.token,
            )
        except (BotoCoreError, ValueError) as error:
            raise resolution_error(error) from error
        except OSError as error:
            raise bad_ca_bundle(session) from error


async def _beginning_of(pieces: AsyncIterator[bytes]) -> deque[bytes]:
    """Return the first two pieces, or fewer where there are no more."""
    begun = deque[bytes]()
    async for piece in pieces:
        begun.append(piece)
        if len(begun) == 2:
            break
    return begun


async def _pieces_of(fd: int, part_bytes: int) -> AsyncIterator[bytes]:
    """Yield what the file `fd` holds, in parts of an upload."""
    for start in range(0, os.fstat(fd).st_size, part_bytes):
        yield os.pread(fd, part_bytes, start)


async def _md5(body: bytes) -> str:
    """Return the Content-MD5 of `body`, made in a thread: 20 ms for 16 MiB."""
    digest = await trio.to_thread.run_sync(lambda: hashlib.md5(body, usedforsecurity=False).digest())
    return base64.b64encode(digest).decode()


def refused_condition() -> ConditionsUnsupportedError:
    return ConditionsUnsupportedError("The service refuses to replace objects that have not changed (If-Match).")


def _conditional_error(error: Exception, final: FastfuseError) -> FastfuseError:
    """Return what the `error` of a conditional write means; `final` if it is not about the condition."""
    status = error.response["ResponseMetadata"]["HTTPStatusCode"] if isinstance(error, ClientError) else 0
    if status in _CONFLICTS and error.response["Error"].get("Code") != "NoSuchBucket":  # type: ignore[attr-defined]
        return WriteConflictError(str(final), hint=final.hint)
    return ConditionsUnsupportedError(str(final), hint=final.hint) if status == 501 else final


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
