"""A part is one contiguous range of one version of one object: fetched by one GET, read by anyone."""

from bisect import bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Iterator
from math import inf

import trio

from fastfuse.objects import ObjectRef
from fastfuse.readahead.page_cache import CachedRanges


class Part:
    """The range ``[start, end)`` of one file; `file` names the listed version.

    Only `PartPool` changes `data`, `error` and the accounting; see there for the states.
    """

    __slots__ = (
        *("arrived", "began_beside", "began_s", "data", "end", "ends_s", "error", "file", "is_demanded"),
        *("is_expected", "is_left", "losses", "readers", "room", "shelf", "size_bytes", "start", "unread_bytes"),
    )

    def __init__(
        self, file: "FileParts", start: int, end: int, *, is_demanded: bool = False, is_expected: bool = False
    ) -> None:
        self.file = file
        self.start = start
        self.end = end
        self.size_bytes = end - start
        # Asked for by a read that waits, not read ahead.
        self.is_demanded = is_demanded
        # Fetched before the file was begun.
        self.is_expected = is_expected
        # No reader is known to come to it: its reader has jumped away, or reads at random or backwards.
        self.is_left = False
        self.data: memoryview | None = None
        self.error: Exception | None = None
        # Set when `data` or `error` is there.
        self.arrived = trio.Event()
        # Set when a part that had to wait for memory or a connection has got it; None for the others.
        self.room: trio.Event | None = None
        # When its GET began, on trio's clock, and how many were in flight then.
        self.began_s, self.began_beside = 0.0, 0
        # When its GET is over, on trio's clock, if that is not left to the client.
        self.ends_s = inf
        # Tasks that wait for this part; it cannot be evicted before they have taken their bytes.
        self.readers = 0
        # At zero the kernel's page cache has it all. A byte read twice counts twice, so it is an estimate.
        self.unread_bytes = end - start
        # How many times the kernel had lost bytes of the file when this part began: later losses may be of its bytes.
        self.losses = file.cached.losses
        # Which of the pool's orders of eviction it is in, if any.
        self.shelf: Shelf | None = None


class Shelf:
    """Parts that may be evicted, least recently used first. A part is on one shelf at most."""

    def __init__(self) -> None:
        self._parts: OrderedDict[Part, None] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)

    def put(self, part: Part) -> None:
        self._parts[part] = None
        self.size_bytes += part.size_bytes
        part.shelf = self

    def touch(self, part: Part) -> None:
        self._parts.move_to_end(part)

    def remove(self, part: Part) -> None:
        del self._parts[part]
        self.size_bytes -= part.size_bytes
        part.shelf = None

    def pop(self, *, is_newest: bool = False) -> Part:
        """Take down the part that was used least recently, or the one that was used last."""
        part = next(reversed(self._parts) if is_newest else iter(self._parts))
        self.remove(part)
        return part


class FileParts:
    """The parts of one file, held or in flight, by place. Invariant: they do not overlap."""

    __slots__ = (
        *("_parts", "_starts", "cached", "demanded_in_flight", "in_flight", "inode", "is_expected", "is_guess"),
        *("is_open", "is_stale", "left_bytes", "reads", "ref", "size_bytes", "waiting"),
    )

    def __init__(self, inode: int, ref: ObjectRef) -> None:
        self.inode = inode
        self.ref = ref
        self._starts: list[int] = []
        self._parts: dict[int, Part] = {}
        # The ranges that its present readers have read, and that are no longer held.
        self.cached = CachedRanges()
        # The bytes of all its parts, waiting ones included.
        self.size_bytes = 0
        self.in_flight = 0
        self.demanded_in_flight = 0
        # What is held for readers that have jumped away.
        self.left_bytes = 0
        # Demanded parts that are not in flight yet, in the order of their reads.
        self.waiting: deque[Part] = deque()
        # Reads that may have to wait; a release may have overtaken them.
        self.reads = 0
        self.is_open = False
        # The file is not begun, but will be; `is_guess`: no order says so.
        self.is_expected = False
        self.is_guess = False
        # Another object has taken the inode. What still arrives is only for the readers that wait for it.
        self.is_stale = False

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Part]:
        return iter([self._parts[start] for start in self._starts])

    def at(self, offset: int) -> Part | None:
        """Return the part that holds the byte at `offset`."""
        index = bisect_right(self._starts, offset)
        if not index:
            return None
        part = self._parts[self._starts[index - 1]]
        return part if offset < part.end else None

    @property
    def whole(self) -> Part | None:
        """The part that is all of the file."""
        part = self._parts.get(0)
        return part if part is not None and part.end == self.ref.size_bytes else None

    def gap(self, offset: int) -> tuple[int, int]:
        """Return the range around `offset` that no part touches; requires that no part holds `offset`."""
        index = bisect_right(self._starts, offset)
        start = self._parts[self._starts[index - 1]].end if index else 0
        return start, self._starts[index] if index < len(self._starts) else self.ref.size_bytes

    def missing_bytes(self, offset: int, end: int) -> int:
        """Return how many bytes of ``[offset, end)`` are not in memory."""
        missing_bytes = 0
        while offset < end:
            part = self.at(offset)
            until = min(end, self.gap(offset)[1] if part is None else part.end)
            if part is None or part.data is None:
                missing_bytes += until - offset
            offset = until
        return missing_bytes

    def add(self, part: Part) -> None:
        insort(self._starts, part.start)
        self._parts[part.start] = part
        self.size_bytes += part.size_bytes

    def remove(self, part: Part) -> None:
        """Forget `part`, and remember its range as cached if it was read. Idempotent."""
        if self._parts.get(part.start) is part:
            if part.unread_bytes <= 0 and self.is_open and part.losses == self.cached.losses:
                self.cached.add(part.start, part.end)
            self.size_bytes -= part.size_bytes
            del self._parts[part.start]
            del self._starts[bisect_right(self._starts, part.start) - 1]
