"""S3 through obstore, in threads: the fast way to read ranges.

obstore is not fork-safe once used (a child hangs for ever), so nothing of it is constructed before the first read.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import obstore
import trio
from obstore.exceptions import BaseError, PermissionDeniedError, PreconditionError, UnauthenticatedError
from obstore.store import S3Store

from fastfuse.errors import (
    BadReplyError,
    DeadlineError,
    ReadError,
    StoreUnsuitableError,
    UnavailableError,
)
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.store.credentials import CredentialSource
from fastfuse.store.failures import failure_of_reply, read_error
from fastfuse.store.replies import (
    check_length,
    check_range_arguments,
    check_version,
    if_match_value,
    if_unmodified_since,
)
from fastfuse.store.retries import FIRST_PAUSE_S, LONGEST_PAUSE_S
from fastfuse.store.session import S3Session, stall_timeout_s

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Credential

__all__ = ["RustRangeReader", "can_name"]

# obstore gives up this part of the deadline before it, so that the reader hears why and not only that it took long.
_RETRY_SHARE = 0.8
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")
_STATUS = re.compile(r"status code: ([0-9]{3})")
_CODE = re.compile(r"<Code>\s*([A-Za-z0-9._-]{1,64})\s*</Code>")
# What obstore says of a server whose ranged replies it does not take: 200, no or an unusual Content-Range, no length.
_NOT_ITS_SERVER = re.compile(
    r"non-partial response|Content-Range header not present|CONTENT_RANGE|MissingContentLength"
)
_BAD_CERTIFICATE = "InvalidCertificate("
_WRONG_RANGE = re.compile(r"Requested [0-9]+\.\.[0-9]+, got ")
# CONTENT_RANGE; a key with fewer characters cannot be taken for any of these.
_SHORTEST_MARKER = 13
_STATUS_OF_TYPE = (
    (FileNotFoundError, 404),
    (PreconditionError, 412),
    (PermissionDeniedError, 403),
    (UnauthenticatedError, 401),
)
# What obstore gives for a reply without Last-Modified.
_NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)


def can_name(key: str) -> bool:
    """Whether obstore asks for exactly `key`.

    It refuses empty, ``.`` and ``..`` segments and ASCII control characters, and silently drops a slash at either
    end; every other key arrives unchanged (tried with each character up to U+3100 and samples above).
    """
    return not _CONTROL_CHARACTER.search(key) and not {"", ".", ".."} & set(key.split("/"))


class RustRangeReader:
    """Reads ranges from one bucket, each in a thread of its own limiter."""

    def __init__(self, session: S3Session, bucket: str) -> None:
        self._session = session
        self._bucket = bucket
        self._threads = trio.CapacityLimiter(session.config.max_connections)
        self._opening = trio.Lock()
        self._store: S3Store | None = None
        self._closed = False

    async def get_range(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        """See `RangeReader.get_range`.

        A cancelled or late fetch returns at once; its thread is abandoned and keeps its place in the limiter until
        obstore's own timeout ends it, so no more than `max_connections` of them can exist.
        """
        check_range_arguments(ref, start, end)
        if ref.bucket != self._bucket:
            raise ValueError(f"{ref.bucket!r} is not the bucket of this reader, {self._bucket!r}")
        if not can_name(ref.key):
            raise StoreUnsuitableError(f"obstore cannot name the key {ref.key!r}.", whole_server=False)
        deadline_s = self._session.config.deadline_s
        with trio.move_on_after(deadline_s):
            store = await self._ready_store()
            fetch = partial(_fetch, store, ref, start, end)
            return await trio.to_thread.run_sync(fetch, abandon_on_cancel=True, limiter=self._threads)
        raise DeadlineError(f"{ref.key!r} could not be read within {deadline_s:g} s.")

    async def prepare(self) -> None:
        """Do what the first read would otherwise wait for: credentials, region and client. Raises as it would."""
        await self._ready_store()

    async def _ready_store(self) -> S3Store:
        if self._closed:
            raise RuntimeError("the store is closed")
        if self._session.credentials is not None:
            await self._session.credentials.current()
        async with self._opening:
            if self._store is None:
                self._store = await self._open()
        return self._store

    async def _open(self) -> S3Store:
        reason = self._session.special_endpoint(self._bucket)
        if reason:
            raise StoreUnsuitableError(f"obstore cannot reach {self._bucket!r}: {reason}.", whole_server=True)
        region = await self._session.region(self._bucket)
        open_store = partial(_open_store, self._session, self._bucket, region)
        return await trio.to_thread.run_sync(open_store, abandon_on_cancel=True, limiter=self._threads)

    async def aclose(self) -> None:
        self._closed = True
        self._store = None
        await trio.lowlevel.checkpoint()


def _fetch(store: S3Store, ref: ObjectRef, start: int, end: int) -> Buffer:
    conditions = {"if_match": if_match_value(ref), "if_unmodified_since": if_unmodified_since(ref)}
    options: dict[str, Any] = {"range": (start, end)} | {name: value for name, value in conditions.items() if value}
    try:
        with _no_panic(whole_server=False):
            reply = obstore.get(store, ref.key, options=options)  # type: ignore[arg-type]
            meta = reply.meta
            modified = None if meta["last_modified"] == _NO_TIME else meta["last_modified"]
            check_version(ref, etag=meta["e_tag"], modified=modified, total_bytes=meta["size"])
            data = memoryview(reply.bytes())
    except (BaseError, OSError, ValueError) as error:
        # Not "from error": its text quotes the reply, which may quote the session token.
        raise _translated(error, ref) from None
    check_length(ref, wanted_bytes=end - start, got_bytes=len(data))
    return data


@contextmanager
def _no_panic(*, whole_server: bool) -> Iterator[None]:
    """A panic in Rust arrives as pyo3's `PanicException`, which cannot be imported and which is no `Exception`.

    It ends one request and not the worker: the kernel would ask the next worker for the same.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit, trio.Cancelled):
        raise
    except BaseException:  # noqa: BLE001 - and nothing but a panic is left
        # Not "from": its text may quote a header.
        raise StoreUnsuitableError("obstore panicked.", whole_server=whole_server) from None


