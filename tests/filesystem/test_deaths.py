"""What follows from the death of a worker, by the clock that is given."""

import re
import time
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest

from fastfuse.filesystem import deaths as module
from fastfuse.filesystem.deaths import Deaths, Silence
from fastfuse.filesystem.kernel.fuse import replies
from fastfuse.filesystem.kernel.in_hand import ReadsInHand
from fastfuse.filesystem.kernel.session import Session
from fastfuse.filesystem.worker_process import WorkerProcess
from fastfuse.metrics import Counters


def session_with(**about: object) -> Session:
    return cast(Session, SimpleNamespace(requests=bytearray(replies.REQUESTS_BYTES), **about))


@pytest.mark.parametrize(
    ("kills", "told"),
    [
        # The seconds and the kills for want of memory until then; another process was killed an hour before.
        (((0, 3), (30, 4), (80, 5), (139, 6), (199, 7)), ["", "by the OOM", "", "", "by the OOM"]),
        (((0, 4), (59, 4), (60, 4), (200, 4), (201, 4)), ["by the OOM", "", "", "", "by SIGKILL, as"]),
        (((0, None), (59, None), (60, None), (200, None), (400, 4)), ["", "by SIGKILL, as", "", "", ""]),
    ],
)
def test_that_memory_ran_out_is_told_once_in_a_series_of_kills(
    kills: tuple[tuple[int, int | None], ...],
    told: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = SimpleNamespace(pid=0, exit_code=-9, end="killed", is_blameless=True, has_served=True)
    session = session_with(is_waited_for=False, refuse_deadly_request=Mock(return_value=None))
    counted = None if kills[0][1] is None else 2
    now_s = -3600.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    monkeypatch.setattr(module, "oom_kills", lambda: counted)
    counters = Counters()
    deaths = Deaths(cast(WorkerProcess, worker), counters, ReadsInHand(), read_deadline_s=60.0)
    counted = counted and 3
    deaths.look(None)
    found = []
    for now_s, counted in kills:  # noqa: B007 - the clock and the counter read them
        caplog.clear()
        counters.count("fastfuse_hints", 3, "taken")
        deaths.note(session)
        assert caplog.text.count("killed; starting another; orders that 'fastfuse hint' has announced end with it") == 1
        found += ["".join(re.findall("workers are killed (.*? .*? [A-Za-z]*)", caplog.text))]
    assert found == told


@pytest.mark.parametrize(
    ("target_bytes", "remedy"), [(128 << 20, "give the container a larger"), (1 << 30, "give a smaller --memory")]
)
def test_no_smaller_memory_target_is_advised_than_there_is(
    target_bytes: int, remedy: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker = SimpleNamespace(exit_code=-9, end="killed", is_blameless=True, has_served=True)
    session = session_with(is_waited_for=False, refuse_deadly_request=Mock(return_value=None))
    monkeypatch.setattr(module, "oom_kills", lambda: None)
    counters = Counters()
    counters.set("fastfuse_memory_target_bytes", target_bytes)
    deaths = Deaths(cast(WorkerProcess, worker), counters, ReadsInHand(), read_deadline_s=60.0)
    for _ in range(2):
        deaths.note(session)
    assert caplog.text.count(remedy) == 1
    assert caplog.text.count("give ") == 1


def test_no_deadline_of_a_read_that_waits_for_the_next_worker_passes_while_all_processes_are_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """L3"""
    in_hand, resumed_s = ReadsInHand(), []
    deaths = Deaths(cast(WorkerProcess, SimpleNamespace(pid=0)), Counters(), in_hand, read_deadline_s=60.0)
    for now_s in (100.0, 101.0, 103.0, 3703.0, 3704.0):
        monkeypatch.setattr(time, "monotonic", lambda now_s=now_s: now_s)
        deaths.look(None)
        resumed_s.append(in_hand.resumed_s)
    assert resumed_s == [0.0, 0.0, 0.0, 3703.0, 3703.0]


def test_crashes_of_which_each_pair_fails_a_request_never_end_a_mount_that_is_otherwise_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = SimpleNamespace(exit_code=-11, end="it was killed by signal 11", is_blameless=False, has_served=True)
    answers = iter([None, (1, 17, 1)] * 10)
    session = session_with(is_waited_for=True, refuse_deadly_request=lambda *, is_blameless: next(answers))
    deaths = Deaths(cast(WorkerProcess, worker), Counters(), ReadsInHand(), read_deadline_s=60.0)
    pauses = []
    for hour in range(10):
        for second in (0, 1):
            monkeypatch.setattr(time, "monotonic", lambda now_s=3600.0 * hour + second: now_s)
            pauses.append(deaths.note(session))
    assert pauses == [0.0, 0.05] * 10


def test_readers_wait_for_a_silent_worker_and_go_unserved_only_if_it_never_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker, counters = SimpleNamespace(pid=1, has_served=True), Counters()
    session = SimpleNamespace(is_waited_for=True, owed={1, 2})
    silence = Silence(cast(WorkerProcess, worker), counters)
    now_s = 100.0

    def stalled_s(*, beats: int = 0, look_s: float = 1.0, **session_now: object) -> float:
        nonlocal now_s
        session.__dict__.update(session_now)
        now_s += look_s
        counters.count("fastfuse_worker_beats", beats)
        silence.look(cast(Session, session))
        us = counters.get("fastfuse_stalled_seconds")
        assert counters.get("fastfuse_blocked_seconds") == 2 * us
        return us / 1e6

    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    assert [stalled_s() for _ in range(2)] == [0.0] * 2  # no worker has served yet
    assert [stalled_s(beats=1) for _ in range(3)] == [0.0] * 3
    # It is stopped or starved while requests wait in the kernel, for an hour with the machine, and goes on.
    assert [stalled_s() for _ in range(2)] + [stalled_s(look_s=3600.0)] == [0.0, 2.0, 4.0]
    assert [stalled_s(beats=1) for _ in range(2)] == [4.0] * 2
    assert counters.get("fastfuse_unserved_seconds") == 0
    # It is stopped with reads in hand, which it counts itself when it goes on.
    counters.set("fastfuse_waiting_reads", 2)
    assert [stalled_s() for _ in range(4)] + [stalled_s(beats=1)] == [4.0] * 5
    # It never goes on; the next worker is late, and serves.
    assert [stalled_s() for _ in range(3)] == [4.0] * 3
    worker.pid = 0
    assert [stalled_s() for _ in range(2)] == [8.0, 9.0]
    worker.pid, worker.has_served = 2, False
    assert stalled_s(beats=1) == 10.0
    worker.has_served = True
    assert [stalled_s(beats=1), stalled_s(beats=1, is_waited_for=False)] == [10.0] * 2
    # Nobody waits.
    worker.pid = 0
    assert stalled_s() == 10.0
    assert counters.get("fastfuse_unserved_seconds") == 6e6
