"""More GETs at once while they are short, fewer when one was long. `Room` itself is tested with its downloads."""

import pytest

from fastfuse.s3.room import Pace


@pytest.mark.parametrize(("most", "limits"), [(8, [4, 5, 6, 7, 8, 8]), (2, [2, 2, 2, 2, 2, 2])])
def test_short_gets_raise_the_limit_to_the_most_and_no_further(most: int, limits: list[int]) -> None:
    pace = Pace(most)
    for limit in limits:
        assert pace.limit == limit
        pace.landed(0.0, 1.0)


def test_gets_of_one_round_that_were_long_halve_the_limit_once_and_leave_one() -> None:
    pace = Pace(64)
    for _ in range(28):
        pace.landed(0.0, 1.0)
    assert pace.limit == 32
    pace.landed(0.0, 10.0)  # neither short nor long
    for number in range(32):
        pace.landed(1.0, 31.0 + number)
    assert pace.limit == 16
    for began_s, limit in ((100.0, 8), (200.0, 4), (300.0, 2), (400.0, 1), (500.0, 1)):
        pace.landed(began_s, began_s + 50.0)
        assert pace.limit == limit
