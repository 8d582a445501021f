"""Measures the memory of a mount's processes, from proc(5)."""

import re
from contextlib import suppress
from pathlib import Path

__all__ = ["peak_memory_bytes", "process_tree"]

_PROC = Path("/proc")
_KIB_FIELD = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)


def process_tree(pid: int) -> list[int]:
    """Return `pid` and its descendants."""
    tree = [pid]
    for parent in tree:
        for task in (_PROC / str(parent) / "task").glob("*/children"):
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread, or its process, has just ended
                tree += map(int, task.read_text().split())
    return tree


def peak_memory_bytes(pid: int) -> int:
    """Return the peak resident memory of `pid` and its descendants: the largest one's peak, and the others' now.

    The kernel keeps the peak (VmHWM), so no sample is missed. The others count with their proportional share (PSS):
    forks of one process share most of their pages. Where an ordinary user may not see that share, because the processes
    are not dumpable, their anonymous memory (RssAnon) counts; pages that they share count in each of them.
    """
    tree = process_tree(pid)
    peaks = {process: _kib(_PROC / str(process) / "status", "VmHWM") for process in tree}
    largest = max(peaks, key=lambda process: peaks[process])
    others = sum(_share_kib(process) for process in tree if process != largest)
    return 1024 * (peaks[largest] + others)


def _share_kib(pid: int) -> int:
    try:
        return _kib(_PROC / str(pid) / "smaps_rollup", "Pss")
    except PermissionError:
        return _kib(_PROC / str(pid) / "status", "RssAnon")


def _kib(path: Path, name: str) -> int:
    return int(dict(_KIB_FIELD.findall(path.read_text()))[name])
