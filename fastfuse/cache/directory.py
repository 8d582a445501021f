"""The directory of a tier: whom it belongs to, and what a process opens before it gives up its rights.

Whoever can write into the directory decides which bytes readers get: digests are against accidents, not against
attackers. A directory that others own, or can write to, is therefore refused.
"""

import ctypes
import errno
import fcntl
import logging
import os
import sqlite3
import stat
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from fastfuse.cache.catalog import Index, connect, create
from fastfuse.cache.segments import give_to_owner
from fastfuse.cache.settings import CacheSettings
from fastfuse.cache.shared import add
from fastfuse.cgroup import memory_limit_bytes
from fastfuse.errors import ConfigurationError
from fastfuse.locks import lock
from fastfuse.sizes import format_size

_log = logging.getLogger(__name__)

_INDEX, _CLAIMS, _FILTER = "index.db", "claims", "filter"
_OURS = {_INDEX, f"{_INDEX}-wal", f"{_INDEX}-shm", f"{_INDEX}-journal", _CLAIMS, _FILTER}
# A byte of the filter for so many of the tier: 19 bits for each file of 39 KB. A power of two; the most is for 500 GiB.
_FILTERED_BYTES, _MIN_FILTER_BYTES, _MAX_FILTER_BYTES = 16 << 10, 4 << 10, 32 << 20
# Names of objects that are noted at a time.
_ADDED_AT_ONCE = 4096
# Another mount makes the files in less; a worker that waited for its lock any longer would be killed as hung.
_MADE_WITHIN_S, _OPENED_WITHIN_S = 10.0, 1.0
# <linux/magic.h>: TMPFS_MAGIC and RAMFS_MAGIC.
_IN_MEMORY = {0x01021994, 0x858458F6}
_MAX_LINKS = 40  # as the kernel (path_resolution(7))


@dataclass(frozen=True, slots=True)
class OpenCache:
    """The descriptors and connections that a process keeps open. The two connections are for two threads."""

    settings: CacheSettings
    directory_fd: int
    claims_fd: int
    filter_fd: int
    reading: sqlite3.Connection
    writing: sqlite3.Connection

    def is_there(self) -> bool:
        """Return whether the directory and its index are still those that were opened."""
        try:
            there = os.stat(_CLAIMS, dir_fd=self.directory_fd)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self.claims_fd))

    def touch(self) -> None:
        """Give every file but the segments the time of now, so that an idle tier below /tmp is not cleaned away."""
        for name in _OURS:
            with suppress(OSError):
                os.utime(name, dir_fd=self.directory_fd, follow_symlinks=False)

    def index_bytes(self) -> int:
        """Return the size of the index."""
        size_bytes = 0
        for name in _OURS:
            with suppress(FileNotFoundError):
                size_bytes += os.stat(name, dir_fd=self.directory_fd).st_size
        return size_bytes

    def close(self) -> None:
        """Close everything. The index may be in no other thread's use."""
        self.reading.close()
        self.writing.close()
        os.close(self.claims_fd)
        os.close(self.filter_fd)
        os.close(self.directory_fd)


def prepare(settings: CacheSettings | None, owner_uid: int) -> None:
    """Make the directory, and an empty index in it, for processes of the user `owner_uid`, if there are `settings`.

    An index that is damaged or of another version is cleared unless a process fills it. What else is wrong with it, or
    with the disk, is only logged.

    Raises:
        ConfigurationError: it is not a directory that this user's processes may trust and use.
    """
    if settings is None:
        return
    path = settings.directory
    try:
        with suppress(FileExistsError):
            path.mkdir(0o700)
        directory_fd = _open(path)
    except OSError as error:
        raise ConfigurationError(
            f"--cache {str(path)!r} cannot be used: {error.strerror}",
            hint="name a directory, or one to be made, and no link of another user",
        ) from error
    try:
        # The owner changes here alone: later, the owner may have chosen what lies at the path. A directory that another
        # user has made keeps the rights that its maker chose.
        if owner_uid != os.fstat(directory_fd).st_uid == os.geteuid() and not os.listdir(directory_fd):
            os.fchown(directory_fd, owner_uid, -1)
        _check(path, directory_fd, owner_uid)
        _check_memory(settings, directory_fd)
        _make_files(path, directory_fd, settings.size_bytes)
    except TimeoutError as error:
        _log.warning("the cache %s was not checked: %s", path, error)
    except (OSError, sqlite3.Error) as error:
        _log.warning("the cache %s cannot be used; reads come from S3: %s", path, error)
    finally:
        os.close(directory_fd)


