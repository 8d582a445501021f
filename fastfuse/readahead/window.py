"""Decides what to fetch for the readers of one file: pure, no clock, no I/O, no knowledge of what is held.

Events go in (`Window.read`, `came`, `commanded`), commands come out as byte ranges (`Window.demand`, `next_ahead`);
the stream leaves out what the pool holds already.

Each reader of the file is a *cursor*: a run of reads, ``[begin, position)``. A read

* at some cursor's position extends that cursor, and so does one that jumps over less than it asks for;
* anywhere else starts a new cursor, at first of unknown kind.

The kernel sends its readahead as several requests that may arrive in another order. The early one starts a cursor of
its own; when the late one closes the gap, the first cursor absorbs it. So a gap as long as a request is never taken
for progress.

A cursor is *sequential* (and then never goes back: a jump starts another) when it began at 0. It becomes so after
`_SEQUENTIAL_READS` reads if its run is clearly longer than the runs before the last jumps, or these differ and went on:
a random reader of chunks of 4 MiB sends a few consecutive requests for each, and would pay for readahead that nobody
reads. A cursor that began where a sequential one has been or is about to come is the same reader, and goes on as fast.

* A random read fetches exactly its pages. If runs have lately been of about one length, it fetches all of such a run,
  for which the kernel would send one request after the other. Otherwise it fetches as far as the shortest of those that
  became longer. What such reads wait for is counted in `pace`.
* Where several readers take turns, a run goes on behind another's jump. It is sequential only if it is clearly longer
  than all those that ended last.
* A single page behind what was fetched belongs to a map that is read page by page (`MADV_RANDOM`). It fetches as much
  as its run has, or what the kernel asks for elsewhere: else each page would wait for a GET of its own.
* Reads that each end where the last began are *descending*: memcpy reads a map backwards where that suits the
  alignment of its target. More is fetched below, up to twice the run, without a window of its own pace.
* A read where a sequential cursor is about to come is an early request of that one.
* A read near the end of the file that follows nothing looks at a footer: it fetches all of the tail, and counts for
  no pattern.
* Pieces at about equal distances are *strided*: the next pieces are fetched ahead, and nothing between them.
* Runs near to one another are *dense*. The stream then fetches whole parts, ever more of them, the way that they go, if
  all of the file has room in memory.
* A sequential reader fetches whole parts, and keeps a window ahead of itself. The window is a multiple of its run until
  `pace` knows how much the reader takes during one GET.

Parts double from `first_part_bytes` to `part_size_bytes` as the run and the window grow, and are cut at multiples of
their size. After a while all readers of a file thus cut it at the same places, and share the parts.
"""

from fastfuse.readahead.cursor import Cursor, Faults, Latest, RunLengths
from fastfuse.readahead.limits import KERNEL_PAGE_BYTES, KERNEL_REQUEST_BYTES, PAGE_BYTES, ReadaheadConfig, Share
from fastfuse.readahead.pace import ReaderPace, ServicePace
from fastfuse.readahead.ranges import OPENING_PARTS, grown_part_bytes
from fastfuse.readahead.runs import Runs

# Linux takes the second consecutive read as a sign; one more, as a wrong guess here costs a GET.
_SEQUENTIAL_READS = 3
# Bytes ahead per byte read, while nothing better is known: a reader that stops has wasted at most twice what it read.
_SURE_GROWTH = 2
# The same of a reader that did not begin at 0: it reads a tensor or a row group, which ends.
_MIDDLE_GROWTH = 1
# Beyond this, a reader from 0 has proven that it reads on. Its window then grows faster, if it would take more during
# one GET and the file before was read to its end. A reader from the middle may read a tensor, which ends.
_PROVEN_BYTES = 4 << 20
_GROWTH = 8
# Where memory is short, more and smaller parts of a window hide the time to the first byte better. Where many files
# share it, there are no more parts than two thirds of what each may have in flight.
_PARTS_PER_WINDOW = 20
# What Arrow reads for a Parquet footer in two reads, and all that `zipfile` looks through for the end of a directory.
_TAIL_BYTES = 128 << 10
# A read at most so far behind a sequential cursor is a jump back of the same reader: what it took last is held.
_JUMP_BACK_BYTES = 32 << 20


