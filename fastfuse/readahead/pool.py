"""All parts of all files in one place, bounded in bytes.

States of a part, all changed here:

    waiting ──► in flight ──► landed ──► fresh ◄─► left ──► spent ──► gone
                    │            ├─────► expected, guessed ───────────^
                    └──► failed  └────────────────────────────^

* waiting: a demanded part for which there is no memory or no connection yet. The files take turns, and each is served
  in the order of its reads.
* in flight: its memory is reserved and its GET runs.
* landed: its bytes are there, and tasks that waited for it have not taken theirs yet. Still reserved: not evictable.
* fresh: evictable, least recently read first, and only for a part that somebody waits for.
* expected: of a file that is not open yet, but will be; it becomes fresh then, or is taken as a whole and gone.
  Evictable before the fresh ones.
* guessed: so is this, but no order says when (see `expected`). Evictable before the expected ones, and for them.
* left: the reader for which it was fetched has jumped away. Evictable by what others need (see `spare`).
* spent: read in full (the kernel's page cache has it), or of a file that is closed or idle. Evictable by anything.
* failed, gone: out of the books. Tasks that waited for a failed part get its error; nobody else hears of it.

A part is in the index of its file in every state but the last two.

INVARIANT: reserved (in flight, landed) and all that is evictable are at most the limit, always. Not counted: the part
behind a slice that was handed out and is being written to the kernel (a dozen at most, for milliseconds), and the about
2 kB that a small file and its part take as Python objects; of expected and of spent ones there is one for 64 KiB of the
limit at most.

No deadlock: a task waits for one part at a time and holds none meanwhile; parts in flight end, as the store has
deadlines; so memory comes back to the first that waits.

One slow or failing file delays no other (clause D6): ahead parts never take the last quarter of the memory (32 MiB of
more than 128), and all parts ahead of readers, all parts of expected files, and the demanded parts of any one file have
no more connections each than three times those that are still free (dynamic thresholds, Choudhury and Hahne 1998). So
one stalled file leaves a quarter, a second one a quarter of that quarter, and whoever comes next finds a connection
until as many files stall as that takes.
"""

from collections import deque

import trio

from fastfuse.objects import Buffer, ObjectRef
from fastfuse.readahead.expected import Expected
from fastfuse.readahead.parts import FileParts, Part, Shelf
from fastfuse.readahead.readahead_config import ReadaheadConfig, Share
from fastfuse.readahead.share import FairShare, ahead_share
from fastfuse.readahead.spare import Spare
from fastfuse.readahead.statistics import PoolStatistics

__all__ = ["PartPool"]

# Connections in use of one kind for each that is free: three leave a quarter where there is nothing else.
_USED_PER_FREE_CONNECTION = 3


