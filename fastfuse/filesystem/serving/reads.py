"""Answer READs: at once where the bytes are here, in a task of its own where they have to be waited for.

`filesystem.kernel.interposed` hands them over before libfuse knows of them, and `filesystem.kernel.replies` writes the
answers.
"""

import errno
import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from time import perf_counter, time
from typing import NamedTuple

import trio

from fastfuse.errors import ObjectArchivedError, ObjectChangedError, ReadError
from fastfuse.filesystem.figures.recorder import moment
from fastfuse.filesystem.kernel.fuse import direct_reads, pyfuse3, replies
from fastfuse.filesystem.kernel.in_hand import Read, ReadsInHand
from fastfuse.filesystem.serving.operations import MountOperations, answered
from fastfuse.filesystem.talking.watching import Access, UnderWay, WatchedReads
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.origin import IndexOrigin
from fastfuse.metrics import Counters
from fastfuse.objects import Buffer
from fastfuse.readahead import ReadEngine
from fastfuse.repeats import RepeatedFailures

_log = logging.getLogger(__name__)

# Reads that wait at once, with a task each; more wait for one of them. This is more than the kernel's background
# requests (filesystem/kernel/session.py) and a thread for each reader of any sane data loader.
_MOST_TASKS = 2048

# How long a failure is remembered. The kernel asks again within milliseconds, on a busy machine within tenths of a
# second, and a program that tries again later is to find a service that is back.
_REMEMBERED_S = 0.5

# The time in which all suspects begin, one by one, after the first death; ten times as long after each further one,
# because workers die of their bytes, and these come from the service.
_SUSPECTS_BEGIN_S = 1.0

# Reads that failed, kept for `fastfuse status`.
_LAST_ERRORS = 8

_REFRESH_HINT = "'fastfuse refresh' shows what is there now."


class FailedReads:
    """The reads that failed in the last half second: none waits for a second deadline, and no failure is told twice.

    The kernel asks again, at once, for the page that a reader wants of what its readahead did not get.
    """

    def __init__(self, deadline_s: float) -> None:
        # A read that joins a GET of another one comes late to it.
        self._late_s = deadline_s / 2
        # Those that failed late, oldest first.
        self._late: deque[tuple[float, Read, int]] = deque(maxlen=_MOST_TASKS)
        # Those that the kernel has not asked for again, each by its inode and errno, oldest first.
        self._told: dict[tuple[int, int], tuple[float, Read]] = {}

    def note(self, read: Read, number: int, *, took_s: float, now_s: float) -> bool:
        """Note that `read` failed with the errno `number` after `took_s`.

        Return whether it is the first that repeats a failure.
        """
        if took_s >= self._late_s:
            self._late.append((now_s, read, number))
        told = self._told.pop((read.inode, number), None)
        if told is not None and now_s <= told[0] + _REMEMBERED_S and told[1].overlaps(read):
            return True
        if len(self._told) >= _MOST_TASKS:
            del self._told[next(iter(self._told))]
        self._told[read.inode, number] = now_s, read
        return False

    def errno_of(self, read: Read, now_s: float) -> int:
        """Return what the late read failed with that `read` repeats, at least in part; 0 if there is none."""
        while self._late and self._late[0][0] < now_s - _REMEMBERED_S:
            self._late.popleft()
        return next((number for _, late, number in self._late if late.overlaps(read)), 0)


class Request(NamedTuple):
    """A READ of the kernel, by its number, and the thread that asks."""

    number: int
    inode: int
    offset: int
    size_bytes: int
    process: int


def stale_hint(origin: IndexOrigin) -> str:
    """Return what to do about an object that is no longer the one of an index of `origin`."""
    if origin.inventory is not None:  # a refresh reads the same report
        return "Mount again with a newer report (--inventory)."
    if origin.saved is not None and not origin.is_own_file:  # a refresh reads it again, and nothing else
        return "Make the index anew with 'fastfuse index', then 'fastfuse refresh' shows what is there."
    return _REFRESH_HINT


