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

from fastfuse.index.inodes.columns import Kind
from fastfuse.index.inodes.table import InodeTable

_Rows = npt.NDArray[np.int64]
# As plain numbers: numpy compares a short column with an IntEnum ten times as long.
_DIRECTORY, _OTHER_ETAG = int(Kind.DIRECTORY), int(Kind.FILE_OTHER_ETAG)
# Directories whose children are compared at once: a call of numpy costs as much for one row as for a thousand.
_BATCH = 256


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
        # Inodes of directories that stay.
        self._stale: set[int] = set()
        self.changes = Changes()

    def match_directories(self) -> None:
        """Walk the directories that both tables have, from the root down."""
        waiting = self._match_rows(np.zeros(1, "int64"), np.zeros(1, "int64"))
        while waiting:
            batch = waiting[-_BATCH:]
            del waiting[-_BATCH:]
            old_rows, new_rows = zip(*[self._match_names(*directory) for directory in batch], strict=True)
            waiting += self._match_rows(np.concatenate(old_rows), np.concatenate(new_rows))
        self._stale |= {directory for directory, _ in self.changes.stale_names}
        self.changes.stale_directories = sorted(self._stale)

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

    def _match_rows(self, old_rows: _Rows, new_rows: _Rows) -> list[tuple[int, int]]:
        """Compare rows of the same names; return the subdirectories to compare next, as rows of both tables."""
        old, new = self._old.columns, self._new.columns
        both = (old["kinds"][old_rows] == _DIRECTORY) & (new["kinds"][new_rows] == _DIRECTORY)
        stay = both | self._are_same_files(old_rows, new_rows)
        self._new_inodes[new_rows[stay]] = self._old_inodes[old_rows[stay]]
        for old_row, new_row in _pairs(old_rows, new_rows, ~stay):
            self._replace(old_row, new_row)
        is_other_time = old["mtimes_ns"][old_rows] != new["mtimes_ns"][new_rows]
        self._stale.update(self._old_inodes[old_rows[both & is_other_time]].tolist())
        return _pairs(old_rows, new_rows, both)

    def _match_names(self, old_directory: int, new_directory: int) -> tuple[_Rows, _Rows]:
        """Return the rows of the children that both tables have; count the others as added or removed."""
        olds, news = _Children(self._old, old_directory), _Children(self._new, new_directory)
        if olds.blob == news.blob and np.array_equal(olds.ends, news.ends):
            return olds.rows(), news.rows()
        directory = self._old.inode(old_directory)
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
        same: npt.NDArray[np.bool_] = (kinds != _DIRECTORY) & self._is_same_bucket
        for name in ("kinds", "sizes", "mtimes_ns", "etag_parts"):
            same &= old[name][old_rows] == new[name][new_rows]
        same &= self._classes[old["storage_classes"][old_rows].astype("int64")] == new["storage_classes"][new_rows]
        before, after = (
            columns["etags"][rows].view("int64").reshape(-1, 2) for columns, rows in ((old, old_rows), (new, new_rows))
        )
        # The place of an ETag that is no MD5 says nothing about the bytes. A table has one made file, at the place 0.
        other = kinds == _OTHER_ETAG
        before[other] = after[other] = 0
        same &= np.all(before == after, axis=1)
        other &= same
        etags = zip(self._old.other_etags(old_rows[other]), self._new.other_etags(new_rows[other]), strict=True)
        same[other] = [was == now for was, now in etags]
        return same

    def _replace(self, old_row: int, new_row: int) -> None:
        directory = self._old.inode(int(self._old.columns["parents"][old_row]))
        self.changes.stale_names.append((directory, self._new.name_at(new_row)))
        self._gone[self._old.inode(old_row)] = new_row + 1
        if None in (self._old.file_at(old_row), self._new.file_at(new_row)):
            self.changes.removed += _files_below(self._old, old_row)
            self.changes.added += _files_below(self._new, new_row)
        else:
            self.changes.replaced += 1


class _Children:
    """The contiguous rows of one directory's children, and their names in one piece."""

    def __init__(self, table: InodeTable, directory: int) -> None:
        self.first, self._count = table.span(directory)
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
    while waiting:
        at = waiting.pop()
        if table.file_at(at) is None:
            first, children = table.span(at)
            waiting += range(first, first + children)
        else:
            count += 1
    return count


def _translation(old: tuple[str, ...], new: tuple[str, ...]) -> _Rows:
    """Return for each index into `old` the index of the same word in `new`, or -1."""
    places = {word: index for index, word in enumerate(new)}
    return np.array([places.get(word, -1) for word in old], "int64")
