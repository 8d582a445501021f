"""All parts of all files in one place, bounded in bytes.

States of a part, all changed here:

    waiting ──► in flight ──► landed ──► fresh ◄─► left ──► spent ──► gone
                    │            ├─────► expected, guessed ───────────^
                    └──► failed  └────────────────────────────^

* waiting: a demanded part for which there is no memory or no connection yet. The files take turns, and each is served
  in the order of its reads.
* in flight: its memory is reserved and its GET runs.
* landed: its bytes are there, and tasks that waited for it have not taken theirs yet. It is still reserved.
* fresh: evictable, least recently read first, and only for a part that a reader waits for.
* expected, guessed: of a file that is not begun yet. Evictable before the fresh ones (see `shelves`).
* left, spent: evictable by readahead too (see `shelves`); fresh again if a reader is about to come to them (`renew`).
* failed, gone: out of the books and of the file's index. Tasks that waited for a failed part get its error.

INVARIANT: what is reserved (in flight, landed), what is evictable, and what threads keep (`SmallFiles`), which is not,
take at most the limit, always. Not counted are the part behind a slice that is being written to the kernel (a dozen at
most, for milliseconds), an answer that several parts are copied into, and the about 2 kB that a small file and its part
take as Python objects, one for 64 KiB of the limit at most.

No deadlock: a task waits for one part at a time and holds none meanwhile. Parts in flight end, as the S3 client has
deadlines, so memory comes back to the first that waits.

One slow or failing file delays no other (clause D6). Parts ahead never take the last quarter of the memory (32 MiB of
more than 128). Three kinds of parts have no more connections each than three times those that are still free: all
parts ahead of readers, all parts of expected files, and the demanded parts of any one file (dynamic thresholds,
Choudhury and Hahne 1998). One stalled file thus leaves a quarter, and a second one a quarter of that quarter.
"""

from collections import deque

import trio

from fastfuse.objects import Buffer, ObjectRef
from fastfuse.readahead.limits import FairShare, ReadaheadConfig, Share, ahead_share
from fastfuse.readahead.parts import FileParts, Part, Shelf
from fastfuse.readahead.shelves import Expected, LeftShelf

# Connections in use of one kind for each that is free: three leave a quarter where there is nothing else.
_USED_PER_FREE_CONNECTION = 3
# Spent parts: two behind a reader with a full window, and no more than eight parts of 8 MiB.
_SPENT_DIVISOR = 8
_MAX_SPENT_BYTES = 64 << 20


