"""Translate FUSE requests: inode numbers, flags and tokens in; attributes, buffers and errnos out.

Every handler goes through `_answered`, because any exception but `FUSEError` would end pyfuse3's mount. There it
becomes an errno, is counted, and is logged if it was not foreseen.

Forgets need no counting: a table is immutable and knows every inode until a refresh replaces it, and then the kernel
is told which names are stale. A handle holds the number of its worker above the inode, so that a new worker understands
the handles of its predecessors and knows that it has not counted them. A directory listing goes on in the table in
which it began, so that a refresh in between leaves nothing out.
"""

import errno
import logging
import os
import stat
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import pyfuse3

from fastfuse.errors import FastfuseError, ObjectArchivedError, ObjectChangedError, StaleInodeError, errno_for
from fastfuse.index.inodes.table import Attributes, InodeTable
from fastfuse.metrics import ERRNO_LABELS, Counters
from fastfuse.mount.session import InitialisedOperations
from fastfuse.objects import ARCHIVE_STORAGE_CLASSES, Buffer, ObjectRef

__all__ = ["MountOperations", "ReadEngine"]

_log = logging.getLogger(__name__)

# Only a refresh changes anything, and it tells the kernel what to forget. Ten years, in seconds, because pyfuse3 has
# no "for ever".
_FOREVER_S = 10 * 365 * 24 * 3600.0

# The log names this many of the objects that were replaced or deleted since the listing.
_MAX_CHANGED_LOGGED = 20

# The handle of a file is the inode and, above it, the number of the worker. The handle of a directory (inode) and the
# resume offset of `readdir` (position) have the generation of the table above them.
_INODE_BITS = 48
_INODE_MASK = (1 << _INODE_BITS) - 1
_WORKER_BITS = 15
_POSITION_BITS = 40

_DIRECTORY_MODE = stat.S_IFDIR | 0o555
_FILE_MODE = stat.S_IFREG | 0o444
# st_blksize. `cp`, `cat` and Python's `open` read this much at a time: large enough that requests cost little, small
# enough that a 10-byte read of a Python file object does not fetch megabytes.
_BLOCK_BYTES = 128 * 1024
_ST_BLOCK_BYTES = 512  # unit of st_blocks, stat(2)
_DOTS = 2  # "." and ".." come before the children in the offsets of readdir
_NAME_MAX = 255
_STATFS_BLOCK_BYTES = 4096
_STATFS_MAX_BLOCKS = (1 << 63) - 1  # programs take the number for a signed one

# The most that the kernel asks for at once: storing more would delay the next request for longer than a reply does.
_MOST_STORED_BYTES = 1 << 20

_CHANGING_FLAGS = os.O_ACCMODE | os.O_TRUNC  # O_RDONLY | O_TRUNC truncates, too: open(2)
_NO_FAILURES = frozenset({errno.ENOENT, errno.ENODATA})  # they answer questions

_P = ParamSpec("_P")
_T = TypeVar("_T")


class ReadEngine(Protocol):
    """The part of `fastfuse.readahead` that the handlers use."""

    def open(self, inode: int, ref: ObjectRef, *, takes_whole: bool) -> Buffer | None:
        """Note an open of the file; return all of it if that is fetched and `takes_whole`. Never fails."""
        ...

    async def read(self, inode: int, ref: ObjectRef, offset: int, size_bytes: int) -> Buffer:
        """Return exactly the bytes asked for, fewer only at the end of the file, or raise `ReadError`."""
        ...

    def release(self, inode: int) -> None:
        """Note that the last handle of the file was closed."""
        ...


