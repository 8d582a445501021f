"""Remembers reads that failed: no reader waits for a second deadline, and no failure is told twice.

The kernel asks again, at once, for the page that a reader wants of what its readahead did not get.
"""

from collections import deque
from typing import Final

from fastfuse.filesystem.kernel.in_hand import Read

# The kernel asks again within milliseconds, and a program that tries again is to find a service that is back.
_REMEMBERED_S: Final = 1.0
# All that a worker has in hand may fail at once (filesystem/serving/reads.py).
_MOST_READS: Final = 2048


class FailedReads:
    """The reads that failed in the last second. Pure: each call is told what time it is, in seconds."""

    def __init__(self, deadline_s: float) -> None:
        # A read that joins a GET of another one comes late to it.
        self._late_s = deadline_s / 2
        # Those that failed late, unless a read was answered since.
        self._late: deque[tuple[float, Read, int]] = deque(maxlen=_MOST_READS)
        # Those that the kernel has not asked for again, each by its inode and errno, oldest first.
        self._told: dict[tuple[int, int], tuple[float, Read]] = {}

    def note(self, read: Read, number: int, *, took_s: float, now_s: float) -> bool:
        """Note that `read` failed with the errno `number` after `took_s`.

        Return whether it is the first that repeats a failure.
        """
        if took_s >= self._late_s:
            self._late.append((now_s, read, number))
        told = self._told.pop((read.inode, number), None)
        if told is not None and now_s <= told[0] + _REMEMBERED_S and told[1].overlaps(read):
            return True
        if len(self._told) >= _MOST_READS:
            del self._told[next(iter(self._told))]
        self._told[read.inode, number] = now_s, read
        return False

    def answered(self) -> None:
        """Note that a read was answered: the service is back."""
        if self._late:
            self._late.clear()

    def errno_of(self, read: Read, now_s: float) -> int:
        """Return what the late read failed with that `read` repeats, at least in part; 0 if there is none."""
        while self._late and self._late[0][0] < now_s - _REMEMBERED_S:
            self._late.popleft()
        return next((number for _, late, number in self._late if late.overlaps(read)), 0)