class PartPool:
    """The memory of the read engine. Every method but the waiting on `Part` events is synchronous."""

    def __init__(self, config: ReadaheadConfig) -> None:
        limit = config.memory_limit_bytes
        self._limit_bytes = limit
        self._first_part_bytes = config.first_part_bytes
        self._connections = config.max_parts_in_flight
        self._ahead = ahead_share(config)
        self._fresh, self._expected = Shelf(), Expected(limit)
        self.max_expected_parts = self._expected.max_parts
        self._spare = Spare(limit, self.max_expected_parts)
        # Files with parts that wait, in their turn.
        self._queue: deque[FileParts] = deque()
        self._lacks_memory = False
        self._files: dict[int, FileParts] = {}
        self._share = FairShare(self._ahead, idle_after_bytes=limit)
        self._reserved_bytes = 0
        self._in_flight = self._ahead_in_flight = 0
        self._fetched_bytes = 0
        self._unread_dropped_bytes = 0

    @property
    def share(self) -> Share:
        """How much one file may have ahead of its readers now."""
        return self._share.share

    @property
    def parts_in_flight(self) -> int:
        return self._in_flight

    def open(self, inode: int, ref: ObjectRef) -> FileParts:
        """The parts of `ref`, with what is left from an earlier reader. Parts of any other version are dropped."""
        file = self._files.get(inode)
        if file is None or file.ref != ref:
            if file is not None:
                self._discard(file)
            file = self._files[inode] = FileParts(inode, ref)
        file.is_open = True
        if file.is_expected:
            self._settle(file)
        return file

    def close(self, file: FileParts) -> None:
        """No handle is open: its parts, also those still in flight, are the first to go."""
        file.is_open = False
        self._share.forget(file)
        self._rest(file)
        self._forget_if_empty(file)

    def enter(self, file: FileParts) -> None:
        """A read of `file` begins that may have to wait; it must `leave` whatever happens."""
        file.reads += 1
        self._touch(file)

    def leave(self, file: FileParts) -> None:
        """The read is over."""
        file.reads -= 1
        self._forget_if_empty(file)

    def touch(self, part: Part) -> None:
        """A reader has come to `part`."""
        if part.shelf is self._fresh:
            self._fresh.touch(part)
        elif part.is_left:
            self.rank(part, is_left=False)
        self._touch(part.file)

    def rank(self, part: Part, *, is_left: bool) -> None:
        """The reader of `part`, which was read ahead, has jumped away (`is_left`), or one is about to come to it."""
        part.is_left = is_left
        source, target = (self._fresh, self._spare.left) if is_left else (self._spare.left, self._fresh)
        if part.shelf is source:
            source.remove(part)
            target.put(part)

    def demand(self, file: FileParts, start: int, end: int) -> Part:
        """A part that somebody waits for. It may be fetched now, or when its `room` is set."""
        part = Part(file, start, end, is_demanded=True)
        file.add(part)
        if not file.waiting:
            self._queue.append(file)
        file.waiting.append(part)
        self._grant()
        if file.waiting and file.waiting[-1] is part:
            part.room = trio.Event()
        return part

    def try_ahead(self, file: FileParts, start: int, end: int) -> Part | None:
        """A part to be fetched now that nobody waits for yet, or None: it would be at the expense of others."""
        if self._lacks_memory or file.waiting or not self._may_start(self._ahead_in_flight):
            return None
        if file.in_flight >= self._share.share.parts_in_flight:
            return None
        return self._add_ahead(Part(file, start, end))

    @property
    def may_expect(self) -> bool:
        """Whether a part of an expected file might be fetched now: a quick look before `try_expect`."""
        expected = self._expected
        return expected.has_place and not self._lacks_memory and self._may_start(expected.in_flight)

    def has_room_for_expected(self, size_bytes: int, *, is_guess: bool = False) -> bool:
        """Whether expected files leave so much of their share of the memory; guesses that landed are room to others."""
        return self._expected.has_room(size_bytes, is_guess=is_guess)

    def try_expect(self, inode: int, ref: ObjectRef, end: int, *, is_guess: bool = False) -> Part | None:
        """The first `end` bytes of a file that will be opened, to be fetched now; None if at the expense of others.

        Requires that nothing is held for `inode` (`holds`). The file is expected until `open` or `drop_expected`; a
        guess is given up for others that are none.
        """
        if not self.may_expect or not self.has_room_for_expected(end, is_guess=is_guess):
            return None
        if not is_guess:
            self._trade_guesses(end)
        file = FileParts(inode, ref)
        part = self._add_ahead(Part(file, 0, end, is_expected=True))
        if part is not None:
            file.is_expected, file.is_guess = True, is_guess
            self._files[inode] = file
        return part

    def adopt(self, inode: int) -> int:
        """An order comes to this file: if it was a guess it is none any more. Its bytes, 0 if it was none."""
        file = self._files.get(inode)
        if file is None or not file.is_guess:
            return 0
        self._expected.rank(file, is_guess=False)
        return sum(part.size_bytes for part in file)

    def demote_expected(self) -> None:
        """No order knows any more of what it expected: all that is left are guesses."""
        for file in self._files.values():
            if file.is_expected:
                self._expected.rank(file, is_guess=True)

    def drop_expected(self, inode: int) -> None:
        """Nobody will open the file, most likely."""
        file = self._files.get(inode)
        if file is not None and file.is_expected:
            for part in self._unexpect(file):
                self._drop(part)

    def take_expected(self, inode: int, ref: ObjectRef) -> memoryview | None:
        """All of a file that was expected, which is forgotten then; None if it is not here in one part.

        The page cache has it then, and if that drops it soon it is fetched again: what was read is kept for that, but
        here it cost 5 % more CPU time, as memory is not used again while the processor's caches have it.
        """
        file = self._files.get(inode)
        whole = file.whole if file is not None and file.is_expected and file.ref == ref else None
        if whole is None or whole.data is None:
            return None
        data, whole.unread_bytes = whole.data, 0
        self.drop_expected(inode)
        return data

    def drop_guesses(self) -> None:
        """The guesses are wrong."""
        for inode in [file.inode for file in self._files.values() if file.is_guess]:
            self.drop_expected(inode)

    def holds(self, inode: int) -> bool:
        """Whether the file is open, or parts of it are held or on their way."""
        return inode in self._files

    def is_expected(self, inode: int) -> bool:
        """Whether parts of the file are held or on their way, and it was not opened since."""
        file = self._files.get(inode)
        return file is not None and file.is_expected

    def is_guess(self, inode: int) -> bool:
        """Whether the file is expected, and no order says so."""
        file = self._files.get(inode)
        return file is not None and file.is_guess

    def land(self, part: Part, data: Buffer) -> None:
        """The GET of `part` delivered."""
        part.data = memoryview(data)
        self._end_flight(part)
        self._fetched_bytes += part.size_bytes
        part.arrived.set()
        if not part.readers:
            self._shelve(part)
        else:
            self._grant()

    def fail(self, part: Part, error: Exception) -> None:
        """The GET of `part` failed, or there will be none."""
        part.error = error
        file = part.file
        if part in file.waiting:
            file.waiting.remove(part)
            if not file.waiting:
                self._queue.remove(file)
            if part.room is not None:
                part.room.set()
        else:
            self._end_flight(part)
            self._reserved_bytes -= part.size_bytes
        file.remove(part)
        part.arrived.set()
        self._forget_if_empty(file)
        self._grant()

    def pin(self, part: Part) -> None:
        """A task is about to wait for `part`, which has not arrived; it must `unpin` whatever happens."""
        part.readers += 1

    def unpin(self, part: Part) -> None:
        """A task has taken its bytes from `part`, or does not want them any more."""
        part.readers -= 1
        if not part.readers and part.data is not None:
            self._shelve(part)

    def spend(self, part: Part) -> None:
        """Everything in `part` has been read."""
        if part.shelf is self._fresh or part.shelf is self._spare.left:
            part.shelf.remove(part)
            self._shelve_spent(part)

    def statistics(self) -> PoolStatistics:
        spent_bytes, expected_bytes = self._spare.spent.size_bytes, self._expected.size_bytes
        return PoolStatistics(
            reserved_bytes=self._reserved_bytes,
            held_bytes=self._fresh.size_bytes + expected_bytes + self._spare.size_bytes,
            spent_bytes=spent_bytes,
            expected_bytes=expected_bytes + self._expected.in_flight_bytes,
            parts_in_flight=self._in_flight,
            parts_waiting=sum(len(file.waiting) for file in self._queue),
            active_files=self._share.active,
            fetched_bytes=self._fetched_bytes,
            unread_dropped_bytes=self._unread_dropped_bytes,
        )

    def check_invariants(self) -> None:
        """For tests: the books agree with the parts."""
        parts = [part for file in self._files.values() for part in file]
        shelves = (self._fresh, *self._expected.shelves, *self._spare.shelves)
        shelved = [part for shelf in shelves for part in shelf]
        assert self._reserved_bytes + sum(part.size_bytes for part in shelved) <= self._limit_bytes
        for shelf in shelves:
            shelf.check_invariants()
        self._expected.check_invariants()
        assert len(self._spare.spent) <= self.max_expected_parts
        assert all(part.is_left for part in self._spare.left)
        assert set(shelved) <= set(parts)
        assert all(part.data is not None and not part.readers and part.size_bytes == len(part.data) for part in shelved)
        for file in self._files.values():
            file.check_invariants()
        assert self._in_flight <= self._connections
        assert all(file.waiting for file in self._queue)
        assert len({*self._queue}) == len(self._queue)
        may = [file.waiting[0] for file in self._queue if self._may_start(file.demanded_in_flight)]
        assert self._lacks_memory == bool(may)
        assert not may or self._reserved_bytes + may[0].size_bytes > self._limit_bytes

    def _touch(self, file: FileParts) -> None:
        # What is one part, however little a file may have, needs no share; thousands of these come and go each second.
        if file.is_open and file.ref.size_bytes > self._first_part_bytes:
            for idle in self._share.touch(file, self._fetched_bytes):
                self._rest(idle)

    def _reserve(self, part: Part) -> None:
        self._reserved_bytes += part.size_bytes
        self._in_flight += 1
        part.file.in_flight += 1
        self._count_flight(part, 1)

    def _end_flight(self, part: Part) -> None:
        self._in_flight -= 1
        part.file.in_flight -= 1
        self._count_flight(part, -1)

    def _count_flight(self, part: Part, step: int) -> None:
        if part.is_demanded:
            part.file.demanded_in_flight += step
        elif part.is_expected:
            self._expected.count_flight(part, step)
        else:
            self._ahead_in_flight += step

    def _may_start(self, used: int) -> bool:
        """Whether a connection is free, and not kept free for others than who has `used` of them."""
        free = self._connections - self._in_flight
        return free > 0 and (not used or used < _USED_PER_FREE_CONNECTION * (free - 1))

    def _make_room(self, size_bytes: int) -> bool:
        """Evict until `size_bytes` fit, spare parts first; nothing is evicted where even all would not do."""
        allowed_bytes = self._limit_bytes - self._reserved_bytes - size_bytes
        if allowed_bytes < 0:
            return False
        fresh, expected, spare = self._fresh, self._expected, self._spare
        while fresh.size_bytes + expected.size_bytes + spare.size_bytes > allowed_bytes:
            self._drop((spare or expected or fresh).pop())
        return True

    def _trade_guesses(self, size_bytes: int) -> None:
        """Guesses that have landed make room for a file that an order expects, if that is enough.

        The newest first: they are fetched in the order of the listing, and the order is often the same.
        """
        expected = self._expected
        allowed_bytes = self._ahead.window_bytes - self._reserved_bytes - self._fresh.size_bytes - size_bytes
        if expected.known.size_bytes <= allowed_bytes:
            while expected.size_bytes > allowed_bytes or not expected.has_room(size_bytes, is_guess=True):
                self._drop(expected.guessed.pop_newest())

    def _add_ahead(self, part: Part) -> Part | None:
        held_bytes = self._reserved_bytes + self._fresh.size_bytes + self._expected.size_bytes
        if held_bytes + part.file.left_bytes + part.size_bytes > self._ahead.window_bytes:
            return None
        self._make_room(part.size_bytes)  # spare parts are enough: all others fit beside this one
        part.file.add(part)
        self._reserve(part)
        return part

    def _settle(self, file: FileParts) -> None:
        """Who was expected has opened `file`."""
        for part in self._unexpect(file):
            self._fresh.put(part)

    def _unexpect(self, file: FileParts) -> list[Part]:
        """What is held of `file`, which is on no shelf then."""
        file.is_expected = file.is_guess = False
        return self._expected.take(file)

    def _grant(self) -> None:
        """Let those start that wait for a connection or for memory, the files in turn."""
        queue = self._queue
        self._lacks_memory = False
        passed = 0
        while passed < len(queue):
            file = queue[0]
            if not self._may_start(file.demanded_in_flight):
                queue.rotate(-1)
                passed += 1
                continue
            if not self._make_room(file.waiting[0].size_bytes):
                self._lacks_memory = True  # and nobody else takes what comes back
                return
            part = file.waiting.popleft()
            self._reserve(part)
            if part.room is not None:
                part.room.set()
            if file.waiting:
                queue.rotate(-1)
            else:
                queue.popleft()
            passed = 0

    def _shelve(self, part: Part) -> None:
        """Nobody waits for `part` any more: it may be evicted from now on."""
        self._reserved_bytes -= part.size_bytes
        if part.file.is_stale:
            self._drop(part)
        elif part.file.is_open and part.unread_bytes > 0:
            (self._spare.left if part.is_left else self._fresh).put(part)
        elif part.file.is_expected:
            self._expected.put(part)
        else:
            self._shelve_spent(part)
        self._grant()

    def _shelve_spent(self, part: Part) -> None:
        for gone in self._spare.put_spent(part):
            self._drop(gone)

    def _rest(self, file: FileParts) -> None:
        """Nobody reads `file` now: its fresh parts count as spent."""
        for part in file:
            self.spend(part)

    def _drop(self, part: Part) -> None:
        """`part` is on no shelf. Its bytes go now: streams may remember the part."""
        part.data = None
        self._unread_dropped_bytes += max(0, part.unread_bytes)
        part.file.remove(part)
        self._forget_if_empty(part.file)

    def _discard(self, file: FileParts) -> None:
        """The inode means another version now."""
        file.is_stale = True
        self._share.forget(file)
        del self._files[file.inode]
        for part in file:
            if part.shelf is not None:
                part.shelf.remove(part)
                self._drop(part)

    def _forget_if_empty(self, file: FileParts) -> None:
        is_needed = file.is_open or file.reads or len(file)
        if not is_needed and self._files.get(file.inode) is file:
            del self._files[file.inode]
