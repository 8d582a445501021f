"""What to fetch for the readers of one file: pure decisions, no clock, no I/O, no knowledge of what is held.

Events go in (`Window.read`, `Window.commanded`), commands come out as byte ranges (`Window.demand`,
`Window.next_ahead`); the stream leaves out what the pool holds already.

Each reader of the file is a *cursor*: a run of reads without a gap, ``[begin, position)``. A read

* at some cursor's position extends that cursor;
* anywhere else starts a new cursor, at first of unknown kind.

The kernel sends its readahead as several requests that may arrive in another order. The early one starts a cursor of
its own; when the late one closes the gap, the first cursor absorbs it. So a gap is never taken for progress, and a
run counts only bytes that were really asked for.

A cursor is *sequential* (never back) when it began at 0, or after `_SEQUENTIAL_READS` reads if its run is also longer
than the run that the file's reader last jumped away from: who reads at random in chunks of 4 MiB sends a few
consecutive requests each time and would pay for readahead that nobody reads.

* A random read fetches exactly its pages, unless a sequential cursor is about to come there: that is an early request.
* A sequential one fetches whole parts, and keeps a window ahead of itself that grows with the run.

Parts double from `first_part_bytes` to `part_size_bytes` and are cut at multiples of their size, so that after the
first few parts all readers of a file cut it at the same places, and share the parts.
"""

from fastfuse.readahead.config import PAGE_BYTES, ReadaheadConfig, Share

__all__ = ["Cursor", "Window"]

# Linux itself takes the second consecutive read as a sign; one more, as a wrong guess here costs a GET.
_SEQUENTIAL_READS = 3
# Bytes ahead per byte read. The run triples with each window, so the first MiB is five round trips from a window of
# 256 MiB; and who stops early has wasted at most twice what it read.
_GROWTH = 2
# Readers of one file at different places, and requests of one reader that overtook another, that are told apart.
# Linux keeps at most 12 background requests (max_background) unless told otherwise.
_MAX_CURSORS = 16
# A run longer than this, met by another cursor, is a second reader and no early request: the kernel keeps less than
# this many bytes of readahead in flight for one file (read_ahead_kb, 4 MiB by our tuning, twice).
_REORDERED_BYTES = 16 << 20
# Where memory is short, more and smaller parts of a window hide the time to the first byte better: a window of 48 MiB
# brings one reader 0.43 GB/s in parts of 8 MiB and 1.07 GB/s in parts of 2 MiB (simulated, 20 ms and 90 MB/s per
# connection); still smaller ones cost CPU per GET.
_PARTS_PER_WINDOW = 16
# No part is cut smaller to fit into a small share of the memory: the kernel's default request.
_SMALLEST_PART_BYTES = 128 << 10


class Cursor:
    """One run of reads. Invariants: ``begin < position``; ``[begin, position)`` was asked for without a gap."""

    __slots__ = ("ahead_until", "begin", "position", "reads", "sequential")

    def __init__(self, begin: int, end: int) -> None:
        self.begin = begin
        self.position = end
        self.reads = 1
        self.sequential = begin == 0
        # Everything below was commanded, as demand or ahead.
        self.ahead_until = begin

    @property
    def run_bytes(self) -> int:
        return self.position - self.begin


