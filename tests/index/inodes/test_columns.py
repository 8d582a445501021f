"""Sums of sizes, against Python's own."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.index.inodes.columns import exact_sum, exact_sums

_MAX_BYTES = (1 << 63) - 1
_sizes = st.one_of(st.just(_MAX_BYTES), st.integers(0, _MAX_BYTES), st.integers(0, 10))


@given(st.lists(_sizes))
def test_the_sum_is_exact(sizes_bytes: list[int]) -> None:
    assert exact_sum(np.array(sizes_bytes, "int64")) == sum(sizes_bytes)


@given(st.lists(st.tuples(_sizes, st.integers(0, 3))))
def test_the_sum_of_each_group_is_exact(rows: list[tuple[int, int]]) -> None:
    sizes_bytes = np.array([size for size, _ in rows], "int64")
    groups = np.array([group for _, group in rows], "int64")
    expected = [sum(size for size, group in rows if group == wanted) for wanted in range(4)]
    assert exact_sums(sizes_bytes, groups, 4) == expected
