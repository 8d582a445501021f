"""The handlers called directly: whatever happens below them, the kernel gets an answer and the mount goes on."""

import errno
import logging
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from fastfuse.errors import ObjectArchivedError, ObjectChangedError, UnavailableError
from fastfuse.filesystem.kernel.fuse import interposed, pyfuse3
from fastfuse.filesystem.kernel.in_hand import ReadsInHand
from fastfuse.filesystem.serving import reads as module
from fastfuse.filesystem.serving.operations import MountOperations
from fastfuse.filesystem.serving.reads import Reads
from fastfuse.index.inodes.changes import take_over
from fastfuse.index.inodes.table import ROOT, InodeTable
from fastfuse.metrics import Counters
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.readahead import ReadEngine
from fastfuse.s3.failures import failure_of_reply, read_error
from tests.index.indexes import table_of

CONTEXT: Any = SimpleNamespace(pid=42)  # all that a handler looks at
ETAG = '"0123456789abcdef0123456789abcdef"'


class FakeEngine(ReadEngine):
    """Serves the letter x, or fails with `error`; remembers what it was asked."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.reads: list[tuple[int, int, int]] = []
        self.refreshes = 0

    def at_hand(self, inode: int, ref: ObjectRef, offset: int, size_bytes: int) -> Buffer | None:
        return None

    def put_off(self, inode: int, offset: int, size_bytes: int) -> bool:
        return False

    async def read(self, inode: int, ref: ObjectRef, offset: int, size_bytes: int, ends_s: float = inf) -> Buffer:
        self.reads.append((inode, offset, size_bytes))
        if self.error is not None:
            raise self.error
        return b"x" * min(size_bytes, ref.size_bytes - offset)

    def refreshed(self) -> None:
        self.refreshes += 1


class Mounted:
    """Operations over two objects: `file` (10 bytes) and `archived`."""

    def __init__(self) -> None:
        rows = {"archived": (5, 10**18, ETAG, "DEEP_ARCHIVE"), "dir/file": (10, 2 * 10**18, ETAG, "STANDARD")}
        self.table: InodeTable = table_of(rows, prefix="p/")
        self.counters = Counters()
        self.engine = FakeEngine()
        self.operations = self._served()
        self.reads = self.reads_within(inf)
        self.directory = self.inode(ROOT, b"dir")
        self.file = self.inode(self.directory, b"file")
        self.archived = self.inode(ROOT, b"archived")

    def _served(self) -> MountOperations:
        operations = MountOperations(self.counters, uid=7, gid=8)
        operations.serve(self.table, self.engine)
        return operations

    def reads_within(self, deadline_s: float) -> Reads:
        return Reads(self.operations, self.engine, self.counters, ReadsInHand(), cast("Any", None), deadline_s)

    def inode(self, parent: int, name: bytes) -> int:
        found = self.table.lookup(parent, name)
        assert found is not None
        return found


@pytest.fixture
def mounted() -> Mounted:
    return Mounted()


async def errno_of(answer: Awaitable[object]) -> int:
    with pytest.raises(pyfuse3.FUSEError) as caught:
        await answer
    number: int = caught.value.errno
    return number


async def test_more_bytes_than_statfs_can_tell_are_told_as_the_most_that_it_can_a2() -> None:
    mounted = Mounted()
    most = replace(mounted.table.metadata, total_bytes=1 << 80)
    mounted.operations.serve(InodeTable(most, mounted.table.columns), mounted.engine)
    assert (await mounted.operations.statfs(CONTEXT)).f_blocks == (1 << 63) - 1


async def test_a_question_that_contradicts_the_table_is_an_error_of_that_request(
    mounted: Mounted, caplog: pytest.LogCaptureFixture
) -> None:
    assert await errno_of(mounted.operations.lookup(mounted.file, b"x", CONTEXT)) == errno.EIO
    assert await errno_of(mounted.reads.read(mounted.directory, 0, 1)) == errno.EIO
    assert mounted.counters.get("fastfuse_handler_failures") == len(caplog.records) == 2
    assert mounted.counters.get("fastfuse_errors", "EIO") == 2
    assert all(record.levelno == logging.ERROR and record.exc_info is not None for record in caplog.records)


async def test_an_inode_that_is_not_in_the_table_is_stale_so_that_its_path_is_looked_up_again(mounted: Mounted) -> None:
    assert await errno_of(mounted.operations.getattr(999, CONTEXT)) == errno.ESTALE
    assert await errno_of(mounted.reads.read(999, 0, 1)) == errno.ESTALE
    for start in (0, 3):
        assert await errno_of(mounted.operations.readdir(999, start, cast("Any", None))) == errno.ESTALE
    assert await errno_of(mounted.operations.lookup(999, b"x", CONTEXT)) == errno.ESTALE
    assert mounted.counters.get("fastfuse_handler_failures") == 0


def refreshed(mounted: Mounted, objects: dict[str, int]) -> InodeTable:
    """A table with these keys and sizes, in the place of the one there was."""
    rows = {key: (size_bytes, 2 * 10**18, ETAG, "STANDARD") for key, size_bytes in objects.items()}
    return take_over(mounted.table, table_of(rows, prefix="p/"))[0]


async def test_failed_reads_are_told_at_once_and_then_counted_by_class(
    mounted: Mounted,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastfuse.filesystem.serving.reads.perf_counter", lambda: 100.0)
    names = [f"{number:03}" for number in range(60)]
    mounted.operations.swap(refreshed(mounted, dict.fromkeys(names, 1)))
    assert mounted.engine.refreshes == 1
    inodes = [mounted.operations.table.lookup(ROOT, name.encode()) or 0 for name in names]
    ref, files, others = ObjectRef("bucket", "k", 1, ""), inodes[:30], inodes[30:]
    for error, number, asked in (
        (ObjectChangedError("'k' went."), errno.ESTALE, files),
        (UnavailableError("503."), errno.EIO, files),
        (read_error(failure_of_reply(403, "AccessDenied"), ref), errno.EACCES, files),
        (read_error(failure_of_reply(400, "KMS.DisabledException"), ref), errno.EACCES, others),
    ):
        mounted.engine.error = error
        for inode in asked:
            assert await errno_of(mounted.reads.read(inode, 0, 1)) == number
    assert caplog.messages == [
        "a read at 0 failed with ESTALE after 0.0 s: 'k' went. 'fastfuse refresh' shows what is there now.",
        "a read at 0 failed with EIO after 0.0 s: 503.",
        "a read at 0 failed with EACCES after 0.0 s: The service denies access to 'k' (403 AccessDenied).",
        "a read at 0 failed with EACCES after 0.0 s: The service cannot decrypt 'k' (400 KMS.DisabledException). "
        "The key of KMS that encrypts it must be enabled, and not about to be deleted.",
    ]
    caplog.clear()
    await trio.sleep(31)
    assert caplog.messages == [
        "reads that failed with ESTALE (ObjectChangedError): 29 more in the last 30 s, of 29 objects",
        "reads that failed with EIO (UnavailableError): 29 more in the last 30 s, of 29 objects",
        "reads that failed with EACCES (403 AccessDenied): 29 more in the last 30 s, of 29 objects",
        "reads that failed with EACCES (400 KMS.DisabledException): 29 more in the last 30 s, of 29 objects",
    ]


async def test_the_page_that_the_kernel_asks_for_after_its_readahead_is_no_second_failure(
    mounted: Mounted, caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    mounted.engine.error = UnavailableError("503.")
    for offset, size_bytes in ((0, 10), (4, 1), (0, 10)):
        assert await errno_of(mounted.reads.read(mounted.file, offset, size_bytes)) == errno.EIO
    assert len(mounted.reads.last_errors) == 2
    assert mounted.counters.get("fastfuse_errors", "EIO") == 3
    await trio.sleep(31)
    assert caplog.messages[1:] == [
        "reads that failed with EIO (UnavailableError): 1 more in the last 30 s, of 1 object"
    ]


async def test_the_time_that_a_reader_waited_is_counted_even_if_the_read_fails(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted.engine.error = UnavailableError("503.")
    before = mounted.counters.get("fastfuse_blocked_seconds")
    monkeypatch.setattr("fastfuse.filesystem.serving.reads.perf_counter", count(100.0, 1.25).__next__)
    assert await errno_of(mounted.reads.read(mounted.file, 0, 1)) == errno.EIO
    assert mounted.counters.get("fastfuse_blocked_seconds") - before == 2_500_000


async def test_what_the_kernel_asks_for_again_after_a_late_read_fails_at_once_until_the_service_is_back_d5(
    mounted: Mounted, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr(module, "perf_counter", lambda: now_s)
    reads, engine = mounted.reads_within(0.0), mounted.engine  # so every failure is late
    engine.error = UnavailableError("'file': 503 SlowDown")
    assert await errno_of(reads.read(mounted.file, 0, 10)) == errno.EIO
    assert await errno_of(reads.read(mounted.file, 4, 1)) == errno.EIO
    assert engine.reads == [(mounted.file, 0, 10)]
    assert caplog.text.count("failed with EIO") == 1
    engine.error = None
    # Another file's read says nothing of this one's, until the kernel has asked again.
    assert await reads.read(mounted.archived, 0, 5) == b"x" * 5
    assert await errno_of(reads.read(mounted.file, 4, 1)) == errno.EIO
    now_s += 0.75
    assert await reads.read(mounted.archived, 0, 5) == b"x" * 5
    assert await reads.read(mounted.file, 4, 1) == b"x"


async def test_archived_objects_are_fetched_ahead_once_one_was_read_and_left_once_one_was_refused(
    mounted: Mounted,
) -> None:
    """D5"""

    async def is_ahead_after(error: Exception | None) -> bool:
        mounted.engine.error = error
        with suppress(pyfuse3.FUSEError):
            await mounted.reads.read(mounted.archived, 0, 5)
        return interposed.object_at(mounted.archived) is not None

    refusal = ObjectArchivedError("it is archived")
    assert [await is_ahead_after(error) for error in (UnavailableError("503"), None)] == [False, True]
    assert [await is_ahead_after(error) for error in (refusal, None)] == [False, False]
    mounted.operations.swap(InodeTable(mounted.table.metadata, mounted.table.columns))
    assert [await is_ahead_after(error) for error in (None, refusal)] == [True, False]
