"""The files below a channel's directory: those that are there before a byte is fetched, and how each gets its place.

A survey finds the files that are there already, and checks that the rest fits beside the claims of other channels. A
file is written in a private directory, and renamed once it is whole. The functions are for threads. Nothing waits for
the disk here; `fastfuse.sagemaker.download` tells why that is safe.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np

from fastfuse.errors import ConfigurationError, DiskError
from fastfuse.index.inodes.columns import Kind, exact_sum
from fastfuse.index.inodes.table import ROOT, InodeTable
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.s3.checksums import md5_of_etag
from fastfuse.sagemaker.download import disk
from fastfuse.sagemaker.download.disk import Directory, DiskClaim, Journal, Part, Stamp, Trust, disk_errors
from fastfuse.sizes import format_size

__all__ = [
    *("Half", "Job", "Landing", "Places", "Survey", "check_room", "clear_private", "jobs", "private_name"),
    "take_survey",
]


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
                    disk.write_all(fd, data, 0)
                    self._seal(fd, Stamp(disk.version_of(job.ref), self._trust.boot), job.ref)
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
        stamp = Stamp(disk.version_of(job.ref), self._trust.boot)
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
                disk.write_all(journal_fd, bytes(journal), 0)
            opened.pop_all()
            return Half(job, journal, fd, journal_fd)

    def _found(self, fd: int, journal_fd: int, ref: ObjectRef, part_bytes: int) -> Journal | None:
        """Return the journal of a file that can be continued."""
        status = os.fstat(journal_fd)
        journal = Journal.parse(os.pread(journal_fd, status.st_size, 0))
        if (
            journal is None
            or journal.stamp.version != disk.version_of(ref)
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
        disk.write_stamp(fd, stamp)
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
            disk.write_all(self.fd, data, part.start)
            disk.write_all(self._journal_fd, *self.journal.mark(part))

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


_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO is not waited for
_STAT_BLOCK_BYTES = 512  # stat(2), st_blocks


@dataclass(slots=True)
class Survey:
    """`is_there` has a 1 for each directory that exists and each file that is whole and current."""

    is_there: bytearray
    kept_files: int = 0
    kept_bytes: int = 0
    unknown_files: int = 0
    # Files that others will replace, and the bytes that they occupy.
    replaced_files: int = 0
    replaced_bytes: int = 0


def private_name(places: Places) -> bytes:
    """Return a name for the private directory that no key of the channel has."""
    name = disk.PRIVATE_NAME
    while places.table.lookup(ROOT, name) is not None:
        name += b"-"
    return name


def take_survey(places: Places, trust: Trust, private: bytes) -> Survey:
    """Look at every file below the root, except in the directory `private`.

    Raises:
        DiskError: a file is where a directory must be, or the other way round; or the disk cannot be read.
    """
    table = places.table
    survey = Survey(bytearray(len(table)))
    survey.is_there[0] = 1
    for row in np.flatnonzero(table.columns["kinds"] == Kind.DIRECTORY).tolist():
        if not survey.is_there[row]:
            continue
        with disk_errors(places.path(row)):
            directory = places.open(row)
            with os.scandir(directory.fd) as entries:
                for entry in entries:
                    if row or os.fsencode(entry.name) != private:
                        _look(places, trust, survey, directory, row, entry)
    return survey


def _look(
    places: Places, trust: Trust, survey: Survey, directory: Directory, row: int, entry: "os.DirEntry[str]"
) -> None:
    table = places.table
    name = os.fsencode(entry.name)
    inode = table.lookup(table.inode(row), name)
    is_directory = entry.is_dir(follow_symlinks=False)
    if inode is None:
        survey.unknown_files += not is_directory
        return
    with disk_errors(directory.at(name)):
        if table.is_directory(inode):
            if not is_directory:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            survey.is_there[table.row(inode)] = 1
        elif is_directory:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        elif is_whole(directory, name, table.ref(inode), trust):
            survey.is_there[table.row(inode)] = 1
            survey.kept_files += 1
            survey.kept_bytes += table.attributes(inode).size_bytes
        else:
            status = entry.stat(follow_symlinks=False)
            survey.replaced_files += 1
            survey.replaced_bytes += status.st_blocks * _STAT_BLOCK_BYTES


def is_whole(directory: Directory, name: bytes, ref: ObjectRef, trust: Trust) -> bool:
    """Return whether the file is the listed version, unchanged since it was put there."""
    if not ref.bucket:
        return False  # made of the index, at the price of a copy
    try:
        fd = os.open(name, _OPEN, dir_fd=directory.fd)
    except OSError:
        return False
    try:
        status = os.fstat(fd)
        is_same = (status.st_size, status.st_mtime_ns) == (ref.size_bytes, ref.modified_ns)
        if not stat.S_ISREG(status.st_mode) or not is_same:
            return False
        stamp, version = disk.read_stamp(fd), disk.version_of(ref)
        if stamp is not None and (stamp.version != version or trust.covers(stamp, status.st_ctime_ns)):
            return stamp.version == version
        return _proves_itself(fd, ref, Stamp(version, trust.boot))
    finally:
        os.close(fd)


def _proves_itself(fd: int, ref: ObjectRef, stamp: Stamp) -> bool:
    """Return whether the bytes have the MD5 that the ETag tells, and stamp the file if so."""
    told = md5_of_etag(ref.etag)
    if told is None:
        return False
    with open(os.dup(fd), "rb") as file:
        if hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest() != told:
            return False
    with suppress(OSError):
        disk.write_stamp(fd, stamp)
    return True


def clear_private(places: Places, private: Directory, survey: Survey) -> int:
    """Remove unfinished files that this run does not continue; return the bytes that the rest occupies.

    Raises:
        DiskError: it cannot be removed.
    """
    kept_bytes = 0
    with disk_errors(private.path):
        left = set(map(os.fsencode, os.listdir(private.fd)))
        if left:
            left_halves = {name for names in _wanted_halves(places, survey) if left.issuperset(names) for name in names}
            for name in left - left_halves:
                os.unlink(name, dir_fd=private.fd)
            for name in left_halves:
                status = os.stat(name, dir_fd=private.fd, follow_symlinks=False)
                kept_bytes += status.st_blocks * _STAT_BLOCK_BYTES
    return kept_bytes


def _wanted_halves(places: Places, survey: Survey) -> Iterator[tuple[bytes, bytes]]:
    table = places.table
    for row in range(1, len(table)):
        if not survey.is_there[row] and table.file_at(row) is not None:
            yield half_names(disk.version_of(table.ref(table.inode(row))))


def check_room(places: Places, survey: Survey, halves_bytes: int, claim: DiskClaim) -> None:
    """Claim what is missing, in whole blocks, and check that it fits beside the claims of other channels.

    Raises:
        DiskError: it does not fit; the message says by how much.
    """
    root = places.root
    with disk_errors(root.path):
        block_bytes, device = os.statvfs(root.fd).f_frsize, os.fstat(root.fd).st_dev
    is_missing = np.frombuffer(survey.is_there, "uint8") == 0
    sizes = places.table.columns["sizes"][is_missing].astype("int64")
    size_bytes = exact_sum(-(-sizes // block_bytes)) * block_bytes
    needed_bytes = max(0, size_bytes - halves_bytes - survey.replaced_bytes)
    claim.put(device, needed_bytes)
    with disk_errors(root.path):
        found = os.statvfs(root.fd)
    # This order counts nothing twice that others write between the two looks; what they wrote since they told last, a
    # tenth of a second ago, counts twice.
    free_bytes, others_bytes = found.f_bavail * found.f_frsize, claim.others_bytes
    where = repr(os.fsdecode(root.path))
    if needed_bytes and needed_bytes + others_bytes > free_bytes:
        others = f", the job's other channels {format_size(others_bytes)}" if others_bytes else ""
        raise DiskError(
            f"the channel needs {format_size(needed_bytes)} in {where}{others}, "
            f"and {format_size(free_bytes)} are free there",
            hint="free some space, or use FastFile mode, which needs none",
        )
    needed_files = int(is_missing.sum()) - survey.replaced_files
    # btrfs and others make them as they are needed, and tell 0 of 0.
    if found.f_files and needed_files > found.f_favail:
        raise DiskError(
            f"the channel needs {needed_files:,} inodes in {where}, and {found.f_favail:,} are free there",
            hint="free some, or use FastFile mode, which needs none",
        )
