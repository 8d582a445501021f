"""Notices: the kernel is told what it has to forget, after a refresh and of a map.

A notice of a name waits for the directory's lock, which a reader may hold while it waits for the worker. Neither the
worker nor the supervisor may therefore write it: a process of its own does. A notice of pages waits only until their
READs are answered, so a thread of the worker writes it, on which no answer depends.
"""

import mmap
import os
import struct
from collections.abc import Iterable
from contextlib import suppress

from fastfuse.index.inodes.changes import Changes

# <linux/fuse.h>, fuse_out_header: the length of all, the error or the notification's code, the request's number or 0.
OUT_HEADER = struct.Struct("=IiQ")

# fuse_notify_inval_inode_out, fuse_notify_inval_entry_out.
_STALE_INODE = struct.Struct("=Qqq")  # inode, offset, length of the data to drop
_STALE_NAME = struct.Struct("=QII")  # directory, length of the name, flags; then the name and a NUL
_INVAL_INODE, _INVAL_ENTRY = 2, 3


def pack_notices(changes: Changes) -> bytes:
    """Return the notifications for `changes`, one after the other.

    Those of directories drop their listings, too. They come first, and again last: a listing that the old table
    answered may be on its way into the kernel's memory.
    """
    names = [
        _message(_INVAL_ENTRY, _STALE_NAME.pack(inode, len(name), 0) + name + b"\0")
        for inode, name in changes.stale_names
    ]
    directories = [_message(_INVAL_INODE, _STALE_INODE.pack(inode, 0, 0)) for inode in changes.stale_directories]
    return b"".join((*directories, *names, *directories))


def pack_unwanted_pages(inode: int, ranges: Iterable[tuple[int, int]]) -> bytes:
    """Return the notifications that have the page cache drop `ranges`, none of them empty, of `inode`."""
    return b"".join(_message(_INVAL_INODE, _STALE_INODE.pack(inode, start, end - start)) for start, end in ranges)


def send_notices(fd: int, notices: bytes | mmap.mmap) -> None:
    """Write each of `notices` to the connection `fd`. One that the kernel refuses is skipped."""
    start = 0
    while start < len(notices):
        length, _, _ = OUT_HEADER.unpack_from(notices, start)
        # ENOENT: the kernel does not have it, or the mount is gone.
        # ENOTDIR, ENOTEMPTY, EBUSY: a name in use keeps what it had; the next lookup asks the worker.
        with suppress(OSError):
            os.write(fd, notices[start : start + length])
        start += length


def _message(code: int, body: bytes) -> bytes:
    return OUT_HEADER.pack(OUT_HEADER.size + len(body), code, 0) + body
