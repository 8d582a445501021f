"""Channels that are directories of this host: on its own disk, or of a file system that is mounted (EFS, FSx, NFS).

`find_directory` refuses a directory that is missing, empty, not mounted, or elsewhere than it seems. For Pipe mode and
for shards its files are listed as the objects of a prefix: the table's bucket is the directory, and its keys are the
paths below it. `FileReader` reads them in the place of an S3 client.

In other modes the directory is bind-mounted at the channel's place with everything that is mounted below it: read-only,
without devices and set-uid programs, and in one step, so that nobody sees it writable. That takes CAP_SYS_ADMIN and
Linux 5.12. Otherwise a symbolic link is put there. A host's share of a directory is a directory of links. A link that
is made here begins with ``/./``, by which `take_away` knows it. A mount is known by what it shows.
"""

import ctypes
import logging
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import trio

from fastfuse.errors import (
    ConfigurationError,
    DiskError,
    EmptySourceError,
    MountError,
    ObjectChangedError,
    ObjectDeniedError,
    SourceError,
    UnavailableError,
)
from fastfuse.filesystem.mountpoint import find_mount, mount_holding
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.inodes.selection import take_part
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.inodes.tree import Refusals
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.snapshot import Snapshot, save_snapshot
from fastfuse.index.sources.shard import Shard
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.s3.buffers import PartBuffers
from fastfuse.sagemaker.description.channel import Channel, LocalDirectory
from fastfuse.sagemaker.files import directory_at, libc_error, open_directory

__all__ = ["FileReader", "Found", "find_directory", "index_files", "keep_in_place", "list_files", "take_away"]


class Found(NamedTuple):
    """The directory of a channel, and the one that nothing in it may lead out of; neither path has a link in it."""

    path: Path
    root: Path


def find_directory(source: LocalDirectory, place: Path, *, allow_empty: bool) -> Found:
    """Return where the directory is that a channel will show at `place`.

    Raises:
        ConfigurationError: `place` lies in the directory.
        SourceError: the directory cannot be used; the error says why, and what to do.
    """
    try:
        root = Path(os.path.realpath(source.mounted_at or source.path, strict=True))
        path = _below(root, source) if source.file_system else root
        with os.scandir(path) as entries:
            is_empty = not any(entries)
    except OSError as error:
        shown = f"{source.path!r} of {source.file_system}" if source.file_system else repr(source.path)
        raise SourceError(
            f"the directory {shown} cannot be used: {error.filename!r}: {error.strerror}",
            hint="is its file system mounted? Mount it, or name another directory",
        ) from error
    if is_empty and not allow_empty:
        raise EmptySourceError(
            f"the directory {str(path)!r} is empty",
            hint="is its file system mounted? With --allow-empty it is taken as it is",
        )
    if Path(os.path.realpath(place.parent), place.name).is_relative_to(path):
        raise ConfigurationError(
            f"the directory {str(path)!r} holds {str(place)!r}, where the channel belongs",
            hint="leave the channel out if its data are there already, or give another --base-dir",
        )
    return Found(path, root)


def _below(root: Path, source: LocalDirectory) -> Path:
    """Return the directory of a file system that is mounted at `root`."""
    mount = mount_holding(root)
    if mount.path == Path("/"):
        raise SourceError(
            f"nothing is mounted at {str(root)!r}, where --file-system says that {source.file_system} is",
            hint="mount the file system there, or name the place where it is mounted",
        )
    # An NFS or Lustre mount of HOST:/FOLDER shows that folder, and DirectoryPath begins at the file system's root: on
    # FSx for Lustre with the mount name.
    _, _, folder = mount.source.rpartition(":/")
    path = PurePosixPath(source.path)
    is_shown = mount.path == root and path.is_relative_to(f"/{folder}")
    place = root / path.relative_to(f"/{folder}" if is_shown else "/")
    found = Path(os.path.realpath(place, strict=True))
    if not found.is_relative_to(root):
        raise SourceError(
            f"the directory {str(place)!r} is a link to {str(found)!r}, outside of the file system",
            hint=f"give {found} as a channel of its own, or a directory without such a link",
        )
    return found


# Key, size in bytes and time of the last change in nanoseconds.
_File = tuple[bytes, int, int]


def list_files(found: Found, shard: Shard | None, *, allow_empty: bool) -> InodeTable:
    """Return a table of the files of the directory, or of a host's share of them.

    Raises:
        SourceError: the directory cannot be read, has no file, or has one that cannot be taken.
    """
    builder = TableBuilder(str(found.path), "")
    waiting = [b""]
    try:
        while waiting:
            files = list(_look_into(found, waiting.pop(), waiting))
            keys, sizes, mtimes = zip(*files, strict=True) if files else ((), (), ())
            builder.add(keys, sizes, mtimes, [""] * len(files), ["STANDARD"] * len(files))
    except OSError as error:
        raise SourceError(f"{_shown(error.filename)} cannot be read: {error.strerror}") from error
    table, refusals = builder.build()
    if refusals.total:
        name, reason = refusals.examples[0]
        raise SourceError(f"{_shown(name)} in {found.path} cannot be taken: {reason}", hint="rename the file")
    if not table.metadata.file_count and not allow_empty:
        raise EmptySourceError(f"no file is below {found.path}", hint="--allow-empty takes it as it is")
    return table if shard is None else take_part(table, shard.positions)


