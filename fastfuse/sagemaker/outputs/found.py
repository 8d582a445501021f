"""Finds and reads the files of a directory that another process may change meanwhile.

`walk` finds them, in the same order each time. No symbolic link is followed, and nothing waits for a FIFO.
"""

import math
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import trio

from fastfuse.errors import FastfuseError, OutputError
from fastfuse.regular_files import open_regular
from fastfuse.sagemaker.files import directory_at, path_of

# The size of a piece; those in flight take 100 MiB of memory. S3 takes 10,000 pieces of an object.
_PIECE_BYTES = 16 << 20
_MOST_PIECES = 9_000


@dataclass(frozen=True, slots=True)
class Found:
    """A file, a directory or a symbolic link."""

    # The directory that holds it, open until the next one is asked for.
    parent_fd: int
    name: str
    # The path below the directory where the walk began.
    path: str
    status: os.stat_result

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.status.st_mode)

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.status.st_mode)

    @property
    def place(self) -> Path:
        return path_of(self.parent_fd) / self.name


def _raise(_: str, error: FastfuseError) -> None:
    raise error


# A function of the path of what could not be sent, and why.
Fail = Callable[[str, FastfuseError], object]


def walk(
    directory: Path, base: Path, warn: Callable[[str], object] = lambda _: None, fail: Fail = _raise
) -> Iterator[Found]:
    """Yield everything below `directory`, which lies below `base`: by name, each directory before what it holds.

    FIFOs, sockets and devices are left out; `warn` is told of each. So is what vanishes meanwhile, without a word. What
    cannot be read is left out if `fail` does not raise the error.

    Raises:
        OutputError: the directory, or something in it, cannot be read; the message names it.
    """
    try:
        with directory_at(directory, base) as fd:
            yield from _walk(fd, directory, "", warn, fail)
    except OSError as error:
        raise unreadable(directory, error) from error


def _walk(fd: int, directory: Path, above: str, warn: Callable[[str], object], fail: Fail) -> Iterator[Found]:
    for name in sorted(os.listdir(fd)):
        path = above + name
        try:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            found = Found(fd, name, path, status)
            if not (found.is_file or found.is_directory or found.is_link):
                warn(f"{str(directory / path)!r} is neither a file, a directory nor a link, and is left out")
                continue
            yield found
            if not found.is_directory:
                continue
            below_fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            try:
                yield from _walk(below_fd, directory, f"{path}/", warn, fail)
            finally:
                os.close(below_fd)
        except FileNotFoundError:
            continue
        except OSError as error:
            fail(path, unreadable(directory / path, error))


def open_found(found: Found) -> BinaryIO:
    """Open a file for reading.

    Raises:
        OSError: it cannot be opened, or is no file any more.
    """
    return os.fdopen(open_regular(found.name, found.parent_fd), "rb")


async def content_of(file: BinaryIO, size_bytes: int, path: Path) -> AsyncIterator[bytes]:
    """Yield the first `size_bytes` of the file, in pieces.

    Raises:
        OutputError: it cannot be read, or got shorter meanwhile.
    """
    left_bytes, piece_bytes = size_bytes, piece_bytes_of(size_bytes)
    try:
        while left_bytes and (piece := await trio.to_thread.run_sync(file.read, min(piece_bytes, left_bytes))):
            left_bytes -= len(piece)
            yield piece
    except OSError as error:
        raise unreadable(path, error) from error
    if left_bytes:
        raise written_to(path)


def written_to(path: Path) -> OutputError:
    return OutputError(f"{str(path)!r} was written to while it was sent")


def unreadable(path: Path, error: OSError) -> OutputError:
    """Return the error for something that cannot be read; `error` has the reason."""
    return OutputError(f"{str(path)!r} cannot be read: {error.strerror or error}")


def piece_bytes_of(total_bytes: int) -> int:
    """Return a size of which S3 takes as many pieces as there may be."""
    return max(_PIECE_BYTES, math.ceil(total_bytes / _MOST_PIECES))
