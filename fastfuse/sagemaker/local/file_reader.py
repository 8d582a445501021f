"""Read files of this host in the place of S3 objects, for Pipe mode."""

import os

import trio

from fastfuse.errors import ObjectChangedError, ObjectDeniedError, ReadError, UnavailableError
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.s3.buffers import PartBuffers

__all__ = ["FileReader"]


class FileReader:
    """A `RangeReader` of files: the bucket of a ref is a directory, and its key a path below."""

    def __init__(self, buffers: PartBuffers) -> None:
        self._buffers = buffers

    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        """Return the bytes as `RangeReader.get` does; a file system that does not answer is waited for."""
        buffer = self._buffers.take(end - start)
        await trio.to_thread.run_sync(_fill, buffer, ref, start, abandon_on_cancel=True)
        return buffer

    async def aclose(self) -> None:
        """Close nothing: no file is open between two reads."""


def _fill(buffer: memoryview, ref: ObjectRef, start: int) -> None:
    try:
        fd = os.open(f"{ref.bucket}/{ref.key}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            done = 0
            if (status.st_size, status.st_mtime_ns) == (ref.size_bytes, ref.modified_ns):
                while done < len(buffer) and (count := os.preadv(fd, [buffer[done:]], start + done)):
                    done += count
        finally:
            os.close(fd)
    except OSError as error:
        raise _read_error(ref, error) from error
    if done < len(buffer):
        raise ObjectChangedError(f"{ref.uri!r} has changed since the job began")


def _read_error(ref: ObjectRef, error: OSError) -> ReadError:
    if isinstance(error, FileNotFoundError):
        return ObjectChangedError(f"{ref.uri!r} was removed since the job began")
    kind = ObjectDeniedError if isinstance(error, PermissionError) else UnavailableError
    return kind(f"{ref.uri!r} cannot be read: {error.strerror}")
