"""What the kernel is told to forget after a refresh: FUSE notifications, written to the connection as they are.

Not through pyfuse3: a notification waits for the directory's lock, which a reader may hold while it waits for the
worker, so neither the worker nor the supervisor may be the one that writes it. A process of their own does.
"""

import errno
import os
import struct

from fastfuse.index.inodes.changes import Changes
from fastfuse.mount.protocol import OUT_HEADER

__all__ = ["pack_notices", "send_notices"]

# <linux/fuse.h>: fuse_notify_inval_inode_out, fuse_notify_inval_entry_out.
_STALE_INODE = struct.Struct("=Qqq")  # inode, offset, length of the data to drop
_STALE_NAME = struct.Struct("=QII")  # directory, length of the name, flags; then the name and a NUL
_INVAL_INODE, _INVAL_ENTRY = 2, 3
_ATTRIBUTES_ONLY = -1  # an offset


def pack_notices(changes: Changes) -> bytes:
    """The notifications for `changes`, one after the other."""
    names = (
        _message(_INVAL_ENTRY, _STALE_NAME.pack(inode, len(name), 0) + name + b"\0")
        for inode, name in changes.stale_names
    )
    attributes = (
        _message(_INVAL_INODE, _STALE_INODE.pack(inode, _ATTRIBUTES_ONLY, 0)) for inode in changes.stale_attributes
    )
    return b"".join((*names, *attributes))


def send_notices(fd: int, notices: bytes) -> None:
    """Write each of `notices` to the connection `fd`; what the kernel does not know it need not forget.

    Raises:
        OSError: the connection is gone.
    """
    start = 0
    while start < len(notices):
        length, _, _ = OUT_HEADER.unpack_from(notices, start)
        try:
            os.write(fd, memoryview(notices)[start : start + length])
        except OSError as error:
            # ENOTDIR, ENOTEMPTY, EBUSY: a name in use; whoever uses it has what it had, and the next lookup asks.
            if error.errno in {errno.ENODEV, errno.EBADF, errno.ECONNABORTED}:
                raise
        start += length


def _message(code: int, body: bytes) -> bytes:
    return OUT_HEADER.pack(OUT_HEADER.size + len(body), code, 0) + body