def index_files(source: LocalDirectory, place: Path, shard: Shard | None, *, allow_empty: bool) -> tuple[int, int]:
    """Return a descriptor of an index of the directory that a channel streams at `place`, and the number of files.

    Raises:
        FastfuseError: as `find_directory` and `list_files`.
    """
    table = list_files(find_directory(source, place, allow_empty=allow_empty), shard, allow_empty=allow_empty)
    fd = os.memfd_create("fastfuse-files", os.MFD_CLOEXEC)
    save_snapshot(Snapshot(source=str(source), listed_at_ns=time.time_ns(), table=table, refusals=Refusals()), fd)
    return fd, table.metadata.file_count


def _look_into(found: Found, folder: bytes, waiting: list[bytes]) -> Iterator[_File]:
    """Yield the files of a folder, and add its subdirectories to `waiting`; both are paths below the directory."""
    with os.scandir(os.path.join(os.fsencode(found.path), folder)) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                waiting.append(folder + entry.name + b"/")
                continue
            if entry.is_symlink():
                _check_link(found, entry.path)
            status = entry.stat()
            if not stat.S_ISREG(status.st_mode):
                raise SourceError(
                    f"{_shown(entry.path)} is neither a file nor a directory, nor a link to a file",
                    hint="remove it, or read the directory unsharded in File or FastFile mode, which shows it as it is",
                )
            yield folder + entry.name, status.st_size, status.st_mtime_ns


def _check_link(found: Found, path: bytes) -> None:
    target = Path(os.fsdecode(os.path.realpath(path)))
    if not target.is_relative_to(found.root):
        raise SourceError(
            f"{_shown(path)} is a link to {str(target)!r}, outside of {str(found.root)!r}",
            hint="put the file there in the place of the link, or read the directory unsharded in FastFile mode",
        )


def _shown(path: bytes | str) -> str:
    return repr(os.fsdecode(path))


class FileReader:
    """A `RangeReader` of files: the bucket of a ref is a directory, and its key a path below."""

    def __init__(self, buffers: PartBuffers) -> None:
        self._buffers = buffers

    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        """Return the bytes as `RangeReader.get` does; a file system that does not answer is waited for."""
        buffer = self._buffers.take(end - start)
        await trio.to_thread.run_sync(_fill, buffer, ref, start, abandon_on_cancel=True)
        return buffer

    async def aclose(self) -> None:
        """Close nothing: no file is open between two reads."""


