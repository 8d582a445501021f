"""In which order objects are streamed. Pure."""

import numpy as np
import numpy.typing as npt

from fastfuse.index.inodes.columns import are_objects
from fastfuse.index.inodes.selection import key_order
from fastfuse.index.inodes.table import ROOT, InodeTable
from fastfuse.index.sources.shuffle import shuffled

__all__ = ["epoch_order", "find_object", "source_order"]

Inodes = npt.NDArray[np.int64]


def source_order(table: InodeTable) -> Inodes:
    """The inodes of all objects: as the source names them (twice where it does), or by key, as S3 lists them."""
    given = table.source_order()
    rows = key_order(table) if given is None else given.astype("int64")
    rows = rows[are_objects(table.columns["kinds"][rows])]
    inodes = table.columns.get("inodes")
    return rows + 1 if inodes is None else inodes[rows].astype("int64")


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
