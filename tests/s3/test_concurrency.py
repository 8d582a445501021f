"""More GETs at once while they are short, fewer when one was long."""

from fastfuse.s3.concurrency import Pace


def test_short_gets_raise_the_limit_to_the_most_and_no_further() -> None:
    pace = Pace(8)
    limits = []
    for _ in range(6):
        pace.landed(0.0, 1.0)
        limits.append(pace.limit)
    assert limits == [5, 6, 7, 8, 8, 8]


def test_it_begins_with_few_and_never_with_more_than_the_most() -> None:
    assert Pace(64).limit == 4
    assert Pace(2).limit == 2


def test_gets_of_one_round_that_were_long_halve_the_limit_once() -> None:
    pace = Pace(64)
    for _ in range(28):
        pace.landed(0.0, 1.0)
    assert pace.limit == 32
    for number in range(32):
        pace.landed(1.0, 31.0 + number)
    assert pace.limit == 16
    pace.landed(40.0, 90.0)  # begun after the cut
    assert pace.limit == 8


def test_one_get_at_a_time_is_always_left() -> None:
    pace = Pace(64)
    for number in range(10):
        pace.landed(100.0 * number, 100.0 * number + 50.0)
    assert pace.limit == 1


def test_a_get_that_is_neither_changes_nothing() -> None:
    pace = Pace(64)
    pace.landed(0.0, 10.0)
    assert pace.limit == 4
