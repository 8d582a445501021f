"""Remembers the GETs of a worker that run, and the slowest of those that have ended: for `fastfuse top`."""

import heapq
from collections.abc import Callable
from itertools import count

import trio

from fastfuse.objects import Buffer, ObjectRef
from fastfuse.s3.base import RangeReader

__all__ = ["RecordedReader"]

_KEPT = 8
# The slowest of this time and of the time before it are shown.
_PERIOD_S = 30.0


class RecordedReader:
    """A `RangeReader` that passes everything on to another one."""

    def __init__(self, reader: RangeReader) -> None:
        self._reader = reader
        self._numbers = count()
        # The begin, key and range of each GET, by its number.
        self._running: dict[int, tuple[float, str, int, int]] = {}
        # Seconds, key and range of the slowest of this period and of the one before, as heaps.
        self._slowest: list[tuple[float, str, int, int]] = []
        self._slowest_before: list[tuple[float, str, int, int]] = []
        self._period_ends_s = 0.0

    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        """Read a range as `RangeReader.get` does."""
        number, began_s = next(self._numbers), trio.current_time()
        self._running[number] = began_s, ref.key, start, end
        try:
            return await self._reader.get(ref, start, end)
        finally:
            del self._running[number]
            now_s = trio.current_time()
            self._end_period(now_s)
            self._note(now_s - began_s, ref.key, start, end)

    def note(self, took_s: float, size_bytes: int, inode: int, key: Callable[[int], str]) -> None:
        """Note a GET of all of a small object that was made elsewhere; `key` returns the key of an inode."""
        self._end_period(trio.current_time())
        if len(self._slowest) < _KEPT or took_s > self._slowest[0][0]:
            self._note(took_s, key(inode), 0, size_bytes)

    def _note(self, took_s: float, key: str, start: int, end: int) -> None:
        ended = (took_s, key, start, end)
        if len(self._slowest) < _KEPT:
            heapq.heappush(self._slowest, ended)
        elif ended > self._slowest[0]:
            heapq.heapreplace(self._slowest, ended)

    @property
    def running(self) -> int:
        """The number of GETs that run, those that wait to be tried again included."""
        return len(self._running)

    def slowest(self) -> list[tuple[float, str, int, int, bool]]:
        """Return the slowest GETs of the last half minute or more, slowest first.

        Each has its seconds, its key, its range, and whether it still runs.
        """
        now_s = trio.current_time()
        self._end_period(now_s)
        running = [(now_s - began_s, key, start, end, True) for began_s, key, start, end in self._running.values()]
        ended = [(*get, False) for get in (*self._slowest, *self._slowest_before)]
        return heapq.nlargest(_KEPT, running + ended)

    async def aclose(self) -> None:
        await self._reader.aclose()

    def _end_period(self, now_s: float) -> None:
        if now_s >= self._period_ends_s:
            is_next = now_s < self._period_ends_s + _PERIOD_S
            self._slowest_before, self._slowest = (self._slowest if is_next else []), []
            self._period_ends_s = now_s + _PERIOD_S
