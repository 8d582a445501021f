"""Shapes for tests."""

from collections.abc import Sequence

from fastfuse.advise.model import PART_BYTES, RANDOM_BYTES, Shape

__all__ = ["shape_of_sizes"]


def shape_of_sizes(sizes: Sequence[int]) -> Shape:
    """Return the shape of objects of these sizes, by plain sums."""
    small = [size for size in sizes if size <= PART_BYTES]
    return Shape(
        objects=len(sizes),
        directories=1,
        total_bytes=sum(sizes),
        median_bytes=sorted(sizes)[len(sizes) // 2] if sizes else 0,
        largest_bytes=max(sizes, default=0),
        small_objects=len(small),
        small_bytes=sum(small),
        gets=sum(-(-size // PART_BYTES) for size in sizes),
        random_gets=sum(-(-size // RANDOM_BYTES) for size in sizes),
        archived_objects=0,
    )
