"""Finds the read that kills workers: in memory that outlives them, each notes the reads that it has in hand.

After a death the next worker begins with all that the dead one had in hand (`replies`). It takes these suspects one by
one, so at another death the only one in hand is the culprit. If several were, because the service was slow, the next
worker takes more time for each. A suspect that is answered is none any more. A refresh changes none of this: inode
numbers are never used again.
"""

import mmap
from collections.abc import Iterator
from typing import NamedTuple

# More than the reads that have a task at once (filesystem/serving/reads.py), and those of threads.
_SLOTS = 4096
_THREAD_SLOTS = 256
# Inode, offset and size, and a number that grows with each read. A slot whose inode is 0 is free.
_NUMBERS = 4

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
        self._memory = mmap.mmap(-1, 2 * _SLOTS * _NUMBERS * 8)
        numbers = memoryview(self._memory).cast("q")
        self._in_hand, self._unproven = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
        self._free = list(range(_SLOTS - _THREAD_SLOTS))
        # Four numbers for each thread of `direct_reads`, which notes its reads itself.
        self.thread_slots = self._in_hand[_NUMBERS * (_SLOTS - _THREAD_SLOTS) :]
        self._begun = 0
        # The reads of which a worker may have died, each with its slot in `_unproven`, and of how many.
        self.suspects: dict[Read, int] = {}
        self._deaths: dict[Read, int] = {}
        # The most of them.
        self.most_deaths = 0
        self.poisoned: list[Read] = []

    def take(self, inode: int, offset: int, size_bytes: int) -> int:
        """Note that the read is in hand, and return its slot for `put_back`."""
        if not self._free:
            return -1
        slot = self._free.pop()
        at = _NUMBERS * slot
        self._begun += 1
        numbers = self._in_hand
        numbers[at + 1] = offset
        numbers[at + 2] = size_bytes
        numbers[at + 3] = self._begun
        numbers[at] = inode
        return slot

    def put_back(self, slot: int) -> None:
        """Note that the read in `slot` is answered."""
        if slot >= 0:
            self._in_hand[_NUMBERS * slot] = 0
            self._free.append(slot)

    def prove(self, read: Read) -> None:
        """Note that a suspect was answered, and no worker died of it."""
        slot = self.suspects.pop(read, None)
        if slot is not None:
            self._unproven[_NUMBERS * slot] = 0

    def is_poisoned(self, read: Read) -> bool:
        """Return whether the read has a byte that workers died of."""
        return any(read.overlaps(poisoned) for poisoned in self.poisoned)

    def worker_died(self, *, was_killed: bool) -> Read | None:
        """Take stock after a death, before the next worker is forked.

        If it `was_killed` from outside, no read is to blame: those in hand become no suspects.

        Return the read that is poisoned from now on, because workers died of it, if there is one.
        """
        in_hand = [] if was_killed else sorted(_reads(self._in_hand))
        unproven = {read for _, read in _reads(self._unproven)}
        deaths = {read: self._deaths[read] for read in unproven}
        again = list(dict.fromkeys(read for _, read in in_hand if read in unproven))
        for read in again:
            deaths[read] += 1
        for _, read in in_hand:
            deaths.setdefault(read, 1)
        poisoned = again[0] if len(again) == 1 and deaths[again[0]] >= _DEATHS else None
        if poisoned is not None:
            del deaths[poisoned]
            self.poisoned.append(poisoned)
        self._deaths = dict(list(deaths.items())[:_SLOTS])
        self.most_deaths = max(self._deaths.values(), default=0)
        self.suspects = {read: slot for slot, read in enumerate(self._deaths)}
        self._memory[:] = bytes(len(self._memory))
        for read, slot in self.suspects.items():
            at = _NUMBERS * slot
            self._unproven[at], self._unproven[at + 1], self._unproven[at + 2] = read
        return poisoned


def _reads(numbers: memoryview) -> Iterator[tuple[int, Read]]:
    """Yield the reads that are noted, each after its number."""
    for at in range(0, len(numbers), _NUMBERS):
        if numbers[at]:
            yield numbers[at + 3], Read(numbers[at], numbers[at + 1], numbers[at + 2])
