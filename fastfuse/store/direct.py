"""S3 straight from the socket into the part's memory: the cheapest way to read ranges.

A client's own copies are what a read costs. Measured with 64 connections and parts of 8 MiB (20 ms to the first byte,
90 MB/s each): 0.15 CPU seconds per GB where obstore takes 0.5, and 4.4 GB/s where it reaches 2.5 to 3.9; over TLS 0.55
where it takes 0.9. A GET of 39 KB over TLS costs 61 µs of CPU so, and 470 through obstore.

A request is sent and its head is awaited by the task; of a long body all but the beginning is received, and decrypted
(`openssl`), by a thread in one call without the GIL.
"""

import random
import ssl
import time
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from functools import partial
from urllib.parse import quote, urlsplit

import trio
from botocore.utils import get_environ_proxies

from fastfuse.errors import BadReplyError, DeadlineError, StoreUnsuitableError
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.store.buffers import PartBuffers
from fastfuse.store.connection import TASK_BYTES, Connection, StallWatch, connect
from fastfuse.store.failures import Failure, Kind, failure_of_reply, read_error
from fastfuse.store.http1 import BadHeadError, ReplyHead
from fastfuse.store.receivers import Receivers
from fastfuse.store.replies import (
    check_length,
    check_range_arguments,
    check_version,
    error_code,
    error_region,
    if_match_value,
    if_unmodified_since,
    parse_content_range,
)
from fastfuse.store.retries import FIRST_PAUSE_S, RetryableError, retrying
from fastfuse.store.session import DEFAULT_PORTS, S3Session, host_header, stall_timeout_s
from fastfuse.store.signing import Signer
from fastfuse.store.transport import tls_context

__all__ = ["DirectRangeReader", "is_plain"]

# To another place, which others follow.
_REDIRECTIONS = frozenset({301, 302, 307, 308})
# The service wants fewer requests.
_BUSY = frozenset({429, 503})
# A longer error document is not read.
_MAX_ERROR_BYTES = 64 << 10


def is_plain(session: S3Session) -> bool:
    """Whether the service of `session` is reached by plain HTTP and without a proxy."""
    endpoint = session.endpoint_url or ""
    return endpoint.startswith("http:") and not _is_proxied(endpoint)


