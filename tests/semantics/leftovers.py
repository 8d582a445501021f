"""What a mount may have left behind: mounts and processes, whoever their parent was."""

import ctypes
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from fastfuse.filesystem.mounting.mountpoint import fastfuse_mounts
from tests.filesystem.waiting import wait_for_end
from tests.forked import loaded

_PR_SET_CHILD_SUBREAPER = 36  # <sys/prctl.h>
_PF_EXITING = 0x4  # <linux/sched.h>


def descendants(pid: int) -> set[int]:
    """The processes below `pid`, zombies not counted."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = [int(child) for child in (task / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):  # a thread or a process that has just ended
            continue
        for child in children:
            if not _is_zombie(child):
                found |= {child} | descendants(child)
    return found


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _is_killed(pid: int) -> bool:
    """Whether the kernel is ending the process: of one that dies with its parent, nobody need have waited for that."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        flags = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6])
    except (FileNotFoundError, ProcessLookupError):
        return True
    pending = re.findall(r"^(?:Sig|Shd)Pnd:\s*(\w+)", status, re.MULTILINE)
    return bool(flags & _PF_EXITING) or any(int(mask, 16) & 1 << (signal.SIGKILL - 1) for mask in pending)


def _left(before: set[int]) -> set[int]:
    """The processes below ours that were not there `before`, and that nothing ends."""
    while True:
        left = descendants(os.getpid()) - before
        killed = {pid for pid in left if _is_killed(pid)}
        if not killed:
            return left
        for pid in killed:  # and then, perhaps, those that die with it
            with suppress(ProcessLookupError):
                wait_for_end(os.pidfd_open(pid))


def _told(pid: int) -> str:
    """What a process is and where it waits, for a message."""
    told = []
    for name in "stat", "cmdline", "wchan":
        with suppress(OSError):
            told.append(Path(f"/proc/{pid}/{name}").read_text().strip().replace("\0", " "))
    return "; ".join(told)


@contextmanager
def _orphans_adopted() -> Iterator[None]:
    """A process whose parent dies becomes our child, so that none can hide."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Every mount and every process that a test starts is gone when the test is over."""
    tmp_path_factory.getbasetemp()  # made on its first use: not below what is removed here
    place = Path(tempfile.mkdtemp(prefix="ff-"))  # short: the path of a Unix socket has at most 107 bytes
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    loaded()  # no leftover: it serves all tests
    resource_tracker.ensure_running()  # nor is this one, which multiprocessing starts beside a server's process
    before = descendants(os.getpid())
    with _orphans_adopted():
        yield
        left = _left(before)
        told = [_told(pid) for pid in left]
        mounts = [path for path in fastfuse_mounts() if path.is_relative_to(place)]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, f"processes are left: {told}"
        assert not mounts, f"still mounted: {mounts}"
    shutil.rmtree(place)
