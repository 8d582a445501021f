"""What a mount may have left behind: mounts and processes, whoever their parent was."""

import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from fastfuse.filesystem.mountpoint import fastfuse_mounts
from tests.forked import loaded

_PR_SET_CHILD_SUBREAPER = 36  # <sys/prctl.h>


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
        left = descendants(os.getpid()) - before
        mounts = [path for path in fastfuse_mounts() if path.is_relative_to(place)]
        for pid in left:
            os.kill(pid, 9)
        assert not left, "processes are left"
        assert not mounts, f"still mounted: {mounts}"
    shutil.rmtree(place)
