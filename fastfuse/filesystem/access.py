"""One read of the kernel, as those who watch reads are told of it."""

from pathlib import Path
from typing import NamedTuple

__all__ = ["Access", "InHand", "process_name"]

# The reads that have not ended, by a number: inode, process, and begin on the clock of `perf_counter`.
InHand = dict[int, tuple[int, int, float]]


class Access(NamedTuple):
    """A read that has ended: `at` is its begin in seconds since 1970, `found` as `ReadEngine.find` says."""

    at: float
    pid: int
    inode: int
    offset: int
    size_bytes: int
    found: str
    took_s: float
    error: int


def process_name(pid: int) -> str:
    """Return the name of a process or thread, or "" if it is gone, or in another namespace.

    The name alone: the kernel would wait for the memory of the process to show its command line, and that process
    may wait for this mount.
    """
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n") if pid else ""
    except OSError:
        return ""