def _fill(buffer: memoryview, ref: ObjectRef, start: int) -> None:
    try:
        fd = os.open(f"{ref.bucket}/{ref.key}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            done = 0
            if (status.st_size, status.st_mtime_ns) == (ref.size_bytes, ref.modified_ns):
                while done < len(buffer) and (count := os.preadv(fd, [buffer[done:]], start + done)):
                    done += count
        finally:
            os.close(fd)
    except FileNotFoundError as error:
        raise ObjectChangedError(f"{ref.uri!r} was removed since the job began") from error
    except OSError as error:
        kind = ObjectDeniedError if isinstance(error, PermissionError) else UnavailableError
        raise kind(f"{ref.uri!r} cannot be read: {error.strerror}") from error
    if done < len(buffer):
        raise ObjectChangedError(f"{ref.uri!r} has changed since the job began")


_log = logging.getLogger(__name__)

_STOPPING = {signal.SIGTERM, signal.SIGINT}
_MARK = "/."

# Linux has one number for each of these on every architecture but alpha.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
# <linux/mount.h>, <fcntl.h>, <sys/mount.h>
_OPEN_TREE_CLONE = 1
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_MOVE_MOUNT_F_EMPTY_PATH, _MOVE_MOUNT_T_EMPTY_PATH = 0x04, 0x40
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV = 1, 2, 4
_MS_PRIVATE = 1 << 18
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_LIBC = ctypes.CDLL(None, use_errno=True)


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
    with _link_errors(place), directory_at(place.parent, base) as parent_fd:
        os.rmdir(place.name, dir_fd=parent_fd)
        os.symlink(f"{_MARK}{directory}", place.name, dir_fd=parent_fd)
    return reason


def _put_links(table: InodeTable, directory: Path, place: Path, base: Path) -> None:
    """Make a link at `place` to each file of `table`, which lists `directory`."""
    with _empty_directory(place, base) as fd, _link_errors(place):
        for row in range(1, len(table)):  # directories come before what is in them
            path = table.path(table.inode(row))
            if path.endswith("/"):
                os.mkdir(path, dir_fd=fd)
            else:
                os.symlink(f"{_MARK}{directory}/{path}", path, dir_fd=fd)


def take_away(place: Path, channel: Channel) -> None:
    """Remove what an earlier run or a dead process put at `place`; nothing else is touched.

    Raises:
        FastfuseError, OSError: it cannot be removed, or whose it is cannot be told.
    """
    mount, source = find_mount(place), channel.source
    if mount is None and _is_ours(str(place)):
        place.unlink()
    elif not isinstance(source, LocalDirectory):
        return
    elif mount is None:
        _remove_links(place)
    elif not mount.is_ours and find_directory(source, place, allow_empty=True).path.samefile(place):
        _unmount(place)


def _unmount(place: Path) -> None:
    """Unmount what was put at `place`, with what is mounted below it; open files stay usable."""
    if _LIBC.umount2(os.fsencode(place), _MNT_DETACH | _UMOUNT_NOFOLLOW):
        reason = libc_error().strerror
        raise MountError(f"{place} cannot be unmounted: {reason}", hint=f"umount --lazy {place}, as root on the host")


def _remove_links(place: Path) -> None:
    """Remove the links below `place` that were made here, and each directory that was made for them."""
    if not place.is_dir():
        return
    for folder, _, names, fd in os.fwalk(place, topdown=False):
        links = [name for name in names if _is_ours(name, fd)]
        for name in links:
            os.unlink(name, dir_fd=fd)
        if links:
            with suppress(OSError):  # something else is in it
                for emptied in (Path(folder), *Path(folder).parents):
                    if emptied == place:
                        break
                    emptied.rmdir()


def _is_ours(name: str, directory_fd: int | None = None) -> bool:
    try:
        return os.readlink(name, dir_fd=directory_fd).startswith(f"{_MARK}/")
    except OSError:  # it is no link
        return False


@contextmanager
def _link_errors(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DiskError(
            f"a link cannot be made at {place}: {error.strerror}", hint="free some space or inodes there"
        ) from error


@contextmanager
def _empty_directory(place: Path, base: Path) -> Iterator[int]:
    """Open the directory `place`, which is made if it is missing."""
    try:
        fd = open_directory(place, base)
    except OSError as error:
        raise MountError(
            f"the channel cannot be put at {place}: {error.strerror}", hint="remove what is there"
        ) from error
    try:
        if os.listdir(fd):
            raise MountError(
                f"the directory {place}, where the channel is to be put, is not empty",
                hint="remove what is there, or give another --base-dir",
            )
        yield fd
    finally:
        os.close(fd)


def _bind(directory: Path, place_fd: int, *, is_writable: bool) -> None:
    """Mount a private copy of the tree of mounts at `directory` (mount_setattr(2)); raise `OSError` if that fails."""
    tree_fd = _call(_OPEN_TREE, _AT_FDCWD, os.fsencode(directory), _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE)
    try:
        read_only = 0 if is_writable else _MOUNT_ATTR_RDONLY
        # Private: what is unmounted here is not unmounted there.
        attributes = _MountAttributes(set=read_only | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV, propagation=_MS_PRIVATE)
        size_bytes = ctypes.sizeof(attributes)
        _call(_MOUNT_SETATTR, tree_fd, b"", _AT_EMPTY_PATH | _AT_RECURSIVE, ctypes.byref(attributes), size_bytes)
        _call(_MOVE_MOUNT, tree_fd, b"", place_fd, b"", _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH)
    finally:
        os.close(tree_fd)


def _call(*arguments: object) -> int:
    result: int = _LIBC.syscall(*arguments)
    if result < 0:
        raise libc_error()
    return result


def keep_in_place(channel: Channel, place: Path, base: Path, origin: IndexOrigin, ready: Callable[[str], None]) -> None:
    """Put the channel's directory, or this host's share of it, at `place`, and keep it there until told to stop.

    Raises:
        FastfuseError: the directory cannot be used, or cannot be put there.
    """
    source = channel.source
    assert isinstance(source, LocalDirectory)
    found = find_directory(source, place, allow_empty=origin.allow_empty)
    if origin.shard is None:
        refusal = _put_in_place(found.path, place, base, is_writable=source.is_writable)
        what = str(found.path)
    else:
        table = list_files(found, origin.shard, allow_empty=origin.allow_empty)
        _put_links(table, found.path, place, base)
        refusal, what = "file by file", f"{table.metadata.file_count:,} files of {found.path}"
    if refusal:
        access = f"linked ({refusal}; file permissions alone decide who may write)"
    else:
        access = "mounted writable" if source.is_writable else "mounted read-only"
    if channel.shuffle_seed is not None:
        _log.warning("channel %s: ShuffleConfig has an effect in Pipe mode only; shuffle in the script", channel.name)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # asks mounts to list again
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    ready(f"{what} {access} at {place}")
    signal.sigwait(_STOPPING)
    if refusal:
        take_away(place, channel)
    else:
        _unmount(place)
