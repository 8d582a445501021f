"""The files below a channel's directory: those that are there before a byte is fetched, and how each gets its place.

A survey finds the files that are there already, and checks that the rest fits on the disk. A file is written in a
private directory, and renamed once it is whole. The functions are for threads. Nothing waits for the disk here;
`fastfuse.sagemaker.download` tells why that is safe.
"""

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from fastfuse.errors import ConfigurationError, DiskError
from fastfuse.index.inodes.columns import Kind, exact_sum
from fastfuse.index.inodes.table import ROOT, InodeTable
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.regular_files import open_regular
from fastfuse.s3.checksums import md5_of_etag
from fastfuse.s3.whole import write_all
from fastfuse.sagemaker.download import disk
from fastfuse.sagemaker.download.disk import Directory, disk_errors
from fastfuse.sagemaker.files import quoted
from fastfuse.sizes import format_size


class Job(NamedTuple):
    """One file to fetch, and where it goes."""

    directory: Directory
    name: bytes
    ref: ObjectRef

    @property
    def path(self) -> bytes:
        return self.directory.at(self.name)


class Places:
    """The places of a table's rows below a directory."""

    def __init__(self, table: InodeTable, root: Directory) -> None:
        self.table = table
        self.root = root
        self.parents = table.columns["parents"].data

    def open(self, row: int) -> Directory:
        """Open the directory at `row`; raise `OSError` where there is none, or a link."""
        directory = self.root
        for name in self._names(row):
            directory = directory.enter(name)
        return directory

    def path(self, row: int) -> bytes:
        return self.root.at(b"/".join(self._names(row)))

    def name(self, row: int) -> bytes:
        """Return the last segment of the path, checked to lead nowhere but down (clause N2)."""
        name = self.table.name_at(row)
        if name in (b"", b".", b"..") or b"/" in name or b"\0" in name:
            raise ConfigurationError(f"the index is damaged: {name!r} is no name of a file")
        return name

    def _names(self, row: int) -> list[bytes]:
        names = []
        while row:
            names.append(self.name(row))
            row = self.parents[row]
        return names[::-1]


def jobs(places: Places, is_there: bytearray) -> Iterator[Job]:
    """Yield every file whose row is not in `is_there`, and make missing directories on the way.

    Rows keep the files of a directory together, and after the directory itself.
    """
    table = places.table
    directory, directory_row = places.root, 0
    for row in range(1, len(table)):
        if is_there[row]:
            continue
        parent = places.parents[row]
        if parent != directory_row:
            with disk_errors(places.path(parent)):
                directory, directory_row = places.open(parent), parent
        name = places.name(row)
        found = table.file_at(row)
        if found is None:
            with disk_errors(directory.at(name)):
                os.mkdir(name, dir_fd=directory.fd)
        else:
            inode, _ = found
            yield Job(directory, name, table.ref(inode))


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# A user's own files, less what the umask takes: SageMaker's can be written to as well.
_MODE = 0o666


