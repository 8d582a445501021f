"""`InodeTable`: the whole namespace of a mount in a handful of columns.

Rows are in breadth-first order and the children of a directory are contiguous and sorted by name (bytes), so that

* ``lookup`` is a bisection among the children,
* ``readdir`` is a slice,
* and the only per-row cost of the tree is the parent's row: 48 bytes a row and the bytes of its last name.

`index.inodes.columns` describes the columns and the inode numbers. The paths of a table of several buckets are
``bucket/key``, and its `TableMetadata.bucket` is empty.

The columns may lie in a mapped snapshot: the table neither copies nor writes them.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fastfuse.errors import StaleInodeError
from fastfuse.index.inodes.columns import MADE, OTHER_ETAG, Kind
from fastfuse.objects import ARCHIVE_STORAGE_CLASSES, ObjectRef

ROOT = 1

_DIRECTORY_SPAN = struct.Struct("<QQ")

# Objects that are cached, because a file is mostly opened soon after it was prefetched. They take 1.6 MB, or 5 MB.
_MAX_REFS = 4096


class Attributes(NamedTuple):
    """The attributes of a row for ``stat``, before the mount's owner and umask."""

    inode: int
    is_directory: bool
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMetadata:
    """The values that hold for the whole table."""

    # Empty if the objects lie in several buckets: then the first segment of each path is its bucket.
    bucket: str
    # A key is this prefix and the path: empty or ending in "/".
    key_prefix: str
    # Counts and bytes of objects, without made files.
    file_count: int = 0
    directory_count: int = 0
    total_bytes: int = 0
    storage_classes: tuple[str, ...] = ("STANDARD",)
    # Above every inode number of the table and of the tables that it replaced; 0 if the numbers are the rows plus one.
    next_inode: int = 0


