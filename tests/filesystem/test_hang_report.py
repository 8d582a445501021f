import ctypes
import faulthandler
import os
import re
import signal
import threading
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from fastfuse.filesystem.processes import hang_report as report
from fastfuse.filesystem.processes.children import fork_child, wait_child
from fastfuse.filesystem.processes.hang_report import DUMP_SIGNAL, cpu_and_state, hang_report, task_report


def loop_without_end(begin: int) -> None:
    os.write(begin, b"x")
    while True:
        pass


@pytest.fixture
def looping(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """A process in an endless loop, in which many threads wait, and the file for its stacks."""
    monkeypatch.setattr(report, "_DUMP_WITHIN_S", 30.0)  # of a busy machine
    dump_fd, (began, begin) = os.memfd_create("stacks"), os.pipe()

    def work() -> None:
        faulthandler.register(DUMP_SIGNAL, dump_fd, all_threads=True)
        libc, thread = ctypes.CDLL(None), ctypes.c_ulong()
        for _ in range(64):  # without the interpreter, as those that read small files
            assert libc.pthread_create(ctypes.byref(thread), None, libc.pause, None) == 0
            threading.Thread(target=signal.pause, daemon=True).start()
        loop_without_end(begin)

    pid = fork_child(work)
    os.read(began, 1)
    yield pid, dump_fd
    os.kill(pid, signal.SIGKILL)
    assert wait_child(pid) == -signal.SIGKILL
    for fd in (dump_fd, began, begin):
        os.close(fd)


def test_an_endless_loop_is_told_by_its_python_stack_which_threads_that_wait_do_not_hide(
    looping: tuple[int, int],
) -> None:
    pid, dump_fd = looping
    lines = hang_report(pid, dump_fd)
    assert lines[0].startswith(f"thread {pid}: state ")
    assert sum("in loop_without_end" in line for line in lines) == 1, lines
    assert sum(line.startswith("thread ") for line in lines) < 10
    # Not all may have come to where they wait.
    assert any(re.search(r" and \d\d more", line) for line in lines)
    # A report has its own dump alone.
    os.write(dump_fd, b"of an earlier one\n" * 1000)
    again = hang_report(pid, dump_fd)
    assert any("in loop_without_end" in line for line in again)
    assert "of an earlier one" not in again


def test_threads_that_differ_only_in_what_python_calls_them_are_told_once() -> None:
    # Python 3.14 adds the names that the kernel has: 15 bytes of each.
    names = [f"Thread 0x{number:x} [{f'Thread-{number} (pause)':.15}]" for number in (9, 10, 100)]
    stack = ' (most recent call first):\n  File "a.py", line 1 in run'
    told = report._told_once(report._dumped("\n\n".join(name + stack for name in names)))
    assert list(told) == f"{names[0]} and 2 more{stack}".splitlines()


def test_of_a_process_that_is_gone_nothing_is_told() -> None:
    pid = fork_child(lambda: None)
    wait_child(pid)
    assert cpu_and_state(pid) == (0.0, "")
    dump_fd = os.memfd_create("stacks")
    assert hang_report(pid, dump_fd) == []
    os.close(dump_fd)


async def wait_for_ever() -> None:
    await trio.sleep_forever()


async def test_tasks_that_wait_at_one_place_are_told_once() -> None:
    async with trio.open_nursery() as nursery:
        for number in range(7):
            nursery.start_soon(wait_for_ever, name=f"reader-{number}")
        await trio.testing.wait_all_tasks_blocked()
        lines = task_report()
        nursery.cancel_scope.cancel()
    at = next(number for number, line in enumerate(lines) if line == "7 × reader")
    assert re.fullmatch(r"  wait_for_ever \(filesystem/test_hang_report\.py:\d+\)", lines[at + 1])
    assert "sleep_forever" in lines[at + 2]
