from itertools import cycle, islice
from math import inf

import pytest

from fastfuse.readahead.own_pace import OwnPace


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
    samples = [number for number in range(1, 5000) if own.takes_sample()]
    assert samples == [16, 48, 112, 240, 496, 1008, 2032, 3056, 4080]
    own = own_pace(4)
    assert not any(own.takes_sample() for _ in range(5000))