class InodeTable:
    """A read-only view of the columns. Cheap to make; safe to share; what is listed never changes."""

    def __init__(self, metadata: TableMetadata, columns: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Keep `columns`, which are all of `COLUMN_TYPES` and perhaps optional ones, without copying them."""
        self.metadata = metadata
        self.columns = columns
        # memoryview items are plain ints, three times faster to take than numpy scalars.
        self._names = columns["names"].data
        self._name_ends = columns["name_ends"].data
        self._parents = columns["parents"].data
        self._kinds = columns["kinds"].data
        self._storage_classes = columns["storage_classes"].data
        self._etag_parts = columns["etag_parts"].data
        self._sizes = columns["sizes"].data
        self._mtimes_ns = columns["mtimes_ns"].data
        self._etags = columns["etags"].view("uint8").data
        self._inodes = columns["inodes"].data if "inodes" in columns else None
        self._inode_rows = columns["inode_rows"].data if "inode_rows" in columns else None
        self._gone_inodes = columns["gone_inodes"].data if "gone_inodes" in columns else memoryview(b"")
        self._gone_rows = columns["gone_rows"].data if "gone_rows" in columns else memoryview(b"")
        # The storage classes whose objects nobody fetches ahead of their readers: none once an archived one was read,
        # and archives for good once one was refused. Threads stop at each refusal, and some may never be restored.
        self.unread_classes, self.is_archive_refused = ARCHIVE_STORAGE_CLASSES, False
        # Caches: the directory whose path was asked for last, with that, and objects by inode.
        self._last_directory = 0, ""
        self._refs: dict[int, ObjectRef] = {}
        self._made = columns["made"].data if "made" in columns else memoryview(b"")
        self._other_etags = columns["other_etags"].data if "other_etags" in columns else memoryview(b"")

    def __len__(self) -> int:
        return len(self._kinds)

    def __contains__(self, inode: int) -> bool:
        try:
            self.row(inode)
        except StaleInodeError:
            return False
        return True

    @property
    def next_inode(self) -> int:
        """The first inode number that neither this table nor a table that it replaced has used."""
        return self.metadata.next_inode or len(self) + 1

    def row(self, inode: int) -> int:
        """Return the row of `inode`; raise `StaleInodeError` if no row has this number."""
        rows = self._inode_rows
        if rows is None:
            if 0 < inode <= len(self._kinds):
                return inode - 1
        else:
            at = bisect_left(rows, inode, key=self.inode)
            if at < len(rows) and self.inode(rows[at]) == inode:
                row: int = rows[at]
                return row
        raise StaleInodeError(f"a refresh has replaced or removed the open file (inode {inode}); open it again")

    def inode(self, row: int) -> int:
        """Return the inode number of a row."""
        if self._inodes is None:
            return row + 1
        inode: int = self._inodes[row]
        return inode

    def file_at(self, row: int) -> tuple[int, int] | None:
        """Return ``(inode, size in bytes)`` of the file at `row`, or None for a directory."""
        return None if self._kinds[row] == Kind.DIRECTORY else (self.inode(row), self._sizes[row])

    def attributes(self, inode: int) -> Attributes:
        return self._attributes(self.row(inode), inode)

    def is_directory(self, inode: int) -> bool:
        return self._kinds[self.row(inode)] == Kind.DIRECTORY

    def parent(self, inode: int) -> int:
        """Return the directory that holds `inode`; the root holds itself."""
        return self.inode(self._parents[self.row(inode)])

    def lookup(self, parent: int, name: bytes) -> int | None:
        """Return the inode called `name` in the directory `parent`, or None."""
        low, count = self.span(self.row(parent))
        names, ends = self._names, self._name_ends
        end = high = low + count
        while low < high:
            middle = (low + high) // 2
            if names[ends[middle - 1] : ends[middle]].tobytes() < name:  # `name_at` inlined: no child is row 0
                low = middle + 1
            else:
                high = middle
        return self.inode(low) if low < end and self.name_at(low) == name else None

    def find(self, path: bytes, *, resolves: bool = False) -> int | None:
        """Return the inode at `path` below the root, or None; the segments are those of a key.

        If it `resolves` the path, as the kernel does, it passes over what is empty or a dot, as in ``./a//b``.
        """
        inode: int | None = ROOT
        is_directory = True
        for name in path.split(b"/"):
            if inode is None or not is_directory:
                return None
            if not resolves or name not in {b"", b"."}:
                inode = self.lookup(inode, name)
                is_directory = inode is not None and self.is_directory(inode)
        return inode

    def children(self, directory: int, start: int = 0) -> Iterator[tuple[bytes, Attributes]]:
        """Yield name and attributes in byte order of names, from the `start`-th child on."""
        first, count = self.span(self.row(directory))
        for row in range(first + start, first + count):
            yield self.name_at(row), self._attributes(row, self.inode(row))

    def position_after(self, directory: int, child: int) -> int:
        """Return how many children of `directory` come before or are `child`, which may be gone since the last table.

        Raises:
            StaleInodeError: nothing here and nothing in the last table has this number in `directory`.
        """
        first, count = self.span(self.row(directory))
        try:
            row = self.row(child) + 1
        except StaleInodeError:
            at = bisect_left(self._gone_inodes, child)
            if at == len(self._gone_inodes) or self._gone_inodes[at] != child:
                raise
            row = self._gone_rows[at]
        if not first <= row <= first + count:
            raise StaleInodeError(f"inode {child} is not in the directory {directory}")
        return row - first

    def name_at(self, row: int) -> bytes:
        """Return the last path segment of a row; empty for the root."""
        return self._names[self._name_ends[row - 1] if row else 0 : self._name_ends[row]].tobytes()

    def span(self, row: int) -> tuple[int, int]:
        """Return ``(row of the first child, number of children)`` of a directory; raise `ValueError` for a file."""
        if self._kinds[row] != Kind.DIRECTORY:
            raise ValueError(f"row {row} is not a directory")
        first, count = _DIRECTORY_SPAN.unpack_from(self._etags, 16 * row)
        return first, count

    def path(self, inode: int) -> str:
        """Return the path below the root without a leading ``/``; a directory's ends in ``/``, the root's is empty."""
        row = self.row(inode)
        return self._directory_path(row) if self._kinds[row] == Kind.DIRECTORY else self._file_path(row)

    def bucket_and_key(self, inode: int) -> tuple[str, str]:
        """Return the bucket and the whole S3 key of a file, or the prefix with its ``/`` of a directory.

        Both are empty for the root of a table of several buckets.
        """
        return self._bucket_and_key(self.path(inode))

    def _bucket_and_key(self, path: str) -> tuple[str, str]:
        if self.metadata.bucket:
            return self.metadata.bucket, self.metadata.key_prefix + path
        bucket, _, key = path.partition("/")
        return bucket, key

    def _file_path(self, row: int) -> str:
        return self._directory_path(self._parent_row(row)) + self.name_at(row).decode()

    def _directory_path(self, row: int) -> str:
        last, path = self._last_directory
        if row != last:
            segments, above = [b""], row
            while above:
                segments.append(self.name_at(above))
                above = self._parent_row(above)
            path = b"/".join(reversed(segments)).decode()
            self._last_directory = row, path
        return path

    def _parent_row(self, row: int) -> int:
        parent: int = self._parents[row]
        if parent >= row:  # only in a damaged snapshot, which must not make an endless loop
            raise ValueError(f"row {row} lies in a directory that comes after it")
        return parent

    def key(self, inode: int) -> str:
        """Return the key of `bucket_and_key`."""
        return self.bucket_and_key(inode)[1]

    def buckets(self) -> list[str]:
        """Return the buckets of the objects, in order."""
        if self.metadata.bucket:
            return [self.metadata.bucket]
        found = [name.decode() for name, attributes in self.children(ROOT) if attributes.is_directory]
        return [name for name in found if not name.startswith(".")]  # no bucket's name does

    def source_order(self) -> npt.NDArray[np.uint32] | None:
        """Return the rows of files in the order in which the source names them; a file named twice is there twice.

        None means the order of keys, see `index.inodes.selection.key_order`.
        """
        order = self.columns.get("source_order")
        return None if order is None else order.view("uint32")

    def _etag(self, row: int) -> str:
        packed, kind = self._etags[16 * row : 16 * row + 16], self._kinds[row]
        if kind == Kind.FILE_MD5:
            return f'"{packed.hex()}"'
        match kind:
            case Kind.FILE_MULTIPART:
                return f'"{packed.hex()}-{self._etag_parts[row]}"'
            case Kind.FILE_OTHER_ETAG:
                start, size_bytes = OTHER_ETAG.unpack(packed)
                return str(self._other_etags[start : start + size_bytes], errors="replace")
            case Kind.FILE_MADE:
                return f'"made-{packed[8:].hex()}"'
            case _:
                raise ValueError(f"row {row} is a directory and has no ETag")

    def other_etags(self, rows: npt.NDArray[np.int64]) -> Iterator[bytes]:
        """Yield the ETags of `rows`, which are of the kind `FILE_OTHER_ETAG`."""
        for start, size_bytes in OTHER_ETAG.iter_unpack(self.columns["etags"][rows].data):
            yield self._other_etags[start : start + size_bytes].tobytes()

    def is_made(self, inode: int) -> bool:
        """Return whether `inode` is a made file."""
        return self._kinds[self.row(inode)] == Kind.FILE_MADE

    def made(self, inode: int) -> memoryview:
        """Return the bytes of a made file, which the table carries; raise `ValueError` for any other inode."""
        row = self.row(inode)
        if self._kinds[row] != Kind.FILE_MADE:
            raise ValueError(f"inode {inode} is no made file")
        start, _ = MADE.unpack_from(self._etags, 16 * row)
        content = self._made[start : start + self._sizes[row]]
        if len(content) != self._sizes[row]:
            raise ValueError(f"the bytes of row {row} are not all there")
        return content

    def ref(self, inode: int) -> ObjectRef:
        """Return the object behind a file; raise `ValueError` for a directory.

        The ref of a made file has an empty bucket. Its key is the path, and its ETag changes with the bytes.
        """
        ref = self._refs.get(inode)
        if ref is None:
            ref = self._ref_at(self.row(inode))
            if len(self._refs) >= _MAX_REFS:
                self._refs.clear()
            self._refs[inode] = ref
        return ref

    def refs(self, rows: Iterable[int] | None = None) -> Iterator[ObjectRef]:
        """Yield the objects behind all files, or behind the files among `rows`."""
        for row in range(len(self)) if rows is None else rows:
            if self._kinds[row] != Kind.DIRECTORY:
                yield self.ref(self.inode(row))

    def _ref_at(self, row: int) -> ObjectRef:
        path, size_bytes, etag, mtime_ns = self._file_path(row), self._sizes[row], self._etag(row), self._mtimes_ns[row]
        if self._kinds[row] == Kind.FILE_MADE:
            return ObjectRef("", path, size_bytes, etag, mtime_ns)
        bucket, key = self._bucket_and_key(path)
        storage_class = self.metadata.storage_classes[self._storage_classes[row]]
        return ObjectRef(bucket, key, size_bytes, etag, mtime_ns, storage_class)

    def _attributes(self, row: int, inode: int) -> Attributes:
        return Attributes(inode, self._kinds[row] == Kind.DIRECTORY, self._sizes[row], self._mtimes_ns[row])
