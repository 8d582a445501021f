"""What the kernel's page cache most likely has."""

from hypothesis import given
from hypothesis import strategies as st

from fastfuse.readahead.delivered import Delivered


@given(st.lists(st.integers(1, 2000)))
def test_it_knows_exactly_what_was_opened(inodes: list[int]) -> None:
    delivered, opened = Delivered(), set[int]()
    for inode in inodes:
        assert delivered.has(inode) == (inode in opened)
        assert delivered.add(inode) == (inode in opened)
        opened.add(inode)
    assert {inode for inode in range(1, 3000) if delivered.has(inode)} == opened


def test_a_few_files_that_the_kernel_has_dropped_mean_nothing() -> None:
    delivered = Delivered()
    delivered.add(1)
    for _ in range(7):
        delivered.missed()
    assert delivered.has(1)


def test_when_the_kernel_drops_more_than_it_keeps_nothing_is_taken_for_cached_until_that_changes() -> None:
    delivered = Delivered()
    delivered.add(1)
    for _ in range(100):
        delivered.missed()
    assert not delivered.has(1)
    for _ in range(8):
        delivered.kept()
    assert not delivered.has(1)
    delivered.kept()
    assert delivered.has(1)
