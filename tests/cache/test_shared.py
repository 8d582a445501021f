"""The filter of what a tier keeps: beside a naive model, and in files that fail."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.cache.shared import add, may_have_object

WORDS = 8
OBJECT_IDS = st.integers(0, (1 << 63) - 1) | st.builds(
    lambda word, high: high << 51 | word, *[st.integers(0, 4095)] * 2
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("filter") / "filter"
    yield path
    path.unlink()


def bits(object_id: int) -> set[tuple[int, int]]:
    return {(object_id % WORDS, object_id >> shift & 63) for shift in (51, 57)}


@given(st.lists(OBJECT_IDS), st.lists(OBJECT_IDS))
def test_two_bits_of_a_word_tell_what_may_be_kept(path: Path, kept: list[int], others: list[int]) -> None:
    path.write_bytes(bytes(8 * WORDS))
    with open(path, "r+b") as one, open(path, "r+b") as other:
        add(one.fileno(), kept[::2])
        add(other.fileno(), kept[1::2])
        noted = set().union(*map(bits, kept))
        assert all(may_have_object(one.fileno(), object_id) for object_id in kept)
        for object_id in others:
            assert may_have_object(other.fileno(), object_id) == (bits(object_id) <= noted)


def test_everything_may_be_kept_by_a_filter_that_cannot_be_read_or_written(path: Path) -> None:
    path.write_bytes(bytes(8))
    with open(path, "rb") as read_only:
        add(read_only.fileno(), [1])
        assert not may_have_object(read_only.fileno(), 1)
    path.write_bytes(b"")
    with open(path, "r+b") as empty:
        add(empty.fileno(), [1])
        assert may_have_object(empty.fileno(), 1)
    directory_fd = os.open(path.parent, os.O_RDONLY)
    add(directory_fd, [1])
    assert may_have_object(directory_fd, 1)
    os.close(directory_fd)
