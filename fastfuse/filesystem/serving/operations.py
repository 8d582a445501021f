"""Translate FUSE requests about names: inode numbers, flags and tokens in; attributes and errnos out.

There are no handles. pyfuse3 answers OPEN and OPENDIR with ENOSYS, and the kernel asks for neither again: it opens by
itself, keeps the pages of files and the listings of directories, and every request names its inode
(`filesystem.kernel.interposed`). A worker thus has nothing that its successor needs. A table is immutable and knows
every inode until a refresh replaces it, and then the kernel is told which names are stale; so forgets need no
counting either. A listing of a directory goes on after the inode that it gave last, also if the last refresh took that
away.
"""

import errno
import logging
import os
import stat
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, NoReturn, ParamSpec, Protocol, TypeVar

from fastfuse.errors import FastfuseError, errno_for
from fastfuse.filesystem.kernel.fuse import direct_reads, interposed, pyfuse3
from fastfuse.index.inodes.table import Attributes, InodeTable
from fastfuse.metrics import ERRNO_LABELS, Counters
from fastfuse.objects import ARCHIVE_STORAGE_CLASSES
from fastfuse.readahead import ReadEngine
from fastfuse.repeats import RepeatedFailures

_log = logging.getLogger(__name__)

# Only a refresh changes anything, and it tells the kernel what to forget. Ten years, in seconds, because pyfuse3 has
# no "for ever".
_FOREVER_S = 10 * 365 * 24 * 3600.0

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

