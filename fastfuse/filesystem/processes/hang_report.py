"""Tells what a process does: its threads as the kernel sees them and as Python does, and its own tasks of trio.

The first two can be had of a process that does not answer.
"""

import os
import select
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import trio

# Makes the worker write the stacks of its threads (`faulthandler`), unless it cannot run.
DUMP_SIGNAL = signal.SIGUSR2
_DUMP_WITHIN_S = 0.7
_LOOK_EVERY_S = 0.02
# The file is whole if it does not grow for so long: on a busy machine the writer is paused in the middle.
_QUIET_LOOKS = 5
_MOST_LINES = 100
_MOST_BYTES = 64 << 10
# They fit into the buffer of a socket.
_MOST_TASK_LINES = 1000


def cpu_and_state(pid: int | str) -> tuple[float, str]:
    """Return the CPU seconds that a process has used, and its state as in proc(5); 0 and "" if it is gone.

    ``PID/task/TID`` is one thread of it.
    """
    try:
        # The name of the program may hold spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, ""
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), fields[0]


def is_held(pid: int) -> bool:
    """Return whether a thread of the process waits in the kernel, as for a disk, and does not die of a signal."""
    with suppress(OSError):
        return any(cpu_and_state(f"{pid}/task/{thread}")[1] == "D" for thread in os.listdir(f"/proc/{pid}/task"))
    return False


def hang_report(pid: int, dump_fd: int) -> list[str]:
    """Return lines about the process `pid`, within a second; it writes its Python stacks to the file `dump_fd`."""
    lines = list(_told_once(_threads(pid)))
    os.ftruncate(dump_fd, 0)
    os.lseek(dump_fd, 0, os.SEEK_SET)  # the process shares this offset
    with suppress(ProcessLookupError):
        os.kill(pid, DUMP_SIGNAL)
    until_s = time.monotonic() + _DUMP_WITHIN_S
    size_bytes, quiet_looks = 0, 0
    while quiet_looks < _QUIET_LOOKS and time.monotonic() < until_s:
        select.select([], [], [], _LOOK_EVERY_S)
        now_bytes = os.fstat(dump_fd).st_size
        quiet_looks = quiet_looks + 1 if now_bytes and now_bytes == size_bytes else 0
        size_bytes = now_bytes
    dump = os.pread(dump_fd, _MOST_BYTES, 0).decode("utf-8", "replace")
    return [*lines, *_told_once(_dumped(dump))][:_MOST_LINES]


def task_report() -> list[str]:
    """Return the stacks of this process's tasks; tasks that wait at the same place are told once, with their number."""
    stacks = Counter(_stack(task) for task in _tasks())
    lines = [line for stack, count in stacks.most_common() for line in (f"{count} × {stack[0]}", *stack[1:])]
    return lines[:_MOST_TASK_LINES]


def _tasks() -> Iterator[trio.lowlevel.Task]:
    left = [trio.lowlevel.current_root_task()]
    while left:
        task = left.pop()
        if task is not None:
            yield task
            left += [child for nursery in task.child_nurseries for child in nursery.child_tasks]


def _stack(task: trio.lowlevel.Task) -> tuple[str, ...]:
    frames = traceback.StackSummary.extract(task.iter_await_frames(), lookup_lines=False)
    places = (f"  {frame.name} ({'/'.join(Path(frame.filename).parts[-2:])}:{frame.lineno})" for frame in frames)
    return (task.name.rstrip("-0123456789"), *places)  # pyfuse3 numbers its tasks


def _told_once(threads: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of each thread; threads that are alike but for their name, which comes first, are told once.

    The threads that read small files, and those that receive, wait at the same place, and would fill the report.
    """
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, *words in threads:
        alike.setdefault(tuple(words), []).append(name)
    for (first, *rest), names in alike.items():
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"{names[0]}{others}{first}"
        yield from rest


def _threads(pid: int) -> Iterator[tuple[str, ...]]:
    try:
        threads = sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name))
    except OSError:
        return
    for thread in threads:
        _, state = cpu_and_state(int(thread.name))
        place, stack = "", list[str]()
        with suppress(OSError):
            place = (thread / "wchan").read_text()
            stack = (thread / "stack").read_text().splitlines()
        words = f": state {state or '?'}, in {place or '?'}"
        yield f"thread {thread.name}", words, *(f"  {line}" for line in stack)


def _dumped(dump: str) -> Iterator[tuple[str, ...]]:
    """Yield the name and the lines of each thread in a dump of `faulthandler`."""
    for block in filter(None, dump.split("\n\n")):
        first, *rest = block.splitlines()
        # Python 3.14 writes `Thread 0x7f52 [Thread-1 (pause] (most recent call first):`.
        name, space, words = first.rpartition(" (")
        yield name, space + words, *rest
