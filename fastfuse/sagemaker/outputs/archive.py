"""The files that a job has made, in the same order each time, and one gzipped tar of them as a stream.

The stream takes little memory and no disk: a model may be larger than what is free. The archive is one gzip member (RFC
1952), for not every reader takes several. Its deflate blocks are made side by side, one thread for each processor, and
joined at byte boundaries as pigz does: one thread compresses 30 MB/s of weights.
"""

import logging
import os
import stat
import struct
import tarfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fastfuse.errors import OutputError
from fastfuse.sagemaker.script.files import open_directory, path_of

__all__ = ["Found", "open_found", "unreadable", "walk", "write_archive"]

_log = logging.getLogger(__name__)


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


def walk(directory: Path, base: Path) -> Iterator[Found]:
    """Yield everything below `directory`, which lies below `base`: by name, each directory before what it holds.

    FIFOs, sockets and devices are left out, with a warning. So is what vanishes meanwhile, without one.

    Raises:
        OutputError: something cannot be read; the message names it.
    """
    try:
        fd = open_directory(directory, base)
    except OSError as error:
        raise unreadable(directory, error) from error
    try:
        yield from _walk(fd, directory, "")
    finally:
        os.close(fd)


def _walk(fd: int, directory: Path, above: str) -> Iterator[Found]:
    try:
        for name in sorted(os.listdir(fd)):
            path = above + name
            try:
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                continue
            found = Found(fd, name, path, status)
            if not (found.is_file or found.is_directory or found.is_link):
                _log.warning("%r is neither a file, a directory nor a link, and is left out", str(directory / path))
                continue
            yield found
            if found.is_directory:
                try:
                    below_fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
                except FileNotFoundError:
                    continue
                try:
                    yield from _walk(below_fd, directory, f"{path}/")
                finally:
                    os.close(below_fd)
    except OSError as error:
        raise unreadable(directory / above / str(error.filename or ""), error) from error


def open_found(found: Found) -> BinaryIO:
    """Open a file for reading.

    Raises:
        OSError: it cannot be opened, or is no file any more.
    """
    # A FIFO in its place must not make us wait.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.fdopen(os.open(found.name, flags, dir_fd=found.parent_fd), "rb")


def unreadable(path: Path, error: OSError) -> OutputError:
    """Return the error for something that cannot be read; `error` has the reason."""
    return OutputError(f"{str(path)!r} cannot be read: {error.strerror or error}")


_BLOCK_BYTES = 1 << 20
# Weights hardly get smaller at any level; see docs/MEASUREMENTS.md, "Model archive".
_LEVEL = 1
# ID, deflate, no flags, no time (the same files make the same archive), fastest method, Unix.
_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\x03"
# An empty deflate block that is the last one.
_LAST_BLOCK = b"\x03\x00"


def write_archive(
    directory: Path, found: Iterable[Found], write: Callable[[bytes], object], report: Callable[[int], object]
) -> None:
    """Call `write` with the pieces of a gzipped tar of all that was `found` in `directory`, links as links.

    `report` is called with the bytes of the tar that are being compressed or done.

    Raises:
        OutputError: a file cannot be read, or got shorter meanwhile; the archive is not complete then.
    """
    packed = _Gzip(write, report)
    try:
        with tarfile.TarFile(fileobj=packed, mode="w", copybufsize=_BLOCK_BYTES) as archive:  # type: ignore[arg-type]
            for one in found:
                try:
                    _add(archive, one)
                except OSError as error:
                    raise unreadable(directory / one.path, error) from error
        packed.finish()
    finally:
        packed.close()


def _add(archive: tarfile.TarFile, found: Found) -> None:
    if not found.is_file:
        archive.addfile(archive.gettarinfo(str(found.place), found.path))
        return
    with open_found(found) as file:
        archive.addfile(archive.gettarinfo(arcname=found.path, fileobj=file), file)


class _Gzip:
    """A file for `tarfile` to write to, which passes the compressed bytes on."""

    def __init__(self, write: Callable[[bytes], object], report: Callable[[int], object]) -> None:
        self._write = write
        self._report = report
        threads = len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(threads)
        # So many keep every thread busy while the oldest block is passed on.
        self._most_ahead = 2 * threads
        self._ahead: deque[Future[bytes]] = deque()
        self._begun = bytearray()
        self._crc = self._size_bytes = 0
        write(_HEADER)

    def tell(self) -> int:
        return self._size_bytes

    def write(self, data: bytes) -> int:
        self._size_bytes += len(data)
        self._begun += data
        if len(self._begun) >= _BLOCK_BYTES:
            self._start()
        return len(data)

    def finish(self) -> None:
        self._start()
        while self._ahead:
            self._write(self._ahead.popleft().result())
        self._write(_LAST_BLOCK + struct.pack("<II", self._crc, self._size_bytes & 0xFFFFFFFF))

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _start(self) -> None:
        block, self._begun = bytes(self._begun), bytearray()
        self._crc = zlib.crc32(block, self._crc)
        self._report(self._size_bytes)
        self._ahead.append(self._pool.submit(_deflate, block))
        if len(self._ahead) > self._most_ahead:
            self._write(self._ahead.popleft().result())


def _deflate(block: bytes) -> bytes:
    """Return deflate blocks that end at a byte, and none of which is the last."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(block) + packer.flush(zlib.Z_SYNC_FLUSH)
