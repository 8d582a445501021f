"""Whom the kernel kills first where memory runs out."""

import os
from pathlib import Path

import pytest

from fastfuse.filesystem import privileges
from fastfuse.filesystem.children import fork_child, wait_child
from fastfuse.filesystem.privileges import become_nobody, become_supervisor


@pytest.mark.parametrize("uid", [0, 1234])
def test_a_worker_of_any_user_dies_before_its_supervisor_where_memory_runs_out(uid: int) -> None:
    first = int(Path("/proc/self/oom_score_adj").read_text())
    reading_fd, writing_fd = os.pipe()

    def supervise() -> None:
        os.setresuid(uid, uid, uid)
        become_supervisor()
        wait_child(fork_child(work))
        tell()

    def work() -> None:
        become_nobody()
        tell()

    def tell() -> None:
        os.write(writing_fd, Path("/proc/self/oom_score_adj").read_bytes())

    assert wait_child(fork_child(supervise)) == 0
    os.close(writing_fd)
    with os.fdopen(reading_fd) as told:
        workers, supervisors = map(int, told.read().split())
    assert workers == min(first + 100, 1000)
    assert supervisors <= first


def test_a_supervisor_that_may_outlives_others_and_its_children_begin_as_it_did(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file stands for the kernel's: lowering it takes CAP_SYS_RESOURCE."""
    adjustment = tmp_path / "oom_score_adj"
    adjustment.write_text("-300")
    adjustment.chmod(0o666)
    monkeypatch.setattr(privileges, "_OOM_SCORE_ADJUSTMENT", adjustment)

    def supervise() -> None:
        become_supervisor()
        assert adjustment.read_text() == "-1000"
        assert wait_child(fork_child(become_nobody)) == 0

    assert wait_child(fork_child(supervise)) == 0
    assert adjustment.read_text() == "-200"
