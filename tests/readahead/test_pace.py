"""The time of a GET, what a reader needs ahead, and when the rest of a file, in times that the test makes up."""

import random
from itertools import accumulate, cycle, islice, pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.readahead.own_pace import OwnPace
from fastfuse.readahead.pace import ReaderPace, Rest, ServicePace, Waits
from tests.readahead.readers import KIB, MIB

PART = 8 * MIB
# 20 ms to the first byte, and 90 MB/s.
GET_S = 0.02 + PART / 90e6


def seen(*gets: tuple[int, int, float, int]) -> ServicePace:
    """What is known after so many GETs of a size, a time, and so many at once, one kind after the other."""
    known = ServicePace()
    for count, *get in gets:
        for _ in range(count):
            known.landed(*get)  # type: ignore[arg-type]
    return known


def service(took_s: float = GET_S) -> ServicePace:
    return seen((100, PART, took_s, 1))


def read_on(
    pace: ReaderPace, parts: int, part_s: float, began_s: float = 0.0, waited_s: float = 0.0, first: int = 0
) -> float:
    """`parts` more, each read in `part_s` after a wait; the time at the end."""
    now_s = began_s
    for part in range(first, first + parts):
        if waited_s:
            pace.waits(now_s)
            now_s += waited_s
            pace.goes_on(now_s)
        pace.came(part * PART, PART, now_s)
        now_s += part_s
    return now_s


def limit_of(pace: ReaderPace) -> int:
    assert pace.limit_bytes is not None
    return pace.limit_bytes


def test_before_any_get_nothing_is_known() -> None:
    assert ServicePace().get_s(PART) is None
    pace = ReaderPace(ServicePace())
    read_on(pace, 100, 0.01)
    assert pace.limit_bytes is None


def test_gets_that_vary_count_as_long_as_nearly_all_of_them_take() -> None:
    known = ServicePace()
    chances = random.Random(1)
    for _ in range(400):
        known.landed(PART, chances.lognormvariate(-2, 0.3), 1)
    took_s = known.get_s(PART)
    assert took_s is not None
    later = sum(chances.lognormvariate(-2, 0.3) > took_s for _ in range(1000))
    assert later < 50
    assert took_s < 0.135 * 3


def test_one_get_that_was_retried_counts_for_little_and_is_forgotten() -> None:
    known = service(0.1)
    known.landed(PART, 30.0, 1)
    assert known.get_s(PART) == pytest.approx(0.4)
    for _ in range(300):
        known.landed(PART, 0.1, 1)
    assert known.get_s(PART) == pytest.approx(0.1, rel=0.4)


def test_a_slower_service_is_believed_within_a_window() -> None:
    assert (seen((100, PART, 0.1, 1), (48, PART, 0.5, 1)).get_s(PART) or 0) > 0.45


def test_a_size_that_was_not_fetched_yet_is_bounded_by_the_ones_that_were() -> None:
    known = seen((1, MIB, 0.03, 1))
    assert known.get_s(PART) == pytest.approx(0.24)
    assert known.get_s(4 * KIB) == pytest.approx(0.03)


@pytest.mark.parametrize("first_byte_s", [0.002, 0.02, 0.2])
@pytest.mark.parametrize("bytes_per_s", [20e6, 90e6, 1e9])
def test_two_sizes_tell_how_long_a_larger_one_takes(first_byte_s: float, bytes_per_s: float) -> None:
    known = seen(*((8, size, first_byte_s + size / bytes_per_s, 1) for size in (256 * KIB, 2 * MIB)))
    assert known.get_s(PART) == pytest.approx(first_byte_s + PART / bytes_per_s)


def test_two_sizes_that_are_close_together_tell_no_rate_and_jitter_makes_no_larger_part_faster() -> None:
    known = seen((1, 512 * KIB, 0.03, 1), (1, MIB, 0.02, 1))
    assert known.get_s(PART) == pytest.approx(0.16)
    known.landed(64 * KIB, 0.03, 1)
    assert known.get_s(PART) == pytest.approx(0.02)


@pytest.mark.parametrize("bytes_per_s", [10e6, 100e6, 1e9])
def test_a_steady_reader_needs_its_rate_times_the_time_of_a_get_and_a_margin(bytes_per_s: float) -> None:
    pace = ReaderPace(service())
    read_on(pace, 300, PART / bytes_per_s)
    product = bytes_per_s * GET_S
    assert product + PART <= limit_of(pace) <= 1.5 * product + 2 * PART


