"""The one S3 client for reading: GET into the caller's memory, HEAD and LIST, over connections of its own.

A client's own copies are what a read costs, so bytes go straight from the socket into the part's memory. Each verb
sends a signed request over a connection to its bucket (`routes`, `connection`), checks that the reply is of the listed
version and of the right length (`checks`), and classifies what went wrong (`failures`); `retries` decides whether it is
tried again until the deadline. `integrity` compares the bytes with their checksum. Uploads are in `upload`.
"""

import logging
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any
from urllib.parse import quote

import trio

from fastfuse.errors import BadReplyError, DeadlineError, FastfuseError, ReadError, ServiceError, UnavailableError
from fastfuse.metrics import Counters
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.s3 import bodies
from fastfuse.s3.aws import S3Session, stall_timeout_s
from fastfuse.s3.base import LIST_DEADLINE_S
from fastfuse.s3.buffers import PartBuffers
from fastfuse.s3.checks import check_range_arguments, object_of
from fastfuse.s3.connection import TASK_BYTES, Connection, Patience
from fastfuse.s3.credentials import Credentials, retry_if_passing
from fastfuse.s3.failures import Failure, Kind, as_read_error, failure_of_reply, outcome_of, read_error
from fastfuse.s3.http1 import BadReplyHeadError, ReplyHead
from fastfuse.s3.integrity import Integrity
from fastfuse.s3.rate import RequestRate
from fastfuse.s3.regions import Regions
from fastfuse.s3.retries import Retries, RetryableError
from fastfuse.s3.routes import Direct, Route, Routes, failure_of_connection, read_failure

_log = logging.getLogger(__name__)

# A LIST over many delete markers has taken 120 s to its first byte (xuanwo.io, 2025-02).
_LIST_STALL_S = 130.0
# The share of a read's deadline that is left when a wait for other credentials ends.
_TO_TELL_SHARE = 0.01


@dataclass(slots=True)
class _Get:
    """One GET, through all its attempts."""

    ref: ObjectRef
    start: int
    end: int
    # When its read is over, on trio's clock.
    ends_s: float
    # The service has asked for fewer requests in reply to one of its attempts.
    is_throttled: bool = False
    # The failure of the last attempt that has ended, unless the next one may do better.
    failed: RetryableError | None = None


