"""The window's decisions, one situation each, and its properties against a model that keeps all that was fetched."""

import gc
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fastfuse.readahead import ReadaheadConfig
from fastfuse.readahead.cursor import Cursor
from fastfuse.readahead.limits import Share
from fastfuse.readahead.pace import ServicePace
from fastfuse.readahead.window import Window
from tests.readahead.readers import KIB, MIB
from tests.readahead.window_model import CONFIG, EndlessPool

# Parts of a quarter of the run.
FEW_AT_ONCE = replace(CONFIG, max_parts_in_flight=8)
GIB = 1 << 30


@pytest.fixture
def pool() -> EndlessPool:
    return EndlessPool(GIB)


def test_a_reader_from_0_gets_the_first_mib_in_small_parts_side_by_side_and_one_more_ahead() -> None:
    quarters = [(quarter * 256 * KIB, (quarter + 1) * 256 * KIB) for quarter in range(4)]
    for first_bytes, demanded in ((128 * KIB, quarters[:1]), (MIB, quarters)):
        pool = EndlessPool(GIB)
        pool.read(0, first_bytes)
        assert pool.demanded == demanded
        assert pool.fetched[:5] == [*quarters, (MIB, 2 * MIB)]


def test_the_window_grows_with_the_run_up_to_its_cap() -> None:
    pool = EndlessPool(4 * GIB)
    pool.read_through(0, 16 * MIB, MIB)
    assert pool.bytes_ahead == pytest.approx(32 * MIB, abs=8 * MIB)
    pool.read_through(16 * MIB, 2 * GIB, MIB)
    assert CONFIG.max_window_bytes - 8 * MIB <= pool.bytes_ahead <= CONFIG.max_window_bytes


def test_the_window_of_whoever_is_expected_to_read_on_does_not_shrink_while_he_does() -> None:
    pool = EndlessPool(GIB, service=ServicePace(200 * MIB))
    pool.read_through(0, 60 * MIB, MIB)
    assert pool.bytes_ahead >= 192 * MIB


@pytest.mark.parametrize("size_bytes", [1, 39 * KIB, 128 * KIB, MIB, MIB + 400 * KIB, 5 * MIB])
def test_a_small_file_is_one_get(size_bytes: int) -> None:
    pool = EndlessPool(size_bytes)
    pool.read(0, min(128 * KIB, size_bytes))
    assert pool.fetched == [(0, size_bytes)]


def test_a_short_rest_at_the_end_belongs_to_the_last_part() -> None:
    pool = EndlessPool(8 * MIB + 10)
    pool.read_through(0, 8 * MIB + 10, MIB)
    assert pool.fetched[-1] == (7 * MIB, 8 * MIB + 10)


def test_the_third_consecutive_read_in_the_middle_of_a_file_makes_a_sequential_reader(pool: EndlessPool) -> None:
    pool.read(100 * MIB, 101 * MIB)
    pool.read(101 * MIB, 102 * MIB)
    assert pool.ahead == []
    pool.read(102 * MIB, 103 * MIB)
    assert pool.demanded == [(100 * MIB, 101 * MIB), (101 * MIB, 102 * MIB), (102 * MIB, 103 * MIB)]
    assert pool.ahead[0] == (103 * MIB, 104 * MIB)


def test_a_reader_from_the_middle_comes_to_the_same_cuts_as_one_from_the_start() -> None:
    pool = EndlessPool(GIB, FEW_AT_ONCE)
    pool.read_through(100 * MIB + 12 * KIB, 300 * MIB, 128 * KIB)
    late = [span for span in pool.fetched if span[0] >= 144 * MIB]
    assert late
    assert all(start % (8 * MIB) == 0 and end - start == 8 * MIB for start, end in late)


def test_random_reads_do_not_make_a_sequential_reader_forgotten() -> None:
    pool = EndlessPool(64 * GIB)
    pool.read_through(0, 64 * MIB, MIB)
    for place in range(1, 60):
        pool.read(place * GIB, place * GIB + 4 * KIB)
    cursor = pool.read(64 * MIB, 65 * MIB)
    assert cursor.begin == 0
    assert len(pool.window.cursors) == 25


def test_the_least_recent_of_sixteen_sequential_readers_makes_room_for_another() -> None:
    pool = EndlessPool(64 * GIB)
    for reader in range(17):
        pool.read_through(reader * 3 * GIB, reader * 3 * GIB + 20 * MIB, MIB)
    assert [cursor.begin for cursor in pool.window.cursors] == [reader * 3 * GIB for reader in range(1, 17)]