def test_time_spent_waiting_is_not_the_readers() -> None:
    waiting, fed = ReaderPace(service()), ReaderPace(service())
    read_on(waiting, 300, 0.01, waited_s=0.2)
    read_on(fed, 300, 0.01)
    assert limit_of(waiting) > limit_of(fed) >= 11 * PART


def test_after_a_wait_the_margin_is_larger_for_a_while() -> None:
    pace = ReaderPace(service())
    now_s = read_on(pace, 300, 0.01)
    before = limit_of(pace)
    now_s = read_on(pace, 1, 0.01, began_s=now_s, waited_s=0.01, first=300)
    after = limit_of(pace)
    assert after > 1.3 * before
    read_on(pace, 300, 0.01, began_s=now_s, first=301)
    assert limit_of(pace) < 1.1 * before


def test_a_reader_that_becomes_slow_gives_its_window_back_bit_by_bit() -> None:
    pace = ReaderPace(service())
    now_s = read_on(pace, 300, 0.01)
    limits = [limit_of(pace)]
    for part in range(300, 400):
        now_s = read_on(pace, 1, 0.5, began_s=now_s, first=part)
        limits.append(limit_of(pace))
    assert all(after > 0.85 * before for before, after in pairwise(limits))
    assert limits[-1] < 2 * PART


def test_bursts_shorter_than_a_get_need_no_more_than_a_burst() -> None:
    pace = ReaderPace(service())
    now_s = 0.0
    for burst in range(50):
        now_s = read_on(pace, 3, 0.005, began_s=now_s, first=3 * burst) + 1.0
    assert 3 * PART <= limit_of(pace) <= 6 * PART


def test_a_reader_at_another_place_of_the_file_begins_with_the_same_window() -> None:
    pace = ReaderPace(service())
    read_on(pace, 300, 0.01)
    assert pace.successor().limit_bytes == pace.limit_bytes


@given(
    steps=st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10), st.integers(1, 1 << 30)), max_size=50),
    get_s=st.floats(0.001, 10),
)
def test_whatever_a_reader_does_its_window_is_a_part_at_least_and_no_more_than_twice_what_it_read(
    steps: list[tuple[float, float, int]], get_s: float
) -> None:
    pace = ReaderPace(service(get_s))
    now_s, position = 0.0, 0
    for waited_s, read_s, taken in steps:
        pace.waits(now_s)
        now_s += waited_s
        pace.goes_on(now_s)
        position += taken
        pace.came(position, PART, now_s)
        now_s += read_s
        if pace.limit_bytes is not None:
            assert PART <= pace.limit_bytes <= PART + 2 * position + 1


def test_after_four_whole_files_the_next_begins_with_what_readers_needed() -> None:
    known = service()
    read_on(ReaderPace(known), 300, 0.01)
    for _ in range(3):
        known.closed(was_whole=True)
    assert known.ramp_bytes == 0
    known.closed(was_whole=True)
    assert known.ramp_bytes >= 11 * PART
    known.closed(was_whole=False)
    assert known.ramp_bytes == 0


def read_in_turn(known: ServicePace, *ends: int, size_bytes: int = 64 * MIB) -> list[ReaderPace]:
    """Begin a file for each of `ends`, one after the other, and read it to there."""
    paces = [ReaderPace(known) for _ in ends]
    for pace, end in zip(paces, ends, strict=True):
        known.came_to(pace, end, size_bytes)
    return paces


@pytest.mark.parametrize(
    ("ends", "left_bytes"),
    [
        ([16 * KIB] * 4, 0),
        ([16 * KIB] * 5, 128 * KIB),
        ([16 * KIB, 200 * KIB, 6 * MIB, MIB, MIB], 6 * MIB),
        ([16 * KIB, 16 * KIB, 32 * MIB, 16 * KIB, 16 * KIB], 0),
    ],
)
def test_where_three_files_in_a_row_were_left_the_next_will_be(ends: list[int], left_bytes: int) -> None:
    known = ServicePace()
    read_in_turn(known, *ends)
    assert known.left_bytes == left_bytes


def test_a_file_that_is_read_on_was_not_left() -> None:
    known = ServicePace()
    first, *_ = read_in_turn(known, *[16 * KIB] * 5)
    known.came_to(first, 32 * KIB, 64 * MIB)
    assert (known.left_bytes, known.was_left_early) == (0, False)