_NO_FAILURES = frozenset({errno.ENOENT, errno.ENODATA, errno.ENOSYS})  # they answer questions

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Outcomes:
    """The answers of one process, counted."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._failures = RepeatedFailures(_log)
        self._requests = counters.memory("fastfuse_requests")

    def count(self, number: int = 0) -> None:
        """Count an answered request, and its errno if that is a failure."""
        self._requests[0] += 1
        if number and number not in _NO_FAILURES:
            name = errno.errorcode.get(number, "other")
            self._counters.count("fastfuse_errors", value=name if name in ERRNO_LABELS else "other")

    def count_bug(self, name: str, error: Exception) -> None:
        """Count and tell a request that failed for an unforeseen reason."""
        self._counters.count("fastfuse_handler_failures")
        self.count(errno.EIO)
        reason = f"{name} failed for an unforeseen reason"
        self._failures.tell(f"{reason} ({type(error).__name__})", name, f"{reason}; the mount goes on", error)


class _Answering(Protocol):
    @property
    def outcomes(self) -> Outcomes: ...


_S = TypeVar("_S", bound=_Answering)


def answered(
    handler: Callable[Concatenate[_S, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[_S, _P], Coroutine[Any, Any, _T]]:
    """Turn every outcome of `handler` into an answer to the kernel; no exception but `FUSEError` passes."""

    async def answer(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            result = await handler(self, *args, **kwargs)
        except pyfuse3.FUSEError as error:
            self.outcomes.count(error.errno)
            raise
        except FastfuseError as error:
            number = errno_for(error)
            self.outcomes.count(number)
            # Its frames hold memory, and a part may hold it (`readahead.fetches`).
            raise pyfuse3.FUSEError(number) from error.with_traceback(None)
        except Exception as error:
            self.outcomes.count_bug(handler.__name__, error)
            raise pyfuse3.FUSEError(errno.EIO) from error
        # A cancelled request is not counted: a dying worker answers nothing, and the crash-loop guard reads this count.
        self.outcomes.count()
        return result

    return answer


class MountOperations(pyfuse3.Operations):
    """The handlers. The supervisor makes them before the table exists; a worker calls `serve` before its loop."""

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(self, counters: Counters, *, uid: int, gid: int, umask: int = 0) -> None:
        super().__init__()
        self._counters = counters
        self._uid = uid
        self._gid = gid
        self._directory_mode = _DIRECTORY_MODE & ~umask
        self._file_mode = _FILE_MODE & ~umask
        self.outcomes = Outcomes(counters)

    def serve(self, table: InodeTable, engine: ReadEngine) -> None:
        """Answer from `table` from now on, and tell `engine` of what goes; a worker's first step."""
        self._engine = engine
        self._answer_from(table)

    def swap(self, table: InodeTable) -> None:
        """Answer from `table` from now on: what it does not have any more is stale (clause L6)."""
        direct_reads.disarm()  # keys are below the prefix that it was armed with
        direct_reads.drop_all_ahead()
        self._answer_from(table)
        self._engine.refreshed()

    def read_archived(self, *, is_refused: bool) -> None:
        """Have archived objects fetched ahead like others, or left to their readers once one of these `is_refused`."""
        table = self.table
        table.is_archive_refused |= is_refused
        unread_classes = ARCHIVE_STORAGE_CLASSES if table.is_archive_refused else frozenset()
        if table.unread_classes != unread_classes:
            table.unread_classes = unread_classes
            self._answer_from(table)

    def _answer_from(self, table: InodeTable) -> None:
        # The one that answers now.
        self.table = table
        direct_reads.cover(table.next_inode)
        interposed.answer_from(
            table.columns,
            uid=self._uid,
            gid=self._gid,
            directory_mode=self._directory_mode,
            file_mode=self._file_mode,
            block_bytes=_BLOCK_BYTES,
            timeout_s=_FOREVER_S,
            answered=self._counters.memory("fastfuse_requests"),
            unread_classes=unread_classes(table),
            draining=self._counters.memory("fastfuse_draining"),
        )

    # `interposed` answers both, and leaves what it cannot: inodes that the table has not, and columns that do not fit.
    @answered
    async def lookup(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> NoReturn:
        self.table.attributes(parent_inode)  # or ESTALE
        raise ValueError(f"no child of inode {parent_inode} can be found")

    @answered
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> NoReturn:
        self.table.attributes(inode)  # or ESTALE
        raise ValueError(f"inode {inode} cannot be found")

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        for inode, _ in inode_list:
            self._engine.forget(inode)

    @answered
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        directory = fh & _INODE_MASK
        table = self.table
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

    @answered
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        metadata = self.table.metadata
        data = pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = _STATFS_BLOCK_BYTES
        data.f_blocks = min(-(-metadata.total_bytes // _STATFS_BLOCK_BYTES), _STATFS_MAX_BLOCKS)
        data.f_bfree = data.f_bavail = 0
        data.f_files = len(self.table)
        data.f_ffree = data.f_favail = 0
        data.f_namemax = _NAME_MAX
        return data

    # Only a mount of --fuse-fd without default_permissions asks: elsewhere the kernel looks at the mode itself.
    @answered
    async def access(self, inode: int, mode: int, ctx: pyfuse3.RequestContext) -> bool:
        if mode & os.W_OK:
            raise pyfuse3.FUSEError(errno.EROFS)
        return True

    @answered
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        value = self._xattrs(inode).get(name)
        if value is None:
            raise pyfuse3.FUSEError(pyfuse3.ENOATTR)
        return value

    @answered
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> list[bytes]:
        return list(self._xattrs(inode))

    # Clause R1. The kernel refuses most of these itself, because the mount is `ro`; the handlers refuse the rest.
    @answered
    async def write(self, *_: object) -> NoReturn:
        raise pyfuse3.FUSEError(errno.EROFS)

    # These handlers take more than mypy knows of `write`.
    create = link = mkdir = mknod = removexattr = rename = rmdir = write  # type: ignore[assignment]
    setattr = setxattr = symlink = unlink = write  # type: ignore[assignment]

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
        table = self.table
        if table.is_made(inode):
            return {}
        bucket, key = table.bucket_and_key(inode)
        xattrs = {b"user.s3.bucket": bucket.encode(), b"user.s3.key": key.encode()}
        if not table.is_directory(inode):
            ref = table.ref(inode)
            xattrs |= {b"user.s3.etag": ref.etag.encode(), b"user.s3.storage_class": ref.storage_class.encode()}
        return xattrs


def unread_classes(table: InodeTable) -> bytes:
    """Return a 1 for each storage class of the table whose objects cannot be read at once, by its number."""
    return bytes(name in table.unread_classes for name in table.metadata.storage_classes).ljust(256, b"\0")
