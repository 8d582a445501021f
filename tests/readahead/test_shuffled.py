"""Which rows are fetched for readers in no order: soon all of them, once, and few for readers who want few."""

import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.readahead.shuffled import ShuffledEpoch

COUNT = 8000


class Carried:
    """Fetches what is commanded, at once and as far as it may hold more; a kernel that keeps what is read is beside."""

    def __init__(self, row_count: int = COUNT, max_held_files: int = COUNT, *, is_expected: bool = True) -> None:
        self.row_count = row_count
        self.max_held_files = max_held_files
        self.epoch = ShuffledEpoch(row_count, max_held_files, is_expected=is_expected)
        # The name and the size in bytes of a row.
        self.file: Callable[[int], tuple[bytes, int]] = lambda row: (b"%d.jpg" % row, 10)
        self.held: set[int] = set()
        self.read: set[int] = set()
        self.fetches = self.misses = 0
        self.is_ended = False

    def open(self, row: int) -> None:
        is_found, is_missed = row in self.held, row not in self.held and row not in self.read
        self.misses += is_missed
        if self.epoch.begun(row, self.file(row), is_found=is_found, is_missed=is_missed):
            self.is_ended = True
            self.held.clear()
        self.held.discard(row)
        self.read.add(row)
        self.pump()

    def pump(self) -> None:
        while (row := self.epoch.next()) is not None:
            assert 0 <= row < self.row_count
            if row in self.held or row in self.read or not self.epoch.expects(self.file(row)[0]):
                self.epoch.advance(0)
                continue
            if len(self.held) == self.max_held_files:
                return
            self.epoch.advance(self.file(row)[1])
            self.held.add(row)
            self.fetches += 1

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
    carried = Carried(max_held_files=COUNT // 4)
    carried.open_all(shuffled())
    assert COUNT / 3 < carried.misses < COUNT * 0.6


def test_of_more_files_than_eight_times_those_that_fit_none_is_fetched() -> None:
    carried = Carried(max_held_files=COUNT // 8 - 1)
    assert carried.epoch.is_over
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


def test_where_fewer_than_half_of_those_fetched_are_found_the_next_epoch_is_the_last() -> None:
    carried = Carried(max_held_files=COUNT // 4)
    third = shuffled()[: COUNT // 3]
    ends = []
    for _ in range(5):
        carried.open_all(third)
        carried.forget()
        assert carried.epoch.is_over is carried.is_ended
        ends.append(carried.is_ended)
    assert ends == [False, False, True, True, True]
    assert not carried.held
    assert carried.epoch.next() is None


def test_files_that_an_order_came_to_are_as_good_as_found() -> None:
    carried = Carried()
    for row in shuffled():
        for held in sorted(carried.held):
            carried.epoch.adopted(10)
            carried.held.discard(held)
            carried.read.add(held)
        carried.open(row)
    carried.forget()
    carried.open_all(shuffled(seed=1)[:10])
    assert not carried.is_ended


def test_files_that_are_opened_twice_in_an_epoch_end_it_no_sooner() -> None:
    carried = Carried()
    for seed in range(2):
        carried.open_all(row for row in shuffled(seed=seed) for _ in range(2))
        carried.forget()
    assert not carried.is_ended
    assert carried.misses < 2 * COUNT / 5


def with_replacement(seed: int) -> list[int]:
    return random.Random(seed).choices(range(COUNT), k=COUNT)


def by_two_processes(seed: int) -> list[int]:
    """Each reads all files, in an order of its own."""
    pairs = zip(shuffled(seed=seed), shuffled(seed=seed + 10), strict=True)
    return [row for pair in pairs for row in pair]


@pytest.mark.parametrize("draw", [with_replacement, by_two_processes])
def test_files_that_are_read_again_long_before_all_were_end_no_epoch(draw: Callable[[int], list[int]]) -> None:
    carried, opens = Carried(), 0
    for seed in range(2):
        for row in draw(seed):
            carried.open(row)
            carried.forget()
            opens += 1
    assert not carried.is_ended
    assert carried.misses < opens / 2


@pytest.mark.parametrize("rows", [range(COUNT), range(COUNT // 4, COUNT // 2)], ids=["table", "directory"])
@pytest.mark.parametrize("seed", range(3))
def test_where_nobody_has_said_so_less_than_half_of_a_shuffled_set_is_waited_for(rows: range, seed: int) -> None:
    carried = Carried(is_expected=False)
    carried.open_all(random.Random(seed).sample(rows, len(rows)))
    assert carried.misses < 0.4 * len(rows)
    assert carried.fetches + carried.misses == len(rows)
    assert not carried.held


@pytest.mark.parametrize(
    ("count", "share"), [(8000, 0.1), (8000, 0.12), (1000, 0.1), (150, 0.1), (8000, 0.002)], ids=str
)
@pytest.mark.parametrize("seed", range(3))
def test_where_nobody_has_said_so_whoever_reads_a_tenth_at_random_causes_nothing(
    count: int, share: float, seed: int
) -> None:
    carried = Carried(count, is_expected=False)
    carried.open_all(shuffled(count, seed)[: int(share * count)])
    assert carried.fetches == 0


def test_every_second_file_in_order_is_no_set() -> None:
    carried = Carried(is_expected=False)
    carried.open_all(range(0, COUNT, 2))
    assert carried.fetches == 0


def test_files_of_whose_suffix_none_was_begun_are_left_out() -> None:
    for is_expected in (False, True):
        carried = Carried(is_expected=is_expected)
        carried.file = lambda row: (b"%d.jpg" % row if row % 2 else b"%d.txt%d" % (row, row), 10)
        carried.open_all(row for row in shuffled() if row % 2)
        assert carried.fetches + carried.misses == COUNT / 2
        assert carried.misses < 0.55 * COUNT / 2


@pytest.mark.parametrize("seed", range(3))
def test_where_nobody_has_said_so_no_more_bytes_are_fetched_in_vain_than_were_begun(seed: int) -> None:
    carried = Carried(is_expected=False)
    carried.file = lambda row: (b"%d.jpg" % row, 1 + row % 100)
    order, begun_bytes = shuffled(seed=seed), 0
    for first in range(0, COUNT // 4, 100):
        carried.open_all(order[first : first + 100])
        begun_bytes += sum(carried.file(row)[1] for row in order[first : first + 100])
        assert sum(carried.file(row)[1] for row in carried.held) <= begun_bytes + 100
    assert carried.fetches > COUNT / 8


def test_an_open_after_a_long_time_of_plenty_looks_at_no_more_rows_than_can_be_held() -> None:
    epoch = ShuffledEpoch(COUNT, COUNT // 8, is_expected=True)
    for row in range(COUNT // 2):
        epoch.begun(COUNT - 1 - row, (b"a", 10), is_found=False, is_missed=True)
    looked_at = 0
    while epoch.next() is not None:
        epoch.advance(0)
        looked_at += 1
    assert looked_at == COUNT // 8


@given(
    row_count=st.integers(1, 60), max_held_files=st.integers(1, 60), opens=st.lists(st.integers(0, 59), max_size=200)
)
def test_never_more_is_held_than_may_be_nor_fetched_than_four_times_what_was_opened(
    row_count: int, max_held_files: int, opens: list[int]
) -> None:
    carried = Carried(row_count, max_held_files)
    for count, row in enumerate(opens, start=1):
        carried.open(row % row_count)
        assert len(carried.held) <= max_held_files
        assert carried.fetches <= min(4 * count, row_count)
