"""Which rows are fetched for readers in no order: soon all of them, once, and few for readers who want few."""

import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.readahead.shuffled import ShuffledEpoch

COUNT = 8000


class Carried:
    """Fetches at once what is commanded, and reads files as an engine and a kernel that keeps them do."""

    def __init__(self, row_count: int = COUNT, max_ahead_files: int = COUNT) -> None:
        self.row_count = row_count
        self.epoch = ShuffledEpoch(row_count, max_ahead_files)
        self.held: set[int] = set()
        self.read: set[int] = set()
        self.fetches = self.misses = 0
        self.most_held = 0

    def open(self, row: int) -> None:
        is_missed = row not in self.held and row not in self.read
        self.misses += is_missed
        self.epoch.opened(row, is_missed=is_missed)
        self.held.discard(row)
        self.read.add(row)
        self.pump()

    def pump(self) -> None:
        while (row := self.epoch.next()) is not None:
            assert 0 <= row < self.row_count
            if row in self.held or row in self.read:
                self.epoch.passed_over()
                continue
            self.epoch.taken()
            self.held.add(row)
            self.fetches += 1
            self.most_held = max(self.most_held, len(self.held))

    def open_all(self, rows: Iterable[int]) -> None:
        for row in rows:
            self.open(row)

    def forget(self) -> None:
        """The kernel has kept nothing."""
        self.read.clear()


def shuffled(count: int = COUNT, seed: int = 0) -> list[int]:
    return random.Random(seed).sample(range(count), count)


@pytest.mark.parametrize("seed", range(3))
def test_of_a_shuffled_epoch_that_fits_a_fifth_is_waited_for_and_every_file_is_fetched_once(seed: int) -> None:
    carried = Carried()
    carried.open_all(shuffled(seed=seed))
    assert carried.misses < COUNT / 5
    assert carried.fetches + carried.misses == COUNT
    assert not carried.held


def test_of_an_epoch_of_which_a_quarter_fits_half_is_waited_for() -> None:
    carried = Carried(max_ahead_files=COUNT // 4)
    carried.open_all(shuffled())
    assert carried.most_held == COUNT // 4
    assert COUNT / 3 < carried.misses < COUNT * 0.6


def test_of_more_files_than_eight_times_those_that_fit_none_is_fetched() -> None:
    carried = Carried(max_ahead_files=COUNT // 8 - 1)
    carried.open_all(shuffled())
    assert carried.fetches == 0


@pytest.mark.parametrize("opens", [1, 10, 100])
def test_readers_who_want_few_files_have_caused_four_times_as_many(opens: int) -> None:
    carried = Carried()
    carried.open_all(shuffled()[:opens])
    assert 3.9 * opens < carried.fetches <= 4 * opens


def test_files_that_the_page_cache_has_cause_nothing() -> None:
    carried = Carried()
    carried.open_all(shuffled())
    fetches = carried.fetches
    carried.open_all(shuffled(seed=1))
    assert carried.fetches == fetches


def test_an_epoch_that_the_page_cache_could_not_keep_is_fetched_once_again_and_not_the_one_after_it() -> None:
    carried = Carried()
    for seed in range(3):
        fetches, misses = carried.fetches, carried.misses
        carried.open_all(shuffled(seed=seed))
        carried.forget()
        assert carried.fetches - fetches + carried.misses - misses <= COUNT
        assert carried.misses - misses < COUNT / 5
    assert len(carried.held) < 16


def test_what_is_held_gives_way_one_by_one_and_is_not_fetched_again_in_this_epoch() -> None:
    carried = Carried()
    carried.open(COUNT - 1)
    assert [carried.epoch.give_way() for _ in range(5)] == [(0,), (1,), (2,), (3,), ()]
    carried.held.clear()
    carried.open(COUNT - 2)
    assert carried.held == {4, 5, 6, 7}


def test_an_empty_table_has_nothing_to_fetch() -> None:
    assert ShuffledEpoch(0, 8).next() is None


@given(
    row_count=st.integers(1, 60),
    max_ahead_files=st.integers(1, 60),
    opens=st.lists(st.integers(0, 59), max_size=200),
)
def test_never_more_is_held_than_may_be_nor_fetched_than_four_times_what_was_opened(
    row_count: int, max_ahead_files: int, opens: list[int]
) -> None:
    carried = Carried(row_count, max_ahead_files)
    for count, row in enumerate(opens, start=1):
        carried.open(row % row_count)
        assert len(carried.held) <= max_ahead_files
        assert carried.fetches <= min(4 * count, row_count)
