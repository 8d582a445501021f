"""The shape of a listing, against plain sums."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fastfuse.advise.model import PART_BYTES
from fastfuse.advise.probe import shape_of
from tests.advise.shapes import shape_of_sizes
from tests.index.indexes import MD5, index_of, table_of

_sizes = st.one_of(st.sampled_from([0, 1, PART_BYTES, PART_BYTES + 1, (1 << 63) - 1]), st.integers(0, 1 << 40))


@given(st.lists(_sizes, max_size=20))
def test_the_figures_are_those_of_the_objects(sizes: list[int]) -> None:
    found = shape_of(index_of({f"{at}": size for at, size in enumerate(sizes)}).table)
    expected = shape_of_sizes(sizes)
    assert found == replace(expected, directories=found.directories)


def test_archived_objects_are_counted() -> None:
    classes = ["STANDARD", "GLACIER", "GLACIER_IR", "DEEP_ARCHIVE"]
    assert shape_of(table_of({name: (1, 10**18, MD5, name) for name in classes})).archived_objects == 2
