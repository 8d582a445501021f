"""In which order objects are streamed. Pure."""

import numpy as np
import numpy.typing as npt

from fastfuse.inodes.table import ROOT, InodeTable, Kind
from fastfuse.sources.shuffle import shuffled

__all__ = ["epoch_order", "find_object", "key_order"]

Inodes = npt.NDArray[np.int64]


def key_order(table: InodeTable) -> Inodes:
    """All files, ascending by the bytes of their keys: as S3 lists them."""
    found: list[npt.NDArray[np.int64]] = []
    # Rows in the order to come; directories are replaced by what is in them.
    stack = [table.row(ROOT)]
    while stack:
        row = stack.pop()
        if table.columns["kinds"][row] != Kind.DIRECTORY:
            found.append(np.array([row]))
            continue
        first, count = table.span(row)
        children = np.arange(first, first + count)
        if np.any(table.columns["kinds"][first : first + count] == Kind.DIRECTORY):
            stack += sorted(children.tolist(), key=lambda child: _sorted_name(table, child), reverse=True)
        else:
            found.append(children)
    rows = np.concatenate([np.array([], "int64"), *found])
    inodes = table.columns.get("inodes")
    return rows + 1 if inodes is None else inodes[rows].astype("int64")


def _sorted_name(table: InodeTable, row: int) -> bytes:
    """A directory's place among files is that of its keys."""
    name = table.name_at(row)
    return name + b"/" if table.columns["kinds"][row] == Kind.DIRECTORY else name


def epoch_order(items: Inodes, seed: int | None, epoch: int) -> Inodes:
    """`items` as this epoch has them."""
    return items if seed is None else items[shuffled(len(items), seed, epoch)]


def find_object(table: InodeTable, bucket: str, key: str) -> int | None:
    """The inode of an object; None where the table does not have it."""
    metadata = table.metadata
    if not metadata.bucket:  # of several buckets, each a directory
        path = f"{bucket}/{key}"
    elif bucket == metadata.bucket and key.startswith(metadata.key_prefix):
        path = key.removeprefix(metadata.key_prefix)
    else:
        return None
    inode: int | None = ROOT
    for name in path.encode().split(b"/"):
        if inode is None or not table.is_directory(inode):
            return None
        inode = table.lookup(inode, name)
    return None if inode is None or table.is_directory(inode) else inode