def test_a_reader_that_comes_to_where_another_began_does_not_swallow_it(pool: EndlessPool) -> None:
    pool.read_through(50 * MIB, 80 * MIB, MIB)
    pool.read_through(0, 50 * MIB, MIB)
    assert [(cursor.begin, cursor.position) for cursor in pool.window.cursors] == [(50 * MIB, 80 * MIB), (0, 50 * MIB)]


def test_two_readers_in_step_share_one_cursor(pool: EndlessPool) -> None:
    for step in range(10):
        for _ in range(2):
            pool.read(step * MIB, (step + 1) * MIB)
    (cursor,) = pool.window.cursors
    assert (cursor.begin, cursor.position) == (0, 10 * MIB)


def test_a_refused_part_is_wanted_again_at_the_next_question() -> None:
    window = Window(GIB, CONFIG, ServicePace())
    cursor = window.read(0, MIB)
    window.demand(cursor, 0, MIB, (0, GIB))
    assert window.next_ahead(cursor) == window.next_ahead(cursor) == (MIB, 2 * MIB)


def test_a_hole_in_what_was_read_ahead_is_fetched_in_whole_parts_and_the_window_starts_behind_it() -> None:
    window = Window(GIB, FEW_AT_ONCE, ServicePace())
    for step in range(64):
        cursor = window.read(step * MIB, (step + 1) * MIB)
    window.commanded(cursor, 190 * MIB)
    cursor = window.read(64 * MIB, 65 * MIB)
    assert window.demand(cursor, 64 * MIB, 65 * MIB, (64 * MIB, 80 * MIB)) == [(64 * MIB, 72 * MIB)]
    assert window.next_ahead(cursor) == (72 * MIB, 80 * MIB)


def test_with_no_share_at_all_a_reader_still_gets_what_it_asks_for_in_one_get_each(pool: EndlessPool) -> None:
    pool.window.resize(Share(0, 1))
    pool.read_through(0, 16 * MIB, MIB)
    assert pool.ahead == []
    assert pool.demanded == [(step * MIB, (step + 1) * MIB) for step in range(16)]


def test_after_a_failure_readers_and_their_jumps_are_forgotten(pool: EndlessPool) -> None:
    pool.read_through(0, 16 * MIB, MIB)
    pool.read(100 * MIB, 101 * MIB)
    pool.read(200 * MIB, 201 * MIB)
    pool.window.forget()
    assert pool.window.cursors == ()
    kinds = [pool.read(step * 128 * KIB, (step + 1) * 128 * KIB).sequential for step in range(128, 131)]
    assert kinds == [False, False, True]


def test_random_reads_after_the_header_get_no_more_than_the_headers_own_readahead(pool: EndlessPool) -> None:
    pool.read(0, 4 * KIB)
    for offset in (7, 5, 3):
        pool.read(offset * MIB, offset * MIB + 4 * KIB)
    assert pool.demanded[1:] == [(offset * MIB, offset * MIB + 4 * KIB) for offset in (7, 5, 3)]