def _translated(error: Exception, ref: ObjectRef) -> ReadError:
    text = _without_key(str(error), ref.key)
    status = _status_of(error, text)
    if status:
        # Without obstore's "Debug source", in which a key has quotes and escapes.
        codes = _CODE.findall(text.partition("\n\nDebug source:")[0])
        return read_error(failure_of_reply(status, codes[-1] if codes else ""), ref)
    if _NOT_ITS_SERVER.search(text):
        return StoreUnsuitableError("obstore does not take this server's replies to ranged GETs.", whole_server=True)
    if _BAD_CERTIFICATE in text:
        return _unsuitable_certificate()
    if _WRONG_RANGE.search(text):
        return BadReplyError(f"The service sent another range of {ref.key!r} than was asked for.")
    if "redirect without LOCATION" in text:
        return read_error(failure_of_reply(301, ""), ref)
    if isinstance(error, ValueError):
        return StoreUnsuitableError(f"obstore refuses the key {ref.key!r}.", whole_server=False)
    return UnavailableError(f"{ref.key!r} could not be read: the connection failed or stalled, retries included.")


def _without_key(text: str, key: str) -> str:
    """A key may look like anything that is looked for: it stands as it is in some texts, and quoted in every URL."""
    for name in (key, quote(key)):
        if len(name) >= _SHORTEST_MARKER:
            text = text.replace(name, "")
    return text


def _status_of(error: Exception, text: str) -> int:
    for kind, status in _STATUS_OF_TYPE:
        if isinstance(error, kind):
            return status
    said = _STATUS.search(text)
    return int(said[1]) if said else 0


