"""Shapes for tests."""

from collections.abc import Sequence
from dataclasses import replace

from fastfuse.advise.model import PART_BYTES, RANDOM_BYTES, Shape
from fastfuse.readahead import opening_ends


def shape_of_sizes(sizes: Sequence[int]) -> Shape:
    """Return the shape of objects of these sizes, by plain sums."""
    small = [size for size in sizes if size <= PART_BYTES]
    return Shape(
        objects=len(sizes), directories=1, total_bytes=sum(sizes), largest_bytes=max(sizes, default=0),
        median_bytes=sorted(sizes)[len(sizes) // 2] if sizes else 0,
        small_objects=len(small), small_bytes=sum(small), archived_objects=0,
        gets=sum(-(-size // PART_BYTES) for size in sizes),
        mounted_gets=sum(map(_mounted_gets, sizes)),
        random_gets=sum(-(-size // RANDOM_BYTES) for size in sizes),
    )  # fmt: skip


def many(count: int, size_bytes: int) -> Shape:
    """Return the shape of so many objects of one size."""
    one = shape_of_sizes([size_bytes])
    counted = {"objects", "total_bytes", "small_objects", "small_bytes", "gets", "mounted_gets", "random_gets"}
    return replace(one, **{name: count * getattr(one, name) for name in counted})


def _mounted_gets(size_bytes: int) -> int:
    if size_bytes <= PART_BYTES:
        return int(size_bytes > 0)
    *ends, last = opening_ends(1 << 20, PART_BYTES, 64)
    grown = -(-max(size_bytes - last, 0) // PART_BYTES)
    return 1 + sum(end < size_bytes for end in ends) + grown
