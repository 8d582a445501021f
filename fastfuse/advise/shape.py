"""Counts and sums the columns of an inode table: the figures of a listing that the model needs. Pure."""

import numpy as np
import numpy.typing as npt

from fastfuse.advise.model import PART_BYTES, RANDOM_BYTES, Shape
from fastfuse.index.inodes.columns import are_objects, exact_sum
from fastfuse.index.inodes.selection import archived
from fastfuse.index.inodes.table import InodeTable

__all__ = ["shape_of"]


def shape_of(table: InodeTable) -> Shape:
    """Return the shape of the objects in `table`: 50 ms for a million."""
    is_object = are_objects(table.columns["kinds"])
    sizes = table.columns["sizes"][is_object].astype("int64", copy=False)
    is_small = sizes <= PART_BYTES
    return Shape(
        objects=len(sizes),
        directories=table.metadata.directory_count,
        total_bytes=table.metadata.total_bytes,
        median_bytes=int(np.partition(sizes, len(sizes) // 2)[len(sizes) // 2]) if len(sizes) else 0,
        largest_bytes=int(sizes.max(initial=0)),
        small_objects=int(np.count_nonzero(is_small)),
        small_bytes=exact_sum(sizes[is_small]),
        gets=exact_sum(_ranges(sizes, PART_BYTES)),
        random_gets=exact_sum(_ranges(sizes, RANDOM_BYTES)),
        archived_objects=int(np.count_nonzero(archived(table) & is_object)),
    )


def _ranges(sizes_bytes: npt.NDArray[np.int64], range_bytes: int) -> npt.NDArray[np.int64]:
    """Return how many ranges each size is divided into. Adding before dividing would overflow at 8 EiB."""
    return np.asarray(sizes_bytes // range_bytes + (sizes_bytes % range_bytes != 0), "int64")
