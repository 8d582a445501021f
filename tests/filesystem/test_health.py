"""When a worker hangs, when another one follows a dead one, and when reads count as failing."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import ServiceError
from fastfuse.filesystem.health import HANGS_AFTER_S, DeathRecord, FailingReads, Heartbeat


def hangs(beats: list[int], *, every_s: float = 1.0, cpu_s: float = 0.0, wants_cpu: bool = False) -> list[bool]:
    """Return what each look says at a worker with so many `beats`, which uses `cpu_s` of CPU time a look."""
    heartbeat = Heartbeat()
    heartbeat.restart(0.0)
    return [
        heartbeat.is_hung(beats=count, cpu_s=cpu_s * number, wants_cpu=wants_cpu, now_s=every_s * number)
        for number, count in enumerate(beats)
    ]


def test_a_worker_without_a_beat_for_six_seconds_hangs() -> None:
    assert hangs([7] * 10) == [False] * 6 + [True] * 4
    assert hangs([1] * 8, wants_cpu=True, cpu_s=0.9)[-1]  # an endless loop
    # One that gets no CPU time does not, and the time that the machine sleeps does not count.
    assert not any(hangs([1] * 60, wants_cpu=True, cpu_s=0.1))
    assert hangs([1] * 4, every_s=3600) == [False] * 3 + [True]


@given(st.lists(st.integers(0, 5), min_size=1))
def test_a_worker_that_beats_often_enough_never_hangs(pauses: list[int]) -> None:
    beats = [count for count, pause in enumerate(pauses) for _ in range(pause + 1)]
    assert not any(hangs(beats))


def test_the_next_worker_has_its_own_time() -> None:
    heartbeat = Heartbeat()
    heartbeat.restart(0.0)
    for now_s in range(8):
        heartbeat.is_hung(beats=1, cpu_s=0, wants_cpu=False, now_s=now_s)
    heartbeat.restart(8.0)
    answers = [heartbeat.is_hung(beats=1, cpu_s=0, wants_cpu=False, now_s=8.0 + number) for number in range(8)]
    assert answers == [number >= HANGS_AFTER_S for number in range(8)]


def pauses(answered: Iterable[int]) -> list[float]:
    """Return the pauses after kills, a second apart, until each of which so many requests were answered."""
    deaths = DeathRecord()
    return [
        deaths.note("x", now_s=float(second), answered=count, was_killed=True) for second, count in enumerate(answered)
    ]


def test_the_pauses_double_up_to_two_seconds_while_nothing_is_served() -> None:
    assert pauses([7] * 9) == [0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert pauses(range(9)) == [0, *[0.05] * 8]
    assert pauses([7, 7, 7, 8, 8, 8, 9]) == [0, 0.05, 0.1, 0.05, 0.05, 0.1, 0.05]


@pytest.mark.parametrize("was_killed", [False, True])
def test_a_minute_later_all_is_forgotten(was_killed: bool) -> None:
    deaths = DeathRecord()
    for minute in range(50):
        assert deaths.note("x", now_s=minute * 61.0, answered=0, was_killed=was_killed) == 0


def test_five_crashes_in_a_minute_without_an_answer_are_the_end() -> None:
    deaths = DeathRecord()
    for second in range(4):
        deaths.note("x", now_s=second, answered=7, was_killed=False)
    with pytest.raises(ServiceError, match="died 5 times in a minute without serving anything; last, it was killed"):
        deaths.note("it was killed by signal 11", now_s=59, answered=7, was_killed=False)


def test_kills_from_outside_are_the_end_only_once_nothing_was_answered_for_a_minute() -> None:
    deaths = DeathRecord()
    for second in range(0, 80, 2):
        deaths.note("x", now_s=second, answered=7 + (second >= 20), was_killed=True)
    with pytest.raises(ServiceError, match="died 31 times in a minute without serving anything; last, x"):
        deaths.note("x", now_s=80, answered=8, was_killed=True)


def test_kills_from_outside_are_not_counted_with_crashes() -> None:
    deaths = DeathRecord()
    for second in range(20):
        deaths.note("x", now_s=second, answered=7, was_killed=second % 5 != 0)


def test_kills_of_an_idle_mounts_worker_now_and_then_are_no_end() -> None:
    deaths = DeathRecord()
    for second in range(0, 3600, 16):
        deaths.note("x", now_s=second, answered=7, was_killed=True)


@pytest.mark.parametrize("answered_at", [1, 2, 3, 4])
def test_one_answer_in_between_is_enough_to_go_on(answered_at: int) -> None:
    deaths = DeathRecord()
    for second in range(5):
        deaths.note("x", now_s=second, answered=int(second >= answered_at), was_killed=False)


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