class PartPool:
    """The memory of the read engine. Every method but the waiting on `Part` events is synchronous."""

    def __init__(self, config: ReadaheadConfig) -> None:
        limit = config.memory_limit_bytes
        self._limit_bytes = limit
        self._first_part_bytes = config.first_part_bytes
        self._connections = config.max_parts_in_flight
        self._ahead = ahead_share(config)
        self.expected = Expected(limit)
        self._fresh, self._left, self._spent = Shelf(), LeftShelf(), Shelf()
        self._max_spent_bytes = min(limit // _SPENT_DIVISOR, _MAX_SPENT_BYTES)
        # Files with parts that wait, in their turn.
        self._queue: deque[FileParts] = deque()
        self._lacks_memory = False
        # Threads read none of them.
        self._files: dict[int, FileParts] = {}
        self._share: FairShare[FileParts] = FairShare(self._ahead, idle_after_bytes=limit)
        # The GETs that run, of all kinds and ahead of readers.
        self.parts_in_flight = self._ahead_in_flight = 0
        # The bytes of parts in flight or being handed over; those that were fetched, and dropped without being read.
        self.reserved_bytes = self._fetched_bytes = self.unread_dropped_bytes = 0

    @property
    def share(self) -> Share:
        """The share that one file may have ahead of its readers now."""
        return self._share.share

    def inodes(self) -> list[int]:
        """Return the files that are read, or of which something is held or on its way."""
        return list(self._files)

    def open(self, inode: int, ref: ObjectRef) -> FileParts:
        """Return the parts of `ref`, with those left from an earlier reader; drop the parts of any other version."""
        file = self._files.get(inode)
        if file is None or file.ref != ref:
            if file is not None:
                self._discard(file)
            file = self._add_file(FileParts(inode, ref))
        file.is_open = True
        if file.is_expected:
            for part in self.expected.take(file):
                self._fresh.put(part)
        return file

    def close(self, file: FileParts) -> None:
        """Note that nobody reads on: what was not read is left if the next reader has room beside it, or else spent."""
        file.is_open = False
        self._share.forget(file)
        half_bytes = self._ahead.window_bytes // 2
        for part in file:
            has_room = len(self._left) < self.expected.max_parts and self.has_room_ahead(file, half_bytes)
            self.rank(part, is_left=True) if part.unread_bytes > 0 and has_room else self.spend(part)
        self._forget_if_empty(file)

    def forget(self, inode: int) -> None:
        """Drop what is held of a file that nobody reads, unless it is expected."""
        file = self._files.get(inode)
        if file is not None and not (file.is_open or file.reads or file.is_expected):
            self._discard(file)

    def enter(self, file: FileParts) -> None:
        """Begin a read of `file` that may have to wait; it must `leave` whatever happens."""
        file.reads += 1
        self._touch(file)

    def leave(self, file: FileParts) -> None:
        """End a read that did `enter`."""
        file.reads -= 1
        self._forget_if_empty(file)

    def touch(self, part: Part) -> None:
        """Note that a reader has come to `part`."""
        if part.shelf is not None:
            part.shelf.touch(part)
        self._touch(part.file)

    def rank(self, part: Part, *, is_left: bool) -> None:
        """Note that the reader of `part` has jumped away (`is_left`), or that one is about to come to it."""
        part.is_left = is_left
        source, target = (self._fresh, self._left) if is_left else (self._left, self._fresh)
        if part.shelf is source:
            source.remove(part)
            target.put(part)

    def renew(self, part: Part, start: int) -> bool:
        """Note that `part` will be read from `start` on: no other takes its place. Return False if it has no room."""
        if part.shelf is self._spent:
            if not self.has_room_ahead(part.file, part.size_bytes):
                return False
            self._spent.remove(part)
            part.unread_bytes = part.end - start
            self._fresh.put(part)
        self.rank(part, is_left=False)
        return True

    def demand(self, file: FileParts, start: int, end: int) -> Part:
        """Return a part that a reader waits for. It may be fetched now, or when its `room` is set."""
        part = Part(file, start, end, is_demanded=True)
        file.add(part)
        if not file.waiting:
            self._queue.append(file)
        file.waiting.append(part)
        self._grant()
        if file.waiting and file.waiting[-1] is part:
            part.room = trio.Event()
        return part

    def try_reserve(self, size_bytes: int) -> bool:
        """Take a connection and memory for a GET, to `release` whatever happens; False if a reader waits for them."""
        if self._queue or not self._may_start(0) or not self._make_room(size_bytes):
            return False
        self.reserved_bytes += size_bytes
        self.parts_in_flight += 1
        return True

    def release(self, size_bytes: int, fetched_bytes: int) -> None:
        """Give back what `try_reserve` took, after a GET of so many bytes."""
        self.reserved_bytes -= size_bytes
        self.parts_in_flight -= 1
        self._fetched_bytes += fetched_bytes
        if self._queue:
            self._grant()

    def try_ahead(self, file: FileParts, start: int, end: int) -> Part | None:
        """Return a part to fetch now that nobody waits for yet, or None if others need what it takes."""
        if self._lacks_memory or file.waiting or not self._may_start(self._ahead_in_flight):
            return None
        if file.in_flight >= self._share.share.parts_in_flight:
            return None
        return self._add_ahead(Part(file, start, end))

    @property
    def may_expect(self) -> bool:
        """A quick look whether a part of an expected file may be fetched now."""
        return self.expected.has_place and not self._lacks_memory and self._may_start(self.expected.in_flight)

    def try_expect(self, inode: int, ref: ObjectRef, end: int, *, is_guess: bool = False) -> Part | None:
        """Return the first `end` bytes of a file that will be begun, to fetch now; None if others need what they take.

        Nothing may be held for `inode` (`holds`). The file is expected until `open` or `drop_expected`.
        """
        if not self.may_expect or not self.expected.has_room(end, is_guess=is_guess):
            return None
        if not is_guess:
            self._trade_guesses(end)
        file = FileParts(inode, ref)
        part = self._add_ahead(Part(file, 0, end, is_expected=True))
        if part is not None:
            file.is_expected, file.is_guess = True, is_guess
            self._add_file(file)
        return part

    def admit(self, size_bytes: int, *, is_guess: bool) -> bool:
        """Make room beside other expected files for one that threads will keep; return whether there is room."""
        if not is_guess:
            self._trade_guesses(size_bytes)
        return not self._lacks_memory and self.has_room_ahead(None, size_bytes) and self._make_room(size_bytes)

    def adopt(self, inode: int) -> int:
        """Turn a guess into a file that an order expects. Return its bytes, 0 if it was no guess."""
        if not self.is_guess(inode):
            return self.expected.small_files.adopt(inode)
        file = self._files[inode]
        self.expected.rank(file, is_guess=False)
        return sum(part.size_bytes for part in file)

    def demote_expected(self) -> None:
        """Turn all expected files into guesses, as there is another table. Threads have dropped theirs."""
        self.expected.small_files.refreshed()
        for file in self._files.values():
            if file.is_expected:
                self.expected.rank(file, is_guess=True)

    def drop_expected(self, inode: int) -> None:
        """Drop what is held of a file that most likely nobody will begin, if it was expected."""
        file = self._files.get(inode)
        if file is None or not file.is_expected:
            self.expected.small_files.drop(inode)
            return
        for part in self.expected.take(file):
            self._drop(part)

    def take_expected(self, inode: int, ref: ObjectRef) -> memoryview | None:
        """Return all of a file that was expected, and keep nothing of it; None if it is not here in one part."""
        file = self._files.get(inode)
        whole = file.whole if file is not None and file.is_expected and file.ref == ref else None
        if whole is None or whole.data is None:
            return None
        data, whole.unread_bytes = whole.data, 0
        self.drop_expected(inode)
        return data

    def file(self, inode: int) -> FileParts | None:
        """Return the parts of a file that is being read, or that is held or in flight in part."""
        return self._files.get(inode)

    def guesses(self) -> list[int]:
        """Return the files that are expected although no order says so."""
        return [*filter(self.is_guess, self._files), *self.expected.small_files.guesses]

    def is_guess(self, inode: int) -> bool:
        """Return whether the file is expected, and no order says so."""
        file = self._files.get(inode)
        return file is not None and file.is_guess

    def land(self, part: Part, data: Buffer) -> None:
        """Hold the `data` of `part`, whose GET delivered."""
        part.data = memoryview(data)
        self._count_flight(part, -1)
        self._fetched_bytes += part.size_bytes
        part.arrived.set()
        if not part.readers:
            self._shelve(part)
        else:
            self._grant()

    def fail(self, part: Part, error: Exception) -> None:
        """Forget `part`, whose GET failed or will not run, and give its readers `error`."""
        part.error = error
        file = part.file
        if part in file.waiting:
            file.waiting.remove(part)
            if not file.waiting:
                self._queue.remove(file)
            if part.room is not None:
                part.room.set()
        else:
            self._count_flight(part, -1)
            self.reserved_bytes -= part.size_bytes
        file.remove(part)
        part.arrived.set()
        self._forget_if_empty(file)
        self._grant()

    def pin(self, part: Part) -> None:
        """Keep `part` for a task that is about to wait for it; the task must `unpin` whatever happens."""
        part.readers += 1

    def unpin(self, part: Part) -> None:
        """Let go of `part`, from which a task has taken its bytes or no longer wants them."""
        part.readers -= 1
        if not part.readers and part.data is not None:
            self._shelve(part)

    def spend(self, part: Part) -> None:
        """Note that everything in `part` was read."""
        if part.shelf is self._fresh or part.shelf is self._left:
            part.shelf.remove(part)
            self._shelve_spent(part)

    @property
    def held_bytes(self) -> int:
        """The bytes of parts that may be evicted."""
        return self._fresh.size_bytes + self.expected.size_bytes + self._left.size_bytes + self.spent_bytes

    @property
    def spent_bytes(self) -> int:
        """The bytes of held parts that were read."""
        return self._spent.size_bytes

    def _touch(self, file: FileParts) -> None:
        if file.is_open and file.ref.size_bytes > self._first_part_bytes:  # a file of one part needs no share
            for idle in self._share.touch(file, self._fetched_bytes):
                for part in idle:
                    self.spend(part)

    def _count_flight(self, part: Part, step: int) -> None:
        """Count one GET more or less (`step` 1 or -1)."""
        self.parts_in_flight += step
        part.file.in_flight += step
        if part.is_demanded:
            part.file.demanded_in_flight += step
        elif part.is_expected:
            self.expected.in_flight += step
            self.expected.in_flight_bytes += step * part.size_bytes
        else:
            self._ahead_in_flight += step

    def _may_start(self, used: int) -> bool:
        """Return whether a connection is free for a kind of parts that has `used` of them."""
        free = self._connections - self.parts_in_flight
        return free > 0 and (not used or used < _USED_PER_FREE_CONNECTION * (free - 1))

    def _make_room(self, size_bytes: int) -> bool:
        """Evict until `size_bytes` fit, spare parts first. Return False, and evict nothing, if all would not do."""
        allowed_bytes = self._limit_bytes - self.reserved_bytes - self.expected.small_files.held()[1] - size_bytes
        if allowed_bytes < 0:
            return False
        while self.held_bytes > allowed_bytes:
            self._drop((self._spent or self._left or self.expected or self._fresh).pop())
        return True

    def _trade_guesses(self, size_bytes: int) -> None:
        """Drop guesses for a file that an order expects, if that makes room enough.

        The newest go first: guesses are fetched in the order of the listing, and the other order is often the same.
        """
        expected, allowed_bytes = self.expected, self._ahead.window_bytes - self.reserved_bytes - size_bytes
        allowed_bytes -= self._fresh.size_bytes
        if expected.held(with_guesses=False)[1] > allowed_bytes:
            return
        while expected.held()[1] > allowed_bytes or not expected.has_room(size_bytes, is_guess=True):
            if expected.guessed:
                self._drop(expected.guessed.pop(is_newest=True))
            elif not expected.small_files.drop_guess():
                return

    def has_room_ahead(self, file: FileParts | None, size_bytes: int) -> bool:
        """Return whether parts ahead may take `size_bytes` beside all that is held of `file` and for other readers."""
        held_bytes = self.reserved_bytes + self._fresh.size_bytes + self.expected.held()[1]
        return held_bytes + (0 if file is None else file.left_bytes) + size_bytes <= self._ahead.window_bytes

    def _add_ahead(self, part: Part) -> Part | None:
        if not self.has_room_ahead(part.file, part.size_bytes):
            return None
        self._make_room(part.size_bytes)  # spare parts are enough: all others fit beside this one
        part.file.add(part)
        self.reserved_bytes += part.size_bytes
        self._count_flight(part, 1)
        return part

    def _grant(self) -> None:
        """Start the parts that wait for a connection or for memory, the files in turn."""
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
            self.reserved_bytes += part.size_bytes
            self._count_flight(part, 1)
            if part.room is not None:
                part.room.set()
            if file.waiting:
                queue.rotate(-1)
            else:
                queue.popleft()
            passed = 0

    def _shelve(self, part: Part) -> None:
        """Make `part` evictable: no task waits for it any more."""
        self.reserved_bytes -= part.size_bytes
        if part.file.is_stale:
            self._drop(part)
        elif part.file.is_open and part.unread_bytes > 0 and not (part.is_left and part.is_demanded):
            (self._left if part.is_left else self._fresh).put(part)
        elif part.file.is_expected:
            self.expected.put(part)
        else:
            self._shelve_spent(part)
        self._grant()

    def _shelve_spent(self, part: Part) -> None:
        """Hold `part` as spent in the place of older ones, or drop it if it is too large."""
        spent, allowed_bytes = self._spent, self._max_spent_bytes - part.size_bytes
        while spent and (spent.size_bytes > allowed_bytes or len(spent) >= self.expected.max_parts):
            self._drop(spent.pop())
        if allowed_bytes < 0:
            self._drop(part)
        else:
            spent.put(part)

    def _drop(self, part: Part) -> None:
        """Forget `part`, which is on no shelf, and its bytes; streams may remember the part itself."""
        part.data = None
        self.unread_dropped_bytes += max(0, part.unread_bytes)
        part.file.remove(part)
        self._forget_if_empty(part.file)

    def _discard(self, file: FileParts) -> None:
        """Drop what is held of `file`, because its inode means another version now."""
        file.is_stale = True
        self._remove_file(file)
        for part in file:
            if part.shelf is not None:
                part.shelf.remove(part)
                self._drop(part)

    def _forget_if_empty(self, file: FileParts) -> None:
        is_needed = file.is_open or file.reads or len(file)
        if not is_needed and self._files.get(file.inode) is file:
            self._remove_file(file)

    def _add_file(self, file: FileParts) -> FileParts:
        self.expected.small_files.threads.claim(file.inode)
        self._files[file.inode] = file
        return file

    def _remove_file(self, file: FileParts) -> None:
        self.expected.small_files.threads.release(file.inode)
        del self._files[file.inode]