def test_an_early_request_ahead_of_a_reader_without_readahead_fetches_the_readers_next_part() -> None:
    window = Window(GIB, FEW_AT_ONCE, ServicePace())
    for step in range(16):
        cursor = window.read(step * MIB, (step + 1) * MIB)
    early = window.read(18 * MIB, 19 * MIB)
    assert not early.sequential
    assert window.demand(early, 18 * MIB, 19 * MIB, (16 * MIB, GIB)) == [(16 * MIB, 20 * MIB)]
    assert window.next_ahead(cursor) == (20 * MIB, 24 * MIB)


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
    window = Window(GIB, CONFIG, ServicePace())
    window.resize(share)
    cursor = window.read(0, GIB // 2)
    window.demand(cursor, 0, 4096, (0, GIB))
    assert window.demand(cursor, GIB // 2, GIB // 2 + 1, (GIB // 2, GIB)) == [(GIB // 2, GIB // 2 + part_bytes)]


@pytest.mark.parametrize(
    ("begin", "end", "request_bytes"), [(500 * MIB + 300 * KIB, 530 * MIB, 128 * KIB), (600 * MIB, 604 * MIB, MIB)]
)
def test_a_jump_into_what_was_read_or_is_ahead_goes_on_as_before(begin: int, end: int, request_bytes: int) -> None:
    pool = EndlessPool(4 * GIB)
    pool.read_through(0, 512 * MIB, MIB)
    demanded = len(pool.demanded)
    pool.read_through(begin, end, request_bytes)
    assert len(pool.demanded) == demanded
    assert pool.bytes_ahead > 300 * MIB


def test_a_jump_far_back_is_a_new_reader() -> None:
    pool = EndlessPool(4 * GIB)
    pool.read_through(0, 512 * MIB, MIB)
    pool.read_through(100 * MIB, 110 * MIB, MIB)
    assert pool.window.cursors[-1].credit_bytes == 0


def test_a_look_at_the_footer_is_one_get_of_the_tail_and_starts_nothing() -> None:
    size = GIB + 1000
    pool = EndlessPool(size)
    pool.read(size - 8, size)
    for offset in (size - 60 * KIB, size - 50 * KIB, size - 128 * KIB):
        pool.read(offset, offset + 10 * KIB)
    tail = (size - 128 * KIB) // 4096 * 4096
    assert pool.fetched == [(tail, size)]


def test_a_footer_before_a_sequential_reader_changes_nothing_for_it() -> None:
    plain, with_footer = EndlessPool(64 * MIB), EndlessPool(64 * MIB)
    with_footer.read(64 * MIB - 22, 64 * MIB)
    for pool in (plain, with_footer):
        pool.read_through(0, 32 * MIB, MIB)
    assert with_footer.fetched[1:21] == plain.fetched[:20]


def test_the_tail_of_a_small_file_is_all_of_it() -> None:
    pool = EndlessPool(90 * KIB)
    pool.read(90 * KIB - 22, 90 * KIB)
    pool.read(0, 90 * KIB)
    assert pool.fetched == [(0, 90 * KIB)]


def test_pieces_of_a_stride_that_all_go_down_to_the_beginning_foretell_nothing(pool: EndlessPool) -> None:
    # So long are runs here that none of the following is sequential.
    for run in range(40):
        pool.read((900 - 20 * run) * MIB, (900 - 20 * run) * MIB + 120 * KIB)
    places = [16 * KIB * piece for piece in range(1, 5)]
    for place in places:
        pool.read(place, place + 4 * KIB)
    for begin in (950 * MIB, 970 * MIB):
        pool.read(begin, begin + 120 * KIB)
    for place in places:
        for end in range(place, 0, -8 * KIB):
            cursor = pool.read(end - 8 * KIB, end)
        assert cursor.begin == 0
    ahead = [*pool.ahead]
    assert pool.read(68 * KIB, 72 * KIB).is_strided
    assert pool.ahead == ahead


def test_two_readers_in_strides_who_take_turns_are_told_apart_once_they_run() -> None:
    pool = EndlessPool(16 * GIB)
    for piece in range(4):
        pool.read(GIB + piece * 5 * MIB, GIB + piece * 5 * MIB + 64 * KIB)
    for piece in range(4):
        pool.read(8 * GIB + piece * 7 * MIB, 8 * GIB + piece * 7 * MIB + 64 * KIB)
    demanded = len(pool.demanded)
    for piece in range(4, 40):
        pool.read(GIB + piece * 5 * MIB, GIB + piece * 5 * MIB + 64 * KIB)
        pool.read(8 * GIB + piece * 7 * MIB, 8 * GIB + piece * 7 * MIB + 64 * KIB)
    assert len(pool.demanded) == demanded


def test_columns_of_row_groups_that_threads_read_by_turns_are_fetched_ahead(pool: EndlessPool) -> None:
    """As DuckDB reads a column by two threads, and the kernel asks ahead: row groups of 8 MiB, more or less."""
    sizes = random.Random(1)
    begins = [3 * MIB]
    for _ in range(59):
        begins.append(begins[-1] + 8 * MIB + sizes.randrange(-20, 20) * 4 * KIB)
    for pair in zip(begins[::2], begins[1::2], strict=True):
        for skipped, length in ((0, 4 * KIB), (4 * KIB, 512 * KIB), (516 * KIB, MIB), (1540 * KIB, MIB)):
            for begin in pair:
                pool.read(begin + skipped, begin + skipped + length)
    late = [start for start, _ in pool.demanded if start > begins[12]]
    # There are 188 requests.
    assert len(late) <= 24
    assert sum(end - start for start, end in pool.fetched if start < begins[-1]) <= 1.5 * 60 * 2564 * KIB


def test_pieces_read_in_sectors_past_the_page_cache_are_fetched_in_whole_pages(pool: EndlessPool) -> None:
    sectors = 586 * 512
    random_runs(pool, 12, [sectors, sectors])
    # A reader in sequence may go on amid a page that is not held any more. The fetch of a piece ends there.
    pool.fetched.append((680 * MIB + 512, 681 * MIB))
    for piece in range(8):
        for offset in (0, sectors):
            cursor = pool.read((600 + 16 * piece) * MIB + offset, (600 + 16 * piece) * MIB + offset + sectors)
    assert cursor.is_strided


@pytest.mark.parametrize("request_bytes", [4 * KIB, 256 * KIB])
def test_of_runs_that_are_over_few_are_kept(request_bytes: int) -> None:
    """Each begins behind the one before, so it may be the second piece of a stride."""
    window, places = Window(1 << 50, CONFIG, ServicePace(0)), random.Random(1)
    offset, before = 0, count_of_cursors()
    for _ in range(1000):
        offset += places.randrange(512, 1 << 20) * 4 * KIB
        # The halves come in another order, so one run takes in the other.
        for begin in (offset + request_bytes, offset):
            window.read(begin, begin + request_bytes)
    assert count_of_cursors() - before < 200


def count_of_cursors() -> int:
    gc.collect()
    return sum(type(one) is Cursor for one in gc.get_objects())  # some objects warn when they are asked


def random_runs(pool: EndlessPool, runs: int, requests: list[int]) -> list[int]:
    """Runs of requests of these sizes at random places; where they begin."""
    begins = [place**2 * 7 * MIB for place in range(1, runs + 1)]
    for begin in begins:
        offset = begin
        for size_bytes in requests:
            pool.read(offset, offset + size_bytes)
            offset += size_bytes
    return begins


def test_random_reads_of_two_requests_are_one_get_each_once_some_were_alike() -> None:
    pool = EndlessPool(100 * GIB)
    begins = random_runs(pool, 60, [128 * KIB, 128 * KIB])
    assert pool.demanded[24:] == [(begin, begin + 256 * KIB) for begin in begins[12:]]
    assert pool.ahead == []


def test_random_reads_as_the_kernel_sends_them_without_our_tuning_are_two_gets_side_by_side() -> None:
    """256 KiB are 65 pages, which it cuts in 32, 31 and 2, with 30 and 32 more as its own readahead."""
    pool = EndlessPool(100 * GIB)
    begins = random_runs(pool, 60, [128 * KIB, 124 * KIB, 128 * KIB, 128 * KIB])
    begin = begins[-1]
    assert pool.demanded[-2:] == [(begin, begin + 256 * KIB), (begin + 256 * KIB, begin + 508 * KIB)]
    asked = 60 * 508 * KIB
    assert sum(end - start for start, end in pool.fetched) <= 1.15 * asked


def test_threads_that_read_chunks_at_random_are_no_longer_taken_for_sequential_readers_once_some_ended() -> None:
    pool = EndlessPool(100 * GIB)
    places = random.Random(1)
    fetched = []
    for _ in range(30):
        offsets = [places.randrange(100, 99_000) * MIB for _ in range(4)]
        for step in range(4):
            for offset in offsets:
                pool.read(offset + step * MIB, offset + (step + 1) * MIB)
        fetched.append(sum(end - start for start, end in pool.fetched))
    assert fetched[-1] - fetched[5] <= 1.05 * 24 * 4 * 4 * MIB


@pytest.mark.parametrize(
    ("readers", "chunks_mib", "most_waits", "most_bytes"),
    [
        (4, range(1, 9), 4.3, 1.15),
        (8, range(2, 13), 6.2, 1.07),
        (16, range(2, 13), 6.2, 1.05),
        (8, [2], 1.1, 1.01),
        (8, [16], 1.2, 1.12),
        (1, [8], 1.1, 1.01),
        (8, [1, 1, 1, 8], 1.5, 1.15),  # whoever asks for little gets no more
    ],
)
def test_chunks_that_are_read_at_random_wait_for_few_gets_and_fetch_little_more(
    readers: int, chunks_mib: Sequence[int], most_waits: float, most_bytes: float
) -> None:
    """Waits for each chunk of 1 MiB requests, and bytes for each that is read, once a hundred chunks were read."""
    chances, pool = random.Random(1), EndlessPool(1 << 42)
    chunks = [range(0)] * readers
    begun = waits = read_bytes = known_bytes = 0
    while begun < 200:
        reader = chances.randrange(readers)
        if not chunks[reader]:
            begin = begun * 10 * GIB + chances.randrange(GIB // PAGE) * PAGE
            chunks[reader] = range(begin, begin + chances.choice(chunks_mib) * MIB, MIB)
            begun += 1
            if begun == 100:
                waits, read_bytes, known_bytes = 0, 0, sum(end - start for start, end in pool.fetched)
        offset, chunks[reader] = chunks[reader][0], chunks[reader][1:]
        waits += pool.gap(offset) is not None
        pool.read(offset, offset + MIB)
        read_bytes += MIB
    fetched_bytes = sum(end - start for start, end in pool.fetched) - known_bytes
    assert waits <= 100 * most_waits
    assert fetched_bytes <= most_bytes * read_bytes


def begun(service: ServicePace, mib_s: float, mib: int) -> EndlessPool:
    """The pool of a reader that has taken so many MiB of a large file, one in each `mib_s`."""
    pool = EndlessPool(4 * GIB, service=service)
    for step in range(mib):
        cursor = pool.read(step * MIB, (step + 1) * MIB)
        pool.window.came(cursor, step * mib_s)
    pool.read(mib * MIB, mib * MIB + 4096)
    return pool


@pytest.fixture
def service() -> ServicePace:
    known = ServicePace()
    known.landed(MIB, 0.03, 4)
    return known


@pytest.mark.parametrize(
    ("mib_s", "mib", "least_mib", "most_mib"),
    [
        # A fast reader of more than any first read: eight times as much, to the end of a part, which may be of 8 MiB.
        (0.0004, 5, 40, 48),
        (0.0004, 7, 56, 64),
        (0.0004, 40, 320, 328),
        # Who took no more than the kernel asks for at first: twice as much.
        (0.0004, 1, 0, 4),
        (0.0004, 2, 0, 6),
        (0.0004, 3, 0, 8),
        # A slow reader: 0.24 s at most for a part of 8 MiB, in which it takes 24 MiB.
        (0.01, 8, 0, 24 + 8 + 8),
    ],
)
def test_a_reader_has_as_much_ahead_as_suits_its_speed_and_what_it_read(
    service: ServicePace, mib_s: float, mib: int, least_mib: int, most_mib: int
) -> None:
    assert least_mib * MIB <= begun(service, mib_s, mib).bytes_ahead <= most_mib * MIB


def test_after_a_file_was_left_early_windows_grow_with_what_was_read(service: ServicePace) -> None:
    Window(GIB, CONFIG, service).closed()  # fetched ahead and never read: not left early
    assert begun(service, 0.0004, 8).bytes_ahead >= 8 * 8 * MIB
    begun(service, 0.0004, 8).window.closed()
    other = begun(service, 0.0004, 8)
    assert other.bytes_ahead <= (2 * 8 + 8) * MIB
    other.window.closed()
    whole = Window(16 * MIB, CONFIG, service)
    whole.read(0, 16 * MIB)
    whole.closed()
    assert begun(service, 0.0004, 8).bytes_ahead >= 8 * 8 * MIB


def test_a_reader_that_comes_up_with_another_has_not_left_the_file() -> None:
    service = ServicePace()
    window = Window(GIB, CONFIG, service)
    window.read(0, 2 * MIB)
    for _ in range(2):
        window.read(0, MIB)
        window.read(MIB, 2 * MIB)
    for _ in range(4):
        Window(GIB, CONFIG, service).read(0, MIB)
        window.read(window.cursors[-1].position, window.cursors[-1].position + MIB)
    assert [cursor.run_bytes for cursor in window.cursors] == [6 * MIB]
    assert service.left_bytes == 0


def test_a_jump_back_of_a_slow_reader_gives_it_no_larger_window() -> None:
    service = ServicePace()
    for _ in range(50):
        service.landed(8 * MIB, 0.1, 1)
    pool = EndlessPool(4 * GIB, service=service)
    for step in range(1024):
        cursor = pool.read(step * MIB, (step + 1) * MIB)
        pool.window.came(cursor, step * 0.01)
    pool.read_through(1020 * MIB + 100 * KIB, 1030 * MIB, 128 * KIB)
    assert pool.bytes_ahead <= 32 * MIB


def test_a_look_at_the_footer_ends_no_run(pool: EndlessPool) -> None:
    for place in range(1, 9):
        pool.read(place**2 * 7 * MIB, place**2 * 7 * MIB + 128 * KIB)
        pool.read(place**2 * 7 * MIB + 128 * KIB, place**2 * 7 * MIB + 256 * KIB)
        pool.read(GIB - 22, GIB)
    assert pool.demanded[-1] == (64 * 7 * MIB + 128 * KIB, 64 * 7 * MIB + 256 * KIB)


def test_a_reader_that_reads_on_elsewhere_has_left_what_was_read_ahead_of_it(pool: EndlessPool) -> None:
    pool.read_through(0, 8 * MIB, MIB)
    ahead_until = pool.window.cursors[0].ahead_until
    assert ahead_until > 8 * MIB
    pool.read_through(512 * MIB, 514 * MIB, MIB)
    assert pool.window.left == []
    pool.read_through(514 * MIB, 540 * MIB, MIB)
    assert pool.window.left == [(8 * MIB, ahead_until)]
    # If it comes back after all, it looks at all of that again.
    cursor = pool.window.read(8 * MIB, 9 * MIB)
    assert pool.window.next_ahead(cursor) is not None


def test_readers_that_take_turns_have_left_nothing(pool: EndlessPool) -> None:
    for offset in range(0, 64 * MIB, MIB):
        for begin in (0, 256 * MIB, 512 * MIB):
            pool.read(begin + offset, begin + offset + MIB)
    assert len([cursor for cursor in pool.window.cursors if cursor.sequential]) == 3
    assert pool.window.left == []


def test_a_reader_that_goes_backwards_has_at_most_twice_what_it_read_ahead_and_waits_only_at_first() -> None:
    """A copy out of a map may read it backwards: each fault asks for the pages below the last."""
    pool = EndlessPool(GIB)
    for offset in range(600 * MIB, 500 * MIB, -128 * KIB):
        cursor = pool.read(offset - 128 * KIB, offset)
        assert cursor.begin - min(start for start, _ in pool.fetched) <= 2 * cursor.run_bytes
    assert pool.window.pattern[0] == "backward"
    assert len(pool.demanded) == 3


def test_random_reads_that_are_copied_backwards_are_not_read_ahead_once_some_were_alike(pool: EndlessPool) -> None:
    places = random.Random(1).sample(range(1, 100), 40)
    for place in places:
        for offset in range(place * 10 * MIB, place * 10 * MIB - MIB, -128 * KIB):
            pool.read(offset - 128 * KIB, offset)
    assert sum(end - start for start, end in pool.fetched) <= 1.2 * len(places) * MIB


def test_a_reader_that_comes_down_to_where_it_began_reads_nothing_ahead_from_there(pool: EndlessPool) -> None:
    """A library touches the first page of a tensor, and then copies all of it, backwards."""
    pool.read(100 * MIB, 100 * MIB + 128 * KIB)
    for offset in range(110 * MIB, 100 * MIB, -128 * KIB):
        pool.read(offset - 128 * KIB, offset)
    assert max(end for _, end in pool.fetched) == 110 * MIB


def test_a_reader_that_went_backwards_and_goes_on_forwards_is_sequential(pool: EndlessPool) -> None:
    for offset in range(110 * MIB, 109 * MIB, -128 * KIB):
        pool.read(offset - 128 * KIB, offset)
    pool.read_through(110 * MIB, 112 * MIB, 128 * KIB)
    assert pool.window.pattern[0] == "sequential"


def test_a_fast_reader_from_the_middle_has_no_more_than_twice_as_much_ahead() -> None:
    """A file read from 0 is most likely read to its end; a tensor in its middle ends somewhere."""
    service = ServicePace()
    service.landed(8 * MIB, 0.1, 1)
    window = Window(GIB, CONFIG, service)
    for offset in range(100 * MIB, 110 * MIB, MIB):
        cursor = window.read(offset, offset + MIB)
        window.came(cursor, offset / 1e12)
    cursor.ahead_until = 110 * MIB
    while (wanted := window.next_ahead(cursor)) is not None:
        window.commanded(cursor, wanted[1])
    assert cursor.ahead_until <= 130 * MIB + 8 * MIB


def test_the_pages_around_a_fault_are_put_off_until_a_reader_reads_on_or_is_no_map(pool: EndlessPool) -> None:
    around = (100 * MIB - 512 * KIB, 100 * MIB + 512 * KIB)
    for place in range(1, 4):
        assert not pool.window.put_off(*around)  # too little is known
        pool.read(place * 10 * MIB, (place * 10 + 1) * MIB)
    assert not pool.window.put_off(around[0], around[1] - 4 * KIB)
    assert not pool.window.put_off(100 * MIB, 101 * MIB)  # more likely a block than a fault
    assert pool.window.put_off(*around)
    assert not pool.window.put_off(*around)  # once
    pool.read(100 * MIB, 100 * MIB + 4 * KIB)
    assert pool.fetched[-1] == (100 * MIB, 100 * MIB + 128 * KIB)
    assert pool.window.faults.unwanted == [(around[0], 100 * MIB), (100 * MIB + 128 * KIB, around[1])]
    assert pool.window.put_off(around[0] + 100 * MIB, around[1] + 100 * MIB)
    for page in range(40):
        pool.read(200 * MIB + page * 4 * KIB, 200 * MIB + (page + 1) * 4 * KIB)
    assert pool.fetched[-1][1] >= around[1] + 100 * MIB
    assert not pool.window.put_off(around[0] + 200 * MIB, around[1] + 200 * MIB)


@pytest.mark.parametrize(("apart_bytes", "is_put_off"), [(2 * MIB, False), (10 * MIB, True)])
def test_faults_that_leave_little_of_a_file_are_not_put_off(
    pool: EndlessPool, apart_bytes: int, *, is_put_off: bool
) -> None:
    """Whoever looks at each tensor of a small model reads all of them later."""
    for place in range(1, 6):
        pool.read(place * apart_bytes, place * apart_bytes + MIB)
    start = 6 * apart_bytes + 4 * KIB
    assert pool.window.put_off(start, start + MIB) == is_put_off


@pytest.mark.parametrize("is_together", [True, False])
def test_both_requests_around_a_fault_are_put_off_where_the_kernel_sends_two_at_once(*, is_together: bool) -> None:
    pool = EndlessPool(GIB)
    for place in range(1, 4):
        for start in (place * 10 * MIB, (place * 10 + 1) * MIB):
            cursor = pool.read(start, start + MIB)
        if is_together:  # else one follows on the other, and the reader reads on
            pool.window.faults.came_together(cursor, MIB)
    page = 100 * MIB + 8 * KIB
    assert pool.window.put_off(page - MIB, page) == is_together
    if is_together:
        assert pool.window.put_off(page, page + MIB)
        assert not pool.window.put_off(page + MIB, page + 2 * MIB - 4 * KIB)
        pool.read(page, page + 4 * KIB)
        assert pool.fetched[-1] == (page, page + 128 * KIB)
        assert pool.window.faults.unwanted == [(page - MIB, page), (page + 128 * KIB, page + MIB)]
        assert pool.window.put_off(page + 99 * MIB, page + 100 * MIB)


@pytest.mark.parametrize("page_bytes", [4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB])
def test_a_large_read_is_put_off_once_and_costs_no_get_for_each_page(
    monkeypatch: pytest.MonkeyPatch, page_bytes: int
) -> None:
    monkeypatch.setattr("fastfuse.readahead.cursor.KERNEL_PAGE_BYTES", page_bytes)
    pool = EndlessPool(GIB)
    for place in range(1, 4):
        pool.read(place * 10 * MIB, (place * 10 + 1) * MIB)
    start, before = 100 * MIB + 5 * page_bytes, len(pool.fetched)
    assert pool.window.put_off(start, start + MIB)
    for offset in range(start, start + MIB, page_bytes):
        pool.read(offset, offset + page_bytes)
    assert len(pool.fetched) - before <= 4
    assert pool.window.faults.unwanted == [(start + max(page_bytes, 128 * KIB), start + MIB)]
    for place in range(30, 34):
        pool.read(place * 10 * MIB, (place * 10 + 1) * MIB)
    assert not pool.window.put_off(start + 300 * MIB, start + 301 * MIB)


def test_a_fault_between_cached_pages_gets_its_request_and_no_more(pool: EndlessPool) -> None:
    for place in random.Random(1).sample(range(1, 100), 14):
        pool.read(place * 10 * MIB, place * 10 * MIB + MIB)
    pool.read(5 * MIB, 5 * MIB + 300 * KIB)
    assert pool.fetched[-1] == (5 * MIB, 5 * MIB + 300 * KIB)


PAGE = 4 * KIB
SMALL = ReadaheadConfig(
    part_size_bytes=64 * KIB, first_part_bytes=16 * KIB, max_window_bytes=256 * KIB, memory_limit_bytes=MIB
)
SIZES = st.integers(1, 2 * MIB)
REQUESTS = st.sampled_from([1, 100, PAGE, 8 * KIB, 32 * KIB, 128 * KIB])


@given(size_bytes=SIZES, steps=st.lists(st.tuples(st.integers(0, 2 * MIB), REQUESTS, st.booleans()), max_size=60))
@example(size_bytes=131_076, steps=[(1, 1, False), (3, 1, False), (0, 100, False), (1, 100, False)])
def test_any_read_is_covered_by_parts_within_the_file_that_never_overlap(
    size_bytes: int, steps: list[tuple[int, int, bool]]
) -> None:
    pool = EndlessPool(size_bytes, SMALL)
    end = 0
    for place, length, continues in steps:
        offset = end if continues and end < size_bytes else place % size_bytes
        end = min(offset + length, size_bytes)
        pool.read(offset, end)
        assert all(pool.gap(byte) is None for byte in (offset, end - 1))


@given(
    size_bytes=st.integers(8 * MIB, 256 * MIB),
    shares=st.lists(
        st.tuples(st.integers(0, 512 * MIB), st.integers(1, 96), st.integers(1, 40)), min_size=1, max_size=20
    ),
)
def test_a_share_that_changes_in_the_middle_of_a_run_is_kept_and_no_byte_is_fetched_twice(
    size_bytes: int, shares: list[tuple[int, int, int]]
) -> None:
    pool = EndlessPool(size_bytes)
    offset = 0
    for window_bytes, parts_in_flight, reads in shares:
        pool.window.resize(Share(window_bytes, parts_in_flight))
        before = len(pool.ahead)
        for _ in range(reads):
            end = min(offset + MIB, size_bytes)
            if offset < end:
                pool.read(offset, end)
                offset = end
            assert all(until <= offset + window_bytes for _, until in pool.ahead[before:])
    pool.window.resize(Share(CONFIG.max_window_bytes, 96))
    pool.read_through(offset, size_bytes, MIB)
    assert sum(end - start for start, end in pool.fetched) == size_bytes


@given(
    size_bytes=st.integers(MIB, 2 * MIB),
    begin=st.integers(0, 127).map(lambda page: page * PAGE),
    depth=st.integers(1, 8),
    seed=st.integers(0, 1000),
)
def test_requests_out_of_order_within_the_kernels_depth_stay_one_reader_and_cost_nothing_twice(
    size_bytes: int, begin: int, depth: int, seed: int
) -> None:
    pool = EndlessPool(size_bytes, SMALL)
    shuffled = random.Random(seed)
    offsets = list(range(begin, size_bytes, 8 * KIB))
    while offsets:
        offset = offsets.pop(shuffled.randrange(min(depth, len(offsets))))
        pool.read(offset, min(offset + 8 * KIB, size_bytes))
    # Requests that come in falling order may be taken for a reader that goes backwards.
    assert sum(end - max(start, begin) for start, end in pool.fetched if end > begin) == size_bytes - begin
    (cursor,) = pool.window.cursors
    assert (cursor.begin, cursor.position) == (begin, size_bytes)
    assert cursor.sequential


@given(places=st.lists(st.integers(1, 50), unique=True), length=st.sampled_from([1, PAGE, 3 * PAGE]))
def test_reads_that_never_continue_fetch_their_pages_and_no_more(places: list[int], length: int) -> None:
    pool = EndlessPool(20000 * PAGE, SMALL)
    asked = set()
    for place in places:
        offset = place**2 * 7 * PAGE  # four squares are never at equal distances
        pool.read(offset, offset + length)
        asked |= set(range(offset // PAGE, (offset + length - 1) // PAGE + 1))
    assert pool.ahead == []
    assert sum(end - start for start, end in pool.fetched) == len(asked) * PAGE


@given(readers=st.integers(1, 8), seed=st.integers(0, 1000))
def test_readers_at_different_places_that_take_turns_at_random_all_become_sequential(readers: int, seed: int) -> None:
    size_bytes = readers * MIB
    pool = EndlessPool(size_bytes, SMALL)
    positions = [reader * MIB for reader in range(readers)]
    turns = [reader for reader in range(readers) for _ in range(32)]
    random.Random(seed).shuffle(turns)
    for reader in turns:
        pool.read(positions[reader], positions[reader] + 16 * KIB)
        positions[reader] += 16 * KIB
    assert all(cursor.sequential for cursor in pool.window.cursors)
    # None of them waits for more than its first requests.
    assert len(pool.demanded) <= 8 * readers
