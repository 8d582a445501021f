"""The supervisor's waits for a worker end, whatever the worker does; and what a worker tells of its reads."""

import ctypes
import errno
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from fastfuse.errors import ServiceError
from fastfuse.filesystem import worker_process
from fastfuse.filesystem.figures.status import Board
from fastfuse.filesystem.kernel.notices import pack_unwanted_pages
from fastfuse.filesystem.processes import health
from fastfuse.filesystem.processes.children import fork_child, wait_child
from fastfuse.filesystem.processes.hang_report import cpu_and_state
from fastfuse.filesystem.serving import worker
from fastfuse.filesystem.serving.worker import READY
from fastfuse.filesystem.worker_process import WorkerProcess
from fastfuse.metrics import Counters
from fastfuse.readahead.fetches import ReadCounts
from fastfuse.s3.retries import Retries
from tests.filesystem.waiting import PATIENCE_S, wait_until

Life = Callable[[socket.socket], object]


class Place:
    """A worker process whose worker lives as a test says."""

    def __init__(self) -> None:
        self.said_alive = 0
        self.worker = WorkerProcess(Counters(), self._every_second)
        self.pids: list[int] = []

    def start(self, life: Life) -> None:
        def fork(messages: socket.socket) -> int:
            self.pids.append(fork_child(lambda: life(messages)))
            return self.pids[-1]

        self.worker.start(fork)

    def _every_second(self) -> None:
        self.said_alive += 1


def stop(_: socket.socket) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def serve_and_stop(messages: socket.socket) -> None:
    messages.send(READY)
    stop(messages)


def serve_and_hang_up(messages: socket.socket) -> None:
    messages.send(READY)
    messages.recv(1)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(health, "HANGS_AFTER_S", 1.0)
    place = Place()
    yield place
    place.worker.close()
    os.close(place.worker.dump_fd)


def test_one_that_is_stopped_or_dies_before_it_serves_is_told_while_the_watchdog_hears_of_us(place: Place) -> None:
    with pytest.raises(ServiceError, match=r"did not come to serve: it hung for \d s \(state T\)"):
        place.start(stop)
    assert place.worker.pid == 0
    assert place.said_alive >= 1
    assert wait_child(place.pids[0]) == -signal.SIGKILL
    with pytest.raises(ServiceError, match="did not come to serve: it exited with 3"):
        place.start(lambda *_: os._exit(3))
    assert place.worker.pid == 0


def test_one_that_is_stopped_at_a_table_is_killed(place: Place) -> None:
    place.start(serve_and_stop)
    place.worker.take_table(place.worker.dump_fd)
    assert place.worker.pid == 0
    assert place.worker.end.startswith("it hung for")
    # It may hold the connection until it is reaped.
    assert place.worker.undead == {place.pids[0]}
    assert wait_child(place.pids[0]) == -signal.SIGKILL
    place.worker.child_ended(place.pids[0], -signal.SIGKILL)
    assert not place.worker.undead


@pytest.mark.parametrize(
    ("state", "is_to_blame", "may_be_by_cache"),
    [("T", False, False), ("t", False, False), ("D", False, True), ("S", True, True)],
    ids=["stopped", "a debugger's", "waits for a disk", "waits"],
)
def test_what_one_that_hangs_did_is_to_blame_unless_others_stopped_it_or_a_disk_holds_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, state: str, *, is_to_blame: bool, may_be_by_cache: bool
) -> None:
    monkeypatch.setattr(worker_process, "cpu_and_state", lambda _: (0.0, state))
    with pytest.raises(ServiceError, match=rf"state {state}"):
        place.start(stop)
    assert place.worker.is_blameless is not is_to_blame
    assert place.worker.may_have_ended_by_cache is may_be_by_cache
    wait_child(place.pids[0])


