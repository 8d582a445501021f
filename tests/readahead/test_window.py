"""The window's decisions, one situation each; `test_window_model` has the properties."""

import pytest

from fastfuse.readahead import ReadaheadConfig
from fastfuse.readahead.config import Share
from fastfuse.readahead.window import Window
from tests.readahead.readers import KIB, MIB
from tests.readahead.window_model import EndlessPool

CONFIG = ReadaheadConfig()
GIB = 1 << 30


def reading(size_bytes: int, config: ReadaheadConfig = CONFIG) -> EndlessPool:
    return EndlessPool(Window(size_bytes, config), size_bytes, config)


def test_a_reader_from_0_gets_a_small_first_part_and_one_more_ahead() -> None:
    pool = reading(GIB)
    pool.read(0, 128 * KIB)
    assert pool.demanded == [(0, MIB)]
    assert pool.ahead == [(MIB, 2 * MIB)]


def test_parts_double_and_are_then_cut_at_multiples_of_the_part_size() -> None:
    pool = reading(64 * MIB)
    pool.read_through(0, 64 * MIB, MIB)
    sizes = [(end - start) // MIB for start, end in pool.fetched]
    assert sizes == [1, 1, 2, 4, 8, 8, 8, 8, 8, 8, 8]


def test_the_window_grows_with_the_run_up_to_its_cap() -> None:
    pool = reading(4 * GIB)
    pool.read_through(0, 16 * MIB, MIB)
    assert pool.bytes_ahead == pytest.approx(32 * MIB, abs=8 * MIB)
    pool.read_through(16 * MIB, 2 * GIB, MIB)
    assert CONFIG.max_window_bytes - 8 * MIB <= pool.bytes_ahead <= CONFIG.max_window_bytes


@pytest.mark.parametrize("size_bytes", [1, 39 * KIB, 128 * KIB, MIB, MIB + 400 * KIB])
def test_a_small_file_is_one_get(size_bytes: int) -> None:
    pool = reading(size_bytes)
    pool.read(0, min(128 * KIB, size_bytes))
    assert pool.fetched == [(0, size_bytes)]


def test_a_file_of_5_mib_is_one_get_at_its_first_read() -> None:
    pool = reading(5 * MIB)
    pool.read(0, 128 * KIB)
    assert pool.fetched == [(0, 5 * MIB)]


def test_a_short_rest_at_the_end_belongs_to_the_last_part() -> None:
    pool = reading(8 * MIB + 10)
    pool.read_through(0, 8 * MIB + 10, MIB)
    assert pool.fetched[-1] == (4 * MIB, 8 * MIB + 10)


def test_a_random_read_gets_its_pages_and_nothing_ahead() -> None:
    pool = reading(GIB)
    pool.read(100 * MIB + 5000, 100 * MIB + 9000)
    assert pool.fetched == [(100 * MIB + 4096, 100 * MIB + 3 * 4096)]


def test_a_random_read_at_the_end_stops_at_the_end() -> None:
    pool = reading(10 * MIB + 100)
    pool.read(10 * MIB + 10, 10 * MIB + 100)
    assert pool.fetched == [(10 * MIB, 10 * MIB + 100)]


def test_the_third_consecutive_read_in_the_middle_of_a_file_makes_a_sequential_reader() -> None:
    pool = reading(GIB)
    pool.read(100 * MIB, 101 * MIB)
    pool.read(101 * MIB, 102 * MIB)
    assert pool.ahead == []
    pool.read(102 * MIB, 103 * MIB)
    assert pool.demanded == [(100 * MIB, 101 * MIB), (101 * MIB, 102 * MIB), (102 * MIB, 104 * MIB)]
    assert pool.ahead[0] == (104 * MIB, 108 * MIB)


def test_a_reader_from_the_middle_comes_to_the_same_cuts_as_one_from_the_start() -> None:
    pool = reading(GIB)
    pool.read_through(100 * MIB + 12 * KIB, 300 * MIB, 128 * KIB)
    late = [span for span in pool.fetched if span[0] >= 128 * MIB]
    assert late
    assert all(start % (8 * MIB) == 0 and end - start == 8 * MIB for start, end in late)


def test_who_reads_at_random_in_chunks_pays_for_readahead_once_at_most() -> None:
    pool = reading(100 * GIB)
    for place in range(1, 20):
        offset = place * 3 * GIB
        pool.read_through(offset, offset + 4 * MIB, MIB)
    assert all(start < 4 * GIB for start, _ in pool.ahead)


def test_after_random_reads_a_long_run_is_sequential_again() -> None:
    pool = reading(100 * GIB)
    for place in range(1, 20):
        pool.read(place * GIB, place * GIB + 128 * KIB)
    pool.read_through(50 * GIB, 50 * GIB + 4 * MIB, 128 * KIB)
    assert pool.bytes_ahead >= 4 * MIB


def test_sixteen_interleaved_readers_of_one_file_are_all_sequential() -> None:
    pool = reading(64 * GIB)
    for step in range(100):
        for reader in range(16):
            offset = reader * 4 * GIB + step * MIB
            pool.read(offset, offset + MIB)
    assert len(pool.window.cursors) == 16
    assert all(cursor.sequential for cursor in pool.window.cursors)


def test_random_reads_do_not_make_a_sequential_reader_forgotten() -> None:
    pool = reading(64 * GIB)
    pool.read_through(0, 64 * MIB, MIB)
    for place in range(1, 60):
        pool.read(place * GIB, place * GIB + 4 * KIB)
    cursor = pool.read(64 * MIB, 65 * MIB)
    assert cursor.begin == 0
    assert len(pool.window.cursors) == 16


def test_the_least_recent_of_sixteen_sequential_readers_makes_room_for_another() -> None:
    pool = reading(64 * GIB)
    for reader in range(17):
        pool.read_through(reader * 3 * GIB, reader * 3 * GIB + 20 * MIB, MIB)
    assert [cursor.begin for cursor in pool.window.cursors] == [reader * 3 * GIB for reader in range(1, 17)]


def test_a_request_that_overtook_another_is_absorbed_when_the_gap_closes() -> None:
    pool = reading(GIB)
    for offset in (0, 2, 3, 1, 4):
        pool.read(offset * MIB, (offset + 1) * MIB)
    (cursor,) = pool.window.cursors
    assert (cursor.begin, cursor.position) == (0, 5 * MIB)


def test_an_early_request_counts_for_the_reader_it_belongs_to() -> None:
    pool = reading(GIB)
    for offset in (100, 102, 101):
        cursor = pool.read(offset * MIB, (offset + 1) * MIB)
    assert cursor.sequential
    assert (cursor.begin, cursor.position) == (100 * MIB, 103 * MIB)


def test_a_reader_that_comes_to_where_another_began_does_not_swallow_it() -> None:
    pool = reading(GIB)
    pool.read_through(50 * MIB, 80 * MIB, MIB)
    pool.read_through(0, 50 * MIB, MIB)
    assert [(cursor.begin, cursor.position) for cursor in pool.window.cursors] == [
        (50 * MIB, 80 * MIB),
        (0, 50 * MIB),
    ]


def test_two_readers_in_step_share_one_cursor() -> None:
    pool = reading(GIB)
    for step in range(10):
        for _ in range(2):
            pool.read(step * MIB, (step + 1) * MIB)
    (cursor,) = pool.window.cursors
    assert (cursor.begin, cursor.position) == (0, 10 * MIB)


def test_a_refused_part_is_wanted_again_at_the_next_question() -> None:
    window = Window(GIB, CONFIG)
    cursor = window.read(0, MIB)
    window.demand(cursor, 0, MIB, (0, GIB))
    assert window.next_ahead(cursor) == window.next_ahead(cursor) == (MIB, 2 * MIB)


def test_a_hole_in_what_was_read_ahead_is_fetched_in_whole_parts_and_the_window_starts_behind_it() -> None:
    window = Window(GIB, CONFIG)
    for step in range(64):
        cursor = window.read(step * MIB, (step + 1) * MIB)
    window.commanded(cursor, 190 * MIB)
    cursor = window.read(64 * MIB, 65 * MIB)
    assert window.demand(cursor, 64 * MIB, 65 * MIB, (64 * MIB, 80 * MIB)) == [(64 * MIB, 72 * MIB)]
    assert window.next_ahead(cursor) == (72 * MIB, 80 * MIB)


def test_a_small_share_shrinks_parts_and_window() -> None:
    pool = reading(GIB)
    pool.window.resize(Share(3 * MIB, 12))
    pool.read_through(0, 64 * MIB, 128 * KIB)
    assert max(end - start for start, end in pool.fetched) == MIB
    assert pool.bytes_ahead <= 3 * MIB


def test_with_no_share_at_all_a_reader_still_gets_what_it_asks_for_in_one_get_each() -> None:
    pool = reading(GIB)
    pool.window.resize(Share(0, 1))
    pool.read_through(0, 16 * MIB, MIB)
    assert pool.ahead == []
    assert pool.demanded == [(step * MIB, (step + 1) * MIB) for step in range(16)]


def test_after_a_failure_a_read_in_the_middle_is_of_unknown_kind_again() -> None:
    pool = reading(GIB)
    pool.read_through(0, 16 * MIB, MIB)
    pool.window.forget()
    assert pool.window.cursors == ()
    cursor = pool.window.read(16 * MIB, 17 * MIB)
    assert not cursor.sequential


def test_after_a_failure_jumps_are_forgotten_too() -> None:
    pool = reading(GIB)
    pool.read(100 * MIB, 101 * MIB)
    pool.read(200 * MIB, 201 * MIB)
    pool.window.forget()
    for step in range(3):
        cursor = pool.read(300 * MIB + step * 128 * KIB, 300 * MIB + (step + 1) * 128 * KIB)
    assert cursor.sequential


def test_random_reads_after_the_header_get_no_more_than_the_headers_own_readahead() -> None:
    pool = reading(GIB)
    pool.read(0, 4 * KIB)
    for offset in (7, 5, 3):
        pool.read(offset * MIB, offset * MIB + 4 * KIB)
    assert pool.demanded[1:] == [(offset * MIB, offset * MIB + 4 * KIB) for offset in (7, 5, 3)]


def test_an_early_request_ahead_of_a_reader_without_readahead_fetches_the_readers_next_part() -> None:
    window = Window(GIB, CONFIG)
    for step in range(16):
        cursor = window.read(step * MIB, (step + 1) * MIB)
    early = window.read(18 * MIB, 19 * MIB)
    assert not early.sequential
    assert window.demand(early, 18 * MIB, 19 * MIB, (16 * MIB, GIB)) == [(16 * MIB, 24 * MIB)]
    assert window.next_ahead(cursor) == (24 * MIB, 32 * MIB)


@pytest.mark.parametrize(
    ("share", "part_bytes"),
    [
        (Share(384 * MIB, 24), 8 * MIB),  # one reader in 1 GiB: the window's cap counts
        (Share(45 * MIB, 2), 8 * MIB),  # 16 readers in 1 GiB: two connections each
        (Share(11 * MIB, 1), 4 * MIB),  # 64 readers in 1 GiB
        (Share(24 * MIB, 24), MIB),  # one reader in 64 MiB
        (Share(9 * MIB, 9), MIB),  # four
        (Share(MIB, 1), 512 * KIB),
        (Share(100 * KIB, 1), 128 * KIB),
    ],
)
def test_parts_suit_the_share(share: Share, part_bytes: int) -> None:
    window = Window(GIB, CONFIG)
    window.resize(share)
    cursor = window.read(0, GIB // 2)
    window.demand(cursor, 0, 4096, (0, GIB))
    assert window.demand(cursor, GIB // 2, GIB // 2 + 1, (GIB // 2, GIB)) == [(GIB // 2, GIB // 2 + part_bytes)]
