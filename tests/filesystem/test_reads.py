"""READs of the kernel: answered at once, or by tasks, and each of them once."""

import errno
import socket
import struct
from collections.abc import AsyncIterator
from math import inf
from time import perf_counter
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
import trio
import trio.testing

from fastfuse.errors import UnavailableError
from fastfuse.filesystem.figures import recorder
from fastfuse.filesystem.kernel.fuse import replies
from fastfuse.filesystem.kernel.in_hand import Read, ReadsInHand
from fastfuse.filesystem.serving import reads as module
from fastfuse.filesystem.serving.operations import Outcomes
from fastfuse.filesystem.serving.reads import FailedReads, Reads, stale_hint
from fastfuse.filesystem.talking.watching import Access
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.sources.uri import S3Uri
from fastfuse.metrics import Counters
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.readahead import ReadEngine

HEAD = struct.Struct("=IiQ")  # <linux/fuse.h>: fuse_out_header
REF = ObjectRef("bucket", "key", 100, '"etag"')
AT_HAND, FETCHED, FAILING = 1, 2, 3
FAILS = 666  # a process whose reads the engine cannot bear


class Engine(ReadEngine):
    """Has the bytes of `AT_HAND`, fetches those of `FETCHED` when it is told to, and fails for `FAILING`."""

    def __init__(self) -> None:
        self.may_fetch, self.failure = trio.Event(), UnavailableError("503.")
        self.asked: list[int] = []  # the offsets
        self.readers: list[int] = []
        self.refused: list[int] = []  # the sizes

    def at_hand(self, inode: int, ref: ObjectRef, offset: int, size_bytes: int) -> Buffer | None:
        return b"h" * size_bytes if inode == AT_HAND else None

    def put_off(self, inode: int, offset: int, size_bytes: int) -> bool:
        return size_bytes in self.refused

    async def read(self, inode: int, ref: ObjectRef, offset: int, size_bytes: int, ends_s: float = inf) -> Buffer:
        self.asked.append(offset)
        await self.may_fetch.wait()
        if inode == FAILING:
            raise self.failure
        return b"f" * size_bytes

    def began(self, reader: int) -> None:
        if reader == FAILS:
            raise MemoryError
        self.readers.append(reader)