class DirectRangeReader:
    """Reads ranges from one bucket of a service that is reached without a proxy."""

    def __init__(
        self, session: S3Session, bucket: str, buffers: PartBuffers, slots: trio.Semaphore, receivers: Receivers
    ) -> None:
        """A request takes one of `slots`, which may be shared with other clients, as `receivers` may."""
        self._session = session
        self._bucket = bucket
        self._buffers = buffers
        self._slots = slots
        self._receivers = receivers
        self._watch = StallWatch(stall_timeout_s(session.config), session.config.deadline_s)
        # The one used last at the end: the others may time out.
        self._idle: list[Connection] = []
        self._opening = trio.Lock()
        self._signer: Signer | None = None
        self._tls: ssl.SSLContext | None = None
        self._address = ("", 0)
        self._host = self._base_path = self._unsigned = ""
        self._closed = False

    async def get_range(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        """See `RangeReader.get_range`. Cancelling stops the request."""
        check_range_arguments(ref, start, end)
        if ref.bucket != self._bucket:
            raise ValueError(f"{ref.bucket!r} is not the bucket of this reader, {self._bucket!r}")
        began_s, deadline_s, failed = trio.current_time(), self._session.config.deadline_s, None
        if end - start <= TASK_BYTES and self._is_ready():
            try:
                data = await self._quickly(ref, start, end)
            except RetryableError as error:
                failed = error
            else:
                if data is not None:
                    return data
        with trio.CancelScope(deadline=began_s + deadline_s):
            await self.prepare()
            return await retrying(partial(self._get_once, ref, start, end), failed=failed)
        raise DeadlineError(f"{ref.key!r} could not be read within {deadline_s:g} s.")

    async def head(self, key: str) -> ObjectRef | None:
        """What an object is now; None where one request does not tell: others ask again, and can say why.

        Raises as `prepare` does, and `StoreUnsuitableError` where nothing is told of any object of the bucket.
        """
        await self.prepare()
        with trio.move_on_after(self._session.config.deadline_s):
            async with self._slots:
                try:
                    return await self._head_once(ObjectRef(self._bucket, key, 0, ""))
                except (ValueError, OSError, RetryableError):  # ValueError: of the reply, or of a host without a name
                    pass
        return None

    async def prepare(self) -> None:
        """Do what the first read would otherwise wait for: credentials and region. Raises as it would."""
        if self._closed:
            raise RuntimeError("the store is closed")
        if self._session.credentials is not None:
            await self._session.credentials.current()
        async with self._opening:
            if self._signer is None:
                self._signer = await self._open()

    async def _open(self) -> Signer:
        session = self._session
        reason = session.special_endpoint(self._bucket)
        if reason:
            raise StoreUnsuitableError(f"{self._bucket!r} is not reached directly: {reason}.", whole_server=True)
        region = await session.region(self._bucket)
        url = session.bucket_url(self._bucket, region)
        if _is_proxied(url):
            raise StoreUnsuitableError(f"{self._bucket!r} is behind a proxy.", whole_server=True)
        parts = urlsplit(url)
        if parts.scheme == "https":
            try:
                # 20 ms for the authorities, where nobody has read them yet.
                self._tls = await trio.to_thread.run_sync(tls_context, session.verify)
            except OSError as error:
                raise StoreUnsuitableError("the CA bundle cannot be read.", whole_server=True) from error
        self._address = parts.hostname or "", parts.port or DEFAULT_PORTS[parts.scheme]
        self._base_path, self._host = parts.path, host_header(url)
        extra = session.extra_headers
        self._unsigned = "".join([f"{name}: {value}\r\n" for name, value in extra.items()])
        return Signer(region, self._host, extra)

    def _is_ready(self) -> bool:
        """Whether a GET can begin at once."""
        source = self._session.credentials
        is_signed = self._signer is not None and (source is None or source.is_current)
        return is_signed and bool(self._idle) and self._slots.value > 0 and not self._closed

    async def _quickly(self, ref: ObjectRef, start: int, end: int) -> Buffer | None:
        """A small range over an idle connection if that is still open, None otherwise; needs no slot to wait for.

        And no deadline: the connection gives up by itself. A cancel scope costs as much as all that is sent and
        received.
        """
        self._slots.acquire_nowait()
        try:
            connection = self._idle_connection()
            if connection is None:
                return None
            return await self._exchange(connection, self._get_request(ref, start, end), ref, start, end)
        finally:
            self._slots.release()

    async def _get_once(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        request = self._get_request(ref, start, end)
        try:
            self._slots.acquire_nowait()  # a checkpoint comes with the reply, and one more costs as much as a request
        except trio.WouldBlock:
            await self._slots.acquire()
        try:
            data = await self._ask(request, ref, start, end)
        finally:
            self._slots.release()
        if data is None:
            raise _broken(ref, "the connection was closed without an answer")
        return data

    async def _ask(self, request: bytes, ref: ObjectRef, start: int, end: int) -> Buffer | None:
        """Over an idle connection, or else a new one; None where even that was closed without an answer."""
        while (connection := self._idle_connection()) is not None:
            # The server may close it at this very moment: then it has not begun to answer.
            data = await self._exchange(connection, request, ref, start, end)
            if data is not None:
                return data
        return await self._exchange(await self._connect(ref), request, ref, start, end)

    def _idle_connection(self) -> Connection | None:
        """One that is still open, and on which nothing came that nobody asked for."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_fresh():
                return connection
            connection.close()
        return None

    async def _connect(self, ref: ObjectRef) -> Connection:
        config = self._session.config
        try:
            return await connect(
                *self._address,
                tls=self._tls,
                timeout_s=config.connect_timeout_s,
                watch=self._watch,
                receivers=self._receivers,
            )
        except ssl.SSLCertVerificationError as error:
            raise StoreUnsuitableError("the server's certificate is not accepted.", whole_server=True) from error
        except OSError as error:
            raise _broken(ref, error.strerror or type(error).__name__) from error

    async def _head_once(self, ref: ObjectRef) -> ObjectRef | None:
        connection = self._idle_connection() or await self._connect(ref)
        try:
            head = await connection.ask(self._request("HEAD", ref), has_body=False)
            if head is None:
                return None
            if head.status in _BUSY:
                await trio.sleep(random.uniform(0, 2 * FIRST_PAUSE_S))
            return _told(head, ref)
        finally:
            self._put_back(connection)

    def _get_request(self, ref: ObjectRef, start: int, end: int) -> bytes:
        return self._request("GET", ref, f"range: bytes={start}-{end - 1}\r\n{_condition(ref)}")

    def _request(self, method: str, ref: ObjectRef, lines: str = "") -> bytes:
        path = f"{self._base_path}/{quote(ref.key, safe='/~')}"
        signed, source = self._unsigned, self._session.credentials
        if source is not None:
            assert source.latest is not None
            assert self._signer is not None
            signed = self._signer.lines(path, source.latest, time.time(), method=method)
        return (
            f"{method} {path} HTTP/1.1\r\nhost: {self._host}\r\nuser-agent: fastfuse\r\n"
            f"accept-encoding: identity\r\n{signed}{lines}\r\n"
        ).encode()

    async def _exchange(
        self, connection: Connection, request: bytes, ref: ObjectRef, start: int, end: int
    ) -> Buffer | None:
        """The range; None where the connection ended before it was answered."""
        try:
            head = await connection.ask(request, body_bytes=end - start)
            if head is None:
                return None
            if head.status not in (200, 206):
                raise await _refusal(connection, head, ref)
            _check_head(head, ref, start, end)
            data = self._buffers.take(end - start)
            if await connection.read_into(data) < len(data):
                raise _broken(ref, "the connection was cut off")
        except BadHeadError as error:
            raise BadReplyError(f"The service's reply for {ref.key!r} is no HTTP/1.1: {error}.") from error
        except OSError as error:
            raise _broken(ref, error.strerror or type(error).__name__) from error
        finally:
            self._put_back(connection)
        return data.toreadonly()

    def _put_back(self, connection: Connection) -> None:
        if connection.is_reusable and not self._closed:
            self._idle.append(connection)
        else:
            connection.close()

    async def aclose(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()
        await trio.lowlevel.checkpoint()


def _is_proxied(url: str) -> bool:
    """What is encrypted goes through the proxy for everything, as obstore has it; the rest does not, as botocore has
    it, by which it is listed.
    """
    scheme = urlsplit(url).scheme
    names = {"https", "all"} if scheme == "https" else {scheme}
    return not names.isdisjoint(get_environ_proxies(url))


def _condition(ref: ObjectRef) -> str:
    """The header line that asks for the listed version; none where nothing is known of it."""
    etag, modified = if_match_value(ref), if_unmodified_since(ref)
    if etag:
        return f"if-match: {etag}\r\n"
    return f"if-unmodified-since: {format_datetime(modified, usegmt=True)}\r\n" if modified else ""


def _check_head(head: ReplyHead, ref: ObjectRef, start: int, end: int) -> None:
    """Whether the body will be the range, of the listed version, with its length told."""
    total_bytes = body_bytes = head.body_bytes
    sent = head.headers.get("content-range")
    if sent is not None:
        parsed = parse_content_range(sent)
        if parsed is None or parsed[:2] != (start, end):
            raise BadReplyError(f"The service sent another range of {ref.key!r} than {start}-{end}.")
        total_bytes = parsed[2]
    elif head.status == 206:
        raise BadReplyError(f"The service does not say which range of {ref.key!r} it sent.")
    elif (start, end) != (0, ref.size_bytes):
        raise StoreUnsuitableError("This server ignores Range.", whole_server=True)
    modified = None if ref.etag else _modified(head)
    check_version(ref, etag=head.headers.get("etag"), modified=modified, total_bytes=total_bytes)
    if body_bytes is None:
        raise StoreUnsuitableError("This server does not tell how long its replies are.", whole_server=True)
    check_length(ref, wanted_bytes=end - start, got_bytes=body_bytes)


def _told(head: ReplyHead, asked: ObjectRef) -> ObjectRef | None:
    """The object of which `head` tells; None unless it tells enough of it."""
    size_bytes, modified = head.body_bytes, _modified(head)
    if head.status != 200 or size_bytes is None or modified is None:
        return None
    return ObjectRef(
        bucket=asked.bucket,
        key=asked.key,
        size_bytes=size_bytes,
        etag=head.headers.get("etag", ""),
        modified_ns=round(modified.replace(tzinfo=modified.tzinfo or UTC).timestamp()) * 10**9,
        storage_class=head.headers.get("x-amz-storage-class", "STANDARD"),
    )


def _modified(head: ReplyHead) -> datetime | None:
    try:
        return parsedate_to_datetime(head.headers.get("last-modified", ""))
    except (OverflowError, ValueError):
        return None


async def _refusal(connection: Connection, head: ReplyHead, ref: ObjectRef) -> RetryableError:
    """What the service replied in place of the range."""
    document: bytes | bytearray
    if head.body_bytes is None:  # AWS sends them in chunks
        document = await connection.read_untold(_MAX_ERROR_BYTES)
    else:
        document = bytearray(min(head.body_bytes, _MAX_ERROR_BYTES))
        await connection.read_into(memoryview(document))
    region = head.headers.get("x-amz-bucket-region") or error_region(document)
    if head.status in _REDIRECTIONS and "location" in head.headers and not region:
        raise StoreUnsuitableError("The service redirects its clients.", whole_server=False)
    failure = failure_of_reply(head.status, error_code(document), region)
    return RetryableError(read_error(failure, ref), attempts=failure.attempts)


def _broken(ref: ObjectRef, detail: str) -> RetryableError:
    failure = Failure(kind=Kind.BUSY, detail=detail)
    return RetryableError(read_error(failure, ref), attempts=failure.attempts)