class Window:
    """The readers of one file of `size_bytes`. All offsets are bytes of the file, all ends exclusive."""

    __slots__ = (
        "_cap_bytes",
        "_config",
        "_first_bytes",
        "_jumped_run_bytes",
        "_last",
        "_part_bytes",
        "_runs",
        "_size",
        "share",
    )

    def __init__(self, size_bytes: int, config: ReadaheadConfig) -> None:
        self._size = size_bytes
        self._config = config
        # By position, least recently used first.
        self._runs: dict[int, Cursor] = {}
        self._last: Cursor | None = None
        self._jumped_run_bytes = 0
        self.resize(Share(config.max_window_bytes, config.max_parts_in_flight))

    @property
    def cursors(self) -> tuple[Cursor, ...]:
        """The runs that a read could continue, least recently used first."""
        return tuple(self._runs.values())

    def resize(self, share: Share) -> None:
        """Allow `share` ahead of each cursor; a small one gets smaller parts, so that several are on their way."""
        config = self._config
        self.share = share
        self._cap_bytes = min(share.window_bytes, config.max_window_bytes)
        even = self._cap_bytes // max(2, min(_PARTS_PER_WINDOW, 2 * share.parts_in_flight))
        floor = max(_SMALLEST_PART_BYTES, min(self._cap_bytes // 2, config.first_part_bytes))
        self._part_bytes = min(config.part_size_bytes, 1 << (max(even, floor).bit_length() - 1))
        # A small file is one GET.
        is_small = self._size <= self._part_bytes
        self._first_bytes = self._part_bytes if is_small else min(config.first_part_bytes, self._part_bytes)

    def read(self, offset: int, end: int) -> Cursor:
        """A reader asked for ``[offset, end)``, not empty and within the file: the cursor that this belongs to."""
        runs = self._runs
        cursor = runs.pop(offset, None)
        if cursor is None:
            cursor = self._start(offset, end)
        else:
            cursor.reads += 1
            cursor.position = end
        if runs:
            cursor = self._merge(cursor)
        if not cursor.sequential:
            cursor.sequential = cursor.reads >= _SEQUENTIAL_READS and cursor.run_bytes > self._jumped_run_bytes
        runs[cursor.position] = self._last = cursor
        return cursor

    def demand(self, cursor: Cursor, offset: int, end: int, gap: tuple[int, int]) -> list[tuple[int, int]]:
        """The parts to fetch now, in order, so that ``[offset, end)`` is covered within `gap`.

        `gap` is a range that holds `offset` and that nothing held or in flight touches. For a sequential cursor the
        window starts again behind these parts: something was refused, lost or evicted, and is found on the way.
        """
        gap_start, gap_end = gap
        leader = None
        if end - offset <= self._part_bytes:  # else parts are so short of memory that each request is a GET of its own
            leader = cursor if cursor.sequential else self._leader(offset)
        start = offset if leader is None else min(offset, leader.position)
        start = max(gap_start, start - start % PAGE_BYTES)
        end = min(end, gap_end)
        parts = []
        while start < end:
            part_end = self._page_end(start, end) if leader is None else self._part_end(leader.begin, start)
            part_end = min(part_end, gap_end)
            parts.append((start, part_end))
            start = part_end
        if leader is not None:
            leader.ahead_until = start
        return parts

    def next_ahead(self, cursor: Cursor) -> tuple[int, int] | None:
        """The next part to fetch ahead of `cursor`, or None: enough is ahead, or the cursor is not sequential.

        The same answer until `commanded` or another read: so a refused part is asked for again.
        """
        if not cursor.sequential:
            return None
        position = cursor.position
        start = cursor.ahead_until
        if start < position:
            start = cursor.ahead_until = position
        if start >= self._size or start >= position + self._window_bytes(cursor):
            return None
        end = self._part_end(cursor.begin, start)
        return (start, end) if end <= position + self._cap_bytes else None

    def commanded(self, cursor: Cursor, until: int) -> None:
        """Everything ahead of `cursor` up to `until` is held or on its way."""
        cursor.ahead_until = until

    def forget(self) -> None:
        """After a failure: the next read starts clean, as the first one."""
        self._runs.clear()
        self._last = None
        self._jumped_run_bytes = 0

    def _start(self, offset: int, end: int) -> Cursor:
        last = self._last
        if last is not None:
            # A run of a part or more was worth its readahead; it says nothing about the next.
            run_bytes = last.run_bytes
            self._jumped_run_bytes = run_bytes if run_bytes <= self._config.part_size_bytes else 0
        if len(self._runs) >= _MAX_CURSORS:
            victim = next((c for c in self._runs.values() if not c.sequential), None)
            del self._runs[victim.position if victim is not None else next(iter(self._runs))]
        return Cursor(offset, end)

    def _leader(self, offset: int) -> Cursor | None:
        """The sequential cursor that is about to come to `offset`: the read there is an early request of it."""
        for cursor in self._runs.values():
            if cursor.sequential and cursor.position <= offset:
                # No further than it has read ahead, or a part of what it would if memory allowed.
                near_bytes = min(self._window_bytes(cursor), self._config.part_size_bytes)
                if offset < max(cursor.ahead_until, cursor.position + near_bytes):
                    return cursor
        return None

    def _merge(self, cursor: Cursor) -> Cursor:
        """`cursor` was extended: absorb early requests that it reached; yield to a reader that was here before."""
        runs = self._runs
        reached = True
        while reached:
            reached = False
            for other in runs.values():
                if other.begin == cursor.position and other.run_bytes <= _REORDERED_BYTES:
                    del runs[other.position]
                    cursor.position = other.position
                    cursor.reads += other.reads
                    reached = True
                    break
        twin = runs.pop(cursor.position, None)
        return cursor if twin is None or twin.run_bytes < cursor.run_bytes else twin

    def _window_bytes(self, cursor: Cursor) -> int:
        window = max(self._first_bytes, _GROWTH * cursor.run_bytes)
        if cursor.begin == 0 and self._size <= self._config.part_size_bytes:
            # Who starts a small file reads it to the end: all of it at once.
            window = self._size
        return min(window, self._cap_bytes)

    def _part_end(self, begin: int, start: int) -> int:
        """Where the part at `start` ends, for a run from `begin`: doubling sizes, cut at multiples of the size."""
        size = self._first_bytes
        grown = start - begin
        if grown >= 2 * size:
            size = min(self._part_bytes, 1 << (grown.bit_length() - 1))
        end = start + size
        end -= end % size
        rest = self._size - end
        # A short rest is no GET of its own, unless the part would be larger than any.
        return self._size if rest < size // 2 and self._size - start <= self._part_bytes else end

    def _page_end(self, start: int, end: int) -> int:
        page_end = end + -end % PAGE_BYTES
        return min(page_end, self._size, start + self._config.part_size_bytes)
