"""Processes of a bench, and what processes take of the machine, from proc(5)."""

import ctypes
import multiprocessing
import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KIB_FIELD = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def fork_with_pipe(work: Callable[..., object], *arguments: object) -> tuple[BaseProcess, Connection]:
    """Fork a process that calls `work` with `arguments` and one end of a pipe; return it and the other end.

    It dies with this process, and leaves Ctrl-C to it.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(work, *arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _work(work: Callable[..., object], *arguments: object) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    work(*arguments)


def process_tree(pid: int) -> list[int]:
    """Return `pid` and its descendants."""
    tree = [pid]
    for parent in tree:
        for task in (_PROC / str(parent) / "task").glob("*/children"):
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread, or its process, has just ended
                tree += map(int, task.read_text().split())
    return tree


def cpu_seconds(pid: int) -> float:
    """User and system time of `pid` and its descendants, those included that have ended and been waited for."""
    return sum(sum(_ticks(_PROC / f"{process}/stat")) for process in process_tree(pid)) / _TICKS_PER_S


def thread_cpu_seconds(thread: int) -> float:
    """User and system time of one thread; the number of a process is that of its first one."""
    return sum(_ticks(_PROC / f"{thread}/task/{thread}/stat")[:2]) / _TICKS_PER_S


def _ticks(stat: Path) -> list[int]:
    """Return utime, stime, cutime and cstime, which proc(5) names as fields 14 to 17."""
    return [*map(int, stat.read_text().rpartition(")")[2].split()[11:15])]


def pss_bytes(pid: int) -> int:
    """What `pid` and its descendants have resident now; what processes share counts once."""
    return sum(_sizes(process, "smaps_rollup").get("Pss", 0) for process in process_tree(pid))


def peak_pss_bytes(pid: int) -> int:
    """The most that `pid` and its descendants had resident, what they share counted once.

    The peak of the largest is the kernel's own (VmHWM), so nothing is missed between two samples, less what it shares
    with others now; the others count with what they have now.
    """
    tree = process_tree(pid)
    peaks = {process: _sizes(process, "status").get("VmHWM", 0) for process in tree}
    largest = _sizes(max(peaks, key=lambda process: peaks[process]), "smaps_rollup")
    return max(peaks.values()) - largest["Rss"] + pss_bytes(pid)


def _sizes(pid: int, name: str) -> dict[str, int]:
    try:
        text = (_PROC / str(pid) / name).read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended, or nobody has waited for it yet
        return {}
    return {field: int(kib) * 1024 for field, kib in _KIB_FIELD.findall(text)}
