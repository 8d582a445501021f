"""S3 through aiobotocore, natively on trio: it lists, and it reads what obstore cannot."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import httpx2
import trio
from aiobotocore.config import AioConfig
from botocore import UNSIGNED
from botocore.exceptions import BotoCoreError, ClientError
from botocore.handlers import BUILTIN_HANDLERS

from fastfuse.errors import BadReplyError, DeadlineError, FastfuseError, ServiceError
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.store.failures import (
    Failure,
    Kind,
    failure_of_exception,
    read_error,
    resolution_error,
    safe_cause,
    start_error,
)
from fastfuse.store.replies import (
    check_length,
    check_range_arguments,
    check_version,
    if_match_value,
    if_unmodified_since,
    is_whole_page,
    parse_content_range,
)
from fastfuse.store.retries import RetryableError, retrying
from fastfuse.store.session import S3Session, bad_ca_bundle, stall_timeout_s

__all__ = ["LIST_STALL_S", "BotoPageSource", "BotoRangeReader", "S3Client", "list_in_time"]

# A LIST over many delete markers was seen to take 120 s before its first byte (xuanwo.io, 2025-02).
LIST_STALL_S = 130.0
# One page with all its retries; a listing that cannot get a page for so long has no service to wait for.
LIST_DEADLINE_S = 300.0
# A server that ignores Range sends the object from its start: so much is read past before a read is refused.
LONGEST_SKIP_BYTES = 64 * 1024 * 1024


class S3Client:
    """An S3 client that is opened on first use and has as many requests in flight as it has connections."""

    def __init__(self, session: S3Session, *, stall_s: float) -> None:
        self.session = session
        self._stall_s = stall_s
        self._exits = AsyncExitStack()
        self._opening = trio.Lock()
        self._client: Any = None
        self._closed = False
        # Our own queue: httpx gives up on its pool's after 5 s and calls that a connection failure.
        self.slots = trio.CapacityLimiter(session.config.max_connections)

    async def get(self, region: str) -> Any:  # noqa: ANN401 - the client class is made at run time
        async with self._opening:
            if self._closed:
                raise RuntimeError("the store is closed")
            if self._client is None:
                self._client = await self._open(region)
        return self._client

    async def _open(self, region: str) -> Any:  # noqa: ANN401
        session = self.session
        if session.credentials is not None:
            await session.credentials.current()  # tells what is wrong better than the first request would
        try:
            client = await self._exits.enter_async_context(
                session.aws.create_client(
                    "s3",
                    region_name=region,
                    endpoint_url=session.endpoint_url,
                    verify=session.verify,
                    config=self._config(),
                )
            )
        except (BotoCoreError, ValueError) as error:
            raise resolution_error(error) from error
        except OSError as error:
            raise bad_ca_bundle(session) from error
        _keep_pages_raw(client.meta.events)
        client.meta.events.register_first("needs-retry.s3", _stop_botocore_from_redirecting)
        return client

    def _config(self) -> AioConfig:
        config = self.session.config
        options: dict[str, Any] = {}
        if not config.sign_request:
            options["signature_version"] = UNSIGNED
        if config.force_path_style:
            options["s3"] = self.session.s3_settings | {"addressing_style": "path"}
        return AioConfig(
            connect_timeout=config.connect_timeout_s,
            read_timeout=self._stall_s,
            max_pool_connections=config.max_connections,
            retries={"mode": "standard", "total_max_attempts": 1},  # see `retries`
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            **options,
        )

    async def aclose(self) -> None:
        self._closed = True
        async with self._opening:
            self._client = None
            await self._exits.aclose()


# What is left to botocore: an upload's completion may fail minutes after its status of 200 was sent, and an object may
# have any text for its Expires.
_PARSED = ("CompleteMultipartUpload", "GetObject", "HeadObject")


def _keep_pages_raw(events: Any) -> None:  # noqa: ANN401 - botocore's emitter
    """Hands out the body of a list page unparsed.

    botocore's parser takes 130 µs an object, and before it `_handle_200_error` parses every body once more to see
    whether it is an error.
    """
    for event, handler, *_ in BUILTIN_HANDLERS:
        if event == "before-parse.s3.*":
            events.unregister(event, handler)
            for operation in _PARSED:
                events.register(f"before-parse.s3.{operation}", handler)
    events.register("before-parse.s3.ListObjectsV2", _take_page)


def _take_page(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object) -> None:
    body = response_dict["body"]
    if response_dict["status_code"] == 200:
        if is_whole_page(body):
            customized_response_dict["RawBody"] = body
            response_dict["body"] = b""
        else:  # S3 may report an error that came late with a status of 200
            response_dict["status_code"] = 500


def _stop_botocore_from_redirecting(response: Any, **_: object) -> None:  # noqa: ANN401
    """botocore follows a bucket into its region by itself; obstore cannot, so the user has to be told."""
    if response is None:
        return
    http, parsed = response
    if http.status_code >= 300:
        error = ClientError(parsed, "S3")
        if failure_of_exception(error).kind is Kind.WRONG_REGION:
            raise error


async def list_in_time(bucket: str, list_once: Callable[[], Awaitable[bytes]]) -> bytes:
    """The page that `list_once` gets, tried again as `retrying` does. Raises `ServiceError` if it takes too long."""
    with trio.move_on_after(LIST_DEADLINE_S):
        return await retrying(list_once)
    raise ServiceError(f"The S3 service did not list a page of the bucket {bucket!r} within {LIST_DEADLINE_S:.0f} s.")


class BotoPageSource:
    """Lists one bucket."""

    def __init__(self, session: S3Session, bucket: str) -> None:
        self._bucket = bucket
        self._session = session
        self._client = S3Client(session, stall_s=LIST_STALL_S)

    async def list_page(
        self,
        *,
        prefix: str,
        start_after: str = "",
        continuation_token: str = "",
        delimiter: str = "",
        max_keys: int = 1000,
    ) -> bytes:
        """See `PageSource.list_page`."""
        optional = {"StartAfter": start_after, "ContinuationToken": continuation_token, "Delimiter": delimiter}
        arguments: dict[str, Any] = {"Bucket": self._bucket, "Prefix": prefix, "MaxKeys": max_keys}
        arguments |= {"EncodingType": "url"} | {name: value for name, value in optional.items() if value}
        if self._session.config.request_payer:
            arguments["RequestPayer"] = "requester"
        region = await self._session.region(self._bucket)
        client = await self._client.get(region)
        return await list_in_time(self._bucket, partial(self._list_once, client, arguments, region))

    async def _list_once(self, client: Any, arguments: dict[str, Any], region: str) -> bytes:  # noqa: ANN401
        try:
            async with self._client.slots:
                page = await client.list_objects_v2(**arguments)
        except (BotoCoreError, ClientError) as error:
            failure = failure_of_exception(error)
            if failure.is_throttled:  # the lister's to answer, with fewer requests
                raise self._error(failure, region) from safe_cause(error)
            raise RetryableError(self._error(failure, region), attempts=failure.attempts) from safe_cause(error)
        body: bytes = page["RawBody"]
        return body

    def _error(self, failure: Failure, region: str) -> FastfuseError:
        endpoint = self._session.endpoint_url or ""
        return start_error(failure, bucket=self._bucket, endpoint=endpoint, region=region)

    async def aclose(self) -> None:
        await self._client.aclose()


class BotoRangeReader:
    """Reads ranges of one bucket's objects, whatever their keys, and takes any honest reply to a ranged GET."""

    def __init__(self, session: S3Session, bucket: str) -> None:
        self._session = session
        self._bucket = bucket
        self._client = S3Client(session, stall_s=stall_timeout_s(session.config))

    async def get_range(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        """See `RangeReader.get_range`. Cancelling stops the request."""
        check_range_arguments(ref, start, end)
        if ref.bucket != self._bucket:
            raise ValueError(f"{ref.bucket!r} is not the bucket of this reader, {self._bucket!r}")
        deadline_s = self._session.config.deadline_s
        with trio.move_on_after(deadline_s):
            region = await self._session.region(self._bucket)
            client = await self._client.get(region)
            return await retrying(partial(self._get_once, client, ref, start, end))
        raise DeadlineError(f"{ref.key!r} could not be read within {deadline_s:g} s.")

    async def _get_once(self, client: Any, ref: ObjectRef, start: int, end: int) -> Buffer:  # noqa: ANN401
        arguments: dict[str, Any] = {"Bucket": ref.bucket, "Key": ref.key, "Range": f"bytes={start}-{end - 1}"}
        conditions: dict[str, Any] = {"IfMatch": if_match_value(ref), "IfUnmodifiedSince": if_unmodified_since(ref)}
        arguments |= {name: value for name, value in conditions.items() if value}
        if self._session.config.request_payer:
            arguments["RequestPayer"] = "requester"
        try:
            async with self._client.slots:
                reply = await client.get_object(**arguments)
                async with reply["Body"] as body:
                    return await _read_body(reply, body.raw_stream, ref, start, end)
        except (BotoCoreError, ClientError) as error:
            failure = failure_of_exception(error)
            raise RetryableError(read_error(failure, ref), attempts=failure.attempts) from safe_cause(error)
        except httpx2.HTTPError as error:  # the connection broke in the body
            failure = Failure(kind=Kind.BUSY, detail=type(error).__name__)
            raise RetryableError(read_error(failure, ref), attempts=failure.attempts) from error

    async def aclose(self) -> None:
        await self._client.aclose()


async def _read_body(reply: dict[str, Any], raw: httpx2.Response, ref: ObjectRef, start: int, end: int) -> Buffer:
    skip_bytes = start - _body_start(reply, ref, start, end)
    more_may_follow = skip_bytes > 0 or "ContentRange" not in reply
    data = bytearray(end - start)
    position = -skip_bytes
    with trio.CancelScope() as enough:
        async for chunk in raw.aiter_raw():  # not aiter_bytes: objects with Content-Encoding would be decoded
            target = max(0, position)
            fresh = memoryview(chunk)[target - position :][: len(data) - target]
            data[target : target + len(fresh)] = fresh
            position += len(chunk)
            # A complete range is read on to its end, so that the connection can be used again.
            if position > len(data) or (more_may_follow and position == len(data)):
                # Not `break`: the generators below have to be ended from the inside to be ended at all.
                enough.cancel()
    check_length(ref, wanted_bytes=len(data), got_bytes=min(position, len(data)) if more_may_follow else position)
    return memoryview(data).toreadonly()


def _body_start(reply: dict[str, Any], ref: ObjectRef, start: int, end: int) -> int:
    """Where in the object the reply's body begins: at `start`, or at 0 where the server ignores Range.

    Some servers (rclone) answer a range with 200, which is sound as long as Content-Range says what it is.
    """
    status = reply["ResponseMetadata"]["HTTPStatusCode"]
    sent = reply.get("ContentRange")
    if sent is not None:
        parsed = parse_content_range(sent)
        if parsed is None or parsed[:2] != (start, end):
            raise BadReplyError(f"The service sent another range of {ref.key!r} than {start}-{end}.")
        check_version(ref, etag=reply.get("ETag"), modified=reply.get("LastModified"), total_bytes=parsed[2])
        return start
    if status != 200:
        raise BadReplyError(f"The service does not say which range of {ref.key!r} it sent.")
    total_bytes = reply.get("ContentLength")
    check_version(ref, etag=reply.get("ETag"), modified=reply.get("LastModified"), total_bytes=total_bytes)
    if start > LONGEST_SKIP_BYTES:
        raise BadReplyError(f"The service ignores Range: {ref.key!r} cannot be read at {start} without all before it.")
    return 0