def test_readers_that_take_turns_are_taken_for_gone_only_once() -> None:
    known = ServicePace()
    for is_first in (True, False):
        paces = read_in_turn(known, *[MIB] * 16)
        assert known.left_bytes == MIB * is_first
        for end in range(2, 64):
            for pace in paces:
                known.came_to(pace, end * MIB, 64 * MIB)
    read_in_turn(known, *[MIB] * 40)
    assert known.left_bytes == MIB


def test_a_file_whose_reader_waits_was_not_left() -> None:
    known = ServicePace()
    read_in_turn(known, 16 * KIB)[0].waits(0.0)
    read_in_turn(known, *[16 * KIB] * 4)
    assert known.left_bytes == 0


def test_readers_of_files_that_end_within_a_gets_time_tell_at_least_what_they_took() -> None:
    known = service()
    read_on(ReaderPace(known), 8, 0.001)
    for _ in range(4):
        known.closed(was_whole=True)
    assert known.ramp_bytes >= 14 * PART


def test_no_more_is_begun_than_a_slow_link_delivers_in_five_seconds() -> None:
    known = seen((8, 256 * KIB, 0.12, 4), (32, PART, 4.12, 5))  # 10 MiB/s
    assert not known.is_full(5, PART)
    assert known.is_full(6, PART)
    assert not known.is_full(6, MIB)
    slow_to_begin = seen((32, 256 * KIB, 4.0, 4), (32, PART, 4.093, 5))
    assert not slow_to_begin.is_full(128, PART)
    outage_is_over = seen((64, PART, 0.9, 9), (9, PART, 55.0, 9), (16, PART, 0.9, 5))  # 10 MB/s each
    assert not outage_is_over.is_full(12, PART)
    late_and_small = seen((16, 4 * KIB, 0.02, 1), (16, 4 * KIB, 0.2, 1), (1, PART, 0.113, 4))
    assert not late_and_small.is_full(4, PART)


def test_a_reader_that_takes_a_part_in_next_to_no_time_is_expected_to_take_more_than_any_window() -> None:
    service = ServicePace()
    service.landed(MIB, 0.03, 4)
    pace = ReaderPace(service)
    pace.came(MIB, 8 * MIB, 0.0)
    pace.came(2 * MIB, 8 * MIB, 5e-324)
    assert pace.expected_bytes >= 1 << 40


def test_the_price_of_a_fetch_is_that_of_the_best_size_that_was_measured() -> None:
    service = ServicePace()
    assert service.fetch_s(64 * MIB, 8 * MIB, 4) == float("inf")
    service.landed(256 << 10, 0.02, 1)
    # 256 GETs, four at once, and a late one is none of them.
    assert service.fetch_s(64 * MIB, 8 * MIB, 4) == pytest.approx(1.28)
    service.landed(256 << 10, 0.08, 1)
    assert service.fetch_s(64 * MIB, 8 * MIB, 4) == pytest.approx(1.28)
    service.landed(8 * MIB, 0.1, 1)
    assert service.fetch_s(64 * MIB, 8 * MIB, 4) == pytest.approx(0.2)
    assert service.fetch_s(MIB, 8 * MIB, 4) == pytest.approx(0.02)
    assert (service.knows(8 * MIB), service.knows(16 * MIB)) == (True, False)


# Each read: how long it waits, and how much less the rest takes once it was read.
reads = st.lists(st.tuples(st.floats(0.001, 1.0), st.floats(0.0, 0.5)), min_size=1, max_size=60)


def with_the_rule(waits_s: list[float], prices_s: list[float]) -> float:
    rest, now_s = Rest(), 0.0
    for wait_s, price_s in zip(waits_s, prices_s, strict=True):
        rest.waits(now_s)
        now_s += wait_s
        rest.goes_on(now_s)
        if rest.begin_if_due(price_s):
            return now_s + price_s
    return now_s


@given(first_price_s=st.floats(0.0, 20.0), reads=reads)
def test_waits_and_fetch_take_twice_the_best_at_most(first_price_s: float, reads: list[tuple[float, float]]) -> None:
    waits_s = [wait_s for wait_s, _ in reads]
    prices_s = [*accumulate((fall_s for _, fall_s in reads), lambda price_s, fall_s: max(0.0, price_s - fall_s),
                            initial=first_price_s)]  # fmt: skip
    waited_s = [0.0, *accumulate(waits_s)]
    # Waiting to the end, or fetching the rest before any of the reads.
    best_s = min(waited_s[-1], *(before + price for before, price in zip(waited_s, prices_s, strict=True)))
    assert with_the_rule(waits_s, prices_s[1:]) <= 2 * best_s + max(waits_s) + 1e-9


