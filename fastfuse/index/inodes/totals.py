"""Exact sums of sizes: a service may claim objects of up to 8 EiB each, and two of these are more than an int64 holds.

The upper and the lower 32 bits of the sizes are summed apart, and the two sums put together as Python's integers.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["exact_sum", "exact_sums"]

_LOW_BITS = 32
_LOW_MASK = (1 << _LOW_BITS) - 1


def exact_sum(sizes_bytes: npt.NDArray[Any]) -> int:
    """Return the sum of `sizes_bytes`."""
    return (int((sizes_bytes >> _LOW_BITS).sum()) << _LOW_BITS) + int((sizes_bytes & _LOW_MASK).sum())


def exact_sums(sizes_bytes: npt.NDArray[Any], groups: npt.NDArray[Any], count: int) -> list[int]:
    """Return the sum of each group, where ``groups[i]`` is the group of ``sizes_bytes[i]``, less than `count`."""
    high, low = np.zeros((2, count), "int64")
    np.add.at(high, groups, sizes_bytes >> _LOW_BITS)
    np.add.at(low, groups, sizes_bytes & _LOW_MASK)
    return [(above << _LOW_BITS) + below for above, below in zip(high.tolist(), low.tolist(), strict=True)]
