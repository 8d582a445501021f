"""Describes the content of a channel, so that it is known later whether two jobs had the same data."""

import hashlib
from dataclasses import dataclass

import numpy as np

from fastfuse.index.inodes.columns import Kind
from fastfuse.index.snapshot import Snapshot

__all__ = ["Listing", "listing_of"]

# They say which rows there are, with their sizes and versions; times and inode numbers are left out.
_HASHED = ("names", "name_ends", "parents", "kinds", "sizes", "etag_parts", "made", "source_order")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The objects or files that this host gets of a channel."""

    objects: int
    total_bytes: int
    # The hash covers names below the prefix, sizes, ETags and the order of a manifest.
    sha256: str


def listing_of(snapshot: Snapshot) -> Listing:
    """Describe the listing in `snapshot`; equal content has an equal hash, whatever the bucket and the times."""
    table = snapshot.table
    hashed = hashlib.sha256()
    for name in _HASHED:
        if (column := table.columns.get(name)) is not None:
            hashed.update(f"{name}:{len(column)}\n".encode())
            hashed.update(np.ascontiguousarray(column).view("uint8").data)
    # The numbers of unusual ETags depend on the order in which the pages of the listing came.
    kinds, etags = table.columns["kinds"], table.columns["etags"]
    unusual = np.flatnonzero(kinds == Kind.FILE_OTHER_ETAG)
    hashed.update(np.delete(etags, unusual, axis=0).tobytes() if len(unusual) else np.ascontiguousarray(etags).data)
    for row in unusual:
        hashed.update(f"{table.etag(table.inode(int(row)))}\n".encode(errors="surrogateescape"))
    metadata = table.metadata
    return Listing(objects=metadata.file_count, total_bytes=metadata.total_bytes, sha256=hashed.hexdigest())