def open_cache(settings: CacheSettings, owner_uid: int, *, fills: bool = True) -> OpenCache:
    """Open the directory that was prepared for `owner_uid`, as a process does before it gives up its rights.

    The first process alive that `fills` it decides on its size.

    Raises:
        ConfigurationError: another directory is there now, which this user's processes may not trust.
        OSError, sqlite3.Error: it cannot be used now.
    """
    with ExitStack() as opened:
        directory_fd = _open(settings.directory)
        opened.callback(os.close, directory_fd)
        _check(settings.directory, directory_fd, owner_uid)
        claims_fd = os.open(_CLAIMS, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory_fd)
        opened.callback(os.close, claims_fd)
        settings = _enter(settings, claims_fd, fills=fills)
        filter_fd = os.open(_FILTER, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory_fd)
        opened.callback(os.close, filter_fd)
        os.posix_fadvise(filter_fd, 0, 0, os.POSIX_FADV_WILLNEED)  # nobody who asks it waits for the disk
        reading = connect(_index_path(directory_fd))
        opened.callback(reading.close)
        writing = connect(_index_path(directory_fd))
        opened.pop_all()
        return OpenCache(settings, directory_fd, claims_fd, filter_fd, reading, writing)


def open_or_none(settings: CacheSettings | None, owner_uid: int) -> OpenCache | None:
    """Return the open cache; None if there is none, or, with a line in the log, if it cannot be used."""
    if settings is None:
        return None
    try:
        return open_cache(settings, owner_uid)
    except (ConfigurationError, OSError, sqlite3.Error) as error:
        _log.warning("the cache %s cannot be used; reads come from S3: %s", settings.directory, error)
        return None


