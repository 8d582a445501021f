"""One epoch: items in their order, decompressed and framed as the channel wants it, fetched ahead of the writer.

The order of all bytes is known. Parts are fetched in that order, across the ends of objects, as long as the read engine
has memory and connections. A read then finds its part, or fetches it as any read of the engine does.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf

import trio

from fastfuse.errors import SourceError
from fastfuse.objects import Buffer
from fastfuse.readahead import ReadaheadConfig, ReadEngine, part_ranges
from fastfuse.sagemaker.pipe.content import MAX_RECORD_BYTES, File, Gunzip, Item, record_header, record_padding

# Takes bytes, one piece after the other.
Sink = Callable[[Buffer], Awaitable[None]]

# Prefetch before a reader comes: enough to begin at full speed, and little waste after the last epoch.
_UNREAD_DIVISOR = 16


class Lookahead:
    """The files of one epoch; `run` is a task beside the one that reads.

    Files are read in the order of `run`, each from its beginning, and `done` when they are complete.
    """

    def __init__(self, engine: ReadEngine, config: ReadaheadConfig) -> None:
        self._engine = engine
        self._part_bytes = config.part_size_bytes
        self._max_bytes = config.max_window_bytes
        # Enough for all connections, however small the files are.
        self._max_files = 2 * config.max_parts_in_flight
        # The bytes that may be ahead of the reader until `begin`.
        self._limit_bytes = min(config.max_window_bytes, config.memory_limit_bytes // _UNREAD_DIVISOR)
        # `run` waits here.
        self._changed = trio.lowlevel.ParkingLot()
        # The numbers of files planned and done, and how often each file between is still to come.
        self._planned = self._done = 0
        self._coming: Counter[int] = Counter()
        self._planned_bytes = 0
        # The bytes before the file that is read, and those that were read.
        self._before_bytes = self._read_bytes = 0
        # The seconds that `read` has waited for bytes, and the time since which it waits now.
        self._waited_s, self._waits_since_s = 0.0, inf

    @property
    def is_waiting(self) -> bool:
        return self._waits_since_s < inf

    @property
    def waited_s(self) -> float:
        """The seconds in which a reader has waited for bytes."""
        return self._waited_s + (trio.current_time() - self._waits_since_s if self.is_waiting else 0.0)

    async def run(self, files: Iterable[File]) -> None:
        """Fetch ahead until all files are fetched."""
        for file in files:
            while self._planned - self._done >= self._max_files:
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
        """Note that a GET has ended."""
        self._changed.unpark()

    def begin(self) -> None:
        """Note that a reader has come: fetch as far ahead as memory allows."""
        self._limit_bytes = self._max_bytes
        self._changed.unpark()

    async def read(self, file: File, sink: Sink) -> None:
        """Give `sink` the bytes of the next file, in parts; this may be done more than once.

        Raises:
            ReadError: it cannot be read.
        """
        for start, end in part_ranges(file.ref.size_bytes, self._part_bytes, self._before_bytes):
            self._waits_since_s = trio.current_time()
            try:
                data = await self._engine.read(file.inode, file.ref, start, end - start)
            finally:
                self._waited_s, self._waits_since_s = self.waited_s, inf
            self._read_bytes = max(self._read_bytes, self._before_bytes + end)
            self._changed.unpark()
            await sink(data)

    def done(self, file: File) -> None:
        self._done += 1
        self._before_bytes += file.ref.size_bytes
        if self._done <= self._planned:
            self._coming[file.inode] -= 1
        if not self._coming[file.inode]:
            del self._coming[file.inode]
            self._engine.release(file.inode)
        self._changed.unpark()

    def close(self) -> None:
        """Release the files that are left, once nothing reads this epoch."""
        for inode in self._coming:
            self._engine.release(inode)
        self._coming.clear()

    def _fetch(self, file: File, start: int, end: int, before_bytes: int) -> bool:
        if before_bytes + end > self._read_bytes + self._limit_bytes:
            return False
        return self._engine.fetch(file.inode, file.ref, start, end)


# A decompressed record up to this size is kept in memory; a longer one is read twice: its length comes first.
_HELD_BYTES = 8 << 20
# Decompressing less takes no longer than a hop to a thread and back.
_THREAD_BYTES = 32 << 10


@dataclass(frozen=True, slots=True)
class EpochWriter:
    """The tools and settings for the items of one epoch."""

    lookahead: Lookahead
    # Raises `BrokenPipeError` when the reader is gone.
    write: Sink
    is_gzip: bool
    wraps_records: bool

    async def run(self, items: Iterable[Item]) -> None:
        """Write all items, one after the other.

        Raises:
            ReadError, SourceError: an object cannot be read, or has the wrong form.
        """
        for item in items:
            await (self._write_record(item) if self.wraps_records else self._pour(item, self.write))
            if isinstance(item, File):
                self.lookahead.done(item)

    async def _pour(self, item: Item, sink: Sink) -> None:
        if isinstance(item, bytes):
            await sink(item)
        elif self.is_gzip:
            await self._pour_decompressed(item, sink)
        else:
            await self.lookahead.read(item, sink)

    async def _pour_decompressed(self, file: File, sink: Sink) -> None:
        gunzip = Gunzip()

        async def decompress(part: Buffer) -> None:
            pieces = gunzip.feed(part)
            while piece := await _next(pieces, in_thread=len(part) >= _THREAD_BYTES):
                await sink(piece)

        try:
            await self.lookahead.read(file, decompress)
            gunzip.finish()
        except ValueError as error:
            raise SourceError(
                f"{_shown(file)} cannot be decompressed: {error}",
                hint="with CompressionType Gzip every object of the channel must be a gzip file",
            ) from error

    async def _write_record(self, item: Item) -> None:
        size_bytes = 0
        held: list[Buffer] = []

        async def count(piece: Buffer) -> None:
            nonlocal size_bytes
            size_bytes += len(piece)
            if size_bytes >= MAX_RECORD_BYTES:
                raise SourceError(
                    f"{_shown(item)} is too long for a RecordIO record, which holds less than {MAX_RECORD_BYTES:,} "
                    "bytes",
                    hint="leave RecordWrapperType out, or split the object",
                )
            if size_bytes <= _HELD_BYTES:
                held.append(piece)
            else:
                held.clear()

        if isinstance(item, File) and not self.is_gzip:
            size_bytes = item.ref.size_bytes  # the engine reads just as many, or fails
        else:
            await self._pour(item, count)
        await self.write(record_header(size_bytes))
        for piece in held:
            await self.write(piece)
        if not held:
            await self._pour(item, self.write)
        await self.write(record_padding(size_bytes))


async def _next(pieces: Iterator[bytes], *, in_thread: bool) -> bytes:
    """Return the next piece; empty behind the last."""
    return await trio.to_thread.run_sync(next, pieces, b"") if in_thread else next(pieces, b"")


def _shown(item: Item) -> str:
    """Return the item's name, quoted: a key may hold what a terminal obeys."""
    return "an attribute" if isinstance(item, bytes) else repr(item.ref.uri)
