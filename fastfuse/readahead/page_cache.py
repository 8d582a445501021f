"""Remembers what the kernel's page cache most likely has: files (`Delivered`), ranges of one (`CachedRanges`). Pure.

A second read of the same bytes makes no request while the kernel keeps them. What the kernel has is therefore not read
ahead: nobody would take it from here. The kernel reports the inodes that it forgets, but no pages that it drops; a
request for bytes that it was given shows that it dropped them, and one that never comes that it has them.
"""

from bisect import bisect_right

from fastfuse.readahead.limits import KERNEL_REQUEST_BYTES

# A few misses of files that the page cache serves otherwise are no sign.
_MANY_MISSES = 8
# Beyond this all ranges of a file are forgotten.
_MAX_RANGES = 1024


class Inodes:
    """A set of files, one bit per inode. Inode numbers are never used again, so a refresh is fine."""

    def __init__(self) -> None:
        self._bits = bytearray()

    def __contains__(self, inode: int) -> bool:
        at = inode >> 3
        return at < len(self._bits) and bool(self._bits[at] & (1 << (inode & 7)))

    def add(self, inode: int) -> bool:
        """Add `inode`. Return whether it was there before."""
        at, bit = inode >> 3, 1 << (inode & 7)
        bits = self._bits
        if at >= len(bits):
            bits.extend(bytes(at + 1 - len(bits) + len(bits) // 8))
        was = bits[at] & bit
        bits[at] |= bit
        return bool(was)

    def discard(self, inode: int) -> None:
        """Remove `inode` if it is there."""
        if inode in self:
            self._bits[inode >> 3] &= ~(1 << (inode & 7))


class Delivered(Inodes):
    """The files that were begun before, and that the kernel has not forgotten since; and those that have `failed`.

    Nothing is taken for cached once the kernel has missed several files: the data set may be larger than the memory, or
    read past the page cache. An announced order judges for itself (`AnnouncedOrder.trusts_page_cache`).
    """

    def __init__(self) -> None:
        super().__init__()
        self._misses = 0
        # Files of which a GET has failed since they were begun last. They are left to their readers.
        self.failed = Inodes()

    def begin(self, inode: int) -> bool:
        """Note that `inode` is begun. Return whether it was before, and was read."""
        self.failed.discard(inode)
        return self.add(inode)

    def fail(self, inode: int) -> None:
        """Note that a GET of `inode` has failed: the kernel has nothing of it."""
        self.discard(inode)
        self.failed.add(inode)

    def has(self, inode: int) -> bool:
        """Return whether the kernel most likely has what readers want of `inode`."""
        return inode in self and self._misses < _MANY_MISSES

    def missed(self) -> None:
        """Note that the kernel asked for the beginning of a file that was begun before."""
        self._misses += 1


class CachedRanges:
    """Ranges of one file that is read, in order, that were read and that the pool let go.

    If the kernel asks again for more than single pages of them, it does not keep what it gets, and all ranges are
    forgotten. Short ones are not noted: to fetch such bytes again costs less than the second GET that leaves them out.
    Invariant: ranges do not touch.
    """

    __slots__ = ("_ends", "_lost_bytes", "_starts", "losses")

    def __init__(self) -> None:
        # Bytes fetched again since the ranges were last forgotten.
        self._lost_bytes = 0
        # How many times the ranges were forgotten because the kernel does not keep them.
        self.losses = 0
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, start: int, end: int) -> None:
        """Note that ``[start, end)`` was read."""
        if end - start < KERNEL_REQUEST_BYTES:
            return
        starts, ends = self._starts, self._ends
        first = self._first_after(start - 1)
        last = bisect_right(starts, end)
        if first < last:
            start, end = min(start, starts[first]), max(end, ends[last - 1])
        starts[first:last] = [start]
        ends[first:last] = [end]
        if len(starts) > _MAX_RANGES:
            starts.clear()
            ends.clear()

    def end_at(self, offset: int) -> int:
        """Return where the range that holds `offset` ends, or `offset` if there is none."""
        index = self._first_after(offset)
        return self._ends[index] if index < len(self) and self._starts[index] <= offset else offset

    def clip(self, gap: tuple[int, int], offset: int) -> tuple[int, int]:
        """Return what of `gap` no range has, around `offset`; requires that no range holds `offset`."""
        index = self._first_after(offset)
        start, end = gap
        if index:
            start = max(start, self._ends[index - 1])
        if index < len(self):
            end = min(end, self._starts[index])
        return start, end

    def overlaps(self, start: int, end: int) -> bool:
        """Return whether a byte of ``[start, end)`` is in a range."""
        index = self._first_after(start)
        return index < len(self) and self._starts[index] < end

    def lose(self, size_bytes: int) -> bool:
        """Note that `size_bytes` are fetched again. Return whether that is too much; then all ranges are forgotten.

        The kernel drops single pages when memory is short; a reader that comes back for the whole file asks for more.
        """
        self._lost_bytes += size_bytes
        if self._lost_bytes < KERNEL_REQUEST_BYTES:
            return False
        self._lost_bytes = 0
        self.losses += 1
        self._starts.clear()
        self._ends.clear()
        return True

    def _first_after(self, offset: int) -> int:
        """Return the index of the first range that ends after `offset`."""
        return bisect_right(self._ends, offset)
