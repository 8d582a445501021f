"""The FUSE adapter: inode numbers, flags and tokens in, attributes, buffers and errnos out, and nothing else.

Every handler goes through `_answered`, because pyfuse3 lets any exception but `FUSEError` end the mount: there, what
went wrong becomes an errno, is counted, and is logged if nobody foresaw it.

Forgets need no counting: a table is immutable and knows every inode until a refresh takes its place, and then the
kernel looks up again what it is told is stale. `fh` is the inode number below that of the worker, so that a new worker
understands the handles that its predecessors gave out, and knows that it has not counted them. Listing a directory
goes on in the table that it began in, so that a refresh in between leaves nothing out.
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

# Nothing changes but by a refresh, which tells the kernel what to forget. Ten years, in seconds: the kernel clips what
# its clock cannot count, and pyfuse3 has no "for ever".
_FOREVER_S = 10 * 365 * 24 * 3600.0

# Of the objects that were replaced or deleted since the listing so many are named in the log.
_MAX_CHANGED_LOGGED = 20

# In the handle of a file the inode, and above it the number of the worker; in the handle of a directory the inode, in
# the resume offset of `readdir` the position, and above each the generation of its table.
_INODE_BITS = 48
_INODE_MASK = (1 << _INODE_BITS) - 1
_WORKER_BITS = 15
_POSITION_BITS = 40

_DIRECTORY_MODE = stat.S_IFDIR | 0o555
_FILE_MODE = stat.S_IFREG | 0o444
# st_blksize. `cp`, `cat` and Python's `open` read this much at a time: large enough that a request costs little beside
# its bytes, small enough that a 10-byte read of a Python file object does not fetch megabytes.
_BLOCK_BYTES = 128 * 1024
_ST_BLOCK_BYTES = 512  # unit of st_blocks, stat(2)
_DOTS = 2  # "." and ".." come before the children in the offsets of readdir
_NAME_MAX = 255
_STATFS_BLOCK_BYTES = 4096
_STATFS_MAX_BLOCKS = (1 << 63) - 1  # programs take the number for a signed one

# As much as the kernel asks for at once: more would keep the loop from its next request for longer than a reply does.
_MOST_STORED_BYTES = 1 << 20

_CHANGING_FLAGS = os.O_ACCMODE | os.O_TRUNC  # O_RDONLY | O_TRUNC truncates, too: open(2)
_NO_FAILURES = frozenset({errno.ENOENT, errno.ENODATA})  # they answer questions

_P = ParamSpec("_P")
_T = TypeVar("_T")


class ReadEngine(Protocol):
    """What the adapter needs of `fastfuse.readahead`."""

    def open(self, inode: int, ref: ObjectRef, *, takes_whole: bool) -> Buffer | None:
        """A handle of the file was opened; never fails. All of the file if that is here, and `takes_whole`."""
        ...

    async def read(self, inode: int, ref: ObjectRef, offset: int, size_bytes: int) -> Buffer:
        """Exactly the bytes asked for, fewer only at the end of the file, or a `ReadError`."""
        ...

    def release(self, inode: int) -> None:
        """The last handle of the file was closed."""
        ...


def _never(_: int) -> bool:
    return False


def _answered(
    handler: Callable[Concatenate["MountOperations", _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate["MountOperations", _P], Coroutine[Any, Any, _T]]:
    """Every outcome of `handler` is an answer to the kernel; no exception but `FUSEError` passes."""

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
        # Not for what is cancelled: a dying worker answers nothing, and the crash-loop guard goes by this count.
        self.count_answer()
        return result

    return answer


class MountOperations(InitialisedOperations):
    """The handlers. Made by the supervisor before the table exists; a worker calls `serve` before its loop."""

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(
        self, counters: Counters, *, uid: int, gid: int, umask: int = 0, direct_from_bytes: int | None = None
    ) -> None:
        """Files of `direct_from_bytes` or more are read past the page cache; none if that is None."""
        super().__init__()
        self._counters = counters
        self._uid = uid
        self._gid = gid
        self._directory_mode = _DIRECTORY_MODE & ~umask
        self._file_mode = _FILE_MODE & ~umask
        self._direct_from_bytes = direct_from_bytes
        self._worker_bits = 0
        self._refs: dict[int, ObjectRef] = {}
        # Of the handles that this worker gave out. What it hears of others when they are read, it cannot count.
        self._open_counts: dict[int, int] = {}
        self._inherited: set[int] = set()
        self._archived_logged: set[int] = set()
        self._changed_logged: set[int] = set()
        # Attributes of open files that a refresh has taken out of the table.
        self._retired: dict[int, Attributes] = {}
        self._generation = 0
        # How many directories are open in the table of each generation, and the earlier ones of these tables.
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
        """What is answered from now."""
        return self._table

    def serve(
        self,
        table: InodeTable,
        engine: ReadEngine,
        may_store: Callable[[int], bool] = _never,
    ) -> None:
        """From now on answer from `table` and `engine`; a worker's first step.

        `may_store` says of a process whether what it opens may be put into the page cache before it asks for it.
        """
        self._table = table
        self._engine = engine
        respawns = self._counters.get("fastfuse_worker_respawns")
        self._may_store = _never if respawns else may_store
        self._worker_bits = (respawns & ((1 << _WORKER_BITS) - 1)) << _INODE_BITS

    def swap(self, table: InodeTable) -> None:
        """From now on answer from `table`; what is open keeps what it has (clause L6)."""
        # The object of a handle stays, and so do its attributes.
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
        # Handles of dead workers may be left, and nobody knows how many: what the table cannot tell them is kept.
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
        # From the beginning, and where a dead worker's table was, it is the table there is.
        if start == 0 or generation not in self._earlier_tables:
            generation = self._generation
        table = self._earlier_tables.get(generation, self._table)
        # What an earlier table says must not be remembered beyond the answer.
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
        """Put a file that was fetched before it was opened into the page cache: its reader then asks for nothing.

        Requires that this is the first handle. The kernel waits for pages that are locked, and so would every reader,
        as one thread serves all; they are locked while a read of them is on its way, and a handle is released only
        after the last of its reads. Nobody knows which handles a dead worker had given out, so that its successors
        store nothing.

        One reader of 39 KB files in the order of the listing got 1,756 a second without and 2,082 with it, 16 readers
        who told their order 3,834 and 3,954, for 0.254 and 0.247 ms of CPU (medians, in turns).
        """
        self.replies.settle()  # this, too, is written by libfuse
        try:
            pyfuse3.notify_store(inode, 0, whole)  # type: ignore[arg-type] # it takes any buffer
        except OSError as error:  # its reader asks, and it is fetched again
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
        """A restored object is still listed with its archive class: only a GET tells, and one byte is enough."""
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
    """A negative entry: inode 0 with a timeout lets the kernel remember that the name does not exist."""
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = 0
    entry.entry_timeout = _FOREVER_S
    return entry


def _refuse_change(name: str) -> Callable[..., Coroutine[Any, Any, None]]:
    async def refuse(self: MountOperations, *_: object) -> None:
        raise pyfuse3.FUSEError(errno.EROFS)

    refuse.__name__ = name
    return _answered(refuse)


# Clause R1. The kernel refuses most of these itself, the mount being `ro`; what it lets through is refused here.
for _name in (
    "create", "link", "mkdir", "mknod", "removexattr", "rename", "rmdir", "setattr", "setxattr", "symlink", "unlink",
    "write",
):  # fmt: skip
    setattr(MountOperations, _name, _refuse_change(_name))
