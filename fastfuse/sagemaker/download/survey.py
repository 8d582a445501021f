"""Look at what is on the disk before the first byte is fetched, and whether the rest fits beside other claims."""

import errno
import hashlib
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from fastfuse.errors import DiskError
from fastfuse.index.inodes.columns import Kind, exact_sum
from fastfuse.index.inodes.table import ROOT
from fastfuse.objects import ObjectRef
from fastfuse.s3.checksums import md5_of_etag
from fastfuse.sagemaker.download.disk import (
    PRIVATE_NAME,
    Directory,
    Stamp,
    Trust,
    disk_errors,
    read_stamp,
    version_of,
    write_stamp,
)
from fastfuse.sagemaker.download.landing import Places, half_names
from fastfuse.sizes import format_size

__all__ = ["DiskClaim", "Survey", "check_room", "clear_private", "disk_claims", "private_name", "take_survey"]

# Of each place: the device, and bytes.
_FIELDS = 2
_FIELD_BYTES = 8
_MAX_CLAIM_BYTES = (1 << 63) - 1  # no disk has as many


class DiskClaim:
    """One channel's place in memory that the processes of all channels share; each place has one writer."""

    def __init__(self, values: memoryview, place: int) -> None:
        self._values = values
        self._at = _FIELDS * place
        self._size_bytes = 0

    def put(self, device: int, size_bytes: int) -> None:
        self._values[self._at], self._size_bytes = device, size_bytes
        self.shrink(1)

    def shrink(self, share: float) -> None:
        """Keep `share` of the claim, from 1 to 0: what is still to be written."""
        self._values[self._at + 1] = min(int(share * self._size_bytes), _MAX_CLAIM_BYTES)

    @property
    def others_bytes(self) -> int:
        """The bytes that other channels still have to write to the same device."""
        values, device = self._values, self._values[self._at]
        return sum(values[at + 1] for at in range(0, len(values), _FIELDS) if at != self._at and values[at] == device)


def disk_claims(count: int) -> list[DiskClaim]:
    """Return a claim for each of so many channels, all empty, to be inherited by the channels' processes."""
    values = memoryview(mmap.mmap(-1, count * _FIELDS * _FIELD_BYTES)).cast("q")
    return [DiskClaim(values, place) for place in range(count)]


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
    name = PRIVATE_NAME
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
        stamp, version = read_stamp(fd), version_of(ref)
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
        write_stamp(fd, stamp)
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
            yield half_names(version_of(table.ref(table.inode(row))))


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
        disk = os.statvfs(root.fd)
    # In this order, what others write between the two looks is not counted twice; what they wrote since they told last,
    # a tenth of a second ago, is.
    free_bytes, others_bytes = disk.f_bavail * disk.f_frsize, claim.others_bytes
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
    if disk.f_files and needed_files > disk.f_favail:
        raise DiskError(
            f"the channel needs {needed_files:,} inodes in {where}, and {disk.f_favail:,} are free there",
            hint="free some, or use FastFile mode, which needs none",
        )
