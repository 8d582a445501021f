"""Which bytes of one open file the kernel's page cache most likely has: readers have read them, the pool let them go.

A reader that jumps back and forth comes with its window to places that were read before. The kernel does not ask for
them again, so nobody would read what was fetched there. If it does ask for more than single pages of them, it does not
keep what it gets (a file larger than the page cache, or a reader past it), and all of them are forgotten. Pure.
"""

from bisect import bisect_right

__all__ = ["CachedRanges"]

# Random readers leave a range each time. Past so many the short ones are forgotten, and all if that is not enough.
_MAX_RANGES = 1024
# Readahead goes around a range of so much, the kernel's default request, but does not make two GETs of one for less.
_LONG_BYTES = 128 << 10
# The kernel drops single pages here and there when memory is short, and `drop_caches` drops those that nobody has
# mapped. A reader that comes back for the whole file asks for more than this with its first GET.
_MAX_LOST_BYTES = 128 << 10


class CachedRanges:
    """Ranges of one file, in order. Invariant: they are not empty and do not touch."""

    __slots__ = ("_ends", "_lost_bytes", "_starts", "losses")

    def __init__(self) -> None:
        # What was fetched again since the ranges were forgotten last.
        self._lost_bytes = 0
        # How many times they were forgotten because the kernel does not keep them.
        self.losses = 0
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, start: int, end: int) -> None:
        """Note that ``[start, end)``, which is not empty, was read."""
        starts, ends = self._starts, self._ends
        first = self._first_after(start - 1)
        last = bisect_right(starts, end)
        if first < last:
            start, end = min(start, starts[first]), max(end, ends[last - 1])
        starts[first:last] = [start]
        ends[first:last] = [end]
        if len(starts) > _MAX_RANGES:
            self._thin()

    def end_at(self, offset: int) -> int:
        """Return where the range that holds `offset` ends, or `offset` if there is none."""
        index = self._first_after(offset)
        return self._ends[index] if index < len(self) and self._starts[index] <= offset else offset

    def clip(self, gap: tuple[int, int], offset: int) -> tuple[int, int]:
        """Return what of `gap` is worth a GET that `offset` is in; requires that no range holds `offset`.

        It begins after the range before. It ends at a long range, or at one that reaches the end of the gap.
        """
        index = self._first_after(offset)
        start, end = gap
        if index:
            start = max(start, self._ends[index - 1])
        for next_start, next_end in zip(self._starts[index:], self._ends[index:], strict=True):
            if next_end >= end or next_end - next_start >= _LONG_BYTES:
                return start, min(end, next_start)
        return start, end

    def overlaps(self, start: int, end: int) -> bool:
        """Return whether a byte of ``[start, end)`` is in a range."""
        index = self._first_after(start)
        return index < len(self) and self._starts[index] < end

    def lose(self, size_bytes: int) -> bool:
        """Note that so much is fetched again. Return whether it is too much: then all ranges are forgotten."""
        self._lost_bytes += size_bytes
        if self._lost_bytes < _MAX_LOST_BYTES:
            return False
        self._lost_bytes = 0
        self.losses += 1
        self._starts.clear()
        self._ends.clear()
        return True

    def _first_after(self, offset: int) -> int:
        """Return the index of the first range that ends after `offset`."""
        return bisect_right(self._ends, offset)

    def _thin(self) -> None:
        """Forget the short ranges, and the long ones too where most are long."""
        kept = [(start, end) for start, end in zip(self._starts, self._ends, strict=True) if end - start >= _LONG_BYTES]
        if len(kept) > _MAX_RANGES // 2:
            kept.clear()
        self._starts = [start for start, _ in kept]
        self._ends = [end for _, end in kept]
