from hypothesis import given
from hypothesis import strategies as st

from fastfuse.filesystem.heartbeat import HANGS_AFTER_S, Heartbeat


def looks(beats: list[int], *, every_s: float = 1.0, cpu_s: float = 0.0, wants_cpu: bool = False) -> list[bool]:
    """Return what each look says at a worker with so many `beats`, which uses `cpu_s` of CPU time a look."""
    heartbeat = Heartbeat()
    heartbeat.restart(0.0)
    return [
        heartbeat.is_hung(beats=count, cpu_s=cpu_s * number, wants_cpu=wants_cpu, now_s=every_s * number)
        for number, count in enumerate(beats)
    ]


def test_a_worker_without_a_beat_for_six_seconds_hangs() -> None:
    assert looks([7] * 10) == [False] * 6 + [True] * 4


@given(st.lists(st.integers(0, 5), min_size=1))
def test_a_worker_that_beats_often_enough_never_hangs(pauses: list[int]) -> None:
    beats = [count for count, pause in enumerate(pauses) for _ in range(pause + 1)]
    assert not any(looks(beats))


def test_the_time_that_the_machine_sleeps_does_not_count() -> None:
    assert looks([1] * 3, every_s=3600) == [False] * 3
    assert looks([1] * 4, every_s=3600)[-1]


def test_a_worker_that_gets_no_cpu_time_does_not_hang() -> None:
    assert not any(looks([1] * 60, wants_cpu=True, cpu_s=0.1))


def test_an_endless_loop_hangs() -> None:
    assert looks([1] * 8, wants_cpu=True, cpu_s=0.9)[-1]


def test_the_next_worker_has_its_own_time() -> None:
    heartbeat = Heartbeat()
    heartbeat.restart(0.0)
    for now_s in range(8):
        heartbeat.is_hung(beats=1, cpu_s=0, wants_cpu=False, now_s=now_s)
    heartbeat.restart(8.0)
    answers = [heartbeat.is_hung(beats=1, cpu_s=0, wants_cpu=False, now_s=8.0 + number) for number in range(8)]
    assert answers == [number >= HANGS_AFTER_S for number in range(8)]
