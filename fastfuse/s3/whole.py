"""Reads whole objects: index files, inventories and whatever else is read once and not through a mount."""

import os

import trio

from fastfuse.errors import (
    AccessError,
    DiskError,
    FastfuseError,
    ObjectChangedError,
    ObjectDeniedError,
    ReadError,
    ServiceError,
    SourceError,
    first_of,
)
from fastfuse.objects import ObjectRef
from fastfuse.s3.base import RangeReader

# One GET.
_PART_BYTES = 8 << 20
# GETs in flight: 16 of 90 MB/s fill a 10 Gbit/s host, and 128 MiB of memory.
_MAX_IN_FLIGHT = 16


async def read_whole(reader: RangeReader, ref: ObjectRef, *, limit_bytes: int) -> bytes:
    """Return all bytes of an object.

    Raises:
        SourceError: it is larger than `limit_bytes`, or it changed meanwhile.
        AccessError, ServiceError: it cannot be read.
    """
    if ref.size_bytes > limit_bytes:
        raise SourceError(
            f"{ref.uri!r} has {ref.size_bytes:,} bytes, more than the {limit_bytes:,} that are read of such a file.",
            hint="Is it the right one?",
        )
    with os.fdopen(os.memfd_create("fastfuse-whole"), "rb") as file:
        await read_into(reader, ref, file.fileno())
        return file.read()


async def read_into(reader: RangeReader, ref: ObjectRef, fd: int) -> None:
    """Write the bytes of `ref` to the beginning of the file `fd`, several ranges at a time.

    Raises:
        SourceError: it changed meanwhile.
        AccessError, ServiceError: it cannot be read.
    """
    limiter = trio.CapacityLimiter(_MAX_IN_FLIGHT)

    async def fetch(start: int, end: int) -> None:
        async with limiter:
            data = await reader.get(ref, start, end)
        write_all(fd, data, start)

    try:
        async with trio.open_nursery() as nursery:
            for part in ref.parts(_PART_BYTES):
                nursery.start_soon(fetch, *part)
    except ExceptionGroup as group:
        first = first_of(group)
        raise (command_error(first) if isinstance(first, ReadError) else first) from group


def read_all(fd: int, size_bytes: int, offset: int) -> bytes:
    """Return so many bytes of the file `fd` from `offset` on, however little one call gives: 2 GiB at most on Linux.

    Raises `DiskError` where the file ends before.
    """
    pieces = list[bytes]()
    while size_bytes:
        piece = os.pread(fd, size_bytes, offset)
        if not piece:
            raise DiskError("The file that is uploaded has become shorter meanwhile.")
        pieces.append(piece)
        size_bytes, offset = size_bytes - len(piece), offset + len(piece)
    return b"".join(pieces)


def read_fully(into: memoryview, fd: int, offset: int) -> bool:
    """Read from `offset` of the file `fd` on until `into` is full; return False if the file ends before."""
    while into:
        count = os.preadv(fd, [into], offset)
        if not count:
            return False
        into, offset = into[count:], offset + count
    return True


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data` to the file `fd` at `offset`, however little one call takes."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, offset)
        rest, offset = rest[written:], offset + written


def command_error(error: ReadError) -> FastfuseError:
    """Return the error that stops a command, for the error of a read."""
    if isinstance(error, ObjectChangedError):
        return SourceError(str(error), hint=error.hint)
    return (AccessError if isinstance(error, ObjectDeniedError) else ServiceError)(str(error), hint=error.hint)
