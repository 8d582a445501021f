"""Finds the read that kills workers, among those that a worker had in hand when it died (`replies`).

The next worker begins with all of them. It takes these suspects one by one, so at another death the only one in hand is
the culprit. If several were, because the service was slow, the next worker takes more time for each. A suspect that is
answered is none any more, nor is the same range if it is asked for again. A refresh changes none of this: inode numbers
are never used again.
"""

from mmap import mmap
from typing import NamedTuple

from fastfuse.filesystem.kernel.fuse import replies

# Workers that die of one read before it is poisoned. After five deaths the mount ends.
_DEATHS = 2


class Read(NamedTuple):
    """A request of the kernel for bytes of a file."""

    inode: int
    offset: int
    size_bytes: int

    def overlaps(self, other: "Read") -> bool:
        """Return whether both ask for a byte of the same file."""
        return (
            self.inode == other.inode
            and self.offset < other.offset + other.size_bytes
            and other.offset < self.offset + self.size_bytes
        )


class ReadsInHand:
    """Made by the supervisor; each worker inherits it, with what is known of the reads of its predecessors."""

    def __init__(self) -> None:
        # The reads of which a worker may have died, by the numbers of their requests.
        self.suspects: dict[int, Read] = {}
        # The most workers that may have died of one.
        self.most_deaths = 0
        self.poisoned: list[Read] = []
        # When all processes last went on after a pause, in seconds of `perf_counter`: no deadline passes in it.
        self.resumed_s = 0.0

    def is_poisoned(self, read: Read) -> bool:
        """Return whether the read has a byte that workers died of."""
        return any(read.overlaps(poisoned) for poisoned in self.poisoned)

    def worker_died(self, requests: mmap | bytearray, *, is_blameless: bool) -> Read | None:
        """Take stock of the `requests` that a dead worker left, before the next worker is forked.

        If the worker `is_blameless`, no read is to blame: those in hand become no suspects.

        Return the read that is poisoned from now on, because workers died of it, if there is one.
        """
        left = replies.reads_left(requests, not is_blameless)
        again = {Read(*asked) for _, asked, deaths, is_blamed in left if is_blamed and deaths >= _DEATHS}
        poisoned = again.pop() if len(again) == 1 else None
        if poisoned is not None:
            self.poisoned.append(poisoned)
        self.suspects, self.most_deaths = {}, 0
        for number, asked, deaths, _ in left:
            if deaths and not self.is_poisoned(Read(*asked)):
                self.suspects[number], self.most_deaths = Read(*asked), max(self.most_deaths, deaths)
        return poisoned
