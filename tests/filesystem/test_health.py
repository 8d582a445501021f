"""When a worker hangs, when another one follows a dead one, and when reads count as failing."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
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


def note(deaths: DeathRecord, now_s: float, **about: Any) -> float:  # noqa: ANN401
    usual = {"answered": 7, "is_blameless": True, "is_waited_for": True}
    return deaths.note("it was killed by signal 11", now_s=now_s, **usual | about)


@pytest.mark.parametrize(
    ("answered", "read_deadline_s", "pauses"),
    [
        (lambda second: 7, 60.0, [0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]),
        (lambda second: second, 60.0, [0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]),
        # A pause leaves a read most of its deadline.
        (lambda second: second, 1.0, [0, 0.05, 0.1, 0.2, 0.25, 0.25]),
    ],
    ids=["nothing is answered", "a little is answered", "short deadline"],
)
def test_the_pauses_double_up_to_five_seconds_as_deaths_go_on(
    answered: Callable[[int], int], read_deadline_s: float, pauses: list[float]
) -> None:
    deaths = DeathRecord(read_deadline_s=read_deadline_s)
    assert [note(deaths, second, answered=answered(second)) for second in range(len(pauses))] == pauses


@pytest.mark.parametrize("is_blameless", [False, True])
def test_a_minute_later_all_is_forgotten(is_blameless: bool) -> None:
    deaths = DeathRecord()
    for minute in range(50):
        assert note(deaths, minute * 61.0, is_blameless=is_blameless, is_waited_for=False) == 0
    for minute in range(50, 100):
        assert note(deaths, minute * 61.0, answered=minute, is_blameless=is_blameless) == 0


@pytest.mark.parametrize(
    ("seconds", "about", "count"),
    [
        # Five crashes in a minute without an answer are the end; one answer in between is enough to go on.
        ([0, 1, 2, 3, 59], {"is_blameless": False, "is_waited_for": False}, 5),
        *((range(5), {"is_blameless": False, "answered": lambda at, n=n: at >= n}, 0) for n in (1, 2, 3, 4)),
        # Kills from outside are, only once nothing was answered for a minute, and are not counted with crashes.
        (range(0, 82, 2), {"answered": lambda at: 7 + (at >= 20)}, 31),
        (range(20), {"is_blameless": lambda at: at % 5 != 0}, 0),
        # Five deaths far apart are, if somebody waits all the time.
        *((range(0, 5 * apart_s, apart_s), {"is_blameless": True}, 5) for apart_s in (16, 61)),
        *((range(0, 5 * apart_s, apart_s), {"is_blameless": False}, 5) for apart_s in (16, 61)),
        # Kills of an idle mount's worker are not, and are not held against who asks then.
        *(([*range(0, 600, by), *range(600, 650, by)], {"is_waited_for": lambda at: at >= 600}, 0) for by in (2, 16)),
    ],
)
def test_so_many_deaths_without_serving_are_the_end(seconds: Sequence[int], about: dict[str, Any], count: int) -> None:
    deaths = DeathRecord()

    def die(at: int) -> None:
        note(deaths, at, **{name: said(at) if callable(said) else said for name, said in about.items()})

    for at in seconds[:-1]:
        die(at)
    message = f"died {count} times without serving anything; last, it was killed by signal 11"
    with pytest.raises(ServiceError, match=message) if count else nullcontext():
        die(seconds[-1])


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
