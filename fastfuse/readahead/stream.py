"""One file that is read: carries out the window's commands with the pool's memory and ranged GETs.

Awaits are the lock boundaries: there is none between a look into the index and what is done with the answer.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import trio

from fastfuse.objects import Buffer, ObjectRef
from fastfuse.readahead.cursor import Cursor
from fastfuse.readahead.fetches import Fetches
from fastfuse.readahead.limits import KERNEL_PAGE_BYTES, PAGE_BYTES, ReadaheadConfig
from fastfuse.readahead.pace import Rest, ServicePace
from fastfuse.readahead.parts import FileParts, Part
from fastfuse.readahead.pool import PartPool
from fastfuse.readahead.ranges import OPENING_PARTS, parts_around
from fastfuse.readahead.window import Window

# The rest of a file comes over more connections, but nobody asked for its bytes. A price at the rate of few of them
# spares the network where a library reads a few places: docs/MEASUREMENTS.md.
_PRICED_CONNECTIONS = 4
# Placeholders for a stream that has read no part and has no window yet.
_NO_PART = Part(FileParts(0, ObjectRef("", "", 0, "")), 0, 0)
_NO_WINDOW = Window(0, ReadaheadConfig(), ServicePace())


@dataclass(slots=True, eq=False, repr=False)
class Stream:
    """Reads one version of one object for all its readers.

    If a task is cancelled while it waits, the fetch goes on for the others, and ends in the pool.
    """

    file: FileParts
    _pool: PartPool
    _config: ReadaheadConfig
    _fetches: Fetches
    # Takes the inode, how far past the end of the file its window reaches, and how far the reader is from that end.
    _beyond: Callable[[int, int, int], None]
    # Most likely the kernel has the file, and asks only for what it has dropped.
    _is_cached: bool
    # True once anything was asked for.
    was_read: bool = False
    # Made when something is to be foreseen, so not for a small file that is there and read at once.
    window: Window = _NO_WINDOW
    _cursor: Cursor | None = None
    # The part read last. This pins no memory: the pool takes the bytes of a part that it evicts.
    _part: Part = _NO_PART
    _rest: Rest = field(default_factory=Rest)
    # These ranges of the rest are wanted, in this order.
    _rest_parts: list[tuple[int, int]] = field(default_factory=list)

    async def read(self, offset: int, end: int, ends_s: float = inf) -> Buffer:
        """Return the bytes of ``[offset, end)``, not empty and within the file; a slice of a part if one has them all.

        Raise the `ReadError` of a part that could not be fetched, or a `DeadlineError` where the read waits for too
        long, or until `ends_s` if that is given; the next read starts clean.
        """
        data = self.at_hand(offset, end)
        return data if data is not None else await self._read_parts(self._foresee(offset, end), offset, end, ends_s)

    def at_hand(self, offset: int, end: int) -> memoryview | None:
        """Return what `read` would if one part that is there has all of it, None otherwise."""
        self.was_read = True
        part = self._part
        if part.data is None or offset < part.start or end > part.end:
            found = self.file.at(offset)
            if found is None or found.data is None or end > found.end:
                return None
            part = found
        self._fetches.counts.hits += 1
        if end - offset == self.file.ref.size_bytes:
            return self._take(part, offset, end)  # all of a small file: nothing follows
        cursor = self._foresee(offset, end)
        piece = self._take(part, offset, end)  # first, as what follows may evict `part`
        if part is not self._part:
            self._part = part
            self._pool.touch(part)
            self._resize()
            self.window.came(cursor, trio.current_time())
            # Once in a part: a window has a part to spare.
            self._read_ahead(cursor)
        return piece

    @property
    def is_done(self) -> bool:
        """True if no reader has anything left to read, and no read is under way."""
        # A reader at random may come to the end at any time, and goes on.
        return not (self.file.reads or self._rest.times_due) and self.window.is_done

    def fetch_whole(self) -> None:
        """Fetch all of a small file for its reader, unless some of it is there or others need what it takes."""
        if not len(self.file) and self._try_ahead(0, self.file.ref.size_bytes) is not None:
            self._fetches.counts.demanded_parts += 1

    def fetch(self, start: int, end: int) -> bool:
        """Start the fetches of what is missing in ``[start, end)``, all of which will be read.

        Return False if others need what they take.
        """
        while start < end:
            part = self.file.at(start) or self._start_ahead(start, end)
            if part is None or not self._pool.renew(part, start):
                return False
            start = part.end
        return True

    def close(self) -> None:
        """Stop reading ahead, because nobody reads on."""
        self._cursor = None
        self.window.closed()
        self._pool.close(self.file)

    def _foresee(self, offset: int, end: int) -> Cursor:
        """Return the cursor of the reader that asks for ``[offset, end)``."""
        if self.window is _NO_WINDOW:
            self.window = Window(
                self.file.ref.size_bytes, self._config, self._fetches.service, is_cached=self._is_cached
            )
        self._cursor = cursor = self.window.read(offset, end)
        if self.window.left:
            self._leave()
        if unwanted := self.window.faults.unwanted:
            self._fetches.drop_pages(self.file.inode, unwanted.copy())
            unwanted.clear()
        return cursor

    def _leave(self) -> None:
        """Let go what was read ahead for readers that have jumped away."""
        left = self.window.left
        for part in self.file:
            if any(part.start < end and start < part.end for start, end in left):
                self._pool.rank(part, is_left=True)
        left.clear()

    async def _read_parts(self, cursor: Cursor, offset: int, end: int, ends_s: float) -> Buffer:
        """Do as `read`, where bytes are missing, in flight, or in more than one part."""
        counts, missing_bytes = self._fetches.counts, self.file.missing_bytes(offset, end)
        began_s = trio.current_time() if ends_s == inf else ends_s - self._config.read_deadline_s
        if missing_bytes:
            counts.waits += 1
        else:
            counts.hits += 1
        self._pool.enter(self.file)
        before = self.file.at(offset - 1)
        if before is not None and before.data is None and cursor.begin < offset:
            self.window.faults.came_together(cursor, end - offset)
        try:
            self._resize()
            self._demand(cursor, offset, end, ends_s)
            self._read_ahead(cursor)
            part = self.file.at(offset)
            if part is not None and end <= part.end:
                piece = await self._next_piece(cursor, offset, end, began_s)
            else:
                piece = await self._join_pieces(cursor, offset, end, began_s)
            self.window.came(cursor, trio.current_time())
            if missing_bytes and self._cursor is not None:  # the stream was not closed meanwhile
                self._weigh_rest(cursor)
            counts.waited_bytes += missing_bytes
            return piece
        finally:
            self._pool.leave(self.file)

    async def _join_pieces(self, cursor: Cursor, offset: int, end: int, began_s: float) -> memoryview:
        joined, done = memoryview(b""), 0
        while done < end - offset:
            piece = await self._next_piece(cursor, offset + done, end, began_s)
            # Not before the first piece: reads that wait hold no memory.
            joined = joined or await self._fetches.memory(self.file.ref, end - offset, began_s)
            joined[done : done + len(piece)] = piece
            done += len(piece)
            del piece  # or the part would be held while the read waits for the next one
        return joined.toreadonly()

    async def _next_piece(self, cursor: Cursor, offset: int, end: int, began_s: float) -> memoryview:
        """Return what the part at `offset` has of ``[offset, end)``, once it is there, to a read from `began_s` on."""
        part = self.file.at(offset)
        if part is None:  # evicted again while this read waited for an earlier part
            self._demand(cursor, offset, end)
            part = self.file.at(offset)
            assert part is not None
        self._part = part
        if part.data is not None:
            return self._take(part, offset, min(end, part.end))
        self._pool.pin(part)
        waits = cursor.pace if cursor.is_foreseen else self._rest
        if waits is not None:
            waits.waits(trio.current_time())
        try:
            with trio.move_on_at(began_s + self._config.read_deadline_s):
                await part.arrived.wait()
            if part.arrived.is_set() and part.error is None:
                return self._take(part, offset, min(end, part.end))
        finally:
            self._pool.unpin(part)
            if waits is not None:
                waits.goes_on(trio.current_time())
        self.window.forget()
        self._cursor = None
        if part.error is not None:
            raise part.error
        late = self._fetches.late(self.file.ref, began_s)
        # Nobody waits for a turn of what this read wanted any more; a read that comes to such a part later asks again.
        for part in [one for one in self.file.waiting if offset < one.end and one.start < end and not one.readers]:
            self._pool.fail(part, late)
        raise late

    def _take(self, part: Part, offset: int, end: int) -> memoryview:
        data = part.data
        assert data is not None
        part.unread_bytes -= end - offset
        if part.unread_bytes <= 0:
            self._pool.spend(part)
        return data[offset - part.start : end - part.start]

    def _demand(self, cursor: Cursor, offset: int, end: int, ends_s: float = inf) -> None:
        """Start the fetches of what is missing in ``[offset, end)``, which end at `ends_s`."""
        file, is_page = self.file, end - offset <= KERNEL_PAGE_BYTES
        while offset < end:
            part = file.at(offset)
            if part is not None:
                offset = part.end
                continue
            gap, first = file.gap(offset), offset
            is_lost = file.cached.overlaps(offset, min(end, gap[1]))
            gap = (max(gap[0], offset - offset % PAGE_BYTES), gap[1]) if is_lost else file.cached.clip(gap, offset)
            for start, part_end in self.window.demand(cursor, offset, end, gap, is_page=is_page and not is_lost):
                self._fetches.counts.demanded_parts += 1
                part = self._pool.demand(file, start, part_end)
                part.is_left, part.ends_s = not cursor.is_foreseen, ends_s
                self._fetches.fetch(part, self._landed)
                offset = part_end
            if is_lost and file.cached.lose(min(offset, end) - first):
                self.window.restart_ahead()

    def _resize(self) -> None:
        share = self._pool.share
        if share is not self.window.share:
            self.window.resize(share)

    def _read_ahead(self, cursor: Cursor) -> None:
        """Start the fetches that the window wants and the pool allows, and then those of the rest."""
        window = self.window
        if cursor.is_strided or cursor.sequential:
            self._leave_passed(cursor)
        while (wanted := window.next_ahead(cursor)) is not None:
            until = self._cover(*wanted, is_left=not cursor.sequential)
            if until is None:
                return
            window.commanded(cursor, until)
        beyond_bytes = window.beyond(cursor)
        if beyond_bytes:
            self._beyond(self.file.inode, beyond_bytes, self.file.ref.size_bytes - cursor.position)
        wants_all = self._rest.times_due and self._rest_parts
        if window.latest.dense_bytes and not cursor.is_foreseen and not wants_all and self._has_room_for_rest():
            # Twice as far as they went, as ahead of a reader in sequence.
            self._want_rest(cursor, 1 + 2 * window.latest.dense_bytes // self._config.part_size_bytes)
        self._fetch_rest()

    def _leave_passed(self, cursor: Cursor) -> None:
        """Let go what readers have passed where memory is short: it would stay, as they have not read all of it."""
        part_bytes = self._config.part_size_bytes
        if self._pool.has_room_ahead(self.file, part_bytes):
            return
        if cursor.sequential:
            # It may leave out less than a request at a time, and a late request may be on its way.
            readers = (cursor, *self.window.cursors)
            first, end = cursor.begin, min(run.position for run in readers if run.sequential) - part_bytes
        else:
            first, end = 0, min(run.begin for run in self.window.latest)
        for part in self.file:
            if first <= part.start and part.end <= end and (part.is_left or cursor.sequential):
                self._pool.spend(part)

    def _cover(self, start: int, end: int, *, is_left: bool) -> int | None:
        """Return the end of what is held, in flight or in the page cache from `start` on, or of a new part.

        Return None if others need what it takes. `is_left`: no reader is known to come there.
        """
        cached_end = self.file.cached.end_at(start)
        if cached_end > start:
            return min(cached_end, end)
        part = self.file.at(start)
        if part is None:
            part = self._start_ahead(*self.file.cached.clip((start, end), start))
            if part is None:
                return None
            part.is_left = is_left
        elif not is_left and not self._pool.renew(part, start):
            return None
        return part.end

    def _has_room_for_rest(self) -> bool:
        """Return whether all of the file has room in memory, so that nothing of it is fetched twice."""
        return self._pool.has_room_ahead(self.file, self.file.ref.size_bytes - self.file.size_bytes)

    def _weigh_rest(self, cursor: Cursor) -> None:
        """Fetch the rest of the file from now on, if reads at random places have waited for as long as that takes."""
        file, config, service = self.file, self._config, self._fetches.service
        rest_bytes = file.ref.size_bytes - file.size_bytes
        if cursor.is_foreseen or not rest_bytes or not self._has_room_for_rest():
            return
        if not service.knows(config.first_part_bytes // OPENING_PARTS):
            # GETs of single pages do not tell what the rest takes, so a larger one finds out.
            start = min(cursor.position, file.ref.size_bytes - 1)
            start -= start % PAGE_BYTES
            self._cover(start, min(start + config.first_part_bytes, file.ref.size_bytes), is_left=True)
        in_flight = min(_PRICED_CONNECTIONS, self._pool.share.parts_in_flight)
        if self._rest.begin_if_due(service.fetch_s(rest_bytes, config.part_size_bytes, in_flight)):
            self._want_rest(cursor)
            self._fetch_rest()

    def _want_rest(self, cursor: Cursor, most_ahead: int | None = None) -> None:
        """Want all of the file from where the reader is, the way that it goes, or `most_ahead` parts that way."""
        size_bytes, part_bytes = self.file.ref.size_bytes, self._config.part_size_bytes
        is_down = self.window.latest.are_falling
        self._rest_parts = parts_around(cursor.begin, size_bytes, part_bytes, is_down=is_down, most_ahead=most_ahead)

    def _fetch_rest(self) -> None:
        parts = self._rest_parts
        while parts:
            start, end = parts[0]
            until = self._cover(start, end, is_left=True)
            if until is None:
                return
            parts[:1] = [(until, end)] if until < end else []

    def _start_ahead(self, start: int, end: int) -> Part | None:
        """Return a new part from `start` on, to `end` at most; None if others need what it takes."""
        end = min(end, self.file.gap(start)[1])
        if self._fetches.service.is_full(self._pool.parts_in_flight, end - start):
            return None
        part = self._try_ahead(start, end)
        self._fetches.counts.ahead_parts += part is not None
        return part

    def _try_ahead(self, start: int, end: int) -> Part | None:
        part = self._pool.try_ahead(self.file, start, end)
        if part is not None:
            self._fetches.fetch(part, self._landed)
        return part

    def _landed(self) -> None:
        """Read on ahead, as a part of this file is there."""
        if self._cursor is not None:
            self._read_ahead(self._cursor)