class Window:
    """The readers of one file of `size_bytes`. All offsets are bytes of the file, all ends exclusive."""

    __slots__ = (
        *("_before", "_cap_bytes", "_config", "_first_bytes", "_is_cached", "_is_small", "_last", "_lengths"),
        *("_part_bytes", "_reads", "_runs", "_service", "_size", "faults", "latest", "left", "share"),
    )

    def __init__(
        self, size_bytes: int, config: ReadaheadConfig, service: ServicePace, *, is_cached: bool = False
    ) -> None:
        """Begin without readers. `is_cached`: most likely the kernel has the file, and asks for what it has dropped."""
        self._size = size_bytes
        self._is_cached = is_cached
        # A reader that starts a small file reads it to the end, so all of it is fetched at once.
        self._is_small = size_bytes <= config.part_size_bytes
        self._config = config
        self._service = service
        self._runs = Runs()
        self._last: Cursor | None = None
        self.latest = Latest()
        self._reads = 0
        # What was read ahead for readers that have jumped away, until the stream has released it.
        self.left: list[tuple[int, int]] = []
        self._lengths = RunLengths(config.part_size_bytes)
        # The run before the last jump.
        self._before: Cursor | None = None
        self.faults = Faults()
        self.resize(Share(config.max_window_bytes, config.max_parts_in_flight))

    @property
    def cursors(self) -> tuple[Cursor, ...]:
        """The runs that a read could continue, least recently used first."""
        return tuple(self._runs.values())

    @property
    def pattern(self) -> tuple[str, int]:
        """The pattern of the reader that asked last, and the bytes that may be ahead of it."""
        cursor = self._last
        if cursor is None:
            return "footer" if self._runs else "–", 0
        if self._is_small:
            return "whole", 0
        if cursor.sequential:
            return "sequential", self._window_bytes(cursor)
        return "backward" if cursor.descending else "strided" if cursor.is_strided else "random", 0

    @property
    def is_done(self) -> bool:
        """True if every reader has come to the end of the file, and one that did not only look at its footer."""
        runs = self._runs.values()
        is_only_footer = bool(runs) and all(run.is_tail for run in runs)
        return not is_only_footer and all(run.position == self._size for run in runs)

    def resize(self, share: Share) -> None:
        """Allow `share` ahead of each cursor; a small one gets smaller parts, so that several are on their way."""
        config = self._config
        self.share = share
        self._cap_bytes = min(share.window_bytes, config.max_window_bytes)
        even = self._cap_bytes // max(2, min(_PARTS_PER_WINDOW, share.parts_in_flight * 2 // 3))
        floor = max(KERNEL_REQUEST_BYTES, min(self._cap_bytes // 2, config.first_part_bytes))
        self._part_bytes = min(config.part_size_bytes, 1 << (max(even, floor).bit_length() - 1))
        # A small file is one GET.
        is_small = self._size <= self._part_bytes
        self._first_bytes = self._part_bytes if is_small else min(config.first_part_bytes, self._part_bytes)

    def read(self, offset: int, end: int) -> Cursor:
        """Note that a reader asked for ``[offset, end)``, not empty and within the file. Return its cursor."""
        runs, last = self._runs, self._last
        self._reads += 1
        self.faults.read(offset, end)
        cursor = runs.take(offset, end) or self._start(offset, end)
        if runs:
            cursor = runs.merge(cursor)
        cursor.read_at = self._reads
        if last is not None and last is not cursor and cursor.reads > 1:
            last.is_shared = True
        if not cursor.sequential:
            self._promote(cursor)
        if cursor.pace is not None and not (cursor.begin or self._is_cached):
            self._service.came_to(cursor.pace, cursor.position, self._size)
        runs[cursor.position] = cursor
        if not cursor.is_tail:
            self._last = cursor
        return cursor

    def put_off(self, offset: int, end: int) -> bool:
        """Return whether to refuse a request around a fault of a map: see `Faults.put_off`."""
        last = self._last
        if last is None or self._leader(offset) is not None:
            return False
        return self.faults.put_off(offset, end, last)

    def came(self, cursor: Cursor, now_s: float) -> None:
        """Note that the reader has come to another part."""
        if cursor.pace is not None:
            cursor.pace.came(cursor.position, self._part_bytes, now_s)

    def closed(self) -> None:
        """Note that nobody reads on."""
        if not self._is_small and self._runs:  # a file that nobody read tells nothing
            whole = [cursor for cursor in self._runs.values() if cursor.begin == 0 and cursor.position == self._size]
            self._service.closed(was_whole=bool(whole))
            for cursor in whole:
                if cursor.pace is not None:
                    cursor.pace.came_to_end(self._cap_bytes)
            for cursor in self._runs.values():
                if cursor.pace is not None:
                    self._service.left(cursor.pace)

    def demand(
        self, cursor: Cursor, offset: int, end: int, gap: tuple[int, int], *, is_page: bool = False
    ) -> list[tuple[int, int]]:
        """Return the parts to fetch now, in order, so that ``[offset, end)`` is covered within `gap`.

        `gap` is a range that holds `offset` and that nothing held or in flight touches. For a sequential cursor the
        window starts again behind these parts, as something was refused, lost or evicted. `is_page`: the reader asked
        for this page alone, and the kernel never had it.
        """
        gap_start, gap_end = gap
        leader = None
        if end - offset <= self._part_bytes:  # else memory is so short that each request is a GET of its own
            leader = cursor if cursor.sequential else self._leader(offset)
        start = offset if leader is None else min(offset, leader.position)
        most_bytes = self._config.part_size_bytes
        if leader is None:
            reads_on = is_page and gap_start == start
            start, end, most_bytes = self._random_range(cursor, start, end, reads_on=reads_on)
        start = max(gap_start, start - start % PAGE_BYTES)
        end = min(end, gap_end)
        parts = []
        while start < end:
            part_end = self._page_end(start, end, most_bytes) if leader is None else self._part_end(leader, start)
            part_end = min(part_end, gap_end)
            parts.append((start, part_end))
            start = part_end
        if leader is not None:
            leader.ahead_until = start
        return parts

    def next_ahead(self, cursor: Cursor) -> tuple[int, int] | None:
        """Return the next part to fetch ahead of `cursor`; None if enough is ahead, or nothing is foreseen.

        The answer is the same until `commanded` or another read, so a refused part is asked for again.
        """
        if cursor.descending:
            return self._next_below(cursor)
        if not cursor.sequential:
            return self._next_piece(cursor) if cursor.is_strided else None
        position = cursor.position
        start = cursor.ahead_until
        if start < position:
            start = cursor.ahead_until = position
        if start >= self._size or start >= position + self._window_bytes(cursor):
            return None
        end = self._part_end(cursor, start)
        return (start, end) if end <= position + self._cap_bytes else None

    def beyond(self, cursor: Cursor) -> int:
        """Return how far the window of `cursor` reaches past the end of the file, if it will likely get there."""
        pace = cursor.pace
        if self._is_small or pace is None or not pace.ramp_bytes or cursor.begin or cursor.ahead_until < self._size:
            return 0
        return max(0, cursor.position + self._window_bytes(cursor) - self._size)

    def commanded(self, cursor: Cursor, until: int) -> None:
        """Note that everything ahead of `cursor` up to `until` is held, in flight, or in the page cache."""
        if cursor.stride is not None and cursor.is_strided and not cursor.descending:
            cursor.stride.commanded(until)
        else:
            cursor.ahead_until = until

    def restart_ahead(self) -> None:
        """Look at everything ahead of every cursor again, as the page cache does not have what was left out."""
        for cursor in self._runs.values():
            cursor.ahead_until = min(cursor.ahead_until, cursor.position)

    def forget(self) -> None:
        """Forget all readers after a failure: the next read starts clean, as the first one."""
        self._runs.clear()
        self._last = None
        self.latest = Latest()
        self._lengths = RunLengths(self._config.part_size_bytes)

    def _start(self, offset: int, end: int) -> Cursor:
        runs = self._runs
        cursor = Cursor(offset, end, self._reads)
        if not offset and not self._is_small:
            cursor.pace = ReaderPace(self._service, 0 if self._is_cached else self._service.ramp_bytes)
        cursor.is_tail = offset > 0 and offset >= self._size - _TAIL_BYTES
        before = self._last
        if before is not None and not cursor.is_tail:
            self._lengths.jumped(before.run_bytes)
            self.faults.jumped(before)
            self._before = before
            if self._leader(offset) is None:  # else it is an early request
                cursor.follow(next((run for run in runs.values() if run.steps_to(offset)), self.latest[-1]))
        if not cursor.is_tail:
            self.latest.append(cursor)
        for ended in runs.make_room(self._reads, self._lengths):
            self._leave(ended)
        if cursor.sequential:
            self._leave_others(cursor)
        return cursor

    def _leave_others(self, cursor: Cursor) -> None:
        """Leave the runs that were not read since `cursor` began: most likely they are its reader's, before a jump."""
        for other in self._runs.values():
            if other.read_at < cursor.began_at:
                self._leave(other)

    def _leave(self, cursor: Cursor) -> None:
        """Let go what was read ahead of `cursor`. If it is read on after all, it looks at everything again."""
        if cursor.ahead_until > cursor.position:
            self.left.append((cursor.position, cursor.ahead_until))
            cursor.ahead_until = cursor.position

    def _promote(self, cursor: Cursor) -> None:
        """Make `cursor`, of unknown kind, sequential or descending if it is by now."""
        if cursor.reads < _SEQUENTIAL_READS or not self._lengths.are_exceeded_by(cursor):
            return
        if cursor.stride is not None and cursor.stride.has_longer(cursor, self._part_bytes):
            return
        if cursor.descents >= _SEQUENTIAL_READS - 1:
            cursor.descending = True
            return
        if cursor.run_bytes <= min(cursor.reads * KERNEL_PAGE_BYTES, self._first_bytes):
            return  # page by page, and not far enough yet for a window: `_random_range` fetches ever more
        cursor.sequential = True
        if not self._is_small:
            cursor.pace = ReaderPace(self._service)
        for other in self._runs.values():
            if other.sequential and other.position - _JUMP_BACK_BYTES <= cursor.begin < other.ahead_until:
                cursor.credit_bytes = max(0, other.run_bytes + other.credit_bytes - cursor.run_bytes)
                if other.pace is not None:
                    cursor.pace = other.pace.successor()
                break
        self._leave_others(cursor)

    def _leader(self, offset: int) -> Cursor | None:
        """Return the sequential cursor that is about to come to `offset`, so that a read there is an early request."""
        for cursor in self._runs.values():
            if cursor.sequential and cursor.position <= offset:
                # No further than it has read ahead, or a part of what it would if memory allowed.
                near_bytes = min(self._window_bytes(cursor), self._config.part_size_bytes)
                if offset < max(cursor.ahead_until, cursor.position + near_bytes):
                    return cursor
        return None

    def _window_bytes(self, cursor: Cursor) -> int:
        run_bytes = cursor.run_bytes + cursor.credit_bytes
        window = max(self._first_bytes, (_MIDDLE_GROWTH if cursor.begin else _SURE_GROWTH) * run_bytes)
        pace = cursor.pace
        if pace is not None:
            if pace.limit_bytes is not None:
                window = min(window, pace.limit_bytes)
            elif not self._service.was_left_early:
                window = max(window, pace.ramp_bytes)
                is_proven = not cursor.begin and run_bytes > _PROVEN_BYTES
                if is_proven and not self._is_cached:
                    window = max(window, min(pace.expected_bytes, _GROWTH * run_bytes))
            if (leaves_at := self._leaves_at(cursor)) is not None:
                window = min(window, leaves_at - cursor.position)
        elif cursor.begin == 0 and self._is_small:
            window = self._size
        return min(window, self._cap_bytes)

    def _leaves_at(self, cursor: Cursor) -> int | None:
        """Return where a reader from the beginning will likely leave the file, as those before it; None if unknown."""
        left_bytes = self._service.left_bytes
        return None if self._is_small or cursor.begin or cursor.position > left_bytes else left_bytes

    def _part_end(self, cursor: Cursor, start: int) -> int:
        """Return where the part at `start` ends, in the run of `cursor`: doubling sizes, cut at their multiples."""
        size = self._first_bytes
        if start < size and not self._is_small:
            size = max(size // OPENING_PARTS, min(size, KERNEL_REQUEST_BYTES))
        else:
            run_bytes = start - cursor.begin + cursor.credit_bytes
            # Where memory is short, more parts may be in flight only because all of them are smaller.
            parts_in_flight = self.share.parts_in_flight * self._part_bytes // self._config.part_size_bytes
            ahead_bytes = max(0, start - cursor.position)
            size = grown_part_bytes(run_bytes, ahead_bytes, parts_in_flight, size, self._part_bytes)
        end = start + size
        end -= end % size
        leaves_at = self._leaves_at(cursor)
        if leaves_at is not None and start < leaves_at < end:
            return leaves_at
        rest = self._size - end
        # A short rest is no GET of its own, unless the part would be larger than any.
        return self._size if rest < size // 2 and self._size - start <= self._part_bytes else end

    def _random_range(self, cursor: Cursor, start: int, end: int, *, reads_on: bool) -> tuple[int, int, int]:
        """Return what to fetch for a random read of ``[start, end)``, and how much per GET.

        `reads_on`: it is a page alone, and what lies before it was fetched, though the run may be forgotten.
        """
        most_bytes = self._config.part_size_bytes
        if cursor.is_tail:
            return min(start, self._size - _TAIL_BYTES), self._size, most_bytes
        wanted = self.faults.wanted(cursor.begin, start, end)
        if wanted is not None:
            return wanted[0], min(wanted[1], self._size), most_bytes
        if reads_on:
            more_bytes = min(max(KERNEL_REQUEST_BYTES, start - cursor.begin), self._part_bytes)
            return start, min(start + more_bytes, self._size), most_bytes
        before = self._before
        if before is not None and start == cursor.begin:
            if before.reads == 1 and end - start > KERNEL_PAGE_BYTES and not self._lengths.knows_ends:
                return start, end, most_bytes  # the kernel faults a map in one request for all that it has not
            usual_bytes = self._lengths.usual_bytes
            usual = (end - usual_bytes, end) if before.descents else (start, start + usual_bytes)
            if end - start < usual_bytes <= self._first_bytes and usual[0] >= 0:
                return usual[0], min(usual[1], self._size), max(end - start, self._first_bytes // OPENING_PARTS)
        likely_end = cursor.begin + min(self._lengths.likely_bytes(start - cursor.begin), self._cap_bytes)
        if likely_end > end:
            step_bytes = max(end - start, self._first_bytes // OPENING_PARTS, (likely_end - start) // OPENING_PARTS)
            return start, min(likely_end, self._size), min(step_bytes + -step_bytes % PAGE_BYTES, most_bytes)
        return start, end, most_bytes

    def _next_below(self, cursor: Cursor) -> tuple[int, int] | None:
        start, end = cursor.next_below(min(_SURE_GROWTH * cursor.run_bytes, self._cap_bytes // 2))
        step_bytes = min((end - start) // OPENING_PARTS, self._part_bytes)
        start = cursor.ahead_until
        return (start, self._page_end(start, min(start + step_bytes, end), self._part_bytes)) if start < end else None

    def _next_piece(self, cursor: Cursor) -> tuple[int, int] | None:
        assert cursor.stride is not None
        piece = cursor.stride.next_piece(self.share.parts_in_flight, self._part_bytes)
        if piece is None or piece[0] >= self._size or piece[1] > cursor.position + self._cap_bytes:
            return None
        start = piece[0] - piece[0] % PAGE_BYTES
        return start, self._page_end(start, piece[1], self._part_bytes)

    def _page_end(self, start: int, end: int, most_bytes: int) -> int:
        end = min(end, start + most_bytes)
        return min(end + -end % PAGE_BYTES, self._size)
