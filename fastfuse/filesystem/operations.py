"""Translate FUSE requests: inode numbers, flags and tokens in; attributes, buffers and errnos out.

Every handler goes through `_answered`, because any exception but `FUSEError` would end pyfuse3's mount. There it
becomes an errno, is counted, and is logged if it was not foreseen.

There are no handles. OPEN and OPENDIR are answered ENOSYS, and the kernel asks for neither again: it opens by itself,
keeps the pages of files and the listings of directories, and every request names its inode (`filesystem.interposed`). A
worker thus has nothing that its successor needs. A table is immutable and knows every inode until a refresh replaces
it, and then the kernel is told which names are stale; so forgets need no counting either. A listing of a directory
goes on after the inode that it gave last, also if the last refresh took that away.
"""

import errno
import logging
import os
import stat
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from math import inf
from time import perf_counter, time
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import trio

from fastfuse.errors import FastfuseError, ObjectChangedError, PoisonedReadError, ReadError, errno_for
from fastfuse.filesystem.fuse import interposed, pyfuse3, small_reads
from fastfuse.filesystem.in_hand import Read, ReadsInHand
from fastfuse.filesystem.late_reads import LateReads
from fastfuse.filesystem.session import InitialisedOperations
from fastfuse.filesystem.watching import WatchedReads
from fastfuse.index.inodes.table import Attributes, InodeTable
from fastfuse.metrics import ERRNO_LABELS, Counters
from fastfuse.objects import ARCHIVE_STORAGE_CLASSES, Buffer, ObjectRef
from fastfuse.repeats import RepeatedFailures

__all__ = ["MountOperations", "ReadEngine", "unread_classes"]

_log = logging.getLogger(__name__)

# Only a refresh changes anything, and it tells the kernel what to forget. Ten years, in seconds, because pyfuse3 has
# no "for ever".
_FOREVER_S = 10 * 365 * 24 * 3600.0

# How long a suspect is in hand alone at most, after the first death; ten times as long after each further one, because
# workers die of its bytes, and these come from the service.
_SUSPECT_ALONE_S = 0.1

# Reads that failed, kept for `fastfuse status`.
_LAST_ERRORS = 8

_INODE_MASK = (1 << interposed.HANDLE_INODE_BITS) - 1
_DIRECTORY_MODE = stat.S_IFDIR | 0o555
_FILE_MODE = stat.S_IFREG | 0o444
# st_blksize. `cp`, `cat` and Python's `open` read this much at a time: large enough that requests cost little, small
# enough that a 10-byte read of a Python file object does not fetch megabytes.
_BLOCK_BYTES = 128 * 1024
_ST_BLOCK_BYTES = 512  # unit of st_blocks, stat(2)
# The offset in a listing after "." is 1, after ".." 2, and after a child its inode and these.
_DOTS = 2
_NAME_MAX = 255
_STATFS_BLOCK_BYTES = 4096
_STATFS_MAX_BLOCKS = (1 << 63) - 1  # programs take the number for a signed one

_CHANGING_FLAGS = os.O_ACCMODE | os.O_TRUNC  # O_RDONLY | O_TRUNC truncates, too: open(2)
_REFRESH_HINT = "'fastfuse refresh' shows what is there now."
_NO_FAILURES = frozenset({errno.ENOENT, errno.ENODATA, errno.ENOSYS})  # they answer questions

_P = ParamSpec("_P")
_T = TypeVar("_T")


class ReadEngine(Protocol):
    """The part of `fastfuse.readahead` that the handlers use."""

    async def read(self, inode: int, ref: ObjectRef, offset: int, size_bytes: int) -> Buffer:
        """Return exactly the bytes asked for, fewer only at the end of the file, or raise `ReadError`."""
        ...

    def began(self, reader: int) -> None:
        """Note that `reader`, a thread or a process by its number, reads the beginning of a file."""
        ...

    def forget(self, inode: int) -> None:
        """Keep nothing of the file: no process has it open, and the page cache has nothing of it."""
        ...

    def refreshed(self) -> None:
        """Keep nothing of files that the new table does not have."""
        ...


