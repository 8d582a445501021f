"""Remembers reads that failed: no reader waits for a second deadline, and no failure is told twice.

The kernel asks again, at once, for the page that a reader wants of what its readahead did not get.
"""

from collections import deque
from math import inf
from typing import Final

from fastfuse.filesystem.in_hand import Read

__all__ = ["LateReads", "ToldReads"]

# The kernel asks again within milliseconds, and a program that tries again is to find a service that is back.
_REMEMBERED_S: Final = 1.0
# All that a worker has in hand may fail at once (mount.worker).
_MOST_READS: Final = 2048


class LateReads:
    """The reads that failed late in the last second, unless a read was answered since.

    Pure: each call is told what time it is, in seconds.
    """

    def __init__(self, deadline_s: float = inf) -> None:
        # A read that joins a GET of another one comes late to it.
        self._late_s = deadline_s / 2
        self._reads: deque[tuple[float, Read, int]] = deque(maxlen=_MOST_READS)

    def failed(self, read: Read, number: int, *, took_s: float, now_s: float) -> None:
        """Note that `read` failed with the errno `number` after `took_s`."""
        if took_s >= self._late_s:
            self._reads.append((now_s, read, number))

    def answered(self) -> None:
        """Note that a read was answered: the service is back."""
        if self._reads:
            self._reads.clear()

    def errno_of(self, read: Read, now_s: float) -> int:
        """Return what the late read failed with that `read` repeats, at least in part; 0 if there is none."""
        while self._reads and self._reads[0][0] < now_s - _REMEMBERED_S:
            self._reads.popleft()
        return next((number for _, late, number in self._reads if late.overlaps(read)), 0)


class ToldReads:
    """The failures of the last second for which the kernel has not asked again. Pure, as `LateReads`."""

    def __init__(self) -> None:
        # Each by its inode and errno, oldest first.
        self._told: dict[tuple[int, int], tuple[float, Read]] = {}

    def is_repeated(self, read: Read, number: int, now_s: float) -> bool:
        """Return whether `read`, which failed with the errno `number`, is the first that repeats a failure."""
        told = self._told.pop((read.inode, number), None)
        if told is not None and now_s <= told[0] + _REMEMBERED_S and told[1].overlaps(read):
            return True
        if len(self._told) >= _MOST_READS:
            del self._told[next(iter(self._told))]
        self._told[read.inode, number] = now_s, read
        return False
