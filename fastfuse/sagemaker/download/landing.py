"""The way from the rows of the table to directories and files: written in a private directory, renamed once whole.

Its functions are for threads. Nothing waits for the disk here; `fastfuse.sagemaker.download` tells why that is safe.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import count
from typing import NamedTuple

from fastfuse.errors import ConfigurationError
from fastfuse.index.inodes.table import InodeTable
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.sagemaker.download.disk import (
    Directory,
    Journal,
    Part,
    Stamp,
    Trust,
    disk_errors,
    version_of,
    write_all,
    write_stamp,
)

__all__ = ["Half", "Job", "Landing", "Places", "half_names", "jobs"]


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
        self._parents = table.columns["parents"].data

    def parent(self, row: int) -> int:
        parent: int = self._parents[row]
        return parent

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
            row = self.parent(row)
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
        parent = places.parent(row)
        if parent != directory_row:
            with disk_errors(places.path(parent)):
                directory, directory_row = places.open(parent), parent
        name = places.name(row)
        found = table.file_at(row)
        if found is None:
            with disk_errors(directory.at(name)):
                directory.make(name)
        else:
            inode, _ = found
            yield Job(directory, name, table.ref(inode))


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_AGAIN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
# A user's own files, less what the umask takes: SageMaker's can be written to as well.
_MODE = 0o666


def half_names(version: bytes) -> tuple[bytes, bytes]:
    """Return the names that the bytes and the journal of a file in parts have in the private directory."""
    name = version.hex().encode()
    return name, name + b".parts"


class Landing:
    """The place where the files of one run land. Safe from any thread."""

    def __init__(self, private: Directory, trust: Trust, *, continues: bool = True) -> None:
        """Put unfinished files into `private`. With `continues` a file keeps the parts that an earlier run fetched."""
        self._private = private
        self._continues = continues
        self._trust = trust
        self._numbers = count()

    def land(self, job: Job, data: Buffer) -> None:
        """Put a file in place whose bytes are all in `data`.

        Raises:
            DiskError: the disk does not take it.
        """
        name = b"%d.new" % next(self._numbers)
        with disk_errors(job.path):
            try:
                fd = os.open(name, _NEW, _MODE, dir_fd=self._private.fd)
                try:
                    write_all(fd, data, 0)
                    self._seal(fd, Stamp(version_of(job.ref), self._trust.boot), job.ref)
                finally:
                    os.close(fd)
                self._show(name, job)
            except OSError:
                with suppress(OSError):
                    os.unlink(name, dir_fd=self._private.fd)
                raise

    def open_half(self, job: Job, part_bytes: int) -> "Half":
        """Begin a file in parts of `part_bytes`, or continue one with parts no larger.

        Raises:
            DiskError: the disk does not take it.
        """
        stamp = Stamp(version_of(job.ref), self._trust.boot)
        name, journal_name = half_names(stamp.version)
        with disk_errors(job.path), ExitStack() as opened:
            fds = []
            for one in (name, journal_name):
                fds.append(os.open(one, _AGAIN, _MODE, dir_fd=self._private.fd))
                opened.callback(os.close, fds[-1])
            fd, journal_fd = fds
            journal = self._found(fd, journal_fd, job.ref, part_bytes) if self._continues else None
            if journal is None:
                journal = Journal.new(stamp, job.ref.size_bytes, part_bytes)
                os.ftruncate(journal_fd, 0)  # first: it must never tell of bytes that are gone
                os.ftruncate(fd, 0)
                # All of it now: a full disk has no room for a mark later.
                write_all(journal_fd, bytes(journal), 0)
            opened.pop_all()
            return Half(job, journal, fd, journal_fd)

    def _found(self, fd: int, journal_fd: int, ref: ObjectRef, part_bytes: int) -> Journal | None:
        """Return the journal of a file that can be continued."""
        status = os.fstat(journal_fd)
        journal = Journal.parse(os.pread(journal_fd, status.st_size, 0))
        if (
            journal is None
            or journal.stamp.version != version_of(ref)
            or not self._trust.covers(journal.stamp, status.st_ctime_ns)
            or journal.size_bytes != ref.size_bytes
            or journal.part_bytes > part_bytes
            or not journal.least_bytes <= os.fstat(fd).st_size <= ref.size_bytes
        ):
            return None
        return journal

    def finish(self, half: "Half") -> None:
        """Put a file in place whose parts are all there, and close `half`.

        Raises:
            DiskError: the disk does not take it.
        """
        job = half.job
        name, journal_name = half_names(half.journal.stamp.version)
        with disk_errors(job.path):
            try:
                self._seal(half.fd, half.journal.stamp, job.ref)
            finally:
                half.close()
            self._show(name, job)
            os.unlink(journal_name, dir_fd=self._private.fd)

    def _seal(self, fd: int, stamp: Stamp, ref: ObjectRef) -> None:
        write_stamp(fd, stamp)
        os.utime(fd, ns=(ref.modified_ns, ref.modified_ns))

    def _show(self, name: bytes, job: Job) -> None:
        # Replaces a link instead of following it, and fails where a directory is in the way.
        os.rename(name, job.name, src_dir_fd=self._private.fd, dst_dir_fd=job.directory.fd)


class Half:
    """A file with parts still missing."""

    def __init__(self, job: Job, journal: Journal, fd: int, journal_fd: int) -> None:
        self.job = job
        self.journal = journal
        self.fd = fd
        self._journal_fd = journal_fd
        self._is_open = True

    def write(self, part: Part, data: Buffer) -> None:
        """Write a part and mark it in the journal; raise `DiskError` where the disk does not take it."""
        with disk_errors(self.job.path):
            write_all(self.fd, data, part.start)
            write_all(self._journal_fd, *self.journal.mark(part))

    def spoil(self) -> None:
        """Forget the parts that are there: some are wrong."""
        with disk_errors(self.job.path):
            os.ftruncate(self._journal_fd, 0)

    def close(self) -> None:
        """Close the files; what is there stays for the next run. Idempotent."""
        if self._is_open:
            self._is_open = False
            os.close(self._journal_fd)
            os.close(self.fd)  # the last one: NFS tells here that the disk is full