def _answered(
    handler: Callable[Concatenate["MountOperations", _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate["MountOperations", _P], Coroutine[Any, Any, _T]]:
    """Turn every outcome of `handler` into an answer to the kernel; no exception but `FUSEError` passes."""

    async def answer(self: "MountOperations", /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            result = await handler(self, *args, **kwargs)
        except pyfuse3.FUSEError as error:
            self.count_answer(error.errno)
            raise
        except FastfuseError as error:
            number = errno_for(error)
            self.count_answer(number)
            raise pyfuse3.FUSEError(number) from error
        except Exception as error:
            self.count_failure(handler.__name__.lstrip("_"), error)
            raise pyfuse3.FUSEError(errno.EIO) from error
        finally:
            self.replies.settle()  # libfuse writes the answer next
        # A cancelled request is not counted: a dying worker answers nothing, and the crash-loop guard reads this count.
        self.count_answer()
        return result

    return answer


class MountOperations(InitialisedOperations):
    """The handlers. The supervisor makes them before the table exists; a worker calls `serve` before its loop."""

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(
        self,
        counters: Counters,
        *,
        uid: int,
        gid: int,
        umask: int = 0,
        in_hand: ReadsInHand | None = None,
    ) -> None:
        super().__init__()
        self._counters = counters
        self._uid = uid
        self._gid = gid
        self._directory_mode = _DIRECTORY_MODE & ~umask
        self._file_mode = _FILE_MODE & ~umask
        self._in_hand = in_hand or ReadsInHand()
        # Suspects begin one after the other (`in_hand`), each when the one before is answered.
        self._suspects_turn = trio.Lock()
        # The suspects in hand, each with what tells its end.
        self._suspects_begun: dict[Read, trio.Event] = {}
        self._failures = RepeatedFailures(_log)
        self._late = LateReads()
        # The last reads that failed, each with its time in seconds since 1970.
        self.last_errors: deque[tuple[float, str]] = deque(maxlen=_LAST_ERRORS)
        # The watchers of the reads; None while there are none.
        self.watched: WatchedReads | None = None
        self._requests_slot = counters.slot("fastfuse_requests")
        self._served_slot = counters.slot("fastfuse_read_served_bytes")
        self._bugs_slot = counters.slot("fastfuse_handler_failures")
        self._saw_read = counters.observer("fastfuse_read_seconds")
        self._blocked_slot = counters.slot("fastfuse_blocked_seconds")
        self._stalled_slot = counters.slot("fastfuse_stalled_seconds")
        small_reads.count_waits(counters.memory(counters.slot("fastfuse_waiting_reads")))
        self._draining_slot = counters.slot("fastfuse_draining")

    @property
    def table(self) -> InodeTable:
        """The table that answers now."""
        return self._table

    def serve(self, table: InodeTable, engine: ReadEngine, read_deadline_s: float = inf) -> None:
        """Answer from `table` and `engine` from now on; a worker's first step."""
        self._engine = engine
        self._late = LateReads(read_deadline_s)
        self._answer_from(table)

    def swap(self, table: InodeTable) -> None:
        """Answer from `table` from now on: what it does not have any more is stale (clause L6)."""
        small_reads.disarm()  # keys are below the prefix that it was armed with
        self._answer_from(table)
        self._engine.refreshed()

    def _answer_from(self, table: InodeTable) -> None:
        self._table = table
        small_reads.cover(table.next_inode)
        interposed.answer_from(
            table.columns,
            uid=self._uid,
            gid=self._gid,
            directory_mode=self._directory_mode,
            file_mode=self._file_mode,
            block_bytes=_BLOCK_BYTES,
            timeout_s=_FOREVER_S,
            answered=self._counters.memory(self._requests_slot),
            etags=table.metadata.other_etags,
            unread_classes=unread_classes(table),
            draining=self._counters.memory(self._draining_slot),
        )

    def count_answer(self, number: int = 0) -> None:
        """Count an answered request, and its errno if that is a failure."""
        self._counters.add(self._requests_slot)
        if number and number not in _NO_FAILURES:
            name = errno.errorcode.get(number, "other")
            slot = self._counters.slot("fastfuse_errors", name if name in ERRNO_LABELS else "other")
            self._counters.add(slot)

    def count_read(self, size_bytes: int, took_s: float) -> None:
        """Count a read that was answered elsewhere."""
        counters = self._counters
        counters.add(self._requests_slot)
        counters.add(self._served_slot, size_bytes)
        counters.add(self._blocked_slot, int(took_s * 1e6))
        self._saw_read(took_s)

    def count_failure(self, name: str, error: Exception) -> None:
        """Count and tell a request that failed for an unforeseen reason."""
        self._counters.add(self._bugs_slot)
        self.count_answer(errno.EIO)
        reason = f"{name} failed for an unforeseen reason"
        self._failures.tell(f"{reason} ({type(error).__name__})", name, f"{reason}; the mount goes on", error)

    # This one and `getattr` answer only what `interposed` leaves to them: columns that do not fit, and unknown inodes.
    @_answered
    async def lookup(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        inode = self._table.lookup(parent_inode, name)
        if inode is None:
            return _absent()
        return self._entry(self._table.attributes(inode))

    @_answered
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return self._entry(self._table.attributes(inode))

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        for inode, _ in inode_list:
            self._engine.forget(inode)

    @_answered
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        if self.opens_files:
            raise pyfuse3.FUSEError(errno.ENOSYS)
        if flags & _CHANGING_FLAGS:
            raise pyfuse3.FUSEError(errno.EROFS)
        self._table.attributes(inode)  # or ESTALE
        return pyfuse3.FileInfo(fh=inode, keep_cache=True)

    @_answered
    async def release(self, fh: int) -> None:
        """Do nothing: comes only where files are opened here."""

    @property
    def in_hand(self) -> ReadsInHand:
        """The reads that this worker has in hand."""
        return self._in_hand

    async def read(self, fh: int, off: int, size: int) -> Buffer:  # type: ignore[override] # pyfuse3 takes any buffer
        if not off:
            self._engine.began(fh >> interposed.HANDLE_INODE_BITS)
        if self.watched is not None:
            return self.replies.hand_over(await self.watched.read(fh, off, size, self._read))
        return self.replies.hand_over(await self._read(fh & _INODE_MASK, off, size))

    async def read_on(self, fh: int, size: int) -> Buffer:
        """Go on with what a thread of `small_reads` has begun: all of a file. It waits already, and ends in a drain."""
        read = partial(self._read, is_begun=True)
        if self.watched is not None:
            return await self.watched.read(fh, 0, size, read)
        return await read(fh & _INODE_MASK, 0, size)

    @_answered
    async def _read(self, inode: int, offset: int, size_bytes: int, *, is_begun: bool = False) -> Buffer:
        counters = self._counters
        if not is_begun:
            if counters.read(self._draining_slot):
                raise pyfuse3.FUSEError(errno.ESHUTDOWN)
            small_reads.begin_wait()
        began_s = perf_counter()
        read, in_hand, slot = Read(inode, offset, size_bytes), self._in_hand, -1
        try:
            if number := self._late.errno_of(read, began_s):
                raise pyfuse3.FUSEError(number)
            ref = self._table.ref(inode)
            if in_hand.suspects or in_hand.poisoned:
                await self._take_suspect(read, ref)
            slot = in_hand.take(inode, offset, size_bytes)
            buffer = await self._engine.read(inode, ref, offset, size_bytes)
            self._late.answered()
        except ReadError as error:
            now_s = perf_counter()
            self._late.failed(read, errno_for(error), took_s=now_s - began_s, now_s=now_s)
            self._tell(error, inode, offset, now_s - began_s)
            raise
        finally:
            in_hand.put_back(slot)
            if in_hand.suspects:
                in_hand.prove(read)
                if (begun := self._suspects_begun.pop(read, None)) is not None:
                    begun.set()
            took_s = perf_counter() - began_s
            counters.add(self._blocked_slot, int(took_s * 1e6))
            self._saw_read(took_s)
            small_reads.end_wait()
        counters.add(self._served_slot, len(buffer))
        return buffer

    async def _take_suspect(self, read: Read, ref: ObjectRef) -> None:
        """Let a read begin that was in hand when a worker died, unless workers die of it."""
        if self._in_hand.is_poisoned(read):
            raise PoisonedReadError(f"{ref.key!r} is not read: workers died of it.")
        if read in self._in_hand.suspects:
            async with self._suspects_turn:
                # One that takes long may wait for the service, which may not answer: then the next one begins.
                with trio.move_on_after(_SUSPECT_ALONE_S * 10.0 ** (self._in_hand.most_deaths - 1)):
                    while self._suspects_begun:
                        await next(iter(self._suspects_begun.values())).wait()
                self._suspects_begun[read] = trio.Event()

    @_answered
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        if self.opens_directories:
            raise pyfuse3.FUSEError(errno.ENOSYS)
        return inode

    @_answered
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        directory = fh & _INODE_MASK
        table = self._table
        position = table.position_after(directory, start_id - _DOTS) if start_id > _DOTS else 0
        entry = pyfuse3.EntryAttributes()  # readdir_reply copies it, so one serves for all
        for offset, name, inode in ((1, b".", directory), (2, b"..", table.parent(directory))):
            if start_id < offset:
                self._fill(entry, table.attributes(inode))
                if not pyfuse3.readdir_reply(token, name, entry, offset):
                    return
        for name, attributes in table.children(directory, position):
            self._fill(entry, attributes)
            if not pyfuse3.readdir_reply(token, name, entry, attributes.inode + _DOTS):
                return

    @_answered
    async def releasedir(self, fh: int) -> None:
        """Do nothing: comes only where directories are opened here."""

    @_answered
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        metadata = self._table.metadata
        data = pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = _STATFS_BLOCK_BYTES
        data.f_blocks = min(-(-metadata.total_bytes // _STATFS_BLOCK_BYTES), _STATFS_MAX_BLOCKS)
        data.f_bfree = data.f_bavail = 0
        data.f_files = len(self._table)
        data.f_ffree = data.f_favail = 0
        data.f_namemax = _NAME_MAX
        return data

    @_answered
    async def access(self, inode: int, mode: int, ctx: pyfuse3.RequestContext) -> bool:
        if mode & os.W_OK:
            raise pyfuse3.FUSEError(errno.EROFS)
        return True  # the kernel has checked the mode itself (default_permissions)

    @_answered
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        value = self._xattrs(inode).get(name)
        if value is None:
            raise pyfuse3.FUSEError(pyfuse3.ENOATTR)
        return value

    @_answered
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> list[bytes]:
        return list(self._xattrs(inode))

    def _tell(self, error: ReadError, inode: int, offset: int, waited_s: float) -> None:
        name = errno.errorcode[error.errno]
        line = f"a read at {offset} failed with {name} after {waited_s:.1f} s: {error}"
        hint = _REFRESH_HINT if isinstance(error, ObjectChangedError) else error.hint
        line += f" {hint}" if hint else ""
        self.last_errors.append((time(), line))
        self._failures.tell(f"reads that failed with {name} ({type(error).__name__})", str(inode), line)

    def count_stall(self) -> None:
        """Count the time until now in which a read was under way."""
        self._counters.add(self._stalled_slot, small_reads.stalled_ns() // 1000)

    def _entry(self, attributes: Attributes) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        self._fill(entry, attributes)
        return entry

    def _fill(self, entry: pyfuse3.EntryAttributes, attributes: Attributes) -> None:
        inode, is_directory, size_bytes, mtime_ns = attributes
        entry.st_ino = inode
        entry.st_mode = self._directory_mode if is_directory else self._file_mode
        entry.st_nlink = 1
        entry.st_uid = self._uid
        entry.st_gid = self._gid
        entry.st_size = size_bytes
        entry.st_blocks = -(-size_bytes // _ST_BLOCK_BYTES)
        entry.st_blksize = _BLOCK_BYTES
        entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = mtime_ns
        entry.entry_timeout = entry.attr_timeout = _FOREVER_S

    def _xattrs(self, inode: int) -> dict[bytes, bytes]:
        table = self._table
        if table.is_made(inode):
            return {}
        bucket, key = table.bucket_and_key(inode)
        xattrs = {b"user.s3.bucket": bucket.encode(), b"user.s3.key": key.encode()}
        if not table.is_directory(inode):
            xattrs[b"user.s3.etag"] = table.etag(inode).encode()
            xattrs[b"user.s3.storage_class"] = table.storage_class(inode).encode()
        return xattrs


def unread_classes(table: InodeTable) -> bytes:
    """Return a 1 for each storage class of the table whose objects cannot be read at once, by its number."""
    return bytes(name in ARCHIVE_STORAGE_CLASSES for name in table.metadata.storage_classes).ljust(256, b"\0")


def _absent() -> pyfuse3.EntryAttributes:
    """Return a negative entry: inode 0 with a timeout lets the kernel cache that the name does not exist."""
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = 0
    entry.entry_timeout = _FOREVER_S
    return entry


def _refuse_change(name: str) -> Callable[..., Coroutine[Any, Any, None]]:
    async def refuse(self: MountOperations, *_: object) -> None:
        raise pyfuse3.FUSEError(errno.EROFS)

    refuse.__name__ = name
    return _answered(refuse)


# Clause R1. The kernel refuses most of these itself, because the mount is `ro`; the handlers refuse the rest.
for _name in (
    "create", "link", "mkdir", "mknod", "removexattr", "rename", "rmdir", "setattr", "setxattr", "symlink", "unlink",
    "write",
):  # fmt: skip
    setattr(MountOperations, _name, _refuse_change(_name))
