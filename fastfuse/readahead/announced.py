"""Decides which files come next in an order that a training script has announced: pure, no clock, no I/O.

An announced order has to prove itself. It begins with credit for a few files; a file fetched costs one, and a file
begun brings two. A list that nobody follows costs the first credit, once. A list that is half wrong costs as much
again as it saves. A right one soon has as many files ahead as readers of any spread need.

Readers follow an order roughly: each of several workers is somewhere in a batch of its own. The last files begun tell
how far apart they are (the *spread*), and the least place of them is the one that all have reached. Files before it
that are not fetched are skipped, and fetched ones some way behind it are dropped.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence

# Places of the files begun last: 2 of each of 128 workers. They are looked at once for so many files.
_RECENT_FILES = 256
_LOOK_EVERY = 16
# 16 workers, each in a batch of 32 files, are so far apart.
_LEAST_SPREAD_FILES = 512
# Announced and not fetched: 8 MB, for batches of 256 of 64 workers, three each. A script that announces more waits.
_MAX_QUEUED_FILES = 65_536
# A worker that is slower than the last files begun tell still finds what is this part of the spread behind.
_SLOW_DIVISOR = 8
# The most files that an order costs that nobody follows, and those ahead of one that has readers. The pool has bounds.
_FIRST_CREDIT_FILES = 256
_AHEAD_SPREADS = 2
_CREDIT_PER_FILE = 2
# Files begun elsewhere, and none in the order, before it gives way to others.
_PATIENCE_FILES = 256


class AnnouncedOrder:
    """One announced order of inodes. Invariant: no file is both queued and ahead."""

    def __init__(self, first_bytes: int) -> None:
        """Allow `first_bytes` ahead before readers have shown that they follow the order."""
        self._first_bytes = first_bytes
        # By inode, in order of the places: the place in the order, and with what is ahead its size.
        self._queued: OrderedDict[int, int] = OrderedDict()
        self._ahead: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self._ahead_bytes = 0
        self._announced_files = 0
        self._credit_files = _FIRST_CREDIT_FILES
        self._recent: deque[int] = deque(maxlen=_RECENT_FILES)
        self._begun_files = self._begun_elsewhere = 0
        self._spread_files = _LEAST_SPREAD_FILES

    @property
    def is_full(self) -> bool:
        """True while enough is announced."""
        return len(self._queued) >= _MAX_QUEUED_FILES

    @property
    def is_spent(self) -> bool:
        """True if everything that was announced is fetched or passed over."""
        return not self._queued

    @property
    def ahead(self) -> Sequence[int]:
        """The files that were fetched and are not begun yet, in order."""
        return tuple(self._ahead)

    def announce(self, inodes: Sequence[int]) -> None:
        """Add `inodes` behind what was announced before. A file announced twice is fetched once."""
        for inode in inodes:
            if inode not in self._ahead:
                self._queued.setdefault(inode, self._announced_files)
            self._announced_files += 1

    def begun(self, inode: int) -> Sequence[int]:
        """Note that a file was begun, in this order or not. Return files that are no longer expected."""
        place = self._queued.pop(inode, None)
        if place is None:
            if inode not in self._ahead:
                self._begun_elsewhere += 1
                return ()
            place = self._remove_ahead(inode)
        self._begun_elsewhere = 0
        self._credit_files = min(self._credit_files + _CREDIT_PER_FILE, _AHEAD_SPREADS * self._spread_files)
        self._recent.append(place)
        self._begun_files += 1
        return () if self._begun_files % _LOOK_EVERY else self._leave_behind(min(self._recent), max(self._recent))

    def next(self) -> int | None:
        """Return the next file to fetch, the same until `advance`; None while enough is ahead."""
        if not self._queued or not self._credit_files or len(self._ahead) >= _AHEAD_SPREADS * self._spread_files:
            return None
        if self._begun_files < _LOOK_EVERY and self._ahead_bytes >= self._first_bytes:
            return None
        return next(iter(self._queued))

    def advance(self, fetched_bytes: int) -> None:
        """Go on behind the file that `next` gave: `fetched_bytes` are on their way, or 0 if it was passed over."""
        inode, place = self._queued.popitem(last=False)
        if fetched_bytes:
            self._ahead[inode] = (place, fetched_bytes)
            self._ahead_bytes += fetched_bytes
            self._credit_files -= 1

    def give_way(self) -> Sequence[int]:
        """Return what is ahead of readers that seem to have gone, for another order that lacks memory."""
        return self._drop_ahead() if self._begun_elsewhere >= _PATIENCE_FILES else ()

    def withdraw(self) -> Sequence[int]:
        """End the order. Return what was fetched and not begun."""
        self._queued.clear()
        return self._drop_ahead()

    def _leave_behind(self, front: int, foremost: int) -> Sequence[int]:
        queued, ahead = self._queued, self._ahead
        self._spread_files = max(_LEAST_SPREAD_FILES, foremost - front)
        while queued and next(iter(queued.values())) < front:
            queued.popitem(last=False)
        late = []
        while ahead and next(iter(ahead.values()))[0] < front - self._spread_files // _SLOW_DIVISOR:
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
