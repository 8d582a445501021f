"""Parts are disjoint, complete, the same everywhere, and as even as they say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import ConfigurationError
from fastfuse.index.sources.shard import Shard

SIZES = st.lists(st.integers(0, 100) | st.integers(0, 1 << 50), max_size=60)
COUNTS = st.integers(1, 9)


def parts(sizes: list[int], count: int, *, by_bytes: bool) -> list[list[int]]:
    return [list(Shard(index=at, count=count, by_bytes=by_bytes).positions(sizes)) for at in range(count)]


@given(SIZES, COUNTS)
def test_by_count_part_i_is_every_nth_from_the_ith_on(sizes: list[int], count: int) -> None:
    every = list(range(len(sizes)))
    assert parts(sizes, count, by_bytes=False) == [every[at::count] for at in range(count)]


@given(SIZES, COUNTS)
def test_by_bytes_each_goes_to_the_lightest_part_from_the_largest_on(sizes: list[int], count: int) -> None:
    model: list[list[int]] = [[] for _ in range(count)]
    for position in sorted(range(len(sizes)), key=lambda at: (-sizes[at], at)):
        lightest = min(range(count), key=lambda part: (sum(sizes[at] for at in model[part]), len(model[part]), part))
        model[lightest].append(position)
    assert parts(sizes, count, by_bytes=True) == [sorted(part) for part in model]


@pytest.mark.parametrize("text", ["1/1", "3/4", " 1/2 ", "999999/999999"])
def test_a_part_is_read_as_it_is_written(text: str) -> None:
    shard = Shard.parse(text, by_bytes=True)
    assert str(shard) == f"part {text.strip()} by bytes"
    assert str(Shard(index=shard.index, count=shard.count)) == f"part {text.strip()} by count"


@pytest.mark.parametrize("text", ["5/4", "0/4", "0/0", "", "1", "-1/2", "1/2/3", "a/b", "١/٢", "1 / 2", "0/1000000"])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a part of several") as raised:
        Shard.parse(text)
    assert raised.value.hint
