"""The channel's directory and what lies below it, by descriptors, and the record on disk about a file.

A user who can write to the directory may put links there during a download; none is followed, so none leads out of it.
"""

import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fastfuse.errors import ConfigurationError, DiskError
from fastfuse.objects import ObjectRef
from fastfuse.sagemaker.files import LIBC, checked, is_full, open_directory, quoted

# An inode of 256 bytes has room for two digests of this size; more would cost each file another block.
_DIGEST_BYTES = 16


def version_of(ref: ObjectRef) -> bytes:
    """Return 16 bytes that are equal for equal versions of one object, and for nothing else."""
    fields = (ref.bucket, ref.key, ref.etag, str(ref.size_bytes), str(ref.modified_ns))
    # No key with a path contains NUL (clause N2).
    return hashlib.blake2b("\0".join(fields).encode(), digest_size=_DIGEST_BYTES).digest()


# The place of unfinished files, in the channel's directory so that a rename stays in one file system.
PRIVATE_NAME = b".fastfuse-download"

_BELOW = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_ATTRIBUTES = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM})
_STAMP, _SETTLED = "user.fastfuse", "user.fastfuse.settled"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Directory:
    """An open directory; it closes with its last reference at the latest."""

    __slots__ = ("fd", "path")

    def __init__(self, fd: int, path: bytes) -> None:
        """Wrap `fd`; `path` is for messages."""
        self.fd = fd
        self.path = path

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close

    def at(self, name: bytes) -> bytes:
        return os.path.join(self.path, name)

    def enter(self, name: bytes) -> "Directory":
        """Open the directory `name` in this one; raise `OSError` where there is none, or a link."""
        return Directory(os.open(name, _BELOW, dir_fd=self.fd), self.at(name))


def open_root(path: Path, base: Path) -> Directory:
    """Open the channel's directory, made if it is missing, and lock out other downloads until it is closed.

    No symbolic link below `base` is followed.

    Raises:
        ConfigurationError: another process downloads to it.
        DiskError: it cannot be had.
    """
    with disk_errors(os.fsencode(path)):
        root = Directory(open_directory(path, base), os.fsencode(path))
    try:
        fcntl.flock(root.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigurationError(f"another fastfuse downloads to {path}", hint="wait for it, or end it") from None
    except OSError:
        pass  # a file system without locks
    return root


def open_private(root: Directory, name: bytes) -> Directory:
    """Open the directory of unfinished files, to which only this user can write, and remove what a killed run left.

    Raises:
        DiskError: it cannot be had, or it is somebody else's.
    """
    with disk_errors(root.at(name)):
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=root.fd)
        private = root.enter(name)
        status = os.fstat(private.fd)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise DiskError(f"{quoted(private.path)} is not a directory of this user alone", hint="remove it")
        for left in os.listdir(private.fd):
            os.unlink(left, dir_fd=private.fd)
    return private


@contextmanager
def disk_errors(path: bytes) -> Iterator[None]:
    """Raise an `OSError` that concerns `path` as a `DiskError`."""
    try:
        yield
    except OSError as error:
        message, hint = f"{quoted(path)} could not be written: {error.strerror or error}", ""
        if is_full(error):
            message = f"the disk is full: {quoted(path)} could not be written ({error.strerror})"
            hint = "free some space; the next run goes on with what is there"
        elif error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST):
            message = f"{quoted(path)} cannot be made: something else is in its place ({error.strerror})"
            hint = "remove it"
        raise DiskError(message, hint=hint) from error


def boot_id() -> bytes:
    """Return 16 bytes that change with each boot of the host (of the host below, in a container)."""
    return bytes.fromhex(_BOOT_ID.read_text().strip().replace("-", ""))


def write_stamp(fd: int, version: bytes, boot: bytes) -> None:
    """Record in the file's inode what it is, where the file system has room for that."""
    try:
        os.setxattr(fd, _STAMP, version + boot)
    except OSError as error:
        if error.errno not in _NO_ATTRIBUTES:
            raise


def read_stamp(fd: int) -> tuple[bytes, bytes]:
    """Return the version of the object in the file, and the boot of the host that wrote it; empty where unknown."""
    try:
        stamp = os.getxattr(fd, _STAMP)
    except OSError:
        return b"", b""
    return stamp[:_DIGEST_BYTES], stamp[_DIGEST_BYTES:]


def settled_ns(root: Directory) -> int:
    """Return the time before which the disk has all that was written below `root`; 0 where nothing waited for it."""
    found_ns = 0
    with suppress(OSError, ValueError):
        found_ns = int(os.getxattr(root.fd, _SETTLED))
    # A clock that was set back since: later changes would pass for earlier ones.
    return found_ns if found_ns <= time.time_ns() else 0


def settle(root: Directory) -> None:
    """Wait until the disk has all that was written to the file system, and mark `root` with the time before.

    Raises:
        OSError: the disk could not be written.
    """
    before_ns = time.time_ns()
    checked(LIBC.syncfs(root.fd))
    with suppress(OSError):
        os.setxattr(root.fd, _SETTLED, str(before_ns).encode())
        os.fsync(root.fd)