def _open_store(session: S3Session, bucket: str, region: str) -> S3Store:
    try:
        with _no_panic(whole_server=True):
            if session.config.verify_ssl and (session.endpoint_url or "").startswith("https:"):
                _check_certificate(session, bucket, region)
            return _new_store(session, bucket, region, _retry_config(session), timeout_s=session.config.deadline_s)
    except ValueError as error:
        raise StoreUnsuitableError(
            f"obstore cannot be set up for {bucket!r} (is the CA bundle in PEM?).", whole_server=True
        ) from error


def _check_certificate(session: S3Session, bucket: str, region: str) -> None:
    """Finds out at once what obstore would take most of a read's deadline to say.

    rustls refuses what OpenSSL takes, above all the self-signed certificate that `openssl req -x509` makes. The
    certificate comes with the connection, so a server that is slow to answer has shown it by then.
    """
    store = _new_store(session, bucket, region, {"max_retries": 0}, timeout_s=session.config.connect_timeout_s)
    try:
        obstore.head(store, "fastfuse-asks-for-the-certificate")
    except (BaseError, OSError) as error:
        if _BAD_CERTIFICATE in str(error):
            raise _unsuitable_certificate() from None


def _unsuitable_certificate() -> StoreUnsuitableError:
    return StoreUnsuitableError("obstore does not accept this server's certificate.", whole_server=True)


def _new_store(session: S3Session, bucket: str, region: str, retries: "RetryConfig", *, timeout_s: float) -> S3Store:
    """Every setting that decides where a request goes is given: obstore reads the rest from AWS_* itself."""
    config = session.config
    path_style = session.uses_path_style(bucket)
    endpoint = session.service_url(region)
    if not path_style:
        scheme, host = endpoint.split("://", 1)
        endpoint = f"{scheme}://{bucket}.{host}"
    settings: dict[str, Any] = {
        "endpoint": endpoint,
        "aws_endpoint_url_s3": endpoint,
        "region": region,
        "virtual_hosted_style_request": not path_style,
        "skip_signature": not config.sign_request,
        "request_payer": config.request_payer,
        "s3_express": False,
        "unsigned_payload": False,
    }
    return S3Store(
        bucket,
        config=settings,  # type: ignore[arg-type]
        client_options=_client_options(session, timeout_s),
        retry_config=retries,
        credential_provider=None if session.credentials is None else partial(_signing_keys, session.credentials),
    )


def _client_options(session: S3Session, timeout_s: float) -> "ClientConfig":
    config = session.config
    options: ClientConfig = {
        "allow_http": (session.endpoint_url or "").startswith("http:"),
        "timeout": timedelta(seconds=timeout_s),
        "read_timeout": timedelta(seconds=stall_timeout_s(config)),
        "connect_timeout": timedelta(seconds=config.connect_timeout_s),
        "pool_max_idle_per_host": str(config.max_connections),
    }
    if not config.verify_ssl:
        options["allow_invalid_certificates"] = True
    elif session.ca_bundle is not None:
        options["root_certificate"] = session.ca_bundle.read_bytes()
    return options


def _retry_config(session: S3Session) -> "RetryConfig":
    deadline_s = session.config.deadline_s
    return {
        "max_retries": 100,  # the time is the limit
        "retry_timeout": timedelta(seconds=deadline_s * _RETRY_SHARE),
        "backoff": {
            "init_backoff": timedelta(seconds=FIRST_PAUSE_S),
            # obstore panics where it is less than half of the first.
            "max_backoff": timedelta(seconds=max(FIRST_PAUSE_S, min(LONGEST_PAUSE_S, deadline_s / 10))),
            "base": 2,
        },
    }


def _signing_keys(source: CredentialSource) -> "S3Credential":
    """Called by obstore in whichever thread needs a signature; every read has passed `source.current` before."""
    latest = source.latest
    assert latest is not None
    return {
        "access_key_id": latest.access_key,
        "secret_access_key": latest.secret_key,
        "token": latest.token,
        # Over already, so obstore asks before each signature (10 µs) and never signs with older keys than these.
        "expires_at": datetime.now(UTC),
    }