def _never(_: int) -> bool:
    return False


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
            _log.exception("%s failed for an unforeseen reason; the mount goes on", handler.__name__.lstrip("_"))
            self.count_failure()
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
        self, counters: Counters, *, uid: int, gid: int, umask: int = 0, direct_from_bytes: int | None = None
    ) -> None:
        """Read files of `direct_from_bytes` or more past the page cache; none if that is None."""
        super().__init__()
        self._counters = counters
        self._uid = uid
        self._gid = gid
        self._directory_mode = _DIRECTORY_MODE & ~umask
        self._file_mode = _FILE_MODE & ~umask
        self._direct_from_bytes = direct_from_bytes
        self._worker_bits = 0
        self._refs: dict[int, ObjectRef] = {}
        # Counts of the handles that this worker gave out; then inodes of its predecessors' handles, seen when read.
        self._open_counts: dict[int, int] = {}
        self._inherited: set[int] = set()
        self._archived_logged: set[int] = set()
        self._changed_logged: set[int] = set()
        # Attributes of open files that a refresh has removed from the table.
        self._retired: dict[int, Attributes] = {}
        self._generation = 0
        # How many directories are open in the table of each generation, and the earlier tables that are still open.
        self._open_directories: Counter[int] = Counter()
        self._earlier_tables: dict[int, InodeTable] = {}
        self._requests_slot = counters.slot("fastfuse_requests")
        self._served_slot = counters.slot("fastfuse_read_served_bytes")
        self._failures_slot = counters.slot("fastfuse_handler_failures")
        self._opened_slot = counters.slot("fastfuse_opened_files")
        self._open_slot = counters.slot("fastfuse_open_files")
        self._draining_slot = counters.slot("fastfuse_draining")

    @property
    def table(self) -> InodeTable:
        """The table that answers now."""
        return self._table

    def serve(self, table: InodeTable, engine: ReadEngine, may_store: Callable[[int], bool] = _never) -> None:
        """Answer from `table` and `engine` from now on; a worker's first step.

        `may_store` returns whether a file that a process opens may be put into the page cache before a read.
        """
        self._table = table
        self._engine = engine
        respawns = self._counters.get("fastfuse_worker_respawns")
        self._may_store = _never if respawns else may_store
        self._worker_bits = (respawns & ((1 << _WORKER_BITS) - 1)) << _INODE_BITS

    def swap(self, table: InodeTable) -> None:
        """Answer from `table` from now on; open files and directories keep what they have (clause L6)."""
        for inode in self._refs:
            if inode in self._table and inode not in table:
                self._retired[inode] = self._table.attributes(inode)
        self._changed_logged.clear()
        if self._open_directories[self._generation]:
            self._earlier_tables[self._generation] = self._table
        self._generation += 1
        self._table = table

    def count_answer(self, number: int = 0) -> None:
        """Count an answered request, and its errno if that is a failure."""
        self._counters.add(self._requests_slot)
        if number and number not in _NO_FAILURES:
            name = errno.errorcode.get(number, "other")
            slot = self._counters.slot("fastfuse_errors", name if name in ERRNO_LABELS else "other")
            self._counters.add(slot)

    def count_failure(self) -> None:
        self._counters.add(self._failures_slot)
        self.count_answer(errno.EIO)

    @_answered
    async def lookup(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        inode = self._table.lookup(parent_inode, name)
        if inode is None:
            return _absent()
        return self._entry(self._table.attributes(inode))

    @_answered
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        try:
            return self._entry(self._table.attributes(inode))
        except StaleInodeError:
            if inode not in self._retired:
                raise
            return self._entry(self._retired[inode])

    @_answered
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        if flags & _CHANGING_FLAGS:
            raise pyfuse3.FUSEError(errno.EROFS)
        if self._counters.read(self._draining_slot):
            raise pyfuse3.FUSEError(errno.ESHUTDOWN)
        ref = self._ref(inode)
        if ref.storage_class in ARCHIVE_STORAGE_CLASSES:
            await self._require_restored(inode, ref)
        self._open_counts[inode] = self._open_counts.get(inode, 0) + 1
        self._counters.add(self._opened_slot)
        self._counters.add(self._open_slot)
        is_direct = self._direct_from_bytes is not None and ref.size_bytes >= self._direct_from_bytes
        is_cacheable = ref.size_bytes <= _MOST_STORED_BYTES and not is_direct and not flags & os.O_DIRECT
        is_first = self._open_counts[inode] == 1
        whole = self._engine.open(inode, ref, takes_whole=is_cacheable and is_first and self._may_store(ctx.pid))
        if whole is not None:
            self._store(inode, whole)
        return pyfuse3.FileInfo(fh=self._worker_bits | inode, keep_cache=True, direct_io=is_direct)

    async def read(self, fh: int, off: int, size: int) -> Buffer:  # type: ignore[override] # pyfuse3 takes any buffer
        return self.replies.hand_over(await self._read(fh, off, size))

    @_answered
    async def _read(self, fh: int, off: int, size: int) -> Buffer:
        inode = fh & _INODE_MASK
        if fh ^ inode != self._worker_bits:
            self._inherited.add(inode)
        ref = self._ref(inode)
        try:
            buffer = await self._engine.read(inode, ref, off, size)
        except ObjectChangedError:
            self._log_changed(inode, ref)
            raise
        self._counters.add(self._served_slot, len(buffer))
        return buffer

    @_answered
    async def release(self, fh: int) -> None:
        self._counters.add(self._open_slot, -1)
        inode = fh & _INODE_MASK
        if fh ^ inode == self._worker_bits:
            left = self._open_counts.pop(inode, 1) - 1
            if left:
                self._open_counts[inode] = left
                return
        elif inode in self._open_counts:
            return
        self._engine.release(inode)
        # An unknown number of dead workers' handles may be left: keep what the table no longer has for them.
        if inode in self._inherited and inode in self._retired:
            return
        self._refs.pop(inode, None)
        self._retired.pop(inode, None)
        self._inherited.discard(inode)

    @_answered
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        self._table.row(inode)  # a stale one is looked up again
        self._open_directories[self._generation] += 1
        return self._generation << _INODE_BITS | inode

    @_answered
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        directory = fh & _INODE_MASK
        generation, start = start_id >> _POSITION_BITS, start_id & ((1 << _POSITION_BITS) - 1)
        # The current table serves a listing from its beginning, and one that began under a dead worker.
        if start == 0 or generation not in self._earlier_tables:
            generation = self._generation
        table = self._earlier_tables.get(generation, self._table)
        # The kernel must not cache entries of an earlier table.
        timeout_s = _FOREVER_S if table is self._table else 0.0
        base = generation << _POSITION_BITS
        entry = pyfuse3.EntryAttributes()  # readdir_reply copies it, so one serves for all
        for position, name, inode in ((1, b".", directory), (2, b"..", table.parent(directory))):
            if start < position:
                self._fill(entry, table.attributes(inode), timeout_s)
                if not pyfuse3.readdir_reply(token, name, entry, base + position):
                    return
        for resume, name, attributes in table.children(directory, max(start - _DOTS, 0)):
            self._fill(entry, attributes, timeout_s)
            if not pyfuse3.readdir_reply(token, name, entry, base + resume + _DOTS):
                return

    @_answered
    async def releasedir(self, fh: int) -> None:
        generation = fh >> _INODE_BITS
        self._open_directories[generation] -= 1
        if self._open_directories[generation] <= 0:
            del self._open_directories[generation]
            self._earlier_tables.pop(generation, None)

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

    def _store(self, inode: int, whole: Buffer) -> None:
        """Put a prefetched file into the page cache, so that its reader sends no read request.

        Requires that this is the first handle. The kernel waits for locked pages here, which would stop the only thread
        that serves; pages are locked while a read of them is under way, and a handle is released only after its last
        read. A worker does not know the handles of a dead one, so successors store nothing.
        """
        self.replies.settle()  # libfuse writes the notification, too
        try:
            pyfuse3.notify_store(inode, 0, whole)  # type: ignore[arg-type] # it takes any buffer
        except OSError as error:  # the reader sends a read request instead
            self._may_store = _never
            _log.info("files are not put into the page cache any more before they are read: %s", error)
        else:
            self._counters.add(self._served_slot, len(whole))

    def _ref(self, inode: int) -> ObjectRef:
        ref = self._refs.get(inode)
        if ref is None:
            ref = self._refs[inode] = self._table.ref(inode)
        return ref

    async def _require_restored(self, inode: int, ref: ObjectRef) -> None:
        """Fetch one byte to find out whether the object is restored: a listing still has its archive class."""
        try:
            await self._engine.read(inode, ref, 0, 1)
        except BaseException as error:
            if inode not in self._open_counts:  # no release will come for an open that failed
                self._refs.pop(inode, None)
                self._engine.release(inode)
            if isinstance(error, ObjectArchivedError) and inode not in self._archived_logged:
                self._archived_logged.add(inode)
                _log.warning("%r is archived as %s: restore first", ref.key, ref.storage_class)
            raise

    def _log_changed(self, inode: int, ref: ObjectRef) -> None:
        if inode not in self._changed_logged and len(self._changed_logged) < _MAX_CHANGED_LOGGED:
            self._changed_logged.add(inode)
            _log.warning(
                "%r was replaced or deleted since the listing, so reading it fails (ESTALE): "
                "'fastfuse refresh' shows what is there now%s",
                ref.key,
                "; more of these are not logged" if len(self._changed_logged) == _MAX_CHANGED_LOGGED else "",
            )

    def _entry(self, attributes: Attributes) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        self._fill(entry, attributes)
        return entry

    def _fill(self, entry: pyfuse3.EntryAttributes, attributes: Attributes, timeout_s: float = _FOREVER_S) -> None:
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
        entry.entry_timeout = entry.attr_timeout = timeout_s

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