def test_reads_that_wait_at_the_same_time_lose_that_time_once() -> None:
    waits = Waits()
    waits.waits(1.0)
    waits.waits(2.0)
    assert waits
    waits.goes_on(3.0)
    assert (bool(waits), waits.lost_s) == (True, 2.0)
    waits.goes_on(5.0)
    assert (bool(waits), waits.lost_s) == (False, 4.0)


def test_after_the_rest_was_asked_for_the_count_begins_anew() -> None:
    rest = Rest()
    rest.waits(0.0)
    rest.goes_on(2.0)
    assert not rest.begin_if_due(2.1)
    assert rest.begin_if_due(2.0)
    assert not rest.begin_if_due(0.1)


def test_a_rest_that_was_evicted_costs_twice_as_much_each_time() -> None:
    rest, now_s = Rest(), 0.0
    due_s: list[float] = []
    while len(due_s) < 4:
        rest.waits(now_s)
        now_s += 1.0
        rest.goes_on(now_s)
        if rest.begin_if_due(2.0):
            due_s.append(now_s)
    assert due_s == [2.0, 6.0, 14.0, 30.0]


def test_readers_that_always_overlap_lose_time_too() -> None:
    rest = Rest()
    rest.waits(0.0)
    for now_s in (1.0, 2.0, 3.0):
        rest.waits(now_s - 0.5)
        rest.goes_on(now_s)
    assert rest
    assert rest.begin_if_due(3.0)


def own_pace(readers: int, *get_s: float, files_per_s: float = inf) -> OwnPace:
    """What is known after so many readers have begun 300 files in turn, and waited for some."""
    own = OwnPace()
    for number, reader in enumerate(islice(cycle(range(readers)), 300)):
        own.begun(reader, number / files_per_s)
    for one_s in get_s:
        own.waited(one_s)
    return own


@pytest.mark.parametrize(
    ("readers", "get_s", "is_faster"),
    [(16, 0.020, False), (96, 0.020, True), (16, 0.001, True), (1, 0.0001, False), (5, 0.0001, True)],
)
def test_readers_are_faster_if_there_are_many_for_a_gets_time(readers: int, get_s: float, *, is_faster: bool) -> None:
    assert own_pace(readers, get_s).is_faster is is_faster


@pytest.mark.parametrize(
    ("readers", "files_per_s", "is_faster"),
    [(96, 4800, True), (96, 230, False), (300, 1000, False), (300, 50, False)],
    ids=["workers that wait", "that compute for 0.4 s", "processes that read a file each", "by turns"],
)
def test_readers_are_faster_only_if_each_soon_reads_on(readers: int, files_per_s: float, *, is_faster: bool) -> None:
    assert own_pace(readers, 0.02, files_per_s=files_per_s).is_faster is is_faster


def test_nothing_is_decided_before_a_reader_has_waited() -> None:
    assert not own_pace(1000).is_faster


def test_gets_that_a_busy_machine_delays_change_nothing_and_a_slower_service_does() -> None:
    own = own_pace(16, 0.001)
    for _ in range(3):
        own.waited(0.5)
        own.waited(0.001)
    assert own.is_faster
    for _ in range(80):
        own.waited(0.02)
    assert not own.is_faster


def test_a_service_is_far_if_none_of_its_latest_gets_takes_less_than_5_ms() -> None:
    assert own_pace(16).is_far
    assert own_pace(16, 0.005).is_far
    assert not own_pace(16, 0.02, 0.0049).is_far
    assert not own_pace(16, *[0.001, *[0.02] * 1000] * 3).is_far
    assert own_pace(16, 0.001, *[0.02] * 2000).is_far


def test_readers_that_have_gone_do_not_count() -> None:
    own = own_pace(16, 0.001)
    for _ in range(320):
        own.begun(7, 0.0)
    assert not own.is_faster


def test_nothing_is_fetched_ahead_while_all_that_is_read_is_kept() -> None:
    own = own_pace(2, 0.02)
    are_faster = []
    for is_kept in [True] * 257 + [False]:
        own.begun(1, 0.0, is_kept=is_kept)
        are_faster.append(own.is_faster)
    assert are_faster == [False] * 255 + [True] * 2 + [False]


def test_samples_are_taken_less_and_less_often_and_none_of_few_readers() -> None:
    own = own_pace(16)
    samples = [number for number in range(1, 5000) if own.take_sample()]
    assert samples == [16, 48, 112, 240, 496, 1008, 2032, 3056, 4080]
    own = own_pace(4)
    assert not any(own.take_sample() for _ in range(5000))