class Reads:
    """The reads of one worker, in tasks of `nursery`."""

    def __init__(
        self,
        operations: MountOperations,
        engine: ReadEngine,
        counters: Counters,
        in_hand: ReadsInHand,
        nursery: trio.Nursery,
        read_deadline_s: float = inf,
        *,
        stale_hint: str = _REFRESH_HINT,
    ) -> None:
        self._operations = operations
        self.outcomes = operations.outcomes
        self._engine = engine
        self.in_hand = in_hand
        self._nursery = nursery
        self._stale_hint = stale_hint
        self._failed_reads, self._failures = FailedReads(read_deadline_s), RepeatedFailures(_log)
        # The number of tasks, and the requests that none has begun, oldest first: the order in which a file is read
        # tells what to fetch ahead. With each, whether it came in a drain.
        self._task_count = 0
        self._waiting: deque[tuple[Request, bool]] = deque()
        # When the reads came that a dead worker has left, by their numbers, in seconds of `perf_counter`.
        self.came_s: Mapping[int, float] = {}
        self._read_deadline_s = read_deadline_s
        # Suspects begin one after the other (`in_hand`), each when the one before is answered.
        self._suspects_turn = trio.Lock()
        # The numbers of the suspects in hand, each with what tells its end.
        self._suspects_begun: dict[int, trio.Event] = {}
        # The last reads that failed, each with its time in seconds since 1970.
        self.last_errors: deque[tuple[float, str]] = deque(maxlen=_LAST_ERRORS)
        # The reads that tasks answer now, by their numbers.
        self.under_way: UnderWay = {}
        # The watchers of the reads; None while there are none.
        self.watched: WatchedReads | None = None
        # Has the read of a whole file answered by somebody else, or returns False.
        self.begins_elsewhere: Callable[[Request], bool] | None = None
        self._served_bytes = counters.memory("fastfuse_read_served_bytes")
        self._blocked_us = counters.memory("fastfuse_blocked_seconds")
        self._saw_read = counters.observer("fastfuse_read_seconds")
        direct_reads.count_waits(counters.memory("fastfuse_waiting_reads"))
        self._is_draining = counters.memory("fastfuse_draining")

    @property
    def table(self) -> InodeTable:
        """The table that answers now."""
        return self._operations.table

    def take(self, number: int, inode: int, offset: int, size_bytes: int, process: int, is_direct: bool) -> None:
        """Answer a request, or begin to; raise nothing. The numbers are those of a `Request`.

        If it `is_direct`, its answer goes to the reader, past the page cache.
        """
        try:
            if not offset:
                if self._begin_elsewhere(Request(number, inode, offset, size_bytes, process)):
                    return
                self._engine.began(process)
            data = None if self._waiting else self._at_hand(inode, offset, size_bytes, process)
            if data is None:
                may_put_off = not (is_direct or self._waiting or number in self.in_hand.suspects)
                if may_put_off and self._engine.put_off(inode, offset, size_bytes):
                    replies.refuse(number, errno.EAGAIN)
                    return
                if self._task_count < _MOST_TASKS:
                    self._nursery.start_soon(self._answer_waiting)
                    self._task_count += 1
                is_refused = bool(self._is_draining[0])
                self._waiting.append((Request(number, inode, offset, size_bytes, process), is_refused))
                if not is_refused:
                    direct_reads.begin_wait()
                return
        except Exception as error:  # noqa: BLE001 - the kernel would be answered by nobody
            self.outcomes.count_bug("read", error)
            replies.refuse(number, errno.EIO)
        else:
            replies.answer(number, data)

    async def answer(self, request: Request, *, is_refused: bool = False, came_s: float = inf) -> None:
        """Answer a request, which `direct_reads` counts as waiting unless it `is_refused`: it came in a drain.

        One that a thread had in hand came at `came_s`.
        """
        number, inode, offset, size_bytes, process = request
        self.under_way[number] = inode, process, perf_counter()
        came_s = max(self.came_s.get(number, came_s), self.in_hand.resumed_s)
        try:
            if number in self.in_hand.suspects and not is_refused:
                await self._begin_suspect(number, self._ends_s(came_s))
            if self.watched is None:
                data = await self.read(inode, offset, size_bytes, is_refused=is_refused, came_s=came_s)
            else:
                read = partial(self.read, is_refused=is_refused, came_s=came_s)
                data = await self.watched.read(Read(inode, offset, size_bytes), process, read)
        except pyfuse3.FUSEError as refusal:
            replies.refuse(number, refusal.errno)
        else:
            replies.answer(number, data)
        finally:
            del self.under_way[number]
            # Not before the answer is written: a worker may die of that, and a drain ends once no read waits.
            self.in_hand.suspects.pop(number, None)
            if (begun := self._suspects_begun.pop(number, None)) is not None:
                begun.set()
            if not is_refused:
                direct_reads.end_wait()

    @answered
    async def read(
        self, inode: int, offset: int, size_bytes: int, *, is_refused: bool = False, came_s: float = inf
    ) -> Buffer:
        """Return what is answered, or raise `FUSEError`: at once if it `is_refused`, because the mount stops.

        A read that came at `came_s`, to an earlier worker or to a thread, has what is left of its deadline.
        Linux 5.10 asks for the end of a file, too. That is not refused, or a reader that has all would not know it.
        """
        if is_refused:
            if offset >= self.table.ref(inode).size_bytes:
                return b""
            raise pyfuse3.FUSEError(errno.ESHUTDOWN)
        began_s = perf_counter()
        read = Read(inode, offset, size_bytes)
        try:
            if number := self._failed_reads.errno_of(read, began_s):
                raise pyfuse3.FUSEError(number)
            ref = self.table.ref(inode)
            if self.in_hand.is_poisoned(read):
                raise ReadError(f"{ref.key!r} is not read: workers died of it.")
            buffer = await self._engine.read(inode, ref, offset, size_bytes, self._ends_s(came_s))
            if buffer and ref.storage_class in self.table.unread_classes:
                self._operations.read_archived(is_refused=False)
        except ReadError as error:
            if isinstance(error, ObjectArchivedError):
                self._operations.read_archived(is_refused=True)
            now_s = perf_counter()
            took_s = now_s - min(began_s, came_s)
            if not self._failed_reads.note(read, error.errno, took_s=took_s, now_s=now_s):
                self._tell(error, inode, offset, took_s)
            raise
        finally:
            self._count_time(perf_counter() - began_s)
        self._served_bytes[0] += len(buffer)
        return buffer

    def _ends_s(self, came_s: float) -> float:
        """Return on trio's clock when a read is over that came at `came_s`; infinity if that is now."""
        return inf if came_s == inf else trio.current_time() + came_s + self._read_deadline_s - perf_counter()

    def count(self, size_bytes: int, took_s: float) -> None:
        """Count a read that was answered in another way than by `read`."""
        self.outcomes.count()
        self._served_bytes[0] += size_bytes
        self._count_time(took_s)

    def _count_time(self, took_s: float) -> None:
        self._blocked_us[0] += int(took_s * 1e6)
        self._saw_read(took_s)

    def _begin_elsewhere(self, request: Request) -> bool:
        begins = self.begins_elsewhere
        if begins is None or self._is_draining[0] or request.number in self.came_s:
            return False
        try:
            return begins(request)
        except Exception:  # noqa: BLE001 - `read` meets it again, and tells it
            return False

    def _at_hand(self, inode: int, offset: int, size_bytes: int, process: int) -> Buffer | None:
        """Return what is answered at once; None if `read` has to wait, or to decide."""
        in_hand = self.in_hand
        if in_hand.suspects or in_hand.poisoned or self._is_draining[0]:
            return None
        began_s = perf_counter()
        try:
            data = self._engine.at_hand(inode, self.table.ref(inode), offset, size_bytes)
        except Exception:  # noqa: BLE001 - `read` meets it again, and tells it
            return None
        if data is not None:
            took_s = perf_counter() - began_s
            self.count(len(data), took_s)
            if self.watched is not None:
                self.watched.note(Access(time() - took_s, process, inode, offset, size_bytes, "hit", took_s, 0))
        return data

    async def _answer_waiting(self) -> None:
        # Another task may have taken all meanwhile.
        while self._waiting:
            request, is_refused = self._waiting.popleft()
            await self.answer(request, is_refused=is_refused)
        self._task_count -= 1

    async def _begin_suspect(self, number: int, ends_s: float) -> None:
        """Let a read begin that was in hand when a worker died: at its turn, or at `ends_s`, when it is over."""
        with trio.move_on_at(ends_s):
            async with self._suspects_turn:
                # One that takes long may wait for the service, which may not answer: then the next one begins.
                begin_s = _SUSPECTS_BEGIN_S * 10.0 ** (self.in_hand.most_deaths - 1)
                with trio.move_on_after(begin_s / len(self.in_hand.suspects)):
                    while self._suspects_begun:
                        await next(iter(self._suspects_begun.values())).wait()
        self._suspects_begun[number] = trio.Event()
        replies.begin_read(number)

    def _tell(self, error: ReadError, inode: int, offset: int, waited_s: float) -> None:
        name = errno.errorcode[error.errno]
        line = f"a read at {offset} failed with {name} after {waited_s:.1f} s: {error}"
        hint = self._stale_hint if isinstance(error, ObjectChangedError) else error.hint
        line += f" {hint}" if hint else ""
        self.last_errors.append((moment(), line))
        reason = error.reply or type(error).__name__
        self._failures.tell(f"reads that failed with {name} ({reason})", str(inode), line)
