"""When a worker hangs, when another one follows a dead one, and when reads count as failing."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import ServiceError
from fastfuse.filesystem.processes.health import HANGS_AFTER_S, DeathRecord, FailingReads, Heartbeat


def hangs(beats: list[int], *, every_s: float = 1.0, cpu_s: float = 0.0, state: str = "S") -> list[bool]:
    """Return what each look says at a worker with so many `beats`, which uses `cpu_s` of CPU time a look."""
    heartbeat = Heartbeat()
    heartbeat.restart(0.0)
    return [
        heartbeat.is_hung(beats=count, cpu_s=cpu_s * number, state=state, now_s=every_s * number)
        for number, count in enumerate(beats)
    ]


def test_a_worker_without_a_beat_for_six_seconds_hangs() -> None:
    assert hangs([7] * 10) == [False] * 6 + [True] * 4
    assert hangs([1] * 8, state="R", cpu_s=0.9)[-1]  # an endless loop
    # One that gets no CPU time does not, and the time that the machine sleeps does not count.
    assert not any(hangs([1] * 60, state="R", cpu_s=0.1))
    assert hangs([1] * 4, every_s=3600) == [False] * 3 + [True]


@given(st.lists(st.integers(0, 5), min_size=1))
def test_a_worker_that_beats_often_enough_never_hangs(pauses: list[int]) -> None:
    beats = [count for count, pause in enumerate(pauses) for _ in range(pause + 1)]
    assert not any(hangs(beats))


def test_the_next_worker_has_its_own_time() -> None:
    heartbeat = Heartbeat()
    heartbeat.restart(0.0)
    for now_s in range(8):
        heartbeat.is_hung(beats=1, cpu_s=0, state="S", now_s=now_s)
    heartbeat.restart(8.0)
    answers = [heartbeat.is_hung(beats=1, cpu_s=0, state="S", now_s=8.0 + number) for number in range(8)]
    assert answers == [number >= HANGS_AFTER_S for number in range(8)]


def note(deaths: DeathRecord, now_s: float, how: str = "x", **about: Any) -> float:  # noqa: ANN401
    usual = {"answered": 7, "was_killed": True, "is_waited_for": True}
    return deaths.note(how, now_s=now_s, **usual | about)


def pauses(answered: Iterable[int], deaths: DeathRecord) -> list[float]:
    """Return the pauses after kills, a second apart, until each of which so many requests were answered."""
    return [note(deaths, float(second), answered=count) for second, count in enumerate(answered)]


@pytest.mark.parametrize("answered", [[7] * 10, range(10)], ids=["nothing is answered", "a little is answered"])
def test_the_pauses_double_up_to_five_seconds_as_deaths_go_on(answered: Iterable[int]) -> None:
    assert pauses(answered, DeathRecord()) == [0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_a_pause_leaves_a_read_most_of_its_deadline() -> None:
    assert pauses(range(6), DeathRecord(read_deadline_s=1.0)) == [0, 0.05, 0.1, 0.2, 0.25, 0.25]


@pytest.mark.parametrize("was_killed", [False, True])
def test_a_minute_later_all_is_forgotten(was_killed: bool) -> None:
    deaths = DeathRecord()
    for minute in range(50):
        assert note(deaths, minute * 61.0, was_killed=was_killed, is_waited_for=False) == 0
    for minute in range(50, 100):
        assert note(deaths, minute * 61.0, answered=minute, was_killed=was_killed) == 0


def test_five_crashes_in_a_minute_without_an_answer_are_the_end() -> None:
    deaths = DeathRecord()
    for second in range(4):
        note(deaths, second, was_killed=False, is_waited_for=False)
    with pytest.raises(ServiceError, match="died 5 times without serving anything; last, it was killed"):
        note(deaths, 59, "it was killed by signal 11", was_killed=False, is_waited_for=False)


def test_kills_from_outside_are_the_end_only_once_nothing_was_answered_for_a_minute() -> None:
    deaths = DeathRecord()
    for second in range(0, 80, 2):
        note(deaths, second, answered=7 + (second >= 20))
    with pytest.raises(ServiceError, match="died 31 times without serving anything; last, x"):
        note(deaths, 80, answered=8)


@pytest.mark.parametrize("was_killed", [False, True])
@pytest.mark.parametrize("apart_s", [16, 61])
def test_five_deaths_far_apart_are_the_end_if_somebody_waits_all_the_time(apart_s: int, was_killed: bool) -> None:
    deaths = DeathRecord()
    for count in range(4):
        note(deaths, apart_s * count, was_killed=was_killed)
    with pytest.raises(ServiceError, match="died 5 times without serving anything; last, x"):
        note(deaths, apart_s * 4, was_killed=was_killed)


def test_kills_from_outside_are_not_counted_with_crashes() -> None:
    deaths = DeathRecord()
    for second in range(20):
        note(deaths, second, was_killed=second % 5 != 0)


@pytest.mark.parametrize("apart_s", [2, 16])
def test_kills_of_an_idle_mounts_worker_are_no_end_and_not_held_against_who_asks_then(apart_s: int) -> None:
    deaths = DeathRecord()
    for second in range(0, 600, apart_s):
        note(deaths, second, is_waited_for=False)
    for second in range(600, 650, apart_s):
        note(deaths, second)


@pytest.mark.parametrize("answered_at", [1, 2, 3, 4])
def test_one_answer_in_between_is_enough_to_go_on(answered_at: int) -> None:
    deaths = DeathRecord()
    for second in range(5):
        note(deaths, second, answered=int(second >= answered_at), was_killed=False)


def fails(ends: Iterable[str], *, trouble_since_s: int | None = None) -> str:
    """Return what each second says: `ends` has the read that ended in it (`d`elivered, `f`ailed, none); `!` fails."""
    reads, delivered, failed, said = FailingReads(7, {"EIO": 7}), 7, 7, ""
    for now_s, end in enumerate(ends):
        delivered += end == "d"
        failed += end == "f"
        trouble_s = 0 if trouble_since_s is None else max(0, now_s - trouble_since_s)
        said += "!" if reads.look(float(now_s), delivered, {"EIO": failed}, trouble_s=trouble_s) else "."
    return said


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        # Nothing is read.
        ("    ", "...."),
        # One read fails; 10 s later nothing is known.
        ("f            ", "!!!!!!!!!!!.."),
        # Reads fail all the time, and one is delivered.
        ("fffffffffdf", "!!!!!!!!!.."),
        # Of many that are delivered some fail.
        ("dfdfdfdf", "........"),
        # After the last one was delivered all fail.
        ("dffffffffffff", "...........!!"),
        # They failed before that.
        ("fd            ", "!............."),
    ],
)
def test_reads_fail_if_none_is_delivered_in_ten_seconds_and_one_failed(ends: str, said: str) -> None:
    assert fails(ends) == said


def test_requests_that_are_tried_again_for_ten_seconds_are_a_failure_unless_others_are_answered() -> None:
    assert fails(" " * 13, trouble_since_s=0) == "...........!!"
    assert fails("d    " * 6, trouble_since_s=0) == "." * 30


def test_what_fails_is_told_since_the_last_delivery() -> None:
    reads = FailingReads(0, {"EIO": 3, "EACCES": 0})
    assert reads.failures(0.0) == (0.0, {})
    reads.look(1.0, 0, {"EIO": 4, "EACCES": 0}, trouble_s=0)
    reads.look(2.0, 1, {"EIO": 4, "EACCES": 0}, trouble_s=0)
    assert reads.failures(2.0) == (0.0, {})
    reads.look(5.0, 1, {"EIO": 5, "EACCES": 2}, trouble_s=0)
    reads.look(9.0, 1, {"EIO": 5, "EACCES": 4}, trouble_s=0)
    assert reads.failures(9.0) == (4.0, {"EIO": 1, "EACCES": 4})
