"""What a reader does in its process: files through a mount, or ranged GETs by the raw client.

Imported by every reader process, so it imports nothing heavy before it must.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from obstore.store import ClientConfig

__all__ = ["Manner", "RawAccess", "Reading", "Span", "Times", "prepare_files", "prepare_parts"]

# So much threads read faster.
_MOST_THREAD_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes ``[start, end)`` of the file `name`."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a reader goes about it: so many bytes at once, or TFRecords, by a library that training jobs use."""

    # 1 MiB as TensorFlow's and PyTorch's buffered readers for remote data do.
    read_bytes: int = 1 << 20
    is_records: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RawAccess:
    """Where the raw client reads, and how much of it at once."""

    endpoint_url: str
    bucket: str
    ca_bundle: Path | None
    part_bytes: int
    requests_in_flight: int


@dataclass(frozen=True, slots=True)
class Times:
    """From before open to the first byte, for every file opened; and to the last byte, for every span."""

    first_bytes_s: list[float]
    spans_s: list[float]


# Reads everything.
Reading = Callable[[], Times]


def prepare_files(spans: Sequence[Span], root: Path, manner: Manner) -> Reading:
    """Everything but the reading."""
    if manner.is_records:
        from tfrecord.reader import tfrecord_iterator

        return lambda: _read_records(root, spans, tfrecord_iterator)
    return lambda: _read_files(root, spans, manner.read_bytes)


def _read_files(root: Path, spans: Sequence[Span], read_bytes: int) -> Times:
    buffer = bytearray(read_bytes)
    times = Times([], [])
    name, fd = "", -1
    for span in spans:
        started_s = time.monotonic()
        is_new = span.name != name
        if is_new:
            _close(fd)
            name, fd = span.name, os.open(root / span.name, os.O_RDONLY)
        offset = span.start
        while offset < span.end:
            got = os.preadv(fd, [memoryview(buffer)[: span.end - offset]], offset)
            if not got:
                raise EOFError(f"{span.name} ends at {offset}, not at {span.end}")
            if is_new:
                times.first_bytes_s.append(time.monotonic() - started_s)
                is_new = False
            offset += got
        times.spans_s.append(time.monotonic() - started_s)
    _close(fd)
    return times


def _close(fd: int) -> None:
    # Every byte was read by then. rclone fails a close when a file's MD5 sum is not its ETag, which S3 promises for
    # small unencrypted objects only and the loopback server for none.
    with suppress(OSError):
        os.close(fd)


# Of a record, beside its data: the length and two checksums.
_FRAMING_BYTES = 16


def _read_records(root: Path, spans: Sequence[Span], records: Callable[[str], Iterator[memoryview]]) -> Times:
    times = Times([], [])
    for span in spans:
        started_s = time.monotonic()
        size_bytes = 0
        for record in records(str(root / span.name)):
            if not size_bytes:
                times.first_bytes_s.append(time.monotonic() - started_s)
            size_bytes += len(record) + _FRAMING_BYTES
        if size_bytes != span.end:
            raise EOFError(f"{span.name} has records of {size_bytes} bytes, not {span.end}")
        times.spans_s.append(time.monotonic() - started_s)
    return times


def prepare_parts(parts: Sequence[Span], access: RawAccess) -> Reading:
    """Everything but the reading: the runtime's threads and the trusted certificates are there before it.

    Large parts by obstore's calls for asyncio, small ones by threads, whichever gets more: of files of 39 KB threads
    get twice as many, and of large parts the others take half of the CPU time over TLS.
    """
    import asyncio

    import obstore
    from obstore.store import S3Store

    options: dict[str, Any] = {"allow_http": True, "pool_max_idle_per_host": str(access.requests_in_flight)}
    if access.ca_bundle is not None:
        options["root_certificate"] = access.ca_bundle.read_bytes()
    store = S3Store(
        access.bucket,
        endpoint=access.endpoint_url,
        region="us-east-1",
        skip_signature=True,
        virtual_hosted_style_request=False,
        client_options=cast("ClientConfig", options),
    )

    def check(part: Span, size_bytes: int) -> None:
        if size_bytes != part.end - part.start:
            raise EOFError(f"{part.name} has {size_bytes} bytes from {part.start}, not {part.end - part.start}")

    def fetch(part: Span) -> float:
        started_s = time.monotonic()
        check(part, len(obstore.get(store, part.name, options={"range": (part.start, part.end)}).bytes()))
        return time.monotonic() - started_s

    def fetch_by_threads() -> Times:
        with ThreadPoolExecutor(access.requests_in_flight) as executor:
            return Times([], list(executor.map(fetch, parts)))

    async def fetch_large(part: Span, free: asyncio.Semaphore) -> float:
        async with free:
            started_s = time.monotonic()
            reply = await obstore.get_async(store, part.name, options={"range": (part.start, part.end)})
            check(part, len(await reply.bytes_async()))
            return time.monotonic() - started_s

    async def fetch_all_large() -> Times:
        free = asyncio.Semaphore(access.requests_in_flight)
        return Times([], await asyncio.gather(*[fetch_large(part, free) for part in parts]))

    obstore.get(store, parts[0].name, options={"range": (0, 1)}).bytes()
    is_large = max(part.end - part.start for part in parts) > _MOST_THREAD_BYTES
    return (lambda: asyncio.run(fetch_all_large())) if is_large else fetch_by_threads
