"""Which rows of a listing come next: for readers in order, for several that share one, and for those in no order."""

import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.readahead.orders import ListingOrder

MANY = 1_000_000


class Carried:
    """Carries out at once what the order commands, and remembers what was dropped of it."""

    def __init__(self, row_count: int = MANY) -> None:
        self.order = ListingOrder(row_count)
        self.fetched: set[int] = set()
        self.dropped: set[int] = set()
        self.opens = self.early = 0

    def open(self, row: int) -> None:
        self.opens += 1
        self.early += row in self.fetched
        self.dropped.update(self.order.begun(row))
        while (wanted := self.order.next()) is not None:
            self.fetched.add(wanted)
            self.order.advance(0)

    def open_all(self, rows: Iterable[int]) -> None:
        for row in rows:
            self.open(row)


def runs_of(order: ListingOrder) -> tuple[tuple[int, int], ...]:
    return tuple((run.begin, run.position) for run in order._runs.values())


def after(rows: Iterable[int], row_count: int = MANY) -> Carried:
    carried = Carried(row_count)
    carried.open_all(rows)
    return carried


def batches(count: int, files: int, workers: int) -> list[int]:
    """Rows as workers open them that take one batch after the other in turn, and are equally fast."""
    rounds = (range(start, start + files * workers) for start in range(0, count, files * workers))
    return [whole[worker * files + step] for whole in rounds for step in range(files) for worker in range(workers)]


def test_three_files_are_no_order_and_four_are() -> None:
    assert after([7, 8, 9]).fetched == set()
    assert after([7, 8, 9, 10]).fetched == set(range(11, 19))


def test_the_window_grows_with_the_run_up_to_512_files() -> None:
    carried = Carried()
    ahead = []
    for row in range(2000):
        carried.open(row)
        ahead.append(max(carried.fetched, default=row) - row)
    assert ahead[3:6] == [8, 10, 12]
    assert max(ahead) == ahead[-1] == 512


def test_files_that_another_reader_has_opened_are_not_fetched_again() -> None:
    carried = after([10, 11, 12, 13, 0, 1, 2, 3])
    assert carried.fetched == {*range(14, 22), *range(4, 10)}


def test_nothing_is_fetched_behind_the_last_row() -> None:
    assert after(range(100), 103).fetched == set(range(4, 103))


def test_a_file_that_is_opened_twice_in_a_row_changes_nothing() -> None:
    carried = after([0, 0, 1, 1, 2, 2, 3, 3])
    assert runs_of(carried.order) == ((0, 4),)


def test_a_reader_behind_another_one_does_not_shorten_its_window() -> None:
    carried = after(range(100))
    carried.open_all(range(50))
    assert set(runs_of(carried.order)) == {(0, 50), (0, 100)}
    carried.open_all(range(50, 101))
    assert runs_of(carried.order) == ((0, 101),)
    assert max(carried.fetched) == 100 + 202


@pytest.mark.parametrize(("files", "workers"), [(1, 16), (8, 4), (32, 8), (32, 16), (32, 96)])
def test_workers_that_share_an_order_in_batches_find_nearly_all_files_fetched(files: int, workers: int) -> None:
    carried = after(batches(20 * files * workers, files, workers))
    assert carried.early > 0.89 * carried.opens
    assert carried.dropped == set()


def test_readers_of_many_directories_at_once_have_a_window_each() -> None:
    readers = [range(start, start + 200) for start in range(0, 32_000, 1000)]
    carried = after(row for rows in zip(*readers, strict=True) for row in rows)
    assert carried.early == carried.opens - 4 * len(readers)


