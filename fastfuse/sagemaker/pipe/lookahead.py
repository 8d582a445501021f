"""Keeps the read engine's GETs ahead of who writes an epoch.

The order of all bytes is known, so nothing is guessed: parts are commanded in that order, across the ends of objects,
for as long as the engine has memory and connections for them. What is then read was commanded before, or is fetched as
any read of the engine is.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

import trio

from fastfuse.objects import Buffer
from fastfuse.readahead import ReadaheadConfig, ReadEngine, part_ranges
from fastfuse.sagemaker.pipe.sequence import File

__all__ = ["Lookahead", "Sink"]

# Takes bytes, one piece after the other.
Sink = Callable[[Buffer], Awaitable[None]]

# What is fetched before anybody has opened the FIFO: enough to begin at full speed, and little to have wasted after the
# last epoch. Of 1 GiB, 60 MiB.
_UNREAD_DIVISOR = 16
# Each takes a few kB beside its bytes. Ten times what 64 connections have on their way.
_MAX_FILES = 640


class Lookahead:
    """The files of one epoch: what is ahead, and what is read. `run` is a task beside the one that reads.

    Files are read in the order of `run`'s, each from its beginning, and `done` when they are through.
    """

    def __init__(self, engine: ReadEngine, config: ReadaheadConfig) -> None:
        self._engine = engine
        self._part_bytes = config.part_size_bytes
        self._max_bytes = config.max_window_bytes
        # How far ahead, until `begin`.
        self._limit_bytes = min(config.max_window_bytes, config.memory_limit_bytes // _UNREAD_DIVISOR)
        # Where something may have changed that `run` waits for.
        self._changed = trio.lowlevel.ParkingLot()
        # How many files are planned, and done; and how often each of those between is to come.
        self._planned = self._done = 0
        self._coming: Counter[int] = Counter()
        self._planned_bytes = 0
        # Before the file that is read, and up to where the reader has come.
        self._before_bytes = self._read_bytes = 0

    async def run(self, files: Iterable[File]) -> None:
        """Fetch ahead until all is fetched. Ends with its task."""
        for file in files:
            while self._planned - self._done >= _MAX_FILES:
                await self._changed.park()
            before_bytes = self._planned_bytes
            self._planned += 1
            self._planned_bytes += file.ref.size_bytes
            if self._planned <= self._done:  # who reads was faster
                continue
            self._coming[file.inode] += 1
            for start, end in part_ranges(file.ref.size_bytes, self._part_bytes, before_bytes):
                while self._planned > self._done and not self._fetch(file, start, end, before_bytes):
                    await self._changed.park()

    def wake(self) -> None:
        """A GET has ended."""
        self._changed.unpark()

    def begin(self) -> None:
        """Somebody reads."""
        self._limit_bytes = self._max_bytes
        self._changed.unpark()

    async def read(self, file: File, sink: Sink) -> None:
        """Give `sink` the bytes of the file that is next, in parts; this may be done more than once.

        Raises:
            ReadError: it cannot be read.
        """
        for start, end in part_ranges(file.ref.size_bytes, self._part_bytes, self._before_bytes):
            data = await self._engine.read(file.inode, file.ref, start, end - start)
            self._read_bytes = max(self._read_bytes, self._before_bytes + end)
            self._changed.unpark()
            await sink(data)

    def done(self, file: File) -> None:
        """It is through."""
        self._done += 1
        self._before_bytes += file.ref.size_bytes
        if self._done <= self._planned:
            self._coming[file.inode] -= 1
        if not self._coming[file.inode]:
            del self._coming[file.inode]
            self._engine.release(file.inode)
        self._changed.unpark()

    def close(self) -> None:
        """Nobody reads this epoch any more."""
        for inode in self._coming:
            self._engine.release(inode)
        self._coming.clear()

    def _fetch(self, file: File, start: int, end: int, before_bytes: int) -> bool:
        if before_bytes + end > self._read_bytes + self._limit_bytes:
            return False
        return self._engine.fetch(file.inode, file.ref, start, end)
