"""A part of a table's files: a shard, by positions in the order of keys; and the objects that can be read. Pure.

That order differs from the order of the rows: as keys, subdirectories end in ``/``, so ``a-b`` comes before ``a/c``.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fastfuse.index.inodes.builder import child_spans, raise_directory_mtimes
from fastfuse.index.inodes.columns import BLOBS, Kind, are_objects, exact_sum
from fastfuse.index.inodes.table import InodeTable
from fastfuse.objects import ARCHIVE_STORAGE_CLASSES

__all__ = ["archived", "key_order", "readable_rows", "take_part"]

_Rows = npt.NDArray[np.int64]
_SLASH = ord("/")


def archived(table: InodeTable) -> npt.NDArray[np.bool_]:
    """Return which rows are in an archive storage class."""
    classes = np.array([name in ARCHIVE_STORAGE_CLASSES for name in table.metadata.storage_classes], bool)
    found: npt.NDArray[np.bool_] = classes[table.columns["storage_classes"].astype("int64")]
    return found


def readable_rows(table: InodeTable) -> _Rows:
    """Return the rows of the objects that have bytes and are in no archive."""
    return np.flatnonzero(are_objects(table.columns["kinds"]) & (table.columns["sizes"] != 0) & ~archived(table))


def take_part(table: InodeTable, choose: Callable[[Sequence[int]], Sequence[int]]) -> InodeTable:
    """Return a table of the objects of `table` at the positions that `choose` returns, and of their directories.

    `choose` is called with the sizes of all objects in the order of their keys. `table` must have no inode numbers of
    its own, because those belong to a mount.
    """
    kinds = table.columns["kinds"]
    rows = key_order(table)
    rows = rows[are_objects(kinds[rows])]
    chosen = rows[np.array(choose(table.columns["sizes"][rows].tolist()), "int64")]
    is_kept = kinds == Kind.FILE_MADE  # made files are on every host
    is_kept[chosen] = True
    is_kept[0] = True
    levels = _levels_of(table)
    parents = table.columns["parents"]
    for start, end in reversed(levels[1:]):
        is_kept[parents[start:end][is_kept[start:end]]] = True
    return _keep_rows(table, is_kept)


def key_order(table: InodeTable) -> _Rows:
    """Return the rows of all files in the order of their keys as bytes."""
    is_file = table.columns["kinds"] != Kind.DIRECTORY
    parents = table.columns["parents"].astype("int64")
    levels = _levels_of(table)
    counts = is_file.astype("int64")  # of files at or below each row
    for start, end in reversed(levels[1:]):
        np.add.at(counts, parents[start:end], counts[start:end])
    siblings = np.arange(len(table))
    for first, count in map(table.span, _unsorted_directories(table)):
        siblings[first : first + count] = _by_key(table, first, count)
    places = np.zeros(len(table), "int64")  # of the first file at or below each row
    for start, end in levels[1:]:
        rows = siblings[start:end]
        before = np.cumsum(counts[rows]) - counts[rows]
        above = parents[rows]
        begins = np.flatnonzero(np.diff(above, prepend=-1))  # of each directory's children
        lengths = np.diff(np.append(begins, len(rows)))
        places[rows] = places[above] + before - np.repeat(before[begins], lengths)
    files = np.flatnonzero(is_file)
    ordered = np.zeros(len(files), "int64")  # a damaged snapshot may give two files one place, which leaves a 0
    ordered[places[files]] = files
    return ordered


def _levels_of(table: InodeTable) -> list[tuple[int, int]]:
    """Return the rows ``[start, end)`` of each depth, from the root down."""
    is_directory = table.columns["kinds"] == Kind.DIRECTORY
    spans = table.columns["etags"].view("uint64").reshape(-1, 2)[:, 1]
    levels = [(0, 1)]
    while True:
        start, end = levels[-1]
        children = int(spans[start:end][is_directory[start:end]].sum())
        if not children:
            return levels
        levels.append((end, end + children))


def _unsorted_directories(table: InodeTable) -> list[int]:
    """Return the rows of directories whose children are in another order by key than by name.

    Such a directory has a subdirectory whose name is the beginning of the next name, and that name goes on with a
    character below ``/``.
    """
    columns = table.columns
    ends = columns["name_ends"].astype("int64")
    lengths = np.diff(ends, prepend=0)
    parents = columns["parents"]
    is_suspect = (columns["kinds"][:-1] == Kind.DIRECTORY) & (parents[:-1] == parents[1:])
    is_suspect &= lengths[1:] > lengths[:-1]
    suspects = np.flatnonzero(is_suspect)
    suspects = suspects[suspects > 0]  # the root has no siblings
    goes_on = columns["names"][ends[suspects] + lengths[suspects]]
    found = suspects[goes_on < _SLASH]
    return sorted(
        {int(parents[row]) for row in found.tolist() if table.name_at(row + 1).startswith(table.name_at(row))}
    )


def _by_key(table: InodeTable, first: int, count: int) -> list[int]:
    kinds = table.columns["kinds"]
    rows = range(first, first + count)
    return sorted(rows, key=lambda row: table.name_at(row) + (b"/" if kinds[row] == Kind.DIRECTORY else b""))


def _keep_rows(table: InodeTable, is_kept: npt.NDArray[np.bool_]) -> InodeTable:
    """Return a table of the rows that are kept, in the same order: children stay contiguous and sorted."""
    old = table.columns
    new_rows = np.cumsum(is_kept) - 1
    lengths = np.diff(old["name_ends"].astype("int64"), prepend=0)
    columns = {name: old[name][is_kept] for name in old if name not in BLOBS}
    if "made" in old:
        columns["made"] = old["made"]
    columns["names"] = old["names"][np.repeat(is_kept, lengths)]
    columns["name_ends"] = np.cumsum(lengths[is_kept], dtype="uint64")
    columns["parents"] = parents = new_rows[old["parents"][is_kept].astype("int64")].astype("uint32")
    is_file = columns["kinds"] != Kind.DIRECTORY
    columns["etags"].view("uint64").reshape(-1, 2)[~is_file] = child_spans(parents, is_file)
    columns["mtimes_ns"][~is_file] = 0
    starts = (start + np.flatnonzero(is_kept[start:end])[:1] for start, end in _levels_of(table))
    # A level of which nothing is kept has no first row.
    level_starts = [int(new_rows[first]) for found in starts for first in found.tolist()]
    raise_directory_mtimes(columns["mtimes_ns"], parents, [*level_starts, len(is_file)])
    order = table.source_order()
    if order is not None:
        columns["source_order"] = new_rows[order[is_kept[order]].astype("int64")].astype("uint32")
    is_object = are_objects(columns["kinds"])
    metadata = replace(
        table.metadata,
        file_count=int(np.count_nonzero(is_object)),
        directory_count=int(np.count_nonzero(~is_file)),
        total_bytes=exact_sum(columns["sizes"][is_object]),
    )
    return InodeTable(metadata, columns)
