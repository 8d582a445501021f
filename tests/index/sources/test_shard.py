"""Parts are disjoint, complete, and as even as they say; an epoch is a permutation. Both are the same everywhere."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import ConfigurationError
from fastfuse.index.sources.shard import Shard
from fastfuse.index.sources.shuffle import shuffled

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


_MASK = (1 << 64) - 1


def documented(count: int, seed: int, epoch: int) -> list[int]:
    """As the module's docstring says it, without numpy."""
    state = int.from_bytes(hashlib.blake2b(f"{seed}:{epoch}".encode(), digest_size=8).digest(), "little")
    keys = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        key = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & _MASK
        keys.append(key ^ (key >> 31))
    return sorted(range(count), key=keys.__getitem__)


@given(st.integers(0, 300), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 1 << 40))
def test_the_order_is_the_documented_permutation(count: int, seed: int, epoch: int) -> None:
    assert shuffled(count, seed, epoch).tolist() == documented(count, seed, epoch)