class S3Client:
    """Reads objects of every bucket that `session` reaches. Constructing it does no I/O and starts no thread."""

    def __init__(
        self,
        session: S3Session,
        *,
        buffers: PartBuffers | None = None,
        counters: Counters | None = None,
        retries: Retries | None = None,
    ) -> None:
        """`get` returns memory of `buffers`; `counters` count each GET as it ends. `retries` may be shared."""
        config = session.config
        self.session = session
        self._buffers = buffers or PartBuffers(part_bytes=0, limit_bytes=0)
        self._counters = counters = counters or Counters()
        times = ("fastfuse_get_first_byte_seconds", "fastfuse_get_seconds")
        self._saw_first_byte, self._saw_end = map(counters.observer, times)
        self._slots = trio.Semaphore(config.max_connections)
        self._read_patience = Patience(stall_timeout_s(config), config.deadline_s)
        self._list_patience = Patience(_LIST_STALL_S, LIST_DEADLINE_S)
        self._retries = retries or Retries(counters)
        self._routes = Routes(session, self._read_patience)
        self._regions = Regions(session, self._routes, self._retries, self._read_patience)
        self._rate, self._turn = RequestRate(), trio.Lock()
        self._throttled_by = ""  # the last reply that throttled
        self._credentials: Credentials | None = None  # those that signed last
        self._integrity = Integrity(
            is_thorough=config.verify, deadline_s=config.deadline_s, fetch=self._get, head=self._head, counters=counters
        )

    @property
    def max_connections(self) -> int:
        """The number of requests that are worth having in flight."""
        return self.session.config.max_connections

    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        """Return the bytes from `start` to `end` (exclusive) of the listed version; see `RangeReader.get`.

        Raises only `ReadError`, and `ValueError` for a range that is not inside the object. Cancelling stops the
        request.
        """
        check_range_arguments(ref, start, end)
        began_s = trio.current_time()
        try:
            data = await self._integrity.get(ref, start, end, began_s)
        except BaseException as error:
            self._count("cancelled" if isinstance(error, trio.Cancelled) else outcome_of(error))
            if isinstance(error, FastfuseError) and not isinstance(error, ReadError):
                raise as_read_error(error, ref) from error
            raise
        self._count("ok", end - start, is_whole=end - start == ref.size_bytes)
        self._saw_end(trio.current_time() - began_s)
        return data

    def direct(self, bucket: str, prefix: str) -> Direct | None:
        """Return how GETs of whole objects below `prefix` are made elsewhere, or None if only `get` may."""
        if self._routes.is_closed or self.session.config.verify:
            return None
        if self._retries.is_in_trouble or self._rate.is_limited:
            return None
        route, source = self._routes.known(bucket), self.session.credentials
        if route is None or route.endpoint.proxy is not None or (source is not None and not source.is_current):
            return None
        tls = self.session.tls if route.endpoint.scheme == "https" else None
        return Direct(route.endpoint, tls, route.texts(source.latest if source else None, prefix))

    async def addresses(self, way: Direct) -> list[Any]:
        """Return the addresses for a `direct` way, as `trio.socket.getaddrinfo` does, and raise as it does."""
        return await self._routes.addresses.find(way.endpoint.host, way.endpoint.port)

    def count_direct(
        self, size_bytes: int, took_s: float, first_byte_s: float, *, is_checked: bool | None, key: str
    ) -> None:
        """Count a GET that was made elsewhere, over a `direct` way; `is_checked` is None for a part of an object."""
        _log.debug("GET %r, %d bytes, by a thread: answered in %.1f ms", key, size_bytes, took_s * 1000)
        self._count("ok", size_bytes, is_whole=is_checked is not None)
        self._rate.answered(trio.current_time())
        self._answered(206)
        self._saw_first_byte(first_byte_s)
        self._saw_end(took_s)
        if is_checked is not None:
            self._integrity.count("ok" if is_checked else "none")

    def count_in_vain(self, status: int, bucket: str, key: str) -> None:
        """Count and log a GET that was made elsewhere in vain, and is made again here; a `status` of 0: no reply."""
        _log.debug("GET %r, by a thread: %s", key, status or "no reply")
        failure = failure_of_reply(status, "") if status >= 300 else Failure(kind=Kind.BROKEN, detail="no whole reply")
        if failure.kind in (Kind.THROTTLED, Kind.BUSY, Kind.BROKEN):  # as `get` tries again
            self._retries.count(_shown(bucket, key), failure)
        if status > 0:
            self._answered(status)

    async def head(self, bucket: str, key: str) -> ObjectRef:
        """Return what the object is now; see `ObjectSource.head`."""
        ref = object_of(await self._head(bucket, key), bucket, key)
        if ref is None:
            told = f"The service's reply for {_shown(bucket, key)} has no length or no time that makes sense."
            raise ServiceError(told, hint="Check that --endpoint-url is an S3 service.")
        return ref

    async def _head(self, bucket: str, key: str, query: str = "") -> ReplyHead:
        deadline_s = self.session.config.deadline_s
        with trio.move_on_after(deadline_s):
            ask = partial(self._ask_once, bucket, key=key, query=query)
            return (await self._retries.run(ask, name=_shown(bucket, key)))[0]
        raise ServiceError(f"The S3 service did not answer for {_shown(bucket, key)} within {deadline_s:g} s.")

    async def list(
        self,
        bucket: str,
        *,
        prefix: str,
        start_after: str = "",
        continuation_token: str = "",
        delimiter: str = "",
        max_keys: int = 1000,
    ) -> bytes:
        """Return the unparsed XML of one ListObjectsV2 reply, at most `MAX_PAGE_BYTES`; see `PageSource.list`.

        One attempt: who asks for many pages at a time tries again, and with fewer requests where the service throttles.
        """
        optional = {"start-after": start_after, "continuation-token": continuation_token, "delimiter": delimiter}
        asked = {"list-type": "2", "prefix": prefix, "max-keys": str(max_keys), "encoding-type": "url"}
        asked |= {name: value for name, value in optional.items() if value}
        # The signature needs this order.
        query = "&".join([f"{name}={quote(asked[name], safe='-_.~')}" for name in sorted(asked)])
        return (await self._ask_once(bucket, query=query))[1]

    async def region(self, bucket: str, *, is_read: bool = False) -> str:
        """Return the region of `bucket`. Raises as `list`, and `RetryableError` as a read (`is_read`) does."""
        return (await self._regions.route(bucket, is_read=is_read)).endpoint.region

    async def aclose(self) -> None:
        """Close the connections. Idempotent; a request in flight fails or finishes, and none may be started."""
        self._routes.close()
        await trio.lowlevel.checkpoint()

    async def _get(self, ref: ObjectRef, start: int, end: int, ends_s: float) -> tuple[Buffer, ReplyHead]:
        began_s = trio.current_time()
        asked = _Get(ref, start, end, ends_s)
        get, failed = partial(self._get_once, asked), None
        if end - start <= TASK_BYTES and self._is_at_hand(ref.bucket):
            # The connection's own patience ends a stalled reply, and `_refusal` the wait for other credentials. A
            # deadline here would take a fifth of the CPU time.
            try:
                reply = await get(may_connect=False)
                if self._retries.is_in_trouble:
                    self._retries.answered()
                return reply
            except RetryableError as error:
                failed = error
            except (MemoryError, trio.WouldBlock):
                pass  # there may be some now; no connection is idle any more
        with trio.move_on_at(ends_s):
            return await self._retries.run(get, name=_shown(ref.bucket, ref.key), failed=failed, began_s=began_s)
        if self._rate.is_limited:
            told = f"the service throttles ({self._throttled_by})"
            raise UnavailableError(f"{ref.key!r} could not be read in time: {told}.")
        if asked.failed is not None:  # a busy machine came late to the end of the attempt after it
            raise asked.failed.error from asked.failed.__cause__
        raise DeadlineError.too_slow(ref.key, self.session.config.deadline_s)

    def _is_at_hand(self, bucket: str) -> bool:
        """Return whether a GET need wait for nothing but its reply, if an idle connection is still open."""
        route, source = self._routes.known(bucket), self.session.credentials
        has_credentials = source is None or source.is_current
        return bool(route and route.idle and self._slots.value and has_credentials and not self._rate.is_limited)

    async def _get_once(self, get: _Get, *, may_connect: bool = True) -> tuple[Buffer, ReplyHead]:
        route, credentials = await self.prepare(get.ref.bucket, is_read=True)
        if self._slots.value:
            self._slots.acquire_nowait()  # without the checkpoint of `acquire`
        else:
            await self._slots.acquire()
        try:
            if self._rate.is_limited:
                async with self._turn:
                    turn_s = self._turn_s()
                    await trio.sleep_until(turn_s)
                    # Whoever could not wait so long has left the turn to the next one.
                    self._rate.sent(turn_s)
            return await self._exchange(route, credentials, get, may_connect=may_connect)
        except RetryableError as error:
            get.failed = None if error.is_mended else error
            raise
        finally:
            self._slots.release()

    def _turn_s(self) -> float:
        """Return when the next GET may be sent."""
        was_limited = self._rate.is_limited
        turn_s = self._rate.turn_s(trio.current_time())
        if was_limited and not self._rate.is_limited:
            _log.info("no GET was throttled at its first attempt for a minute: GETs are limited no more")
        return turn_s

    async def _exchange(
        self, route: Route, credentials: Credentials | None, get: _Get, *, may_connect: bool
    ) -> tuple[Buffer, ReplyHead]:
        ref, start, end = get.ref, get.start, get.end
        request = route.get_request(credentials, ref, start, end)
        began_s, head = trio.current_time(), None
        try:
            connection, head = await self._routes.ask(route, request, self._read_patience, may_connect=may_connect)
            self._answered(head.status)
            self._saw_first_byte(trio.current_time() - began_s)
            try:
                if head.status not in (200, 206):
                    failure, is_mended = await self._refusal(
                        connection, head, route, credentials, is_read=True, get=get
                    )
                    self._note_refusal(failure, get)
                    raise RetryableError(read_error(failure, ref), failure, is_read=True, is_mended=is_mended)
                self._routes.has_met_s3 = True
                data = self._buffers.take(end - start)
                await bodies.read_range(connection, head, ref, start, data)
                self._rate.answered(trio.current_time())
            finally:
                self._routes.put_back(route, connection)
            return data.toreadonly(), head
        except (BadReplyError, BadReplyHeadError, OSError) as error:
            error.__context__ = None  # as the traceback: see `Retries`
            raise read_failure(error, ref) from error.with_traceback(None)
        finally:
            if _log.isEnabledFor(logging.DEBUG):
                told = f"{head.status} {head.headers.get('x-amz-request-id', '')}" if head is not None else "no reply"
                took_s = trio.current_time() - began_s
                _log.debug("GET %r, bytes %d to %d: %s in %.1f ms", ref.key, start, end, told, took_s * 1000)

    async def _ask_once(self, bucket: str, *, key: str = "", query: str = "") -> tuple[ReplyHead, bytes]:
        """Return the head of the reply to a HEAD for `key`, or to a LIST with `query` and its whole page.

        Whatever is asked of a service that has answered before is tried again as a read is.

        Raises:
            RetryableError: it failed, and may be tried again.
            FastfuseError: it failed for good.
        """
        is_read = self._routes.has_met_s3
        route, credentials = await self.prepare(bucket, is_read=is_read)
        is_list, is_mended = not key, False
        request = route.request("GET" if is_list else "HEAD", credentials, key=key, query=query)
        async with self._slots:
            connection = None
            try:
                patience = self._list_patience if is_list else self._read_patience
                connection, head = await self._routes.ask(route, request, patience, has_body=is_list)
                if head.status == 200 or (head.status == 206 and key and query):  # of a part of an upload
                    page = await bodies.read_page(connection, head, bucket) if is_list else b""
                    self._routes.has_met_s3 = self._routes.has_met_s3 or bodies.is_of_s3(head, page)
                    if not is_list or bodies.is_whole_page(page):
                        return head, page
                    failure = bodies.failure_of_page(head, page)
                else:
                    failure, is_mended = await self._refusal(
                        connection, head, route, credentials, is_read=is_read, has_body=is_list
                    )
            except (BadReplyHeadError, OSError) as error:
                failure = failure_of_connection(error, is_read=is_read)
            finally:
                if connection is not None:
                    self._routes.put_back(route, connection)
        failure = self._routes.judged(failure)
        final = self.session.command_error(failure, bucket, key, route.endpoint.region)
        raise RetryableError(final, failure, is_read=is_read, is_mended=is_mended)

    async def prepare(self, bucket: str, *, is_read: bool = False) -> tuple[Route, Credentials | None]:
        """Return how to reach `bucket` and what to sign with, found at the first request if not before.

        Raises as `list`, and `RetryableError` as a read (`is_read`) does.
        """
        if self._routes.is_closed:
            raise RuntimeError("the client is closed")
        source = self.session.credentials
        try:
            credentials = None if source is None else await source.current()
        except FastfuseError as error:
            if is_read:
                retry_if_passing(error)
            raise
        if credentials is not self._credentials:
            self._counters.count("fastfuse_credentials_renewed", self._credentials is not None)
            self._credentials = credentials
        return await self._regions.route(bucket, is_read=is_read), credentials

    async def _refusal(
        self,
        connection: Connection,
        head: ReplyHead,
        route: Route,
        credentials: Credentials | None,
        *,
        is_read: bool,
        get: _Get | None = None,
        has_body: bool = True,
    ) -> tuple[Failure, bool]:
        """Return why the service refused, and whether new credentials or the right region remove the reason now.

        Raise `DeadlineError` if there are no other credentials in the time of `get`.
        """
        document = await bodies.read_document(connection, head) if has_body else b""
        is_of_s3 = bodies.is_of_s3(head, document)
        self._routes.has_met_s3 = self._routes.has_met_s3 or is_of_s3
        failure = bodies.failure_of_refusal(head, document)
        route.leave_failed(connection, failure, is_of_s3=is_of_s3)
        if not has_body and head.status == 400 and not failure.region and credentials is not None and credentials.token:
            # A HEAD has no error code; this is how S3 refuses an expired token there.
            failure = replace(failure, kind=Kind.EXPIRED)
        if failure.kind is Kind.WRONG_REGION:
            return failure, self._routes.correct(route, failure.region)
        # A HEAD answered 403 does not tell a denied object from a wrong time or revoked credentials.
        kind = Kind.BAD_CREDENTIALS if not has_body and failure.kind is Kind.DENIED else failure.kind
        date, deadline_s = head.headers.get("date", ""), self.session.config.deadline_s
        # Before the deadlines of those who wait for this GET, who could not tell why.
        with trio.move_on_at(get.ends_s - _TO_TELL_SHARE * deadline_s if get else inf):
            is_mended, trouble = await self.session.mend(kind, date, credentials, is_head=not has_body)
            return trouble if is_read and trouble and not is_mended else failure, is_mended
        assert get is not None
        told = f"{get.ref.key!r} was refused ({failure.detail})"
        told += f", and other credentials did not come within {deadline_s:g} s."
        raise DeadlineError(told, hint="See what gives them: STS, the metadata service or a program.")

    def _note_refusal(self, failure: Failure, get: _Get) -> None:
        """Keep to a lower rate if the refusal of an attempt of `get` throttles."""
        if failure.kind is not Kind.THROTTLED:
            return
        self._throttled_by = failure.detail
        # An object that is refused each time, of a hot prefix say, is not to slow down all others.
        if get.is_throttled:
            return
        get.is_throttled = True
        was_limited = self._rate.is_limited
        self._rate.throttled(trio.current_time())
        if self._rate.is_limited and not was_limited:
            told = "the service throttles (%s): GETs are limited, to %.0f a second at first"
            _log.warning(told, failure.detail, self._rate.per_s)

    def _answered(self, status: int) -> None:
        self._counters.count("fastfuse_answered_gets")
        self._counters.count("fastfuse_refused_gets", int(status >= 500))

    def _count(self, outcome: str, fetched_bytes: int = 0, *, is_whole: bool = False) -> None:
        self._counters.count("fastfuse_fetch_requests", value=outcome)
        self._counters.count("fastfuse_fetched_bytes", fetched_bytes)
        self._counters.count("fastfuse_whole_gets", is_whole)


def _shown(bucket: str, key: str) -> str:
    """Return an object's URI as Python writes it: a key may hold what a terminal obeys."""
    return repr(f"s3://{bucket}/{key}")