def test_one_that_has_ended_but_for_a_thread_is_not_to_blame(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that a disk holds."""

    def end_but_for_a_thread(*_: object) -> None:
        threading.Thread(target=signal.pause).start()
        ctypes.CDLL(None).pthread_exit(None)

    def once_it_has(pid: int) -> tuple[float, str]:
        wait_until(lambda: cpu_and_state(pid)[1] == "Z")
        return cpu_and_state(pid)

    monkeypatch.setattr(worker_process, "cpu_and_state", once_it_has)
    with pytest.raises(ServiceError, match=r"hung for \d s \(state Z\)"):
        place.start(end_but_for_a_thread)
    assert place.worker.is_blameless
    wait_child(place.pids[0])


def test_nothing_is_handed_to_one_that_takes_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.start(serve_and_stop)
    messages = place.worker.messages
    while select.select([], [messages], [], 0)[1]:
        messages.send(b"?")
    sent: list[object] = []
    monkeypatch.setattr(socket, "send_fds", lambda *message: sent.append(message))
    place.worker.take_log_file(place.worker.dump_fd)
    place.worker.take_log_level()
    assert not place.worker.take_request(messages, {})
    assert not sent


def test_one_that_hangs_up_when_a_table_comes_is_killed_and_left_to_be_reaped(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.start(serve_and_hang_up)
    place.worker.take_table(place.worker.dump_fd)
    assert caplog.messages == ["the worker does not take the new table"]
    place.worker.child_ended(place.pids[0], wait_child(place.pids[0]))
    assert place.worker.pid == 0


def test_one_that_does_not_die_is_waited_for_no_longer_than_a_killed_process_takes(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one in a call to a disk that hangs. Here nobody sends the signal, so it stays until the end of the test."""
    place.start(serve_and_stop)
    with monkeypatch.context() as patched:
        patched.setattr(worker_process, "DIES_WITHIN_S", 0.01)
        patched.setattr(os, "kill", lambda *_: None)
        place.worker.close()
    assert caplog.messages == [f"worker {place.pids[0]} was killed and does not end: a disk that hangs may hold it"]


async def test_the_end_of_failing_reads_is_told_with_the_time_since_the_first(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody reads for 25 s after the failures, and the mount counts as failing for 10 s of them only.

    Then one file goes on failing while others are read.
    """
    caplog.set_level("INFO")
    counters, operations = Counters(), cast("Any", SimpleNamespace(last_errors=()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker._show, Board(), operations, Retries(), counters)
        await trio.sleep(0.5)
        counters.count("fastfuse_errors", 15, "EIO")
        await trio.sleep(30)
        assert not caplog.messages
        counters.count("fastfuse_read_served_bytes", 1)
        counters.count("fastfuse_errors", 1, "EIO")
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert caplog.messages == ["reads succeed again after 30 s: 15 × EIO"]


async def test_memory_that_nobody_uses_is_given_back_and_a_worker_with_too_much_of_it_ends(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = SimpleNamespace(used=60, needed=60, trims=0, looks=0)

    def trim() -> None:
        memory.trims += 1
        memory.used = min(memory.used, memory.needed)

    def look() -> object:
        memory.looks += 1
        if memory.looks == 2:
            raise OSError(errno.EMFILE, "")
        return memory.used

    monkeypatch.setattr(worker, "private_bytes", look)
    monkeypatch.setattr(worker, "trim_malloc", trim)
    monkeypatch.setattr(worker, "most_worker_bytes", lambda _: 200)
    trims = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker._watch_memory, 64, 0, Counters(), nursery.cancel_scope.cancel)
        await trio.sleep(0.5)
        # Free memory is given back once there is more than the parts may take; in vain only once where all is in use.
        for used, needed in ((124, 60), (125, 60), (140, 140), (140, 140), (141, 100), (130, 130), (150, 100)):
            memory.used, memory.needed = used, needed
            await trio.sleep(1)
            trims.append(memory.trims)
        memory.used, memory.needed = 201, 201
        await trio.sleep(1)
    assert trims == [0, 1, 2, 2, 3, 3, 4]
    assert nursery.cancel_scope.cancelled_caught


def report(counters: Counters) -> worker._Report:
    """Return the report of a worker that never read."""
    pool = SimpleNamespace(parts_in_flight=0, unread_dropped_bytes=0)
    memory = {"in flight": 0, "unread": 0, "read": 0}
    engine = SimpleNamespace(counts=ReadCounts(), pool=pool, streams=0, memory=lambda: memory)
    reads = SimpleNamespace(table=SimpleNamespace(metadata=SimpleNamespace(total_bytes=0)))
    return worker._Report(counters, cast(Any, engine), cast(Any, reads))


def test_answers_that_the_kernel_does_not_take_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = Counters()
    monkeypatch.setattr("fastfuse.filesystem.serving.worker.replies.not_taken", lambda: (2, errno.EFAULT))
    report(counters)._write()
    assert counters.get("fastfuse_errors", "EIO") == 2


@pytest.mark.parametrize(("requests", "waited_us"), [(0, 0), (1, 300)])
def test_waiting_for_a_cpu_is_counted_while_the_worker_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, requests: int, waited_us: int
) -> None:
    file, counters = tmp_path / "schedstat", Counters()
    monkeypatch.setattr("fastfuse.filesystem.serving.worker.Path", lambda _: file)
    one = report(counters)  # where the kernel does not count
    file.write_text("700000 300000 2\n")
    counters.count("fastfuse_requests", requests)
    one._write()
    file.unlink()  # or has no descriptor
    one._write()
    assert counters.get("fastfuse_loop_cpu_wait_seconds") == waited_us


async def test_few_notices_wait_for_one_that_the_kernel_does_not_take_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 that waited took 58 MB."""
    is_taken, (give, sent) = threading.Event(), trio.open_memory_channel[bytes](10_001)

    def send(_fd: int, notices: bytes) -> None:
        assert is_taken.wait(PATIENCE_S)
        trio.from_thread.run_sync(give.send_nowait, notices)

    monkeypatch.setattr(worker, "send_notices", send)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            drop = worker._drops_pages(-1, nursery)
            for _ in range(100):
                for _ in range(100):
                    drop(1, [(0, 4096)])
                await trio.testing.wait_all_tasks_blocked()
            is_taken.set()
            for _ in range(1 + 256):
                await sent.receive()
            drop(2, [(0, 4096)])
            assert await sent.receive() == pack_unwanted_pages(2, [(0, 4096)])
            nursery.cancel_scope.cancel()
