"""The files of a tier: segments, each filled from its start by one process at a time, and read by all.

Reads and writes go past the page cache (``O_DIRECT``), between the disk and the memory of a part: the kernel keeps what
readers of the mount get already, and pages for a second copy cost more than the disk does (docs/MEASUREMENTS.md,
"Local tier"). What is not aligned takes the way over aligned memory. The lock (``flock``) on a segment says that a
process fills it; it ends with that process.
"""

import errno
import fcntl
import mmap
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import xxhash

from fastfuse.cache.catalog import BLOCK_BYTES, Extent, Index, is_full
from fastfuse.s3.whole import read_fully, write_all

_MIB = 1 << 20
# One segment is evicted at a time: a fine grain for small tiers, and few files for large ones.
_SEGMENTS_AT_LEAST, _MAX_SEGMENT_BYTES = 128, 64 * _MIB
# Every device takes multiples of this for direct I/O.
ALIGNMENT = 4096
# Ranges from this size on go straight from and to the memory of their part, so they begin at such a multiple.
_DIRECT_BYTES = 64 << 10
_STAGE_BYTES = _MIB
_SUFFIX = ".segment"


class DamagedError(Exception):
    """A kept range does not have the bytes that were written: torn, truncated, foreign or rotten."""


def segment_bytes(limit_bytes: int) -> int:
    """Return the size of a segment of a tier of `limit_bytes`."""
    return max(_MIB, min(_MAX_SEGMENT_BYTES, limit_bytes // _SEGMENTS_AT_LEAST // _MIB * _MIB))


def digests_of(data: memoryview, seed: int) -> bytes:
    """Return a digest for each block of `data`; the `seed` ties them to their place in their object."""
    starts = range(0, len(data), BLOCK_BYTES)
    return b"".join(_digest(data[start : start + BLOCK_BYTES], seed, number) for number, start in enumerate(starts))


def _digest(block: memoryview, seed: int, number: int) -> bytes:
    return xxhash.xxh3_64_digest(block, (seed + number) & 0xFFFFFFFFFFFFFFFF)


class Segments:
    """The segments below the directory `directory_fd`; for any thread. Every method may raise `OSError`."""

    def __init__(self, directory_fd: int) -> None:
        self._directory_fd = directory_fd
        self._local = threading.local()

    def read(self, extent: Extent, seed: int, start: int, end: int, into: memoryview) -> None:
        """Read ``[start, end)``, which lies in `extent`; raise `DamagedError` if it is not what was written."""
        size_bytes = extent.end - extent.start
        if len(extent.digests) != 8 * -(-size_bytes // BLOCK_BYTES):
            raise DamagedError("its row in the index is damaged")
        with self._opened(extent.segment) as fd:
            self._read(fd, extent, seed, start, end, into)

    def _read(self, fd: int, extent: Extent, seed: int, start: int, end: int, into: memoryview) -> None:
        size_bytes = extent.end - extent.start
        # All places are counted from the begin of the extent from here on.
        start, end = start - extent.start, end - extent.start
        whole_to = start
        if start % BLOCK_BYTES == 0:
            whole_to += _aligned_bytes(extent.offset + start, into) // BLOCK_BYTES * BLOCK_BYTES
            if not read_fully(into[: whole_to - start], fd, extent.offset + start):
                raise DamagedError("its segment is too short")
        for number in range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES)):
            at, behind = number * BLOCK_BYTES, min(size_bytes, (number + 1) * BLOCK_BYTES)
            if behind <= whole_to:
                block = into[at - start : behind - start]
            else:  # by aligned memory
                block = self._read_block(fd, extent.offset + at, behind - at)
                first, last = max(start, at), min(end, behind)
                into[first - start : last - start] = block[first - at : last - at]
            if _digest(block, seed, number) != extent.digests[8 * number : 8 * number + 8]:
                raise DamagedError("its bytes are not those that were written")

    def probe(self, number: int) -> None:
        """Read the begin of a segment from the disk."""
        with self._opened(number) as fd:
            self._read_block(fd, 0, 1)

    @contextmanager
    def locked(self, number: int) -> Iterator[bool]:
        """Keep others from filling a segment meanwhile; yield False if one fills it now. The block may `remove` it.

        The segment is made if it is not there: whoever has just added it may be about to make and fill it.
        """
        try:
            filling = self.fill(number)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise
            yield True  # nobody else can make it either
            return
        try:
            yield filling is not None
        finally:
            if filling is not None:
                filling.close()

    def remove(self, number: int) -> None:
        """Remove a segment, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(_name(number), dir_fd=self._directory_fd)

    def empty(self, number: int) -> None:
        """Free the room of a segment, if it is there; its name, and so the lock on it, stays."""
        with suppress(FileNotFoundError):
            fd = os.open(_name(number), os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._directory_fd)
            try:
                os.ftruncate(fd, 0)
            finally:
                os.close(fd)

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of the segments that are there."""
        for name in os.listdir(self._directory_fd):
            if name.endswith(_SUFFIX):
                with suppress(ValueError):
                    yield int(name.removesuffix(_SUFFIX), 16)

    def fill(self, number: int) -> "Filling | None":
        """Open a segment to be filled; None if another process fills it."""
        fd = _open_direct(self._directory_fd, _name(number), os.O_WRONLY | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            give_to_owner(fd, self._directory_fd)
            return Filling(fd)
        except BaseException as error:
            os.close(fd)
            if isinstance(error, BlockingIOError):
                return None
            raise

    @contextmanager
    def _opened(self, number: int) -> Iterator[int]:
        fd = _open_direct(self._directory_fd, _name(number), os.O_RDONLY)
        try:
            yield fd
        finally:
            os.close(fd)

    def _read_block(self, fd: int, offset: int, size_bytes: int) -> memoryview:
        """Return a block, until this thread reads another one."""
        if not hasattr(self._local, "scratch"):
            self._local.scratch = memoryview(mmap.mmap(-1, BLOCK_BYTES + ALIGNMENT))
        lead = offset % ALIGNMENT
        padded: memoryview = self._local.scratch[: aligned(lead + size_bytes)]
        if os.preadv(fd, [padded], offset - lead) < lead + size_bytes:
            raise DamagedError("its segment is too short")
        return padded[lead : lead + size_bytes]


class Filling:
    """A segment that this process fills: `put` ranges, `flush`, and then make them known in the catalog.

    Both raise `OSError` if the disk does not take what they write.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        # Holds what comes at `_staged_from`, which is aligned, and is not on the disk yet.
        self._stage = memoryview(mmap.mmap(-1, _STAGE_BYTES))
        self._staged_from = self._staged_bytes = 0

    def close(self) -> None:
        """Let others fill it, or remove it. What was not flushed is lost."""
        os.close(self._fd)

    def put(self, offset: int, data: memoryview) -> None:
        """Write `data` at `offset`: where the range before it ends, or at the `place_of` this one behind it."""
        if offset != self._staged_from + self._staged_bytes:
            self.flush()
        done = 0 if self._staged_bytes else _aligned_bytes(offset, data)
        write_all(self._fd, data[:done], offset)
        self._put_on_stage(offset + done, data[done:])

    def flush(self) -> None:
        """Write what is staged, and zeros up to a multiple of the alignment. The next range has to come behind them."""
        end = aligned(self._staged_bytes)
        self._stage[self._staged_bytes : end] = bytes(end - self._staged_bytes)
        write_all(self._fd, self._stage[:end], self._staged_from)
        self._staged_bytes = 0

    def _put_on_stage(self, offset: int, data: memoryview) -> None:
        while data:
            if not self._staged_bytes:
                self._staged_from = offset
            count = min(len(data), _STAGE_BYTES - self._staged_bytes)
            self._stage[self._staged_bytes : self._staged_bytes + count] = data[:count]
            self._staged_bytes += count
            data, offset = data[count:], offset + count
            if self._staged_bytes == _STAGE_BYTES:
                self.flush()


def evict(index: Index, segments: Segments, number: int, *, also_pinned: bool = True) -> int | None:
    """Let a segment go that the caller has `locked`, its rows first; return the bytes that were in it.

    Without `also_pinned`, a pinned one stays, and None is returned. A full disk has no room for the transaction either;
    then the segment is emptied before it.
    """
    try:
        size_bytes = index.evict(number, also_pinned=also_pinned)
    except sqlite3.Error as error:
        if not is_full(error):
            raise
        segments.empty(number)
        size_bytes = index.evict(number)
    if size_bytes is not None:
        segments.remove(number)
    return size_bytes


def place_of(filled_bytes: int, size_bytes: int) -> int:
    """Return where a range of `size_bytes` goes in a segment that is filled so far."""
    return filled_bytes if size_bytes < _DIRECT_BYTES else aligned(filled_bytes)


def aligned(size_bytes: int) -> int:
    """Return the next multiple of what direct I/O takes."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def give_to_owner(fd: int, directory_fd: int) -> None:
    """Give a new file, of this process's user, to the owner of its directory, with the rights that that has."""
    there = os.fstat(directory_fd)
    if os.fstat(fd).st_uid != os.geteuid():
        return
    os.fchmod(fd, there.st_mode & 0o660)  # while the file is this user's: later it takes CAP_FOWNER
    if os.geteuid() == 0:
        os.fchown(fd, there.st_uid, there.st_gid)


def _name(number: int) -> str:
    return f"{number:x}{_SUFFIX}"


def _open_direct(directory_fd: int, name: str, flags: int) -> int:
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags | os.O_DIRECT, 0o600, dir_fd=directory_fd)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(name, flags, 0o600, dir_fd=directory_fd)  # a file system in memory, of an older kernel


def _aligned_bytes(offset: int, data: memoryview) -> int:
    """Return how much from the begin of `data` can go straight to or from `offset` of a file."""
    if len(data) < _DIRECT_BYTES or offset % ALIGNMENT or np.frombuffer(data, np.uint8).ctypes.data % ALIGNMENT:
        return 0
    return len(data) - len(data) % ALIGNMENT
