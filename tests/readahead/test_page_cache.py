"""The page cache as far as it is known: files against a set of inodes, ranges against a set of pages."""

from hypothesis import example, given
from hypothesis import strategies as st

from fastfuse.readahead.page_cache import CachedRanges, Delivered
from tests.readahead.readers import KIB

PAGE = 4 * KIB
# A long range has 32 pages.
PAGES = 200
additions = st.lists(st.tuples(st.integers(0, PAGES), st.integers(1, 60)), max_size=12)


def pages_of(start: int, end: int) -> set[int]:
    return set(range(start // PAGE, end // PAGE))


def cached_of(added: list[tuple[int, int]]) -> tuple[CachedRanges, set[int]]:
    ranges, pages = CachedRanges(), set[int]()
    for page, count in added:
        ranges.add(page * PAGE, (page + count) * PAGE)
        if count >= 32:
            pages |= set(range(page, page + count))
    return ranges, pages


@given(added=additions, page=st.integers(0, 2 * PAGES), count=st.integers(1, 60))
def test_ranges_are_where_many_pages_were_added(added: list[tuple[int, int]], page: int, count: int) -> None:
    ranges, pages = cached_of(added)
    assert len(ranges) == sum(page - 1 not in pages for page in pages)
    end = page
    while end in pages:
        end += 1
    assert ranges.end_at(page * PAGE) == end * PAGE
    assert ranges.overlaps(page * PAGE, (page + count) * PAGE) == bool(pages & {*range(page, page + count)})
    assert ranges.lose(128 * KIB)
    assert len(ranges) == 0
    assert ranges.end_at(page * PAGE) == page * PAGE


@given(added=additions, page=st.integers(0, 2 * PAGES), before=st.integers(0, 60), after=st.integers(1, 60))
def test_a_gap_ends_where_a_range_begins(added: list[tuple[int, int]], page: int, before: int, after: int) -> None:
    ranges, pages = cached_of(added)
    if page in pages:
        return
    gap = max(0, page - before) * PAGE, (page + after) * PAGE
    start, end = ranges.clip(gap, page * PAGE)
    assert gap[0] <= start <= page * PAGE < end <= gap[1]
    assert not pages_of(start, end) & pages
    assert start == gap[0] or start // PAGE - 1 in pages
    assert end == gap[1] or end // PAGE in pages


def test_there_are_never_too_many_ranges() -> None:
    ranges = CachedRanges()
    for number in range(10_000):
        ranges.add(100 * number * PAGE, (100 * number + 50) * PAGE)
        assert len(ranges) <= 1024


def test_single_pages_that_are_lost_say_nothing_of_the_others() -> None:
    ranges = CachedRanges()
    ranges.add(0, 64 * PAGE)
    assert [ranges.lose(PAGE) for _ in range(32)] == [False] * 31 + [True]
    assert (len(ranges), ranges.losses) == (0, 1)
    assert not ranges.lose(PAGE)


@given(st.lists(st.tuples(st.integers(1, 2000) | st.integers(1, 9), st.booleans())))
@example([(1 << 40, True)])
def test_it_knows_exactly_what_was_opened_and_not_forgotten(steps: list[tuple[int, bool]]) -> None:
    delivered, opened = Delivered(), set[int]()
    for inode, is_forgotten in steps:
        if is_forgotten:
            delivered.discard(inode)
            opened.discard(inode)
            continue
        assert delivered.has(inode) == (inode in opened)
        assert delivered.add(inode) == (inode in opened)
        opened.add(inode)
    assert {inode for inode in range(1, 3000) if delivered.has(inode)} == opened


def test_once_the_kernel_has_missed_several_files_nothing_is_taken_for_cached() -> None:
    delivered = Delivered()
    delivered.add(1)
    for is_cached in (True,) * 8 + (False,) * 8:
        assert delivered.has(1) == is_cached
        delivered.missed()
    assert 1 in delivered