def _open(path: Path) -> int:
    """Open the directory, through links only that are root's or this user's: others decide where theirs lead."""
    for _ in range(_MAX_LINKS):
        if not path.is_symlink():
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if (uid := path.lstat().st_uid) not in (0, os.geteuid()):
            raise PermissionError(errno.EPERM, f"the link {path} belongs to the user {uid}")
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _enter(settings: CacheSettings, claims_fd: int, *, fills: bool) -> CacheSettings:
    """Lock the directory if this process `fills` it; return the settings with the size that all processes keep to."""
    if fills:
        with suppress(OSError):  # others use it, or its disk is full
            fcntl.flock(claims_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(claims_fd, settings.size_bytes.to_bytes(8), 0)
    # Whoever clears a damaged index, or sets the size, takes it alone for a moment.
    lock(claims_fd, fcntl.LOCK_SH, _OPENED_WITHIN_S)
    size_bytes = int.from_bytes(os.pread(claims_fd, 8, 0)) or settings.size_bytes
    if not fills:
        fcntl.flock(claims_fd, fcntl.LOCK_UN)  # a mount that begins meanwhile decides on the size
    if fills and size_bytes != settings.size_bytes:
        sizes = format_size(size_bytes), format_size(settings.size_bytes)
        _log.warning("the cache %s is kept to %s, not %s: another process gave it that", settings.directory, *sizes)
    return replace(settings, size_bytes=size_bytes)


def _index_path(directory_fd: int) -> str:
    return f"/proc/self/fd/{directory_fd}/{_INDEX}"


def _check(path: Path, directory_fd: int, owner_uid: int) -> None:
    there, names = os.fstat(directory_fd), set(os.listdir(directory_fd))
    foreign = next((name for name in sorted(names - _OURS) if not name.endswith(".segment")), None)
    if foreign is not None:
        raise ConfigurationError(
            f"--cache {str(path)!r} holds {foreign!r}, which is not of a cache", hint="name an empty directory"
        )
    is_shared = there.st_mode & stat.S_ISGID and there.st_mode & stat.S_IWGRP
    # A worker of root's mount is nobody, and in none of root's groups.
    groups = (os.getegid(), *os.getgroups()) if owner_uid == os.geteuid() else ()
    if there.st_uid != owner_uid and not (is_shared and there.st_gid in groups):
        raise ConfigurationError(
            f"--cache {str(path)!r} belongs to the user {there.st_uid}, and is used here by {owner_uid}",
            hint="name a directory of its own for this user, or share one with a group (see docs/CACHE.md)",
        )
    if there.st_mode & stat.S_IWOTH or (there.st_mode & stat.S_IWGRP and not is_shared):
        raise ConfigurationError(
            f"--cache {str(path)!r} can be written to by others, who could put any bytes into it",
            hint="chmod 700, or 2770 to share it with its group",
        )


def _check_memory(settings: CacheSettings, directory_fd: int) -> None:
    """Refuse a file system in memory that would fill the control group, whose processes the kernel then kills."""
    limit_bytes = memory_limit_bytes()
    if limit_bytes is None or 2 * settings.size_bytes <= limit_bytes:
        return
    system = (ctypes.c_long * 32)()  # struct statfs begins with the type
    if not ctypes.CDLL(None).fstatfs(directory_fd, system) and system[0] in _IN_MEMORY:
        raise ConfigurationError(
            f"--cache {str(settings.directory)!r} is in memory (tmpfs), of which it may take "
            f"{format_size(settings.size_bytes)}, more than half of the cgroup's limit of {format_size(limit_bytes)}",
            hint="name a directory on a disk, or a smaller --cache-size",
        )


def _make_index(path: Path, directory_fd: int, filter_fd: int) -> None:
    for name in (_CLAIMS, _INDEX):
        os.close(_make(name, directory_fd))
    try:
        is_ours = create(_index_path(directory_fd))
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        _clear(path, directory_fd, filter_fd, error)
        is_ours = create(_index_path(directory_fd))
    if not is_ours:
        raise ConfigurationError(
            f"--cache {str(path)!r} holds an {_INDEX!r} that is not of a cache", hint="name an empty directory"
        )


def _make(name: str, directory_fd: int) -> int:
    """Make a file if it is not there, and return its descriptor."""
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory_fd)
    try:
        give_to_owner(fd, directory_fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _make_files(path: Path, directory_fd: int, limit_bytes: int) -> None:
    """Make the files that are not there. The filter has room at once, so that no disk that is full takes its bits."""
    fd = _make(_FILTER, directory_fd)
    try:
        # Another mount may be making the same files. Anybody could lock the directory.
        lock(fd, fcntl.LOCK_EX, _MADE_WITHIN_S)
        _make_index(path, directory_fd, fd)
        if not os.fstat(fd).st_size:
            _fill_filter(fd, directory_fd, limit_bytes)
    finally:
        os.close(fd)


def _fill_filter(fd: int, directory_fd: int, limit_bytes: int) -> None:
    wanted_bytes = min(max(limit_bytes // _FILTERED_BYTES, _MIN_FILTER_BYTES), _MAX_FILTER_BYTES)
    try:
        os.posix_fallocate(fd, 0, 1 << wanted_bytes.bit_length() - 1)
        with closing(connect(_index_path(directory_fd))) as connection:
            objects = Index(connection).objects()
            while some := list(islice(objects, _ADDED_AT_ONCE)):
                add(fd, some)
    except BaseException:
        os.ftruncate(fd, 0)  # the next mount begins anew
        raise


def _clear(path: Path, directory_fd: int, filter_fd: int, why: sqlite3.Error) -> None:
    """Begin the index and the filter anew; raise `why` if a process fills the directory."""
    fd = os.open(_CLAIMS, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory_fd)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise why from None
        _log.warning("the index of the cache %s cannot be used (%s); the cache begins anew", path, why)
        for name in sorted(_OURS - {_CLAIMS, _FILTER}):  # the index first
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory_fd)
        os.close(os.open(_INDEX, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory_fd))
        os.ftruncate(filter_fd, 0)
    finally:
        os.close(fd)
