"""Which files come next in an order that a training script has announced: pure decisions, no clock, no I/O.

`AnnouncedOrder.announce` and `opened` take the events, `next` gives the commands; files are inode numbers.

A hint is worth what it proves to be worth. An order begins with credit for a few files; a file fetched costs one, and
one that is opened brings two. So a list that nobody follows costs that first credit, once; one that is half wrong costs
as much again as it saves; and a right one has soon as many files ahead as readers of any spread need.

Readers follow an order roughly: each of several workers is somewhere in a batch of its own. So the place that they have
reached is the least of the last few opens; files before it that are not fetched are skipped, and such as were fetched
and are far behind it are dropped.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence

__all__ = ["AnnouncedOrder"]

# Announced and not fetched: a second of 16 readers at their fastest, in 0.4 MB. Who announces more waits.
_MAX_QUEUED_FILES = 4096
# What an order may cost that nobody follows; half of what the batches of 16 workers, of 32 files each, are apart.
_FIRST_CREDIT_FILES = 256
_CREDIT_PER_OPEN = 2
# Fetched and not opened yet: twice what those batches are apart.
_MAX_AHEAD_FILES = 1024
# What an order must have behind it to be followed: opens in a row, a round of 16 workers.
_RECENT_OPENS = 16
# A fetched file so many places behind all of these is dropped: what those batches are apart.
_LATE_FILES = 512
# Files opened elsewhere, and none of the order, before it gives way to others.
_PATIENCE_OPENS = 256


class AnnouncedOrder:
    """One announced order. Invariant: no file is both queued and ahead."""

    def __init__(self, first_bytes: int) -> None:
        """`first_bytes`: how much may lie ahead before readers have shown that they follow the order."""
        self._first_bytes = first_bytes
        # inode → place in the order; in order of the places, both.
        self._queued: OrderedDict[int, int] = OrderedDict()
        self._ahead: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self._ahead_bytes = 0
        self._announced_files = 0
        self._credit_files = _FIRST_CREDIT_FILES
        # Places of the files opened last.
        self._recent: deque[int] = deque(maxlen=_RECENT_OPENS)
        self._opens_elsewhere = 0

    @property
    def is_full(self) -> bool:
        """Whether enough is announced for now."""
        return len(self._queued) >= _MAX_QUEUED_FILES

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left of what was announced but what is fetched already."""
        return not self._queued

    @property
    def ahead(self) -> Sequence[int]:
        """Files that were fetched and are not opened yet, in order."""
        return tuple(self._ahead)

    def announce(self, inodes: Sequence[int]) -> None:
        """`inodes` follow what was announced before. What is announced twice is fetched once."""
        for inode in inodes:
            if inode not in self._ahead:
                self._queued.setdefault(inode, self._announced_files)
            self._announced_files += 1

    def opened(self, inode: int) -> Sequence[int]:
        """A file was opened, of this order or not. Files that are not expected any more, mostly none."""
        place = self._queued.pop(inode, None)
        if place is None:
            if inode not in self._ahead:
                self._opens_elsewhere += 1
                return ()
            place = self._remove_ahead(inode)
        self._opens_elsewhere = 0
        self._credit_files = min(self._credit_files + _CREDIT_PER_OPEN, _MAX_AHEAD_FILES)
        self._recent.append(place)
        return self._leave_behind(min(self._recent)) if self._is_followed else ()

    def next(self) -> int | None:
        """The next file to fetch, the same until `taken` or `skipped`; None while enough is ahead."""
        if not self._queued or not self._credit_files or len(self._ahead) >= _MAX_AHEAD_FILES:
            return None
        if not self._is_followed and self._ahead_bytes >= self._first_bytes:
            return None
        return next(iter(self._queued))

    def taken(self, size_bytes: int) -> None:
        """The file that `next` gave is on its way, and takes so much memory."""
        inode, place = self._queued.popitem(last=False)
        self._ahead[inode] = (place, size_bytes)
        self._ahead_bytes += size_bytes
        self._credit_files -= 1

    def skipped(self) -> None:
        """The file that `next` gave is there, or cannot be fetched."""
        self._queued.popitem(last=False)

    def give_way(self) -> Sequence[int]:
        """Another order lacks memory: what is ahead of readers who seem to have gone, nothing if they go on."""
        return self._drop_ahead() if self._opens_elsewhere >= _PATIENCE_OPENS else ()

    def withdraw(self) -> Sequence[int]:
        """The order has ended: what was fetched and is not opened."""
        self._queued.clear()
        return self._drop_ahead()

    @property
    def _is_followed(self) -> bool:
        return len(self._recent) == _RECENT_OPENS

    def _leave_behind(self, front: int) -> Sequence[int]:
        queued, ahead = self._queued, self._ahead
        while queued and next(iter(queued.values())) < front:
            queued.popitem(last=False)
        late = []
        while ahead and next(iter(ahead.values()))[0] < front - _LATE_FILES:
            inode = next(iter(ahead))
            self._remove_ahead(inode)
            late.append(inode)
        return late

    def _remove_ahead(self, inode: int) -> int:
        place, size_bytes = self._ahead.pop(inode)
        self._ahead_bytes -= size_bytes
        return place

    def _drop_ahead(self) -> Sequence[int]:
        dropped = list(self._ahead)
        self._ahead.clear()
        self._ahead_bytes = 0
        return dropped
