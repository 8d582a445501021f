"""What a reader does in its process: files through a mount, or ranged GETs by the raw client.

Imported by every reader process, so it imports nothing heavy before it must.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Manner", "RawAccess", "Reading", "Span", "Times", "prepare_files", "prepare_parts"]


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
    """Return what reads `parts` with fastfuse's own client, without a mount: GETs at once, and nothing read ahead.

    The sizes and versions of the objects are asked for before the reading.
    """
    import trio

    from fastfuse.objects import ObjectRef
    from fastfuse.s3.aws import S3Session
    from fastfuse.s3.base import ConnectionConfig
    from fastfuse.s3.buffers import PartBuffers
    from fastfuse.s3.client import S3Client

    def open_client() -> S3Client:
        config = ConnectionConfig(
            endpoint_url=access.endpoint_url,
            region="us-east-1",
            sign_request=False,
            ca_bundle=None if access.ca_bundle is None else str(access.ca_bundle),
            max_connections=access.requests_in_flight,
        )
        limit_bytes = access.requests_in_flight * access.part_bytes
        return S3Client(S3Session(config), buffers=PartBuffers(part_bytes=access.part_bytes, limit_bytes=limit_bytes))

    async def look_up(names: list[str], refs: dict[str, ObjectRef]) -> None:
        client = open_client()

        async def one(name: str) -> None:
            refs[name] = await client.head(access.bucket, name)

        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(one, name)
        await client.aclose()

    async def fetch_all(refs: dict[str, ObjectRef], times_s: list[float]) -> None:
        client = open_client()
        waiting = list(reversed(parts))

        async def fetch_some() -> None:
            while waiting:
                part = waiting.pop()
                started_s = time.monotonic()
                await client.get(refs[part.name], part.start, part.end)
                times_s.append(time.monotonic() - started_s)

        async with trio.open_nursery() as nursery:
            for _ in range(access.requests_in_flight):
                nursery.start_soon(fetch_some)
        await client.aclose()

    refs: dict[str, ObjectRef] = {}
    trio.run(look_up, list({part.name for part in parts}), refs)
    times_s: list[float] = []

    def read() -> Times:
        trio.run(fetch_all, refs, times_s)
        return Times([], times_s)

    return read
