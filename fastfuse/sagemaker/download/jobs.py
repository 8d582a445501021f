"""The way from the rows of the table to directories on the disk and files to fetch."""

from collections.abc import Iterator
from typing import NamedTuple

from fastfuse.errors import ConfigurationError
from fastfuse.index.inodes.table import InodeTable
from fastfuse.objects import ObjectRef
from fastfuse.sagemaker.download.disk import Directory, disk_errors

__all__ = ["Job", "Places", "jobs"]


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
        """Return the row of the directory that holds `row`."""
        parent: int = self._parents[row]
        return parent

    def open(self, row: int) -> Directory:
        """Open the directory at `row`; raise `OSError` where there is none, or a link."""
        directory = self.root
        for name in self._names(row):
            directory = directory.enter(name)
        return directory

    def path(self, row: int) -> bytes:
        """Return the path at `row`, for messages."""
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
