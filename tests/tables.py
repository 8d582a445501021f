"""Checks the invariants of an inode table, and shows what is in one."""

import numpy as np

from fastfuse.index.inodes.columns import Kind, are_objects, exact_sum
from fastfuse.index.inodes.table import ROOT, Attributes, InodeTable


def check_table(table: InodeTable) -> None:
    """Raise `AssertionError` if the columns contradict what `fastfuse.index.inodes.table` says of them."""
    count, columns = len(table), table.columns
    kinds, parents, sizes, times = (columns[name].tolist() for name in ("kinds", "parents", "sizes", "mtimes_ns"))
    assert count >= 1
    assert kinds[0] == Kind.DIRECTORY
    assert parents[0] == 0
    ends = columns["name_ends"]
    assert len(ends) == count
    assert np.all(np.diff(ends.astype("int64")) >= 0)
    assert int(ends[-1]) == len(columns["names"])
    next_child = 1
    for row in range(count):
        if kinds[row] != Kind.DIRECTORY:
            continue
        first, children = table.span(row)
        assert first == next_child, f"children of row {row} do not follow on"
        next_child += children
        names = [table.name_at(child) for child in range(first, first + children)]
        assert names == sorted(set(names)), f"children of row {row} are not sorted and unique"
        assert all(names), f"row {row} has a child without a name"
        assert all(parents[child] == row for child in range(first, first + children))
        newest = max((times[child] for child in range(first, first + children)), default=0)
        assert times[row] >= newest
    assert next_child == count
    is_object = are_objects(columns["kinds"])
    assert table.metadata.file_count == int(np.count_nonzero(is_object))
    assert table.metadata.directory_count == int(np.count_nonzero(columns["kinds"] == Kind.DIRECTORY))
    assert table.metadata.total_bytes == exact_sum(columns["sizes"][is_object])
    for row in np.flatnonzero(columns["kinds"] == Kind.FILE_MADE).tolist():
        assert len(table.made(table.inode(row))) == sizes[row]
    order = table.source_order()
    assert order is None or all(kinds[row] != Kind.DIRECTORY for row in order)
    inodes = [table.inode(row) for row in range(count)]
    assert inodes[0] == ROOT
    assert len(set(inodes)) == count
    assert max(inodes) < table.next_inode
    assert [table.row(inode) for inode in inodes] == list(range(count))


def files_of(table: InodeTable) -> dict[str, int]:
    """The inode of each file by its path, in the order of rows."""
    inodes = map(table.inode, range(len(table)))
    return {table.path(inode): inode for inode in inodes if not table.is_directory(inode)}


def walk(table: InodeTable) -> dict[bytes, Attributes]:
    """Every path with its attributes, as directories list them; the root is the empty path."""
    found, waiting = {b"": table.attributes(ROOT)}, [(b"", ROOT)]
    while waiting:
        path, directory = waiting.pop()
        for name, attributes in table.children(directory):
            below = path + b"/" + name if path else name
            found[below] = attributes
            if attributes.is_directory:
                waiting.append((below, attributes.inode))
    return found
