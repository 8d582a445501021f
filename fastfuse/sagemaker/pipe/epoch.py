"""Write one epoch: items in their order, decompressed and framed as the channel wants it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import trio

from fastfuse.errors import SourceError
from fastfuse.objects import Buffer
from fastfuse.sagemaker.pipe.encodings import MAX_RECORD_BYTES, Framer, Gunzip, Scan
from fastfuse.sagemaker.pipe.lookahead import Lookahead, Sink
from fastfuse.sagemaker.pipe.sequence import File, Item

__all__ = ["EpochWriter"]

# A record up to this size is kept in memory; a longer one is read twice, for its frame begins with its length.
_HELD_BYTES = 8 << 20
# Decompressing less takes no longer than a hop to a thread and back.
_THREAD_BYTES = 32 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochWriter:
    """The tools and settings for the items of one epoch."""

    lookahead: Lookahead
    # Raises `BrokenPipeError` when the reader is gone.
    write: Sink
    # Called after each object.
    finished: Callable[[], None]
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
                self.finished()

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
        scan = Scan()
        held: list[Buffer] = []

        async def look_through(piece: Buffer) -> None:
            scan.feed(piece)
            if scan.size_bytes >= MAX_RECORD_BYTES:
                raise SourceError(
                    f"{_shown(item)} is too long for a RecordIO record, which holds less than {MAX_RECORD_BYTES:,} "
                    "bytes",
                    hint="leave RecordWrapperType out, or split the object",
                )
            if scan.size_bytes <= _HELD_BYTES:
                held.append(piece)
            else:
                held.clear()

        await self._pour(item, look_through)
        framer = Framer(scan)

        async def write_framed(piece: Buffer) -> None:
            for framed in framer.feed(piece):
                await self.write(framed)

        if scan.size_bytes <= _HELD_BYTES:
            for piece in held:
                await write_framed(piece)
        else:
            await self._pour(item, write_framed)
        await self.write(framer.finish())


async def _next(pieces: Iterator[bytes], *, in_thread: bool) -> bytes:
    """Return the next piece; empty behind the last."""
    return await trio.to_thread.run_sync(next, pieces, b"") if in_thread else next(pieces, b"")


def _shown(item: Item) -> str:
    """Return the item's name, quoted: a key may hold what a terminal obeys."""
    return "an attribute" if isinstance(item, bytes) else repr(item.ref.uri)
