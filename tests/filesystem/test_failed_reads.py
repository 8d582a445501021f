import errno

import pytest

from fastfuse.filesystem.kernel.in_hand import Read
from fastfuse.filesystem.serving.reads import FailedReads


def late_read() -> FailedReads:
    """What is known at 100 s of a read of 1 MiB of inode 7 that failed at its deadline of 60 s."""
    late = FailedReads(60.0)
    late.note(Read(7, 1 << 20, 1 << 20), errno.EIO, took_s=60.0, now_s=100.0)
    return late


def test_a_page_of_what_failed_late_fails_at_once() -> None:
    late = late_read()
    assert late.errno_of(Read(7, (2 << 20) - 4096, 4096), 100.9) == errno.EIO
    assert late.errno_of(Read(7, 2 << 20, 4096), 100.9) == 0
    assert late.errno_of(Read(8, 1 << 20, 4096), 100.9) == 0


def test_it_is_forgotten_after_a_second_and_once_a_read_is_answered() -> None:
    late = late_read()
    assert late.errno_of(Read(7, 1 << 20, 4096), 101.1) == 0
    late = late_read()
    late.answered()
    assert late.errno_of(Read(7, 1 << 20, 4096), 100.1) == 0


def test_what_fails_soon_is_tried_again() -> None:
    late = FailedReads(60.0)
    late.note(Read(7, 0, 4096), errno.EIO, took_s=2.0, now_s=100.0)
    assert late.errno_of(Read(7, 0, 4096), 100.0) == 0


@pytest.mark.parametrize("count", [1, 2048, 3000])
def test_no_more_are_kept_than_may_fail_at_once(count: int) -> None:
    late = FailedReads(0.0)
    for inode in range(1, count + 1):
        late.note(Read(inode, 0, 1), errno.EIO, took_s=1.0, now_s=0.0)
    kept = [inode for inode in range(1, count + 1) if late.errno_of(Read(inode, 0, 1), 0.5)]
    assert kept == list(range(max(1, count - 2047), count + 1))


def is_repeated(failed: FailedReads, read: Read, number: int, now_s: float) -> bool:
    return failed.note(read, number, took_s=2.0, now_s=now_s)


def test_a_failure_is_repeated_once_within_a_second_by_the_same_errno() -> None:
    told, whole, page = FailedReads(60.0), Read(7, 0, 1 << 20), Read(7, 8192, 4096)
    assert not is_repeated(told, whole, errno.EIO, 100.0)
    assert not is_repeated(told, page, errno.EACCES, 100.1)
    assert is_repeated(told, page, errno.EIO, 100.9)
    assert not is_repeated(told, page, errno.EIO, 100.9)
    assert not is_repeated(told, Read(7, 0, 4096), errno.EIO, 100.9)  # another page
    assert not is_repeated(told, Read(7, 0, 4096), errno.EIO, 102.0)
    assert not is_repeated(told, Read(8, 0, 4096), errno.EIO, 102.0)


def test_no_more_failures_are_remembered_than_may_come_at_once() -> None:
    told = FailedReads(60.0)
    for inode in range(3000):
        assert not is_repeated(told, Read(inode, 0, 1), errno.EIO, 0.0)
    repeated = [inode for inode in range(2999, -1, -1) if is_repeated(told, Read(inode, 0, 1), errno.EIO, 0.5)]
    assert repeated == list(range(2999, 951, -1))
