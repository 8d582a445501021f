"""The reader that a mount uses: sockets where they can, then obstore over TLS, aiobotocore where it must."""

import contextlib
import logging
from collections.abc import Callable
from typing import NoReturn

import trio

from fastfuse.errors import (
    AccessError,
    ConfigurationError,
    FastfuseError,
    ObjectDeniedError,
    ReadError,
    StoreUnsuitableError,
    UnavailableError,
)
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.store.base import ConnectionConfig, RangeReader
from fastfuse.store.boto import BotoRangeReader
from fastfuse.store.buffers import PartBuffers
from fastfuse.store.connection import TASK_BYTES
from fastfuse.store.direct import DirectRangeReader, is_plain
from fastfuse.store.openssl import is_reachable
from fastfuse.store.receivers import Receivers
from fastfuse.store.rust import RustRangeReader
from fastfuse.store.session import S3Session
from fastfuse.store.sized import SizedRangeReader

__all__ = ["RoutingReader", "open_reader", "reader_of"]

logger = logging.getLogger(__name__)

# A GET of obstore takes 1 to 2 MiB beside its part: with 128 of them sixty-four readers over TLS took 340 MiB of 256,
# and were slower than with 32; with 74 one and four readers took 67 MiB more than 512, and no less time than with 37.
_LIMIT_BYTES_PER_LARGE_GET = 12 << 20
_LEAST_LARGE_GETS = 8


def open_reader(config: ConnectionConfig, buffers: PartBuffers | None = None) -> "RoutingReader":
    """The reader for every bucket of the service of `config`. Does no I/O and starts no thread.

    What it reads lies in `buffers` if the client can write there; obstore brings memory of its own.
    """
    return reader_of(S3Session(config), buffers)


def reader_of(session: S3Session, buffers: PartBuffers | None = None) -> "RoutingReader":
    """As `open_reader`, with the credentials and regions that `session` has found already."""
    buffers = buffers or PartBuffers(part_bytes=0, limit_bytes=0)
    receivers = Receivers()

    def fast(bucket: str) -> RangeReader:
        slots = trio.Semaphore(session.config.max_connections)
        direct = DirectRangeReader(session, bucket, buffers, slots, receivers)
        if is_plain(session):
            return direct
        most_small_bytes = None
        if not is_reachable():
            most_small_bytes = TASK_BYTES
            logger.info("OpenSSL is out of reach in this Python: large ranges over TLS are read with obstore.")
        large = RustRangeReader(session, bucket, slots, most_at_once=_large_gets(buffers.limit_bytes))
        return SizedRangeReader(direct, large, most_small_bytes=most_small_bytes)

    return RoutingReader(
        fast=fast,
        # Its client takes 16 MB, but only from its first read on.
        general=lambda bucket: BotoRangeReader(session, bucket),
    )


def _large_gets(limit_bytes: int) -> int | None:
    """How many GETs of obstore fit into the memory of who has `limit_bytes` for parts; None: as many as wanted."""
    return max(_LEAST_LARGE_GETS, limit_bytes // _LIMIT_BYTES_PER_LARGE_GET) if limit_bytes else None


class RoutingReader:
    """Reads with the fast client of the object's bucket until that one says that it is unsuitable.

    Raises `ReadError` only (beside `ValueError`): credentials that cannot be had any more are the read's failure.
    """

    def __init__(self, *, fast: Callable[[str], RangeReader], general: Callable[[str], RangeReader]) -> None:
        self._make_fast = fast
        self._make_general = general
        self._fast: dict[str, RangeReader] = {}
        self._general: dict[str, RangeReader] = {}
        self._buckets_past_fast: set[str] = set()
        self._key_was_logged = False

    async def get_range(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        """See `RangeReader.get_range`; never raises `StoreUnsuitableError`."""
        try:
            if ref.bucket not in self._buckets_past_fast:
                try:
                    return await _of(self._fast, self._make_fast, ref.bucket).get_range(ref, start, end)
                except StoreUnsuitableError as reason:
                    self._note(reason, ref)
            return await _of(self._general, self._make_general, ref.bucket).get_range(ref, start, end)
        except ReadError:
            raise
        except FastfuseError as error:
            _raise_as_read_error(error, ref)

    async def prepare(self, bucket: str) -> None:
        """Do what the first read of `bucket` would otherwise wait for; what goes wrong is left for that read to say."""
        reader = _of(self._fast, self._make_fast, bucket)
        if isinstance(reader, DirectRangeReader | SizedRangeReader):
            with contextlib.suppress(FastfuseError):
                await reader.prepare()

    def _note(self, reason: StoreUnsuitableError, ref: ObjectRef) -> None:
        if reason.whole_server:
            if ref.bucket not in self._buckets_past_fast:
                logger.warning("Reading %r with the slower client: %s", ref.bucket, reason)
            self._buckets_past_fast.add(ref.bucket)
        elif not self._key_was_logged:
            self._key_was_logged = True
            logger.info("Reading some objects with the slower client, %r first: %s", ref.key, reason)

    async def aclose(self) -> None:
        for reader in (*self._fast.values(), *self._general.values()):
            await reader.aclose()


def _of(readers: dict[str, RangeReader], make: Callable[[str], RangeReader], bucket: str) -> RangeReader:
    if bucket not in readers:
        readers[bucket] = make(bucket)
    return readers[bucket]


def _raise_as_read_error(error: FastfuseError, ref: ObjectRef) -> NoReturn:
    if isinstance(error, AccessError | ConfigurationError):
        raise ObjectDeniedError(f"{ref.key!r} could not be read: {error}", hint=error.hint) from error
    raise UnavailableError(f"{ref.key!r} could not be read: {error}", hint=error.hint) from error
