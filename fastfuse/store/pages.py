"""Lists a bucket without botocore's S3 client, whose model and rules take longer than a short listing.

Made for one page, that client took 100 ms of CPU and 16 MB; what it adds to a signed GET is needed for few buckets.
"""

import time
from contextlib import AsyncExitStack
from functools import partial
from urllib.parse import quote, urlsplit

import trio
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError
from botocore.handlers import VALID_BUCKET
from botocore.utils import get_environ_proxies

from fastfuse.errors import FastfuseError
from fastfuse.store.base import PageSource
from fastfuse.store.boto import LIST_STALL_S, BotoPageSource, list_in_time
from fastfuse.store.direct import is_plain
from fastfuse.store.failures import Failure, failure_of_exception, failure_of_reply, safe_cause, start_error
from fastfuse.store.replies import error_code, error_region, is_whole_page
from fastfuse.store.retries import RetryableError
from fastfuse.store.session import S3Session, bad_ca_bundle, host_header
from fastfuse.store.signing import Signer
from fastfuse.store.transport import OriginFormSession

__all__ = ["SignedPageSource", "open_pages"]


def open_pages(session: S3Session, bucket: str) -> PageSource:
    """Lists `bucket` in the cheapest way that reaches it. Does no I/O."""
    # Of a name that no bucket can have, botocore says so without a request.
    is_botocores = not VALID_BUCKET.fullmatch(bucket) or session.special_endpoint(bucket)
    return BotoPageSource(session, bucket) if is_botocores else SignedPageSource(session, bucket)


class SignedPageSource:
    """Lists one bucket that has no special endpoint (`S3Session.special_endpoint`)."""

    def __init__(self, session: S3Session, bucket: str) -> None:
        self._session = session
        self._bucket = bucket
        self._slots = trio.CapacityLimiter(session.config.max_connections)
        self._opening = trio.Lock()
        self._exits = AsyncExitStack()
        self._http: OriginFormSession | None = None
        self._region = self._url = self._path = ""
        self._signer: Signer | None = None
        self._closed = False

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
        optional = {"start-after": start_after, "continuation-token": continuation_token, "delimiter": delimiter}
        asked = {"list-type": "2", "prefix": prefix, "max-keys": str(max_keys), "encoding-type": "url"}
        asked |= {name: value for name, value in optional.items() if value}
        # In the order in which they are signed.
        query = "&".join([f"{name}={quote(asked[name], safe='-_.~')}" for name in sorted(asked)])
        http = await self._open()
        return await list_in_time(self._bucket, partial(self._list_once, http, query))

    async def _open(self) -> OriginFormSession:
        session = self._session
        async with self._opening:
            if self._closed:
                raise RuntimeError("the store is closed")
            if self._http is None:
                self._region = await session.region(self._bucket)
                self._find_address()
                self._signer = Signer(self._region, host_header(self._url), session.extra_headers)
                self._http = await self._connect()
            return self._http

    def _find_address(self) -> None:
        """The URL without a query, and its path, which is signed."""
        url = self._session.bucket_url(self._bucket, self._region)
        self._path = urlsplit(url).path or "/"
        self._url = url.removesuffix(self._path) + self._path

    async def _connect(self) -> OriginFormSession:
        session = self._session
        http = OriginFormSession(
            # To read the authorities takes 20 ms, which nobody needs who meets no certificate.
            False if is_plain(session) else session.verify,
            get_environ_proxies(self._url),
            (session.config.connect_timeout_s, LIST_STALL_S),
            max_pool_connections=session.config.max_connections,
        )
        try:
            await self._exits.enter_async_context(http)
        except BotoCoreError as error:
            raise self._error(failure_of_exception(error)) from safe_cause(error)
        except OSError as error:
            raise bad_ca_bundle(session) from error
        return http

    async def _list_once(self, http: OriginFormSession, query: str) -> bytes:
        async with self._slots:
            request = AWSRequest("GET", f"{self._url}?{query}", headers=await self._headers(query)).prepare()
            request.stream_output = False
            try:
                reply = await http.send(request)
                body: bytes = await reply.content
            except BotoCoreError as error:
                raise self._failed(failure_of_exception(error)) from safe_cause(error)
        if reply.status_code == 200 and is_whole_page(body):
            return body
        # S3 may report an error that came late with a status of 200.
        status = 500 if reply.status_code == 200 else reply.status_code
        region = reply.headers.get("x-amz-bucket-region") or error_region(body)
        raise self._failed(failure_of_reply(status, error_code(body), region))

    async def _headers(self, query: str) -> dict[str, str]:
        source, headers = self._session.credentials, {"user-agent": "fastfuse", "host": host_header(self._url)}
        if source is None:
            return headers | self._session.extra_headers
        assert self._signer is not None
        lines = self._signer.lines(self._path, await source.current(), time.time(), query=query)
        return headers | dict(line.split(": ", 1) for line in lines.splitlines())

    def _failed(self, failure: Failure) -> Exception:
        error = self._error(failure)
        # Throttling is the lister's to answer, with fewer requests.
        return error if failure.is_throttled else RetryableError(error, attempts=failure.attempts)

    def _error(self, failure: Failure) -> FastfuseError:
        endpoint = self._session.endpoint_url or ""
        return start_error(failure, bucket=self._bucket, endpoint=endpoint, region=self._region)

    async def aclose(self) -> None:
        self._closed = True
        async with self._opening:
            self._http = None
            await self._exits.aclose()
