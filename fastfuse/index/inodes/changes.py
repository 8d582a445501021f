"""The changes that a newer table makes: inode numbers that stay, and names that the kernel must forget (L6). Pure.

A directory, or a file with the same ETag, size and time in both tables, keeps its inode number. So the kernel's page
cache, working directories and open handles stay valid. A replaced file gets a new number: bytes read under the old one
are never mixed with the new bytes. Numbers are never used again.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from fastfuse.index.inodes.columns import Kind, are_made
from fastfuse.index.inodes.table import InodeTable

_Rows = npt.NDArray[np.int64]


@dataclass(slots=True)
class Changes:
    """The files that were added, removed or replaced, and the kernel's knowledge that is stale."""

    added: int = 0
    removed: int = 0
    replaced: int = 0
    # (inode of a directory, name): the name, there or not, stands for something else now.
    stale_names: list[tuple[int, bytes]] = field(default_factory=list)
    # Directories that stay, and have another time or other children.
    stale_directories: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.stale_names or self.stale_directories)


def take_over(old: InodeTable, new: InodeTable) -> tuple[InodeTable, Changes]:
    """Return `new` (without numbers of its own) with the numbers of `old` where the two agree, and the changes.

    The walk goes down from both roots: the directories must be a tree, as a builder makes and `verify_snapshot` checks.
    """
    numbering = _Numbering(old, new)
    numbering.match_directories()
    return numbering.table(), numbering.changes


class _Numbering:
    def __init__(self, old: InodeTable, new: InodeTable) -> None:
        self._old = old
        self._new = new
        self._old_inodes = old.columns.get("inodes", np.arange(1, len(old) + 1, dtype="uint64"))
        self._new_inodes = np.zeros(len(new), "uint64")  # 0: no number yet
        self._classes = _translation(old.metadata.storage_classes, new.metadata.storage_classes)
        # A new manifest may name another bucket; then the same path is another object.
        self._is_same_bucket = old.metadata.bucket == new.metadata.bucket
        # The row of the new table before which each inode that is gone was.
        self._gone: dict[int, int] = {}
        self.changes = Changes()

    def match_directories(self) -> None:
        """Walk the directories that both tables have, from the root down."""
        waiting = [(0, 0)]
        while waiting:
            old_row, new_row = waiting.pop()
            self._new_inodes[new_row] = self._old_inodes[old_row]
            stale = len(self.changes.stale_names)
            waiting += self._match_children(old_row, new_row)
            is_other_time = self._old.columns["mtimes_ns"][old_row] != self._new.columns["mtimes_ns"][new_row]
            if is_other_time or len(self.changes.stale_names) > stale:
                self.changes.stale_directories.append(self._old.inode(old_row))

    def table(self) -> InodeTable:
        """Return the new table with its numbers; rows without a match get fresh ones."""
        fresh = np.flatnonzero(self._new_inodes == 0)
        first = self._old.next_inode
        self._new_inodes[fresh] = np.arange(first, first + len(fresh), dtype="uint64")
        rows = np.argsort(self._new_inodes).astype("uint32")
        metadata = replace(self._new.metadata, next_inode=first + len(fresh))
        gone = sorted(self._gone.items())
        numbers = {
            "inodes": self._new_inodes,
            "inode_rows": rows,
            "gone_inodes": np.array([inode for inode, _ in gone], "uint64"),
            "gone_rows": np.array([row for _, row in gone], "uint32"),
        }
        return InodeTable(metadata, {**self._new.columns, **numbers})

    def _match_children(self, old_directory: int, new_directory: int) -> list[tuple[int, int]]:
        """Compare the children of one directory; return the subdirectories to compare next, as rows of both tables."""
        directory = self._old.inode(old_directory)
        olds, news = _Children(self._old, old_directory), _Children(self._new, new_directory)
        if olds.blob == news.blob and np.array_equal(olds.ends, news.ends):
            old_rows, new_rows = olds.rows(), news.rows()
        else:
            old_rows, new_rows = self._match_names(directory, olds, news)
        were_directories = self._old.columns["kinds"][old_rows] == Kind.DIRECTORY
        are_directories = self._new.columns["kinds"][new_rows] == Kind.DIRECTORY
        stay = self._are_same_files(old_rows, new_rows)
        self._new_inodes[new_rows[stay]] = self._old_inodes[old_rows[stay]]
        both = were_directories & are_directories
        for old_row, new_row in _pairs(old_rows, new_rows, ~stay & ~both):
            self._replace(directory, old_row, new_row)
        return _pairs(old_rows, new_rows, both)

    def _match_names(self, directory: int, olds: "_Children", news: "_Children") -> tuple[_Rows, _Rows]:
        """Return the rows of the names in both tables; count the other names as added or removed."""
        places = {name: row for row, name in enumerate(olds.names(), olds.first)}
        old_rows, new_rows = [], []
        names = list(news.names())
        for row, name in enumerate(names, news.first):
            was = places.pop(name, None)
            if was is None:
                self.changes.added += _files_below(self._new, row)
                self.changes.stale_names.append((directory, name))
            else:
                old_rows.append(was)
                new_rows.append(row)
        for name, row in places.items():
            self._gone[self._old.inode(row)] = news.first + bisect_left(names, name)
            self.changes.removed += _files_below(self._old, row)
            self.changes.stale_names.append((directory, name))
        return np.array(old_rows, "int64"), np.array(new_rows, "int64")

    def _are_same_files(self, old_rows: _Rows, new_rows: _Rows) -> npt.NDArray[np.bool_]:
        """Return which of the pairs are files of the same bytes and attributes."""
        old, new = self._old.columns, self._new.columns
        kinds = old["kinds"][old_rows]
        same: npt.NDArray[np.bool_] = (kinds != Kind.DIRECTORY) & self._is_same_bucket
        for name in ("kinds", "sizes", "mtimes_ns", "etag_parts"):
            same &= old[name][old_rows] == new[name][new_rows]
        same &= self._classes[old["storage_classes"][old_rows].astype("int64")] == new["storage_classes"][new_rows]
        before, after = (
            columns["etags"][rows].view("int64").reshape(-1, 2) for columns, rows in ((old, old_rows), (new, new_rows))
        )
        # The place of an ETag that is no MD5, or of a made file's bytes, says nothing about the bytes.
        other, made = kinds == Kind.FILE_OTHER_ETAG, are_made(kinds)
        before[other] = after[other] = 0
        before[made, 0] = after[made, 0] = 0
        same &= np.all(before == after, axis=1)
        other &= same
        etags = zip(self._old.other_etags(old_rows[other]), self._new.other_etags(new_rows[other]), strict=True)
        same[other] = [was == now for was, now in etags]
        return same

    def _replace(self, directory: int, old_row: int, new_row: int) -> None:
        name = self._new.name_at(new_row)
        self.changes.stale_names.append((directory, name))
        self._gone[self._old.inode(old_row)] = new_row + 1
        if Kind.DIRECTORY in {self._old.columns["kinds"][old_row], self._new.columns["kinds"][new_row]}:
            self.changes.removed += _files_below(self._old, old_row)
            self.changes.added += _files_below(self._new, new_row)
        else:
            self.changes.replaced += 1


