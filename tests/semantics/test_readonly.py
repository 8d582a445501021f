"""Clause R1: every change is refused, by the kernel where it can and by the mount where the kernel would allow it."""

import ctypes
import errno
import fcntl
import mmap
import os
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastfuse.filesystem.talking.control import ask_status, entry_of
from tests.semantics.places import Place, errno_of, opened, place

_MS_REMOUNT = 32  # <sys/mount.h>


def _fallocate(root: Path) -> None:
    descriptor = os.open(root / "file", os.O_WRONLY)  # a descriptor for reading would give EBADF
    os.posix_fallocate(descriptor, 0, 10)


def _bind_socket(root: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))


CHANGES: dict[str, Callable[[Path], object]] = {
    "create": lambda root: os.open(root / "new", os.O_CREAT | os.O_WRONLY),
    "create a temporary file": lambda root: os.open(root, os.O_TMPFILE | os.O_RDWR),
    "open for writing": lambda root: os.open(root / "file", os.O_WRONLY),
    "open to truncate": lambda root: os.open(root / "file", os.O_RDONLY | os.O_TRUNC),
    "truncate": lambda root: os.truncate(root / "file", 1),
    "unlink": lambda root: os.unlink(root / "file"),
    "rename": lambda root: os.rename(root / "file", root / "new"),
    "mkdir": lambda root: os.mkdir(root / "new"),
    "rmdir": lambda root: os.rmdir(root / "folder"),
    "link": lambda root: os.link(root / "file", root / "new"),
    "symlink": lambda root: os.symlink("file", root / "new"),
    "chmod": lambda root: os.chmod(root / "file", 0o777),
    "chown": lambda root: os.chown(root / "file", 1, 1),
    "utime": lambda root: os.utime(root / "file", (1, 1)),
    "setxattr": lambda root: os.setxattr(root / "file", "user.s3.key", b"x"),
    "removexattr": lambda root: os.removexattr(root / "file", "user.s3.key"),
    "mkfifo": lambda root: os.mkfifo(root / "new"),
    "mknod of a device": lambda root: os.mknod(root / "new", stat.S_IFCHR | 0o600, os.makedev(1, 3)),
    "bind a socket": _bind_socket,
    "fallocate": _fallocate,
}
# An existing name or a full directory is no better reason for the kernel than a read-only file system is.
DATA = {"file": b"data", "other": b"other", "folder/inner": b"inner"}


@pytest.fixture(scope="module")
def here() -> Iterator[Place]:
    with place(DATA) as place_:
        yield place_
        assert {path.name: path.read_bytes() for path in place_.path.rglob("*") if path.is_file()} == {
            key.rpartition("/")[2]: data for key, data in DATA.items()
        }


@pytest.fixture(scope="module")
def writable() -> Iterator[Place]:
    """A mount that the kernel takes for writable, so that it asks us."""
    with place(DATA) as place_:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mount(None, os.fsencode(place_.path), None, _MS_REMOUNT, None) == 0, os.strerror(ctypes.get_errno())
        yield place_


# Where the mount is writable, the kernel opens by itself, and answers O_TMPFILE with EOPNOTSUPP: we have no handler.
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        *(("here", change) for change in CHANGES),
        *(("writable", change) for change in CHANGES if change not in ("open for writing", "create a temporary file")),
    ],
)
def test_a_change_is_refused_by_the_kernel_or_where_it_is_let_through(
    kind: str, change: str, here: Place, writable: Place
) -> None:
    """R1"""
    assert errno_of(CHANGES[change], (here if kind == "here" else writable).path) == errno.EROFS


def test_the_kernel_opens_for_writing_by_itself_and_the_first_change_is_refused(writable: Place) -> None:
    """R1"""
    with opened(writable.path / "file", os.O_RDWR) as descriptor:
        assert errno_of(os.write, descriptor, b"x") == errno_of(os.ftruncate, descriptor, 1) == errno.EROFS
    assert (writable.path / "file").stat().st_size == 4


def test_a_shared_writable_map_changes_the_page_cache_until_it_is_dropped(writable: Place) -> None:
    """R1"""
    path = writable.path / "file"
    assert path.read_bytes() == DATA["file"]  # or a fault of the map would wait for our server, with the GIL
    with opened(path, os.O_RDWR) as descriptor, mmap.mmap(descriptor, 0) as shared, opened(path) as reader:
        shared[:1] = b"x"
        assert os.pread(reader, 4, 0) == b"xata"
        assert errno_of(shared.flush) == errno.EROFS
    with opened(path) as reader:
        os.posix_fadvise(reader, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(reader, 4, 0) == DATA["file"]


def test_what_is_refused_is_counted_and_not_logged(writable: Place) -> None:
    """R1"""

    def counted() -> int:
        found: int = ask_status(entry_of(writable.path))["counters"]['fastfuse_errors{errno="EROFS"}']
        return found

    before, log = counted(), writable.mount.log
    assert errno_of(os.mkdir, writable.path / "new") == errno.EROFS
    assert (counted(), writable.mount.log) == (before + 1, log)


def test_access_tells_that_nothing_can_be_written(here: Place) -> None:
    """R1"""
    assert os.access(here.path / "file", os.R_OK)
    assert not os.access(here.path / "file", os.W_OK)
    assert not os.access(here.path, os.W_OK)
    assert os.access(here.path, os.X_OK)


def test_locks_copies_and_followers_see_a_read_only_disk(here: Place, tmp_path: Path) -> None:
    """R1"""
    path = here.path / "file"
    with path.open("rb") as first, path.open("rb") as second, (tmp_path / "copy").open("wb") as copy:
        fcntl.flock(first, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # `cp` and `shutil` then copy in another way.
        with pytest.raises(OSError, match="cross-device"):
            os.copy_file_range(first.fileno(), copy.fileno(), 10)
        os.fsync(first.fileno())
    with subprocess.Popen(["tail", "-c", "+1", "-f", path], stdout=subprocess.PIPE) as tail:
        assert tail.stdout is not None
        assert tail.stdout.read(path.stat().st_size) == path.read_bytes()
        assert tail.poll() is None
        tail.kill()
