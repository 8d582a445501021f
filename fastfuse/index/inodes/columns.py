"""The columns of an `index.inodes.table.InodeTable`.

======================  ========  ==============================================================================
column                  type      meaning
======================  ========  ==============================================================================
``names``               bytes     last path segments, concatenated in row order
``name_ends``           uint64    exclusive end of the row's name in ``names``
``parents``             uint32    row of the directory that holds the row; the root holds itself
``kinds``               uint8     what the row is and how its ETag is written: `Kind`
``storage_classes``     uint8     index into `TableMetadata.storage_classes`
``etag_parts``          uint16    ``-N`` suffix of a multipart upload's ETag
``sizes``               int64     file: bytes. directory: 0
``mtimes_ns``           int64     file: LastModified. directory: the newest below it
``etags``               16 bytes  file: the ETag's 16 MD5 bytes; of another ETag its beginning in
                                  ``other_etags`` and its bytes, two uint64.
                                  directory: row of the first child and number of children, two uint64.
                                  made file: its beginning in ``made``, uint64, and 8 bytes of digest
======================  ========  ==============================================================================

*Made* files are no objects: the table carries their bytes. A table that needs no such column lacks it:

======================  ========  ==============================================================================
``made``                bytes     contents of made files, concatenated
``other_etags``         bytes     ETags that are no MD5, concatenated
======================  ========  ==============================================================================

Inode numbers are the rows plus one, so the root is 1, as FUSE requires. In a table that replaced another one
(`index.inodes.changes`), unchanged rows keep their numbers, and more columns hold them, and where a listing that
stopped at a row of the other table goes on:

======================  ========  ==============================================================================
``inodes``              uint64    inode number of the row
``inode_rows``          uint32    the rows, in the order of their inode numbers
``gone_inodes``         uint64    children of directories that stayed, which the other table had, in order
``gone_rows``           uint32    the row that follows each of them in its directory
======================  ========  ==============================================================================

If the source has an order of its own (a manifest), one more column holds it; a file named twice is in it twice:

======================  ========  ==============================================================================
``source_order``        uint32    rows of files, as many as the source names
======================  ========  ==============================================================================
"""

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

COLUMN_TYPES: Mapping[str, str] = {
    "names": "uint8",
    "name_ends": "uint64",
    "parents": "uint32",
    "kinds": "uint8",
    "storage_classes": "uint8",
    "etag_parts": "uint16",
    "sizes": "int64",
    "mtimes_ns": "int64",
    "etags": "V16",
}

OPTIONAL_COLUMN_TYPES: Mapping[str, str] = {
    "inodes": "uint64",
    "inode_rows": "uint32",
    "gone_inodes": "uint64",
    "gone_rows": "uint32",
    "source_order": "uint32",
    "made": "uint8",
    "other_etags": "uint8",
}

# Columns whose length is not the number of rows.
BLOBS = frozenset({"names", "gone_inodes", "gone_rows", "source_order", "made", "other_etags"})

# The ``etags`` of files whose ETag is no MD5.
OTHER_ETAG = struct.Struct("<QQ")
# The ``etags`` of made files.
MADE = struct.Struct("<Q8s")


class Kind(IntEnum):
    """Values of the ``kinds`` column."""

    DIRECTORY = 0
    FILE_MD5 = 1  # "0123...ef"
    FILE_MULTIPART = 2  # "0123...ef-12"
    FILE_OTHER_ETAG = 3  # anything else, none included
    FILE_MADE = 4  # no object: its bytes are in the column ``made``


def are_objects(kinds: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    """Return which rows are objects, by their kinds: neither directories nor made files."""
    numbers = kinds.view("uint8")
    return (numbers >= int(Kind.FILE_MD5)) & (numbers <= int(Kind.FILE_OTHER_ETAG))


def are_made(kinds: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    """Return which rows are made files, by their kinds."""
    return np.asarray(kinds == int(Kind.FILE_MADE))


# A service may claim objects of up to 8 EiB each, and two of these exceed an int64. So the upper and the lower 32 bits
# are summed apart.
_LOW_BITS = 32
_LOW_MASK = (1 << _LOW_BITS) - 1


def exact_sum(sizes_bytes: npt.NDArray[Any]) -> int:
    """Return the exact sum of `sizes_bytes`."""
    return (int((sizes_bytes >> _LOW_BITS).sum()) << _LOW_BITS) + int((sizes_bytes & _LOW_MASK).sum())


def exact_sums(sizes_bytes: npt.NDArray[Any], groups: npt.NDArray[Any], count: int) -> list[int]:
    """Return the exact sum of each group, where ``groups[i]`` is the group of ``sizes_bytes[i]``, less than `count`."""
    high, low = np.zeros((2, count), "int64")
    np.add.at(high, groups, sizes_bytes >> _LOW_BITS)
    np.add.at(low, groups, sizes_bytes & _LOW_MASK)
    return [(above << _LOW_BITS) + below for above, below in zip(high.tolist(), low.tolist(), strict=True)]
