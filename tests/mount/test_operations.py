"""The handlers called directly: whatever happens below them, the kernel gets an answer and the mount goes on."""

import errno
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyfuse3
import pytest

from fastfuse.errors import (
    BadReplyError,
    DeadlineError,
    ObjectArchivedError,
    ObjectChangedError,
    ObjectDeniedError,
    UnavailableError,
)
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.inodes.changes import take_over
from fastfuse.index.inodes.table import ROOT, InodeTable
from fastfuse.metrics import Counters
from fastfuse.mount.operations import MountOperations
from fastfuse.objects import Buffer, ObjectRef

CONTEXT: Any = SimpleNamespace(pid=42)  # all that a handler looks at
ETAG = '"0123456789abcdef0123456789abcdef"'


class FakeEngine:
    """Serves the letter x, or fails with `error`; remembers what it was asked."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.reads: list[tuple[int, int, int]] = []
        self.opened: list[int] = []
        self.released: list[int] = []
        # Files that were fetched before they were opened.
        self.whole: dict[int, bytes] = {}

    def open(self, inode: int, ref: ObjectRef, *, takes_whole: bool) -> Buffer | None:
        self.opened.append(inode)
        return self.whole.get(inode) if takes_whole else None

    async def read(self, inode: int, ref: ObjectRef, offset: int, size_bytes: int) -> Buffer:
        self.reads.append((inode, offset, size_bytes))
        if self.error is not None:
            raise self.error
        return b"x" * min(size_bytes, ref.size_bytes - offset)

    def release(self, inode: int) -> None:
        self.released.append(inode)


class Mounted:
    """Operations over two objects: `file` (10 bytes) and `archived`."""

    def __init__(self, *, umask: int = 0, direct_from_bytes: int | None = None) -> None:
        builder = TableBuilder("bucket", "p/")
        builder.add(
            [b"p/archived", b"p/dir/file"], [5, 10], [10**18, 2 * 10**18], [ETAG, ETAG], ["DEEP_ARCHIVE", "STANDARD"]
        )
        self.table: InodeTable = builder.build()[0]
        self.counters = Counters()
        self.engine = FakeEngine()
        self.shares_pages = CONTEXT.pid
        self._options: dict[str, Any] = {"umask": umask, "direct_from_bytes": direct_from_bytes}
        self.operations = self._served()
        self.directory = self.inode(ROOT, b"dir")
        self.file = self.inode(self.directory, b"file")
        self.archived = self.inode(ROOT, b"archived")

    def _served(self) -> MountOperations:
        operations = MountOperations(self.counters, uid=7, gid=8, **self._options)
        operations.serve(self.table, self.engine, may_store=lambda pid: pid == self.shares_pages)
        return operations

    def lose_worker(self) -> None:
        """Another worker goes on, which knows nothing but the table."""
        self.counters.add(self.counters.slot("fastfuse_worker_respawns"))
        self.operations = self._served()

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


async def test_an_unforeseen_exception_is_eio_logged_and_counted_and_the_mount_goes_on(
    mounted: Mounted, caplog: pytest.LogCaptureFixture
) -> None:
    mounted.engine.error = ZeroDivisionError("nobody foresaw this")
    assert await errno_of(mounted.operations.read(mounted.file, 0, 10)) == errno.EIO
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage() == "read failed for an unforeseen reason; the mount goes on"
    assert record.exc_info is not None
    assert mounted.counters.get("fastfuse_handler_failures") == 1
    assert mounted.counters.get("fastfuse_errors", "EIO") == 1
    mounted.engine.error = None
    assert await mounted.operations.read(mounted.file, 0, 10) == b"x" * 10


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (ObjectChangedError("x"), errno.ESTALE),
        (ObjectDeniedError("x"), errno.EACCES),
        (ObjectArchivedError("x"), errno.EACCES),
        (UnavailableError("x"), errno.EIO),
        (DeadlineError("x"), errno.EIO),
        (BadReplyError("x"), errno.EIO),
    ],
)
async def test_a_foreseen_failure_has_its_errno_and_no_traceback_d5(
    mounted: Mounted, caplog: pytest.LogCaptureFixture, error: Exception, number: int
) -> None:
    mounted.engine.error = error
    assert await errno_of(mounted.operations.read(mounted.file, 0, 10)) == number
    assert not any(record.exc_info for record in caplog.records)
    assert mounted.counters.get("fastfuse_errors", errno.errorcode[number]) == 1
    assert mounted.counters.get("fastfuse_handler_failures") == 0


async def test_requests_and_bytes_are_counted(mounted: Mounted) -> None:
    await mounted.operations.getattr(mounted.file, CONTEXT)
    await mounted.operations.read(mounted.file, 4, 100)
    assert mounted.counters.get("fastfuse_requests") == 2
    assert mounted.counters.get("fastfuse_read_served_bytes") == 6


async def test_questions_about_what_is_not_there_are_no_errors(mounted: Mounted) -> None:
    absent = await mounted.operations.lookup(ROOT, b"nothing", CONTEXT)
    assert (absent.st_ino, absent.entry_timeout > 86400) == (0, True)
    assert await errno_of(mounted.operations.getxattr(mounted.file, b"user.nothing", CONTEXT)) == errno.ENODATA
    assert all(
        mounted.counters.get("fastfuse_errors", label) == 0
        for label in ("EIO", "ESTALE", "EACCES", "EROFS", "ESHUTDOWN", "other")
    )


async def test_a_draining_mount_takes_no_opens_and_serves_what_is_open_l2(mounted: Mounted) -> None:
    opened = await mounted.operations.open(mounted.file, os.O_RDONLY, CONTEXT)
    mounted.counters.set(mounted.counters.slot("fastfuse_draining"), 1)
    assert await errno_of(mounted.operations.open(mounted.file, os.O_RDONLY, CONTEXT)) == errno.ESHUTDOWN
    assert await mounted.operations.read(opened.fh, 0, 10) == b"x" * 10
    assert mounted.counters.get("fastfuse_errors", "ESHUTDOWN") == 1


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_TRUNC, os.O_TRUNC])
async def test_an_open_that_could_write_is_refused_r1(mounted: Mounted, flags: int) -> None:
    assert await errno_of(mounted.operations.open(mounted.file, flags, CONTEXT)) == errno.EROFS


CHANGES: dict[str, Callable[[MountOperations], Awaitable[object]]] = {
    "create": lambda o: o.create(ROOT, b"n", 0, 0, CONTEXT),
    "link": lambda o: o.link(2, ROOT, b"n", CONTEXT),
    "mkdir": lambda o: o.mkdir(ROOT, b"n", 0, CONTEXT),
    "mknod": lambda o: o.mknod(ROOT, b"n", 0, 0, CONTEXT),
    "removexattr": lambda o: o.removexattr(ROOT, b"n", CONTEXT),
    "rename": lambda o: o.rename(ROOT, b"a", ROOT, b"b", 0, CONTEXT),
    "rmdir": lambda o: o.rmdir(ROOT, b"n", CONTEXT),
    "setattr": lambda o: o.setattr(ROOT, CONTEXT, CONTEXT, None, CONTEXT),
    "setxattr": lambda o: o.setxattr(ROOT, b"n", b"v", CONTEXT),
    "symlink": lambda o: o.symlink(ROOT, b"n", b"t", CONTEXT),
    "unlink": lambda o: o.unlink(ROOT, b"n", CONTEXT),
    "write": lambda o: o.write(2, 0, b"x"),
    "access": lambda o: o.access(ROOT, os.W_OK, CONTEXT),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_every_change_is_refused_counted_and_not_logged_r1(
    mounted: Mounted, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    assert await errno_of(CHANGES[name](mounted.operations)) == errno.EROFS
    assert mounted.counters.get("fastfuse_errors", "EROFS") == 1
    assert not caplog.records


async def test_an_archived_object_cannot_be_opened_and_is_logged_once_d5(
    mounted: Mounted, caplog: pytest.LogCaptureFixture
) -> None:
    mounted.engine.error = ObjectArchivedError("x")
    for _ in range(3):
        assert await errno_of(mounted.operations.open(mounted.archived, os.O_RDONLY, CONTEXT)) == errno.EACCES
    assert [record.getMessage() for record in caplog.records] == [
        "'p/archived' is archived as DEEP_ARCHIVE: restore first"
    ]
    assert mounted.engine.reads == [(mounted.archived, 0, 1)] * 3
    assert mounted.counters.get("fastfuse_open_files") == 0


async def test_an_archived_object_that_was_restored_opens(mounted: Mounted) -> None:
    assert (await mounted.operations.open(mounted.archived, os.O_RDONLY, CONTEXT)).fh == mounted.archived


async def test_opening_tells_the_engine_and_waits_for_nothing(mounted: Mounted) -> None:
    opened = await mounted.operations.open(mounted.file, os.O_RDONLY, CONTEXT)
    assert (opened.fh, opened.keep_cache, opened.direct_io) == (mounted.file, True, False)
    assert mounted.engine.opened == [mounted.file]
    assert mounted.engine.reads == []


async def test_a_file_is_released_with_its_last_handle(mounted: Mounted) -> None:
    for _ in range(2):
        await mounted.operations.open(mounted.file, os.O_RDONLY, CONTEXT)
    assert mounted.counters.get("fastfuse_open_files") == 2
    await mounted.operations.release(mounted.file)
    assert mounted.engine.released == []
    await mounted.operations.release(mounted.file)
    assert mounted.engine.released == [mounted.file]
    assert mounted.counters.get("fastfuse_open_files") == 0
    assert mounted.counters.get("fastfuse_opened_files") == 2


@pytest.mark.parametrize(("threshold_bytes", "is_direct"), [(None, False), (10, True), (11, False)])
async def test_large_files_are_read_past_the_page_cache_where_that_was_asked_for(
    threshold_bytes: int | None, is_direct: bool
) -> None:
    mounted = Mounted(direct_from_bytes=threshold_bytes)
    opened = await mounted.operations.open(mounted.file, os.O_RDONLY, CONTEXT)
    assert (opened.keep_cache, opened.direct_io) == (True, is_direct)


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, bytes]]:
    """What the kernel was given without being asked."""
    calls: list[tuple[int, int, bytes]] = []
    monkeypatch.setattr(pyfuse3, "notify_store", lambda *call: calls.append(call))
    return calls


async def test_a_file_that_is_here_is_put_into_the_page_cache_with_its_first_handle(
    mounted: Mounted, stored: list[tuple[int, int, bytes]]
) -> None:
    mounted.engine.whole[mounted.file] = b"0123456789"
    for _ in range(2):
        await mounted.operations.open(mounted.file, os.O_RDONLY, CONTEXT)
    assert stored == [(mounted.file, 0, b"0123456789")]
    assert mounted.counters.get("fastfuse_read_served_bytes") == 10
    for _ in range(2):
        await mounted.operations.release(mounted.file)
    await mounted.operations.open(mounted.file, os.O_RDONLY, CONTEXT)
    assert len(stored) == 2


async def test_a_file_is_put_nowhere_beside_the_handles_of_a_worker_that_died(
    mounted: Mounted, stored: list[tuple[int, int, bytes]]
) -> None:
    """A read of it may be on its way, and the kernel would wait for that."""
    mounted.engine.whole[mounted.file] = b"0123456789"
    mounted.lose_worker()
    await mounted.operations.open(mounted.file, os.O_RDONLY, CONTEXT)
    assert stored == []


async def test_a_file_is_not_put_where_its_reader_would_not_find_it_for_long(
    mounted: Mounted, stored: list[tuple[int, int, bytes]]
) -> None:
    mounted.engine.whole = {mounted.file: b"0123456789", mounted.archived: b"01234"}
    mounted.shares_pages = CONTEXT.pid + 1
    await mounted.operations.open(mounted.file, os.O_RDONLY, CONTEXT)
    assert stored == []
    mounted.shares_pages = CONTEXT.pid
    await mounted.operations.open(mounted.archived, os.O_RDONLY | os.O_DIRECT, CONTEXT)
    assert stored == []
    past_the_page_cache = Mounted(direct_from_bytes=10)
    past_the_page_cache.engine.whole[mounted.file] = b"0123456789"
    await past_the_page_cache.operations.open(mounted.file, os.O_RDONLY, CONTEXT)
    assert stored == []


async def test_a_page_cache_that_takes_nothing_fails_no_open_and_is_not_asked_again(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[object] = []

    def refuse(*call: object) -> None:
        refused.append(call)
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(pyfuse3, "notify_store", refuse)
    mounted.engine.whole[mounted.file] = b"0123456789"
    for _ in range(2):
        handle = (await mounted.operations.open(mounted.file, os.O_RDONLY, CONTEXT)).fh
        assert await mounted.operations.read(handle, 0, 3) == b"xxx"
        await mounted.operations.release(handle)
    assert len(refused) == 1
    assert mounted.counters.get("fastfuse_read_served_bytes") == 6


async def test_a_handle_of_a_worker_that_died_is_read_and_released(mounted: Mounted) -> None:
    handle = (await mounted.operations.open(mounted.file, os.O_RDONLY, CONTEXT)).fh
    mounted.lose_worker()
    assert await mounted.operations.read(handle, 0, 3) == b"xxx"
    await mounted.operations.release(handle)
    assert mounted.engine.released == [mounted.file]
    assert mounted.counters.get("fastfuse_open_files") == 0


async def test_closing_a_handle_of_a_worker_that_died_closes_none_of_its_successors(mounted: Mounted) -> None:
    earlier = (await mounted.operations.open(mounted.file, os.O_RDONLY, CONTEXT)).fh
    mounted.lose_worker()
    handle = (await mounted.operations.open(mounted.file, os.O_RDONLY, CONTEXT)).fh
    mounted.operations.swap(refreshed(mounted, {b"p/dir/file": 20}))
    await mounted.operations.release(earlier)
    assert mounted.engine.released == []
    assert await mounted.operations.read(handle, 0, 100) == b"x" * 10
    await mounted.operations.release(handle)
    assert mounted.engine.released == [mounted.file]
    assert await errno_of(mounted.operations.getattr(mounted.file, CONTEXT)) == errno.ESTALE


async def test_what_was_opened_under_a_worker_that_died_is_read_on_after_a_refresh_l6(mounted: Mounted) -> None:
    earlier = (await mounted.operations.open(mounted.file, os.O_RDONLY, CONTEXT)).fh
    mounted.lose_worker()
    assert await mounted.operations.read(earlier, 0, 3) == b"xxx"
    mounted.operations.swap(refreshed(mounted, {b"p/dir/file": 20}))
    assert await mounted.operations.read(earlier, 0, 100) == b"x" * 10
    assert (await mounted.operations.getattr(mounted.file, CONTEXT)).st_size == 10
    # One of several that share it; the worker that counted them is dead.
    await mounted.operations.release(earlier)
    assert await mounted.operations.read(earlier, 5, 100) == b"x" * 5


async def test_attributes_are_the_listings_and_the_owners_a1() -> None:
    mounted = Mounted(umask=0o027)
    file = await mounted.operations.getattr(mounted.file, CONTEXT)
    assert (file.st_mode, file.st_size, file.st_mtime_ns, file.st_nlink) == (0o100440, 10, 2 * 10**18, 1)
    assert (file.st_uid, file.st_gid, file.st_blocks) == (7, 8, 1)
    directory = await mounted.operations.lookup(ROOT, b"dir", CONTEXT)
    assert (directory.st_ino, directory.st_mode) == (mounted.directory, 0o040550)


async def test_more_bytes_than_statfs_can_tell_are_told_as_the_most_that_it_can_a2() -> None:
    mounted = Mounted()
    most = replace(mounted.table.metadata, total_bytes=1 << 80)
    mounted.operations.serve(InodeTable(most, mounted.table.columns), mounted.engine, may_store=lambda _: False)
    assert (await mounted.operations.statfs(CONTEXT)).f_blocks == (1 << 63) - 1


async def test_a_question_that_contradicts_the_table_is_an_error_of_that_request(
    mounted: Mounted, caplog: pytest.LogCaptureFixture
) -> None:
    assert await errno_of(mounted.operations.lookup(mounted.file, b"x", CONTEXT)) == errno.EIO
    assert await errno_of(mounted.operations.open(mounted.directory, os.O_RDONLY, CONTEXT)) == errno.EIO
    assert mounted.counters.get("fastfuse_handler_failures") == len(caplog.records) == 2


async def test_an_inode_that_is_not_in_the_table_is_stale_so_that_its_path_is_looked_up_again(mounted: Mounted) -> None:
    for question in (mounted.operations.getattr, mounted.operations.opendir):
        assert await errno_of(question(999, CONTEXT)) == errno.ESTALE
    assert await errno_of(mounted.operations.open(999, os.O_RDONLY, CONTEXT)) == errno.ESTALE
    assert await errno_of(mounted.operations.lookup(999, b"x", CONTEXT)) == errno.ESTALE
    assert mounted.counters.get("fastfuse_handler_failures") == 0


def refreshed(mounted: Mounted, objects: dict[bytes, int]) -> InodeTable:
    """A table with these keys and sizes, in the place of the one there was."""
    builder = TableBuilder("bucket", "p/")
    count = len(objects)
    builder.add(list(objects), list(objects.values()), [2 * 10**18] * count, [ETAG] * count, ["STANDARD"] * count)
    return take_over(mounted.table, builder.build()[0])[0]


async def listed(
    mounted: Mounted, handle: int, monkeypatch: pytest.MonkeyPatch, start: int = 0, count: int = 100
) -> list[tuple[bytes, int, float]]:
    """Names, resume offsets and timeouts of up to `count` entries of a directory as `readdir` fills them in."""
    entries: list[tuple[bytes, int, float]] = []

    def reply(token: object, name: bytes, entry: pyfuse3.EntryAttributes, resume: int) -> bool:
        if len(entries) == count:
            return False
        entries.append((name, resume, entry.entry_timeout))
        return True

    monkeypatch.setattr(pyfuse3, "readdir_reply", reply)
    token: Any = None
    await mounted.operations.readdir(handle, start, token)
    return entries


async def test_an_open_file_that_a_refresh_takes_away_keeps_object_and_attributes_until_it_is_closed_l6(
    mounted: Mounted,
) -> None:
    handle = (await mounted.operations.open(mounted.file, os.O_RDONLY, CONTEXT)).fh
    mounted.operations.swap(refreshed(mounted, {b"p/dir/file": 20}))
    assert (await mounted.operations.getattr(mounted.file, CONTEXT)).st_size == 10
    assert await mounted.operations.read(handle, 0, 100) == b"x" * 10
    await mounted.operations.release(handle)
    assert await errno_of(mounted.operations.getattr(mounted.file, CONTEXT)) == errno.ESTALE
    assert await errno_of(mounted.operations.read(handle, 0, 100)) == errno.ESTALE


async def test_a_file_that_was_open_before_a_refresh_is_read_anew_after_it_l6(mounted: Mounted) -> None:
    for _ in range(2):
        handle = (await mounted.operations.open(mounted.file, os.O_RDONLY, CONTEXT)).fh
        await mounted.operations.release(handle)
        mounted.operations.swap(refreshed(mounted, {b"p/dir/file": 10, b"p/dir/more": 1}))
    entry = await mounted.operations.lookup(mounted.directory, b"file", CONTEXT)
    assert entry.st_ino == mounted.file


async def test_a_listing_goes_on_in_the_table_that_it_began_in_and_is_not_remembered_l6(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = await mounted.operations.opendir(mounted.directory, CONTEXT)
    *_, (name, resume, _) = await listed(mounted, handle, monkeypatch, count=2)
    assert name == b".."
    mounted.operations.swap(refreshed(mounted, {b"p/dir/other": 1}))
    [(name, _, timeout_s)] = await listed(mounted, handle, monkeypatch, resume)
    assert (name, timeout_s) == (b"file", 0.0)
    # From the beginning again it is what there is now.
    *_, (name, _, timeout_s) = await listed(mounted, handle, monkeypatch)
    assert name == b"other"
    assert timeout_s > 0
    await mounted.operations.releasedir(handle)
    assert not mounted.operations._open_directories
    assert not mounted.operations._earlier_tables
    # Closed, and so forgotten: whoever asks now is answered from the table there is.
    [(name, _, _)] = await listed(mounted, handle, monkeypatch, resume)
    assert name == b"other"


async def test_changed_objects_are_named_in_the_log_once_each_and_not_without_end(
    mounted: Mounted, caplog: pytest.LogCaptureFixture
) -> None:
    names = [b"p/%03d" % number for number in range(30)]
    mounted.operations.swap(refreshed(mounted, dict.fromkeys(names, 1)))
    mounted.engine.error = ObjectChangedError("x")
    for name in names:
        inode = (await mounted.operations.lookup(ROOT, name.removeprefix(b"p/"), CONTEXT)).st_ino
        for _ in range(2):
            assert await errno_of(mounted.operations.read(inode, 0, 1)) == errno.ESTALE
    assert len(caplog.records) == 20
    assert "'p/000' was replaced or deleted since the listing" in caplog.messages[0]
    assert "'fastfuse refresh' shows what is there now" in caplog.messages[0]
    assert caplog.messages[-1].endswith("more of these are not logged")


async def test_a_refused_open_gives_back_what_it_took_unless_somebody_else_has_the_file_open(mounted: Mounted) -> None:
    mounted.engine.error = ObjectArchivedError("x")
    assert await errno_of(mounted.operations.open(mounted.archived, os.O_RDONLY, CONTEXT)) == errno.EACCES
    assert (mounted.engine.opened, mounted.engine.released) == ([], [mounted.archived])
    mounted.engine.error = None  # restored for a while
    await mounted.operations.open(mounted.archived, os.O_RDONLY, CONTEXT)
    mounted.engine.error = ObjectArchivedError("x")
    assert await errno_of(mounted.operations.open(mounted.archived, os.O_RDONLY, CONTEXT)) == errno.EACCES
    assert mounted.engine.released == [mounted.archived]
    await mounted.operations.release(mounted.archived)
    assert mounted.engine.released == [mounted.archived] * 2
