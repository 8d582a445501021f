"""The time of a GET, how many are worth having, and what a reader needs ahead, in times that the test makes up."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.readahead.pace import Load, ReaderPace, ServicePace
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


def test_readers_of_files_that_end_within_a_gets_time_tell_at_least_what_they_took() -> None:
    known = service()
    read_on(ReaderPace(known), 8, 0.001)
    for _ in range(4):
        known.closed(was_whole=True)
    assert known.ramp_bytes >= 14 * PART


def test_a_full_service_refuses_what_is_above_its_limit_only() -> None:
    known = seen(*((in_flight, PART, 0.12, in_flight) for in_flight in (1, 2, 4)))
    for _ in range(200):
        known.waited()
        known.landed(PART, 0.9, 32)
    assert known.is_full(32, PART)
    assert not known.is_full(3, PART)


def test_parts_that_were_never_seen_alone_are_known_to_be_slow_by_smaller_ones() -> None:
    known = seen((8, 256 * KIB, 0.0229, 4), (8, 2 * MIB, 0.0433, 4))
    for _ in range(200):
        known.waited()
        known.landed(PART, 0.3, 32)
    assert known.is_full(32, PART)


def test_a_few_late_small_gets_make_no_part_look_slow() -> None:
    known = seen((3, 256 * KIB, 0.2, 4), (8, 2 * MIB, 0.0433, 4))
    for _ in range(200):
        known.waited()
        known.landed(PART, 0.113, 32)
    assert not known.is_full(1000, PART)


def test_no_more_is_begun_than_a_slow_link_delivers_in_five_seconds() -> None:
    known = seen((8, 256 * KIB, 0.12, 4), (32, PART, 4.12, 5))  # 10 MiB/s
    assert not known.is_full(5, PART)
    assert known.is_full(6, PART)
    assert not known.is_full(6, MIB)
    slow_to_begin = seen((32, 256 * KIB, 4.0, 4), (32, PART, 4.093, 5))
    assert not slow_to_begin.is_full(128, PART)


def test_a_reader_that_takes_a_part_in_next_to_no_time_is_expected_to_take_more_than_any_window() -> None:
    service = ServicePace()
    service.landed(MIB, 0.03, 4)
    pace = ReaderPace(service)
    pace.came(MIB, 8 * MIB, 0.0)
    pace.came(2 * MIB, 8 * MIB, 5e-324)
    assert pace.expected_bytes >= 1 << 40


def run(
    load: Load,
    gets: int,
    link_bytes_per_s: float,
    wanted: int = 36,
    slower: float = 1.0,
    is_awaited: bool = True,
    demanded: int = 0,
) -> list[int]:
    """As many at once as are wanted and the limit allows, but all that are demanded; how many that were, each time."""
    at_once = []
    for _ in range(gets):
        in_flight = max(demanded, wanted if load.limit is None else min(wanted, load.limit))
        alone_s = GET_S
        took_s = slower * max(alone_s, in_flight * PART / link_bytes_per_s)
        load.landed(PART, took_s, in_flight, took_s / alone_s, is_awaited=is_awaited)
        at_once.append(in_flight)
    return at_once


@pytest.mark.parametrize(
    ("link_bytes_per_s", "wanted", "is_awaited"),
    [(1e12, 36, True), (0.5e9, 36, False), (0.05e9, 7, True)],
    ids=["more bring more", "readers are kept fed", "few"],
)
def test_gets_are_not_limited_without_a_reason(link_bytes_per_s: float, wanted: int, *, is_awaited: bool) -> None:
    assert set(run(Load(), 1000, link_bytes_per_s, wanted=wanted, is_awaited=is_awaited)) == {wanted}


@pytest.mark.parametrize(("link_bytes_per_s", "useful"), [(1.5e9, 21), (1e9, 14), (0.5e9, 7), (0.2e9, 5)])
def test_on_a_full_link_no_more_stay_in_flight_than_twice_what_fills_it(link_bytes_per_s: float, useful: int) -> None:
    load = Load()
    at_once = run(load, 3000, link_bytes_per_s)[300:]
    assert sum(at_once) / len(at_once) < 2.3 * useful
    # Those that fill it less are tried and given up.
    assert sum(1 for in_flight in at_once if in_flight < 0.8 * useful) / len(at_once) < 0.1


def test_when_the_link_is_free_again_the_limit_goes() -> None:
    load = Load()
    run(load, 1000, 0.5e9)
    assert load.limit is not None
    run(load, 2000, 1e12)
    assert load.limit is None


@given(
    phases=st.lists(
        st.tuples(st.integers(1, 500), st.sampled_from([0.05e9, 0.5e9, 1.5e9, 1e12]), st.integers(0, 64)),
        max_size=4,
    ),
    demanded=st.integers(0, 24),
)
def test_gets_that_no_limit_holds_back_leave_one_that_is_no_less_than_four_and_goes_with_the_load(
    phases: list[tuple[int, float, int]], demanded: int
) -> None:
    load = Load()
    for gets, link_bytes_per_s, busy in phases:
        for _ in range(gets):
            run(load, 1, link_bytes_per_s, demanded=busy)
            assert load.limit is None or load.limit >= 4
    run(load, 4000, 1e12, demanded=demanded)
    assert load.limit is None


def test_sixteen_readers_on_a_full_link_do_not_end_readahead_for_ever() -> None:
    load = Load()
    run(load, 3000, 0.5e9, wanted=48, demanded=16)
    assert load.limit is not None
    assert load.limit >= 4
    run(load, 3000, 1e12, wanted=48, demanded=16)
    assert load.limit is None


def test_a_service_that_becomes_slower_for_another_reason_gets_no_fewer_gets_but_in_short_trials() -> None:
    load = Load()
    at_once = run(load, 3000, 1e12, slower=3.0)
    assert sum(1 for in_flight in at_once if in_flight < 36) / len(at_once) < 0.5
    assert max(at_once[-200:]) == 36


def test_smaller_gets_in_between_say_nothing() -> None:
    load = Load()
    for _ in range(300):
        run(load, 1, 1e9)
        load.landed(128 * KIB, 0.021, 36, 1.0)
    assert load.limit is not None


def test_when_parts_have_become_smaller_for_good_it_begins_anew() -> None:
    load = Load()
    run(load, 300, 0.5e9)
    assert load.limit is not None
    for _ in range(400):
        load.landed(2 * MIB, 0.04, 36, 1.0)
    assert load.limit is None


def test_the_price_of_a_fetch_is_that_of_the_best_size_that_was_measured() -> None:
    service = ServicePace()
    assert service.fetch_s(64 * MIB, 8 * MIB, 4) == float("inf")
    service.landed(256 << 10, 0.02, 1)
    # 256 GETs, four at once.
    assert service.fetch_s(64 * MIB, 8 * MIB, 4) == pytest.approx(1.28)
    service.landed(8 * MIB, 0.1, 1)
    assert service.fetch_s(64 * MIB, 8 * MIB, 4) == pytest.approx(0.2)
    assert service.fetch_s(MIB, 8 * MIB, 4) == pytest.approx(0.02)
    assert (service.knows(8 * MIB), service.knows(16 * MIB)) == (True, False)
