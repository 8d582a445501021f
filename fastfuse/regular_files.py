"""Opens regular files without waiting for what is none: a FIFO may have no writer, and a device may not answer."""

import errno
import os
import stat


def open_regular(path: str | bytes | os.PathLike[str], directory_fd: int | None = None) -> int:
    """Return a descriptor to read a regular file by; in a directory that is given, `path` is a name and may be no link.

    Raises:
        OSError: it cannot be opened, or is something else.
    """
    follow = 0 if directory_fd is None else os.O_NOFOLLOW
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | follow, dir_fd=directory_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no regular file")
    return fd