class Landing:
    """A file that is written in the private directory, and put in place once it is whole. Safe from any thread."""

    def __init__(self, job: Job, private: Directory, boot: bytes) -> None:
        """Begin the file; every method raises `DiskError` where the disk does not take it."""
        self._job = job
        self._private = private
        self._boot = boot
        self._version = disk.version_of(job.ref)
        self._name = self._version.hex().encode()
        with disk_errors(job.path):
            self._fd = os.open(self._name, _NEW, _MODE, dir_fd=private.fd)

    def write(self, data: Buffer, start: int = 0) -> None:
        with disk_errors(self._job.path):
            write_all(self._fd, data, start)

    def land(self, data: Buffer) -> None:
        """Write a whole file, and put it in place."""
        try:
            self.write(data)
            self.finish()
        finally:
            self.close()

    def finish(self) -> None:
        """Put the file in place, all of which is written."""
        job = self._job
        with disk_errors(job.path):
            try:
                disk.write_stamp(self._fd, self._version, self._boot)
                os.utime(self._fd, ns=(job.ref.modified_ns, job.ref.modified_ns))
            finally:
                self.close()
            # Replaces a link instead of following it, and fails where a directory is in the way.
            os.rename(self._name, job.name, src_dir_fd=self._private.fd, dst_dir_fd=job.directory.fd)

    def close(self) -> None:
        """Close the file. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)  # NFS tells here that the disk is full


def private_name(places: Places) -> bytes:
    """Return a name for the private directory that no key of the channel has."""
    name = disk.PRIVATE_NAME
    while places.table.lookup(ROOT, name) is not None:
        name += b"-"
    return name


class Survey:
    """The files that are there: each one below the root is looked at, and removed if it is not current."""

    def __init__(self, places: Places, private: bytes) -> None:
        """Look everywhere but in the directory `private`.

        Raises:
            DiskError: a file is where a directory must be, or the other way round; or the disk cannot be read.
        """
        table = places.table
        # A 1 for each directory that exists and each file that is whole and current.
        self.is_there = bytearray(len(table))
        self.kept_files = self.kept_bytes = self.unknown_files = 0
        self._table = table
        # Files that this boot wrote, and those unchanged since `_settled_ns`, hold what was written to them.
        self._boot, self._settled_ns = disk.boot_id(), disk.settled_ns(places.root)
        self.is_there[0] = 1
        for row in np.flatnonzero(table.columns["kinds"] == Kind.DIRECTORY).tolist():
            if not self.is_there[row]:
                continue
            with disk_errors(places.path(row)):
                directory = places.open(row)
                with os.scandir(directory.fd) as entries:
                    for entry in entries:
                        if row or os.fsencode(entry.name) != private:
                            self._look(directory, row, entry)

    def _look(self, directory: Directory, row: int, entry: "os.DirEntry[str]") -> None:
        table, name = self._table, os.fsencode(entry.name)
        inode = table.lookup(table.inode(row), name)
        is_directory = entry.is_dir(follow_symlinks=False)
        if inode is None:
            self.unknown_files += not is_directory
            return
        with disk_errors(directory.at(name)):
            if table.is_directory(inode) != is_directory:
                number = errno.EISDIR if is_directory else errno.ENOTDIR
                raise OSError(number, os.strerror(number))
            if is_directory:
                self.is_there[table.row(inode)] = 1
            elif self._recognise(directory, name, table.ref(inode)):
                self.is_there[table.row(inode)] = 1
                self.kept_files += 1
                self.kept_bytes += table.attributes(inode).size_bytes
            else:
                os.unlink(name, dir_fd=directory.fd)

    def _recognise(self, directory: Directory, name: bytes, ref: ObjectRef) -> bool:
        """Return whether the file is the listed version, unchanged since it was put there.

        One that only its bytes prove is stamped, so that the next run need not read it.
        """
        if not ref.bucket:
            return False  # made of the index, at the price of a copy
        try:
            fd = open_regular(name, directory.fd)
        except OSError:
            return False
        try:
            status = os.fstat(fd)
            if (status.st_size, status.st_mtime_ns) != (ref.size_bytes, ref.modified_ns):
                return False
            version = disk.version_of(ref)
            stamped, boot = disk.read_stamp(fd)
            if stamped and (stamped != version or boot == self._boot or status.st_ctime_ns <= self._settled_ns):
                return stamped == version
            if not _proves_itself(fd, ref):
                return False
            with suppress(OSError):
                disk.write_stamp(fd, version, self._boot)
            return True
        finally:
            os.close(fd)


def _proves_itself(fd: int, ref: ObjectRef) -> bool:
    """Return whether the bytes have the MD5 that the ETag tells."""
    told = md5_of_etag(ref.etag)
    if told is None:
        return False
    with open(os.dup(fd), "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest() == told


def check_room(places: Places, survey: Survey) -> None:
    """Check that what is missing fits, in whole blocks. Another channel may take the room while both are fetched.

    Raises:
        DiskError: it does not fit; the message says by how much.
    """
    root = places.root
    with disk_errors(root.path):
        found = os.statvfs(root.fd)
    if not found.f_blocks:  # ramfs and a tmpfs without a limit tell nothing
        return
    is_missing = np.frombuffer(survey.is_there, "uint8") == 0
    sizes = places.table.columns["sizes"][is_missing].astype("int64")
    needed_bytes = exact_sum(-(-sizes // found.f_frsize)) * found.f_frsize
    free_bytes, where = found.f_bavail * found.f_frsize, quoted(root.path)
    if needed_bytes > free_bytes:
        raise DiskError(
            f"the channel needs {format_size(needed_bytes)} in {where}, and {format_size(free_bytes)} are free there",
            hint="free some space, as 'fastfuse cache clear' does on the disk of a --cache, or use FastFile mode",
        )
    needed_files = int(is_missing.sum())
    # btrfs and others make them as they are needed, and tell 0 of 0.
    if found.f_files and needed_files > found.f_favail:
        raise DiskError(
            f"the channel needs {needed_files:,} inodes in {where}, and {found.f_favail:,} are free there",
            hint="free some, or use FastFile mode, which needs none",
        )