class Place:
    def __init__(self, kernel: socket.socket, nursery: trio.Nursery) -> None:
        self.counters, self.engine, self.in_hand = Counters(), Engine(), ReadsInHand()
        self._kernel = kernel
        serving = SimpleNamespace(
            table=SimpleNamespace(ref=lambda _: REF, unread_classes=()), outcomes=Outcomes(self.counters)
        )
        self.reads = Reads(cast(Any, serving), self.engine, self.counters, self.in_hand, nursery, 60.0)

    def answered(self) -> dict[int, bytes | int]:
        """The answers that have come: bytes or errno, by number."""
        found: dict[int, bytes | int] = {}
        while True:
            try:
                message = self._kernel.recv(1 << 16, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return found
            _, error, number = HEAD.unpack_from(message)
            assert number not in found
            found[number] = -error or message[HEAD.size :]

    def count(self, name: str, label: str = "") -> int:
        return self.counters.get(name, label)


@pytest.fixture
async def place(nursery: trio.Nursery) -> AsyncIterator[Place]:
    kernel, session = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with kernel, session:
        replies.start(session.fileno(), 0)
        yield Place(kernel, nursery)
        nursery.cancel_scope.cancel()


def test_of_a_stale_file_of_an_inventory_no_refresh_is_advised() -> None:
    """Which reads the same report again."""
    assert "newer report" in stale_hint(IndexOrigin(inventory=S3Uri("b", "manifest.json")))


async def test_what_is_at_hand_is_answered_at_once_and_counted_as_every_read_is(place: Place) -> None:
    place.reads.take(7, AT_HAND, 8, 3, 4711, False)
    assert place.answered() == {7: b"hhh"}
    assert (place.count("fastfuse_requests"), place.count("fastfuse_read_served_bytes")) == (1, 3)
    assert place.engine.readers == []
    place.reads.take(8, AT_HAND, 0, 3, 4711, False)
    assert place.engine.readers == [4711]


async def test_what_is_at_hand_is_answered_at_once_while_somebody_watches(place: Place) -> None:
    noted: list[Access] = []
    place.reads.watched = cast(Any, SimpleNamespace(note=noted.append))
    place.reads.take(7, AT_HAND, 8, 3, 4711, False)
    assert place.answered() == {7: b"hhh"}
    (access,) = noted
    assert access[1:6] + access[7:] == (4711, AT_HAND, 8, 3, "hit", 0)


async def test_what_is_put_off_is_refused_but_never_a_read_past_the_page_cache(place: Place) -> None:
    place.engine.refused, asked = [3], place.engine.asked
    place.engine.may_fetch.set()
    place.reads.take(7, FETCHED, 8, 3, 4711, False)
    place.reads.take(8, AT_HAND, 8, 3, 4711, False)
    place.reads.take(9, FETCHED, 16, 3, 4711, True)
    await trio.testing.wait_all_tasks_blocked()
    assert place.answered() == {7: errno.EAGAIN, 8: b"hhh", 9: b"fff"}
    assert asked == [16]


async def test_what_has_to_be_fetched_is_answered_when_it_is_there(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_BOOTED_AT", 0.0)
    place.reads.take(7, FETCHED, 8, 3, 4711, False)
    place.reads.take(8, FAILING, 0, 3, 4711, False)
    await trio.testing.wait_all_tasks_blocked()
    assert place.answered() == {}
    assert place.count("fastfuse_waiting_reads") == 2
    place.engine.may_fetch.set()
    await trio.testing.wait_all_tasks_blocked()
    assert place.answered() == {7: b"fff", 8: errno.EIO}
    assert place.count("fastfuse_waiting_reads") == 0
    assert (place.count("fastfuse_requests"), place.count("fastfuse_errors", "EIO")) == (2, 1)
    assert place.engine.failure.__traceback__ is None  # whatever its frames hold goes without a collection
    (told,) = place.reads.last_errors
    assert "failed with EIO" in told[1]
    assert told[0] <= recorder.moment()  # on the clock of the samples


async def test_reads_begin_in_the_order_in_which_the_kernel_asks(place: Place) -> None:
    for offset in range(20):
        place.reads.take(offset, FETCHED, offset, 1, 4711, False)
    place.reads.take(20, AT_HAND, 20, 1, 4711, False)
    assert place.answered() == {}  # the one before may tell that it is read in order
    await trio.testing.wait_all_tasks_blocked()
    assert place.engine.asked == list(range(21))


async def test_an_unforeseen_failure_is_answered(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.reads.take(7, AT_HAND, 0, 3, FAILS, False)
    assert place.answered() == {7: errno.EIO}
    assert place.count("fastfuse_handler_failures") == 1
    assert caplog.messages == ["read failed for an unforeseen reason; the mount goes on"]


async def test_a_read_that_no_thread_has_memory_for_is_answered_by_a_task(place: Place) -> None:
    place.reads.begins_elsewhere = Mock(side_effect=MemoryError)
    place.engine.may_fetch.set()
    place.reads.take(7, FETCHED, 0, 3, 4711, False)
    await trio.testing.wait_all_tasks_blocked()
    assert place.answered() == {7: b"fff"}
    assert place.count("fastfuse_handler_failures") == 0


async def test_in_a_drain_no_read_begins_even_of_what_is_here_and_a_reader_at_the_end_of_a_file_learns_of_it(
    place: Place,
) -> None:
    """Linux 5.10 asks for the end."""
    place.counters.set("fastfuse_draining", 1)
    place.reads.take(7, AT_HAND, 0, 3, 4711, False)
    place.reads.take(8, FETCHED, REF.size_bytes, 4096, 4711, False)
    await trio.testing.wait_all_tasks_blocked()
    assert place.answered() == {7: errno.ESHUTDOWN, 8: b""}


async def test_reads_that_came_before_a_drain_end_in_it_though_no_task_had_begun_them(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Semantics L2"""
    monkeypatch.setattr(module, "_MOST_TASKS", 2)
    for number in range(4):
        place.reads.take(number, FETCHED, number, 1, 4711, False)
    assert place.count("fastfuse_waiting_reads") == 4
    place.counters.set("fastfuse_draining", 1)
    place.reads.take(4, FETCHED, 4, 1, 4711, False)
    place.engine.may_fetch.set()
    await trio.testing.wait_all_tasks_blocked()
    assert place.answered() == {**dict.fromkeys(range(4), b"f"), 4: errno.ESHUTDOWN}
    assert place.count("fastfuse_waiting_reads") == 0


@pytest.mark.parametrize("inode", [AT_HAND, FETCHED])
async def test_a_read_that_workers_die_of_is_refused_even_if_it_is_here(place: Place, inode: int) -> None:
    place.in_hand.poisoned.append(Read(inode, 8, 3))
    place.reads.take(7, inode, 8, 3, 4711, False)
    await trio.testing.wait_all_tasks_blocked()
    assert place.answered() == {7: errno.EIO}


@pytest.mark.parametrize(("deaths", "within_s"), [(1, 2), (2, 20)])
async def test_however_many_suspects_there_are_all_begin_soon_though_none_is_answered(
    place: Place, deaths: int, within_s: int, autojump_clock: trio.testing.MockClock
) -> None:
    suspects = {number: Read(FETCHED, 8 * number, 3) for number in range(500)}
    place.in_hand.suspects, place.in_hand.most_deaths = dict(suspects), deaths
    for number, read in suspects.items():
        place.reads.take(number, *read, 4711, False)
    await trio.testing.wait_all_tasks_blocked()
    assert len(place.engine.asked) == 1
    await trio.sleep(within_s)
    assert place.engine.asked == [read.offset for read in suspects.values()]


@pytest.mark.parametrize(("came_s", "resumed_s"), [(30, inf), (3600, 30)], ids=["running", "stopped for an hour"])
async def test_a_suspect_waits_for_no_other_once_its_deadline_is_over(
    place: Place, came_s: float, resumed_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    """D5, L3"""
    suspects = {7: Read(FETCHED, 0, 3), 8: Read(FETCHED, 8, 3)}
    place.in_hand.suspects, place.in_hand.most_deaths = dict(suspects), 3
    place.reads.came_s, place.in_hand.resumed_s = {8: perf_counter() - came_s}, perf_counter() - resumed_s
    for number, read in suspects.items():
        place.reads.take(number, *read, 4711, False)
    await trio.testing.wait_all_tasks_blocked()
    assert place.engine.asked == [0]
    await trio.sleep(31)
    assert place.engine.asked == [0, 8]


async def test_a_read_waits_until_its_answer_is_written(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = []
    for name in ("answer", "refuse"):
        monkeypatch.setattr(replies, name, lambda *_: waiting.append(place.count("fastfuse_waiting_reads")))
    place.engine.may_fetch.set()
    for inode in (FETCHED, FAILING):
        place.reads.take(7, inode, 0, 3, 4711, False)
        await trio.testing.wait_all_tasks_blocked()
        assert place.count("fastfuse_waiting_reads") == 0
    assert waiting == [1, 1]


async def test_those_that_find_no_task_are_answered_by_the_others_in_order(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_TASKS", 2)
    for number in range(10):
        place.reads.take(number, FETCHED, number, 1, 4711, False)
    await trio.testing.wait_all_tasks_blocked()
    assert (place.engine.asked, place.answered()) == ([0, 1], {})
    place.engine.may_fetch.set()
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(place.answered()) == place.engine.asked == list(range(10))
    # And again, as the tasks are free.
    place.reads.take(11, FETCHED, 0, 1, 4711, False)
    await trio.testing.wait_all_tasks_blocked()
    assert place.answered() == {11: b"f"}


def note(failed: FailedReads, read: Read, number: int = errno.EIO, *, took_s: float = 60.0, now_s: float) -> bool:
    return failed.note(read, number, took_s=took_s, now_s=now_s)


def test_a_page_of_what_failed_late_fails_at_once_for_half_a_second() -> None:
    failed, page = FailedReads(60.0), Read(7, (2 << 20) - 4096, 4096)
    for soon in (True, False):
        note(failed, Read(7, 1 << 20, 1 << 20), took_s=2.0 if soon else 60.0, now_s=100.0)
        assert failed.errno_of(page, 100.4) == (0 if soon else errno.EIO)
    assert [failed.errno_of(Read(*other), 100.4) for other in ((7, 2 << 20, 4096), (8, 1 << 20, 4096))] == [0, 0]
    assert failed.errno_of(page, 100.6) == 0


def test_a_failure_is_repeated_once_within_half_a_second_by_the_same_errno() -> None:
    failed, page, other_page = FailedReads(60.0), Read(7, 8192, 4096), Read(7, 0, 4096)
    assert not note(failed, Read(7, 0, 1 << 20), now_s=100.0)
    assert not note(failed, page, errno.EACCES, now_s=100.1)
    assert note(failed, page, now_s=100.4)
    assert not note(failed, page, now_s=100.4)
    assert not note(failed, other_page, now_s=100.4)
    assert not note(failed, other_page, now_s=102.0)
    assert not note(failed, Read(8, 0, 4096), now_s=102.0)


@pytest.mark.parametrize("count", [1, 2048, 3000])
def test_no_more_failures_are_remembered_than_may_come_at_once(count: int) -> None:
    failed = FailedReads(60.0)
    for inode in range(count):
        assert not note(failed, Read(inode, 0, 1), now_s=0.0)
    kept = range(max(0, count - 2048), count)
    assert [inode for inode in range(count) if failed.errno_of(Read(inode, 0, 1), 0.4)] == [*kept]
    repeated = [inode for inode in range(count - 1, -1, -1) if note(failed, Read(inode, 0, 1), now_s=0.4)]
    assert repeated == [*reversed(kept)]
