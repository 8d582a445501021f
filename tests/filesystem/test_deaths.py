"""When another worker is started after a death."""

import pytest

from fastfuse.errors import ServiceError
from fastfuse.filesystem.deaths import DeathRecord


def test_the_pauses_double_up_to_two_seconds() -> None:
    deaths = DeathRecord()
    pauses = [deaths.note("x", now_s=float(number), answered=number) for number in range(9)]
    assert pauses == [0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_a_minute_later_all_is_forgotten() -> None:
    deaths = DeathRecord()
    for minute in range(50):
        assert deaths.note("x", now_s=minute * 61.0, answered=0) == 0


def test_five_deaths_in_a_minute_without_an_answer_are_the_end() -> None:
    deaths = DeathRecord()
    for second in range(4):
        deaths.note("x", now_s=second, answered=7)
    with pytest.raises(ServiceError, match="died 5 times in a minute without serving anything; last, it was killed"):
        deaths.note("it was killed by signal 11", now_s=59, answered=7)


@pytest.mark.parametrize("answered_at", [1, 2, 3, 4])
def test_one_answer_in_between_is_enough_to_go_on(answered_at: int) -> None:
    deaths = DeathRecord()
    for second in range(5):
        deaths.note("x", now_s=second, answered=int(second >= answered_at))
