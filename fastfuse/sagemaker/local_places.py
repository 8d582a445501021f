"""Shows directories of this host, or files of one, at the places of channels, without a copy.

A directory is bind-mounted with everything that is mounted below it: read-only, without devices and set-uid programs,
and in one step, so that nobody sees it writable. That takes CAP_SYS_ADMIN and Linux 5.12. Otherwise a symbolic link is
put there. A host's share of a directory, and what a manifest names, is a directory of links. A link that is made here
begins with ``/./``, by which `take_away` knows it. A mount is known by what it shows.
"""

import ctypes
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fastfuse.errors import MountError
from fastfuse.filesystem.mounting.mountpoint import find_mount, unmount_as_root
from fastfuse.filesystem.processes.children import STOPPING
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.origin import IndexOrigin, SourceKind
from fastfuse.sagemaker.description.channel import Channel, LocalDirectory
from fastfuse.sagemaker.download.disk import disk_errors
from fastfuse.sagemaker.files import LIBC, checked, directory_at, write_file
from fastfuse.sagemaker.local_files import find_directory, find_files
from fastfuse.sagemaker.outputs.record import listing_of

_log = logging.getLogger(__name__)

_MARK = "/."

# Linux has one number for each of these on every architecture but alpha.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
# <linux/mount.h>, <fcntl.h>, <sys/mount.h>
_OPEN_TREE_CLONE = 1
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_MOVE_MOUNT_F_EMPTY_PATH, _MOVE_MOUNT_T_EMPTY_PATH = 0x04, 0x40
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV = 1, 2, 4
_MS_PRIVATE = 1 << 18


class _MountAttributes(ctypes.Structure):
    """struct mount_attr."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns_fd"))


def _put_in_place(directory: Path, place: Path, base: Path, *, is_writable: bool) -> str:
    """Mount `directory` at `place` below `base`, or link to it; return why it is not mounted, or nothing if it is."""
    with _empty_directory(place, base) as place_fd:
        try:
            _bind(directory, place_fd, is_writable=is_writable)
        except OSError as error:
            reason = error.strerror or ""
        else:
            return ""
    with disk_errors(os.fsencode(place)), directory_at(place.parent, base) as parent_fd:
        os.rmdir(place.name, dir_fd=parent_fd)
        os.symlink(f"{_MARK}{directory}", place.name, dir_fd=parent_fd)
    return reason


def _put_links(table: InodeTable, directory: Path, place: Path, base: Path) -> None:
    """Make a link at `place` to each file of `table`, which lists `directory`."""
    with _empty_directory(place, base) as fd:
        for row in range(1, len(table)):  # directories come before what is in them
            inode = table.inode(row)
            path = table.path(inode)
            if path.endswith("/"):
                os.mkdir(path, dir_fd=fd)
            elif table.is_made(inode):
                # Outside of the channel: a link is known as ours, and a file would not be.
                manifests = base / "input" / "manifests"
                with directory_at(manifests, base) as manifests_fd:
                    write_file(manifests_fd, place.name, [table.made(inode)])
                os.symlink(f"{_MARK}{manifests / place.name}", path, dir_fd=fd)
            else:
                os.symlink(f"{_MARK}{directory}/{path}", path, dir_fd=fd)


def take_away(place: Path, channel: Channel) -> None:
    """Remove what an earlier run or a dead process put at `place`; nothing else is touched.

    Raises:
        FastfuseError, OSError: it cannot be removed, or whose it is cannot be told.
    """
    mount, source, is_whole = find_mount(place), channel.source, channel.source_kind is SourceKind.PREFIX
    if mount is None and _is_ours(str(place)):
        place.unlink()
    elif not isinstance(source, LocalDirectory):
        return
    elif mount is None:
        _remove_links(place)
    elif is_whole and find_directory(source, place, allow_empty=True).path.samefile(place):
        unmount_as_root(mount, lazy=True)


def _remove_links(place: Path) -> None:
    """Remove the links below `place` that were made here, and each directory that is empty then and held one."""
    if not place.is_dir():
        return
    emptied: set[str] = set()
    for folder, folders, names, fd in os.fwalk(place, topdown=False):
        for name in folders:
            if f"{folder}/{name}" in emptied:
                with suppress(OSError):  # something else is in it
                    os.rmdir(name, dir_fd=fd)
                    emptied.add(folder)
        for name in names:
            if _is_ours(name, fd):
                os.unlink(name, dir_fd=fd)
                emptied.add(folder)


def _is_ours(name: str, directory_fd: int | None = None) -> bool:
    try:
        return os.readlink(name, dir_fd=directory_fd).startswith(f"{_MARK}/")
    except OSError:  # it is no link
        return False


@contextmanager
def _empty_directory(place: Path, base: Path) -> Iterator[int]:
    """Open the directory `place`, which is made if it is missing; an `OSError` there is a `DiskError`."""
    with disk_errors(os.fsencode(place)), directory_at(place, base) as fd:
        if os.listdir(fd):
            raise MountError(
                f"the directory {place}, where the channel is to be put, is not empty",
                hint="remove what is there, or give another --base-dir",
            )
        yield fd


def _bind(directory: Path, place_fd: int, *, is_writable: bool) -> None:
    """Mount a private copy of the tree of mounts at `directory` (mount_setattr(2)); raise `OSError` if that fails."""
    tree_fd = _syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(directory), _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE)
    try:
        read_only = 0 if is_writable else _MOUNT_ATTR_RDONLY
        # Private: what is unmounted here is not unmounted there.
        attributes = _MountAttributes(set=read_only | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV, propagation=_MS_PRIVATE)
        size_bytes = ctypes.sizeof(attributes)
        _syscall(_MOUNT_SETATTR, tree_fd, b"", _AT_EMPTY_PATH | _AT_RECURSIVE, ctypes.byref(attributes), size_bytes)
        _syscall(_MOVE_MOUNT, tree_fd, b"", place_fd, b"", _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH)
    finally:
        os.close(tree_fd)


def _syscall(*arguments: object) -> int:
    return checked(LIBC.syscall(*arguments))


def keep_in_place(channel: Channel, place: Path, base: Path, origin: IndexOrigin, tell: Callable[..., None]) -> None:
    """Put the channel's directory, or this host's share of it, at `place`, and keep it there until told to stop.

    `tell` takes ``ready``, and the ``listing`` of a share. A whole directory is not listed: to look at each file of a
    file system may take hours.

    Raises:
        FastfuseError: the directory cannot be used, or cannot be put there.
    """
    source = channel.source
    assert isinstance(source, LocalDirectory)
    if origin.shard is None and origin.kind is SourceKind.PREFIX:
        found = find_directory(source, place, allow_empty=origin.allow_empty)
        refusal = _put_in_place(found.path, place, base, is_writable=source.is_writable)
        what = str(found.path)
    else:
        found, table = find_files(source, place, origin)
        _put_links(table, found.path, place, base)
        tell(listing=listing_of(table))
        refusal, what = "file by file", f"{table.metadata.file_count:,} files of {found.path}"
    if refusal:
        access = f"linked ({refusal}; file permissions alone decide who may write)"
    else:
        access = "mounted writable" if source.is_writable else "mounted read-only"
    if channel.shuffle_seed is not None:
        _log.warning("channel %s: ShuffleConfig has an effect in Pipe mode only; shuffle in the script", channel.name)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    tell(ready=f"{what} {access} at {place}")
    signal.sigwait(STOPPING)
    if refusal:
        take_away(place, channel)
    elif (mount := find_mount(place)) is not None:
        unmount_as_root(mount, lazy=True)
