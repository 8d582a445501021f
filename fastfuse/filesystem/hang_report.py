"""Tells what a process does that does not answer: its threads as the kernel sees them, and as Python does."""

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["DUMP_SIGNAL", "cpu_and_state", "hang_report"]

# Makes the worker write the stacks of its threads (`faulthandler`), unless it cannot run.
DUMP_SIGNAL = signal.SIGUSR2
_DUMP_WITHIN_S = 0.7
_LOOK_EVERY_S = 0.02
# The file is whole if it does not grow for so long: on a busy machine the writer is paused in the middle.
_QUIET_LOOKS = 5
_MOST_LINES = 100
_MOST_BYTES = 64 << 10


def cpu_and_state(pid: int) -> tuple[float, str]:
    """Return the CPU seconds that a process has used, and its state as in proc(5); 0 and "" if it is gone."""
    try:
        # The name of the program may hold spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, ""
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), fields[0]


def hang_report(pid: int, dump_fd: int) -> list[str]:
    """Return lines about the process `pid`, within a second; it writes its Python stacks to the file `dump_fd`."""
    lines = list(_threads(pid))
    with suppress(ProcessLookupError):
        os.kill(pid, DUMP_SIGNAL)
    until_s = time.monotonic() + _DUMP_WITHIN_S
    size_bytes, quiet_looks = 0, 0
    while quiet_looks < _QUIET_LOOKS and time.monotonic() < until_s:
        select.select([], [], [], _LOOK_EVERY_S)
        now_bytes = os.fstat(dump_fd).st_size
        quiet_looks = quiet_looks + 1 if now_bytes and now_bytes == size_bytes else 0
        size_bytes = now_bytes
    lines += os.pread(dump_fd, _MOST_BYTES, 0).decode("utf-8", "replace").splitlines()
    return lines[:_MOST_LINES]


def _threads(pid: int) -> Iterator[str]:
    try:
        threads = sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name))
    except OSError:
        return
    for thread in threads:
        _, state = cpu_and_state(int(thread.name))
        yield f"thread {thread.name}: state {state or '?'}, in {_first_line(thread / 'wchan') or '?'}"
        with suppress(OSError):
            yield from (f"  {line}" for line in (thread / "stack").read_text().splitlines())


def _first_line(path: Path) -> str:
    try:
        return path.read_text().partition("\n")[0]
    except OSError:
        return ""
