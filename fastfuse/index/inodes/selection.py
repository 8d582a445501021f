"""A part of a table's files: a shard, by positions in the order of keys; and the objects that can be read. Pure.

That order differs from the order of the rows: as keys, subdirectories end in ``/``, so ``a-b`` comes before ``a/c``.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from fastfuse.index.inodes.builder import complete_table, levels_of
from fastfuse.index.inodes.columns import BLOBS, Kind, are_objects
from fastfuse.index.inodes.table import InodeTable
from fastfuse.objects import ARCHIVE_STORAGE_CLASSES, ObjectRef

_Rows = npt.NDArray[np.int64]
_SLASH = ord("/")


def archived(table: InodeTable) -> npt.NDArray[np.bool_]:
    """Return which rows are in an archive storage class."""
    classes = np.array([name in ARCHIVE_STORAGE_CLASSES for name in table.metadata.storage_classes], bool)
    found: npt.NDArray[np.bool_] = classes[table.columns["storage_classes"].astype("int64")]
    return found


def readable_rows(table: InodeTable, *, in_archive: bool = False) -> _Rows:
    """Return the rows of the objects that have bytes, and are in no archive, or all of them `in_archive`."""
    has_bytes = are_objects(table.columns["kinds"]) & (table.columns["sizes"] != 0)
    return np.flatnonzero(has_bytes & (archived(table) == in_archive))


def spread(table: InodeTable, rows: _Rows) -> list[ObjectRef]:
    """Return the objects in the first, the middle and the last of `rows`."""
    chosen = dict.fromkeys(int(rows[at]) for at in (0, len(rows) // 2, -1)) if len(rows) else ()
    return [table.ref(table.inode(row)) for row in chosen]


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
    levels = levels_of(table.columns)
    parents = table.columns["parents"]
    for start, end in reversed(levels[1:]):
        is_kept[parents[start:end][is_kept[start:end]]] = True
    return _keep_rows(table, is_kept)


def key_order(table: InodeTable) -> _Rows:
    """Return the rows of all files in the order of their keys as bytes."""
    is_file = table.columns["kinds"] != Kind.DIRECTORY
    parents = table.columns["parents"].astype("int64")
    levels = levels_of(table.columns)
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
    columns |= {name: old[name] for name in ("made", "other_etags") if name in old}
    columns["names"] = old["names"][np.repeat(is_kept, lengths)]
    columns["name_ends"] = np.cumsum(lengths[is_kept], dtype="uint64")
    columns["parents"] = new_rows[old["parents"][is_kept].astype("int64")].astype("uint32")
    columns["mtimes_ns"][columns["kinds"] == Kind.DIRECTORY] = 0
    order = table.source_order()
    if order is not None:
        columns["source_order"] = new_rows[order[is_kept[order]].astype("int64")].astype("uint32")
    return complete_table(table.metadata, columns)