@pytest.mark.parametrize(("count", "seed"), [*((1_000, seed) for seed in range(3)), (10_000, 0), (100_000, 1)])
def test_a_shuffled_order_causes_next_to_nothing(count: int, seed: int) -> None:
    rows = random.Random(seed).sample(range(count), count)
    carried = Carried(count)
    useless = 0
    for row in rows[: count // 2]:
        known = set(carried.fetched)
        carried.open(row)
        useless += len(carried.fetched - known)
    assert useless <= 0.15 * carried.opens if count == 1_000 else useless <= 0.002 * carried.opens


@pytest.mark.parametrize("count", [10, 50, 200])
@pytest.mark.parametrize("seed", range(3))
def test_in_a_small_directory_a_shuffled_order_fetches_no_file_twice(count: int, seed: int) -> None:
    carried = Carried(count)
    rows = random.Random(seed).sample(range(count), count)
    fetches = 0
    for row in rows:
        fetches += row not in carried.fetched  # at `open`
        carried.open(row)
    assert carried.dropped <= set(rows)
    assert fetches + len(carried.fetched - set(rows)) <= count


def test_samples_of_six_files_in_any_order_are_fetched_to_their_end_and_hardly_further() -> None:
    samples = random.Random(0).sample(range(100_000), 1000)
    carried = Carried()
    carried.open_all(sample * 6 + file for sample in samples[:300] for file in range(6))
    before = set(carried.fetched)
    carried.open_all(sample * 6 + file for sample in samples[300:] for file in range(6))
    fetched = carried.fetched - before
    useful = fetched & {sample * 6 + file for sample in samples for file in range(6)}
    assert len(useful) >= 2 * 700
    assert len(fetched - useful) <= 0.15 * len(useful)  # after samples that happen to be neighbours


def test_a_run_that_goes_beyond_the_usual_length_gets_its_window_again() -> None:
    carried = Carried()
    carried.open_all(sample * 100 + file for sample in range(100) for file in range(6))
    carried.open_all(range(500_000, 500_020))
    assert max(carried.fetched) == 500_019 + 40


def test_what_was_fetched_for_a_forgotten_run_gives_way_first() -> None:
    carried = after(range(10), 32_768)
    carried.open_all(range(1000, 1000 + 2 * 63, 2))
    assert carried.order.give_way() == ()
    carried.open(5000)
    assert list(carried.order.give_way()) == list(range(10, 30))
    assert carried.order.give_way() == ()


def test_what_was_fetched_for_64_forgotten_runs_is_remembered_and_no_more() -> None:
    carried = Carried()
    carried.order._max_runs = 64
    for run in range(64 + 64):
        carried.open_all(range(1000 * run, 1000 * run + 10 + run))  # each longer than what is usual by then
    assert carried.dropped == set()
    carried.open(500_000)
    assert carried.dropped == set(range(10, 30))


def test_a_run_gives_way_once_others_have_opened_256_files() -> None:
    carried = after(range(10))
    carried.open_all(range(1000, 1255))
    assert carried.order.give_way() == ()
    carried.open(1255)
    assert list(carried.order.give_way()) == list(range(10, 30))
    assert carried.order.give_way() == ()


def test_runs_take_turns() -> None:
    order = ListingOrder(MANY)
    for row in range(4):
        order.begun(row)
        order.begun(1000 + row)
    wanted: list[int | None] = []
    for _ in range(4):
        wanted.append(order.next())
        order.advance(0)
    assert wanted == [4, 1004, 5, 1005]


def test_a_run_that_gives_way_commands_no_more_until_it_is_extended() -> None:
    order = ListingOrder(MANY)
    for row in (*range(4), *[1000] * 255):
        order.begun(row)
    assert order.next() == 4
    order.begun(1000)
    assert order.next() is None
    order.begun(4)
    assert order.next() == 5


PLACES = st.integers(0, 3)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("read on"), PLACES, st.sampled_from([1, 4, 30, 130, 260])),
            st.tuples(st.just("read again"), PLACES, st.sampled_from([1, 130, 260])),
            st.tuples(st.just("fetch"), st.integers(1, 40), st.just(0)),
            st.tuples(st.just("give way"), st.just(0), st.just(0)),
        ),
        max_size=30,
    )
)
def test_whenever_runs_give_way_what_is_ahead_of_one_was_commanded_and_the_rest_is_dropped(
    actions: list[tuple[str, int, int]],
) -> None:
    order = ListingOrder(MANY)
    ends = [1000 * place for place in range(4)]
    commanded, held = set[int](), set[int]()

    def begin(row: int) -> None:
        held.difference_update(order.begun(row), [row])

    for action, place, count in actions:
        match action:
            case "read on":
                for _ in range(count):
                    begin(ends[place])
                    ends[place] += 1
            case "read again":
                for _ in range(count):
                    begin(1000 * place)
            case "fetch":
                for _ in range(place):
                    # As whoever finds room for a row only once others gave way.
                    wanted = order.next()
                    if wanted is not None:
                        held.difference_update(order.give_way())
                        order.advance(0)
                        commanded.add(wanted)
                        held.add(wanted)
            case _:
                held.difference_update(order.give_way())
        runs = order._runs.values()
        ahead = {row for run in runs for row in run.ahead}
        assert {row for row in ahead if order._begins.get(row) is None} - commanded == set()
        assert held <= ahead | {row for rows in order._ahead_of_ended for row in rows}


def intervals(rows: set[int]) -> set[tuple[int, int]]:
    """The runs of a model that remembers everything."""
    begins = [row for row in rows if row - 1 not in rows]
    return {(begin, next(end for end in range(begin, begin + 100) if end not in rows)) for begin in begins}


@given(st.permutations(range(60)), st.integers(0, 60))
def test_runs_are_what_was_opened_without_a_gap_whatever_the_order(rows: Sequence[int], count: int) -> None:
    order = ListingOrder(60)
    for row in rows[:count]:
        order.begun(row)
    assert set(runs_of(order)) == intervals(set(rows[:count]))


@given(st.lists(st.integers(0, 300), max_size=400), st.integers(1, 400))
def test_whatever_is_opened_the_commands_are_bounded_and_within_the_table(rows: list[int], row_count: int) -> None:
    order = ListingOrder(row_count)
    for row in rows:
        order.begun(row % row_count)
        commands = 0
        while (wanted := order.next()) is not None:
            assert 0 <= wanted < row_count
            order.advance(0)
            commands += 1
        assert commands <= 512 * 2
        assert len(runs_of(order)) <= 64
        assert all(begin < position <= row_count for begin, position in runs_of(order))