class _Children:
    """The contiguous rows of one directory's children, and their names in one piece."""

    def __init__(self, table: InodeTable, directory: int) -> None:
        self.first, self._count = table.span(directory)
        if not self._count:
            self.ends, self.blob = np.zeros(1, "int64"), b""
            return
        ends = table.columns["name_ends"][self.first - 1 : self.first + self._count].astype("int64")
        self.blob = table.columns["names"][int(ends[0]) : int(ends[-1])].tobytes()
        self.ends = ends - ends[0]

    def rows(self) -> _Rows:
        return np.arange(self.first, self.first + self._count)

    def names(self) -> Iterator[bytes]:
        return (self.blob[start:end] for start, end in pairwise(self.ends.tolist()))


def _pairs(old_rows: _Rows, new_rows: _Rows, which: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    return list(zip(old_rows[which].tolist(), new_rows[which].tolist(), strict=True))


def _files_below(table: InodeTable, row: int) -> int:
    """Return how many files `row` is or holds."""
    count, waiting = 0, [row]
    kinds = table.columns["kinds"]
    while waiting:
        at = waiting.pop()
        if kinds[at] == Kind.DIRECTORY:
            first, children = table.span(at)
            waiting += range(first, first + children)
        else:
            count += 1
    return count


def _translation(old: tuple[str, ...], new: tuple[str, ...]) -> _Rows:
    """Return for each index into `old` the index of the same word in `new`, or -1."""
    places = {word: index for index, word in enumerate(new)}
    return np.array([places.get(word, -1) for word in old], "int64")
