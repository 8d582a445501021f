"""The seam between the FUSE layer and the read engine: opens, reads and releases of inodes."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice

import trio

from fastfuse.objects import ARCHIVE_STORAGE_CLASSES, Buffer, ObjectRef
from fastfuse.readahead.fetches import Fetches, PoolStatistics, ReadCounts
from fastfuse.readahead.limits import ReadaheadConfig
from fastfuse.readahead.pace import ServicePace
from fastfuse.readahead.page_cache import Delivered
from fastfuse.readahead.pool import PartPool
from fastfuse.readahead.prefetch import Announcer, Listing, Prefetcher
from fastfuse.readahead.ranges import known_part_end
from fastfuse.readahead.stream import Stream
from fastfuse.s3.base import RangeReader

__all__ = ["ReadEngine", "ReadStatistics"]

# Files that are read ahead for each reader before they are opened.
_MAX_FOLLOWERS = 4
# Opens that were not foreseen before such a file is released; half as many where several readers want the memory.
_PATIENCE_OPENS = 16
# The part of the first window that is fetched before anybody asks: all of it at once would delay the first bytes.
_BEGUN_DIVISOR = 2


@dataclass(slots=True, kw_only=True)
class ReadStatistics(ReadCounts):
    """The figures of an engine at one moment."""

    open_files: int
    pool: PoolStatistics


class ReadEngine:
    """Reads listed objects by inode, ahead of the readers, within one limit of memory.

    All state is made on the first open or read of a file and may be lost at any time without harm. Fetches run as tasks
    in `nursery`, which must outlive every `read`. Its cancellation ends them and fails the reads that wait for them.
    """

    def __init__(
        self,
        reader: RangeReader,
        config: ReadaheadConfig,
        nursery: trio.Nursery,
        listing: Callable[[], Listing],
    ) -> None:
        """Begin with nothing open; `listing` returns the table of the moment."""
        self._reader = reader
        self._config = config
        self._fetches = Fetches(nursery)
        self._pool = PartPool(config)
        self._streams: dict[int, Stream] = {}
        self._service = ServicePace(config.first_window_bytes)
        self._delivered = Delivered()
        # Files that are open and were opened before.
        self._reopened: set[int] = set()
        # Large files that readers are about to open, oldest first, and the unforeseen opens before each.
        self._followers: dict[int, int] = {}
        self._unforeseen_opens = 0
        self._prefetcher = Prefetcher(listing, self._delivered, self._pool, reader, config, self._fetches)

    def new_order(self) -> Announcer:
        """Return the place for one order of files that somebody announces."""
        return self._prefetcher.new_order()

    def open(self, inode: int, ref: ObjectRef, *, takes_whole: bool = False) -> Buffer | None:
        """Note that a handle of `inode` was opened, and start what its reader needs first. Never wait and never fail.

        A small file, of one part at most, is fetched whole, unless the kernel most likely has it. With `takes_whole`,
        if this is the first open and all of the file was prefetched, return all of it, for the page cache, and keep
        nothing.
        """
        if self._followers.pop(inode, None) is None:
            self._unforeseen_opens += 1
            self._release_old_followers()
        is_cached = self._delivered.has(inode)
        if self._delivered.add(inode) and inode not in self._streams:
            self._reopened.add(inode)
        is_small = ref.size_bytes <= self._config.part_size_bytes
        is_missed = is_small and not is_cached and not self._pool.holds(inode)
        is_found = self._pool.is_guess(inode)
        # A file that was opened before is fetched on request: that tells whether the page cache has kept it.
        is_taken = takes_whole and inode not in self._reopened
        whole = self._pool.take_expected(inode, ref) if is_taken else None
        if whole is None and self._is_wanted(inode, ref, is_cached=is_cached):
            stream = self._open(inode, ref)
            if is_small:
                stream.fetch_whole()
        self._prefetcher.opened(inode, is_found=is_found, is_missed=is_missed)
        return whole

    async def read(self, inode: int, ref: ObjectRef, offset: int, size_bytes: int) -> Buffer:
        """Return ``min(size_bytes, ref.size_bytes - offset)`` bytes of the listed version of `ref`; none at its end.

        Where one part has them all, the result is a slice of it, which keeps its memory alive: write it out and drop
        it at once. A checkpoint only where it has to wait; the loop that takes requests from the kernel is another.

        Raise the `ReadError` of a fetch that this read needs; a failed readahead fails no read. After an error or a
        cancellation the next read starts clean.
        """
        end = min(offset + size_bytes, ref.size_bytes)
        if offset >= end:
            return b""
        # Handles of a worker that died are read without another open.
        self._followers.pop(inode, None)
        stream = self._streams.get(inode)
        if stream is None or stream.file.ref is not ref:
            stream = self._open(inode, ref)
        return await stream.read(offset, end)

    def fetch(self, inode: int, ref: ObjectRef, start: int, end: int) -> bool:
        """Start the fetch of ``[start, end)``, which is certain to be read, as one part.

        Never wait and never fail; return False if there is no room or no connection for it now. It takes no `open`;
        the file has to be released as if it had been read.
        """
        return self._open(inode, ref).fetch(start, end)

    def begin(self) -> None:
        """Start on the head of the listing, unless it was opened, where every file is read. Never wait, never fail."""
        if self._config.expects_every_file:
            self._follow(self._prefetcher.leaders(), self._config.first_window_bytes // _BEGUN_DIVISOR, 0)

    def release(self, inode: int) -> None:
        """Free the memory of `inode`, whose last handle is closed. Unknown inodes are fine."""
        self._followers.pop(inode, None)
        stream = self._streams.pop(inode, None)
        if inode in self._reopened:
            self._reopened.discard(inode)
            if stream is None or not stream.was_read:
                self._delivered.kept()
            elif stream.began_at_start:
                self._delivered.missed()
        if stream is not None:
            stream.close()

    def statistics(self) -> ReadStatistics:
        """Return the figures of now."""
        counts = asdict(self._fetches.counts)
        return ReadStatistics(**counts, open_files=len(self._streams), pool=self._pool.statistics())

    def check_invariants(self) -> None:
        """Assert that the pool's books are right, for tests."""
        self._pool.check_invariants()

    def _is_wanted(self, inode: int, ref: ObjectRef, *, is_cached: bool) -> bool:
        """Return whether the open of a file is reason to fetch it, or to keep what was fetched of it before."""
        if not ref.size_bytes or ref.storage_class in ARCHIVE_STORAGE_CLASSES:
            return False
        if self._pool.is_expected(inode):
            return True
        return not is_cached and ref.size_bytes <= self._config.part_size_bytes

    def _open(self, inode: int, ref: ObjectRef) -> Stream:
        stream = self._streams.get(inode)
        if stream is not None:
            if stream.file.ref == ref:
                return stream
            self.release(inode)
        file = self._pool.open(inode, ref)
        stream = Stream(
            file, self._reader, self._pool, self._config, self._fetches, self._service, self._read_on,
            is_cached=inode in self._reopened and self._delivered.has(inode),
        )  # fmt: skip
        self._streams[inode] = stream
        return stream

    def _read_on(self, inode: int, size_bytes: int, left_bytes: int) -> None:
        """Read ahead `size_bytes` of the files that follow on `inode`, whose reader is `left_bytes` from its end.

        Otherwise a reader waits for the first bytes of every shard, and for a window that grows again.
        """
        self._follow(self._prefetcher.followers(inode), size_bytes, left_bytes)

    def _follow(self, files: Iterator[tuple[int, ObjectRef]], size_bytes: int, before_bytes: int) -> None:
        """Read `size_bytes` of `files` ahead, which come after `before_bytes` of others."""
        for following, ref in islice(files, _MAX_FOLLOWERS):
            if size_bytes <= 0 or (following in self._streams and following not in self._followers):
                break
            stream = self._open(following, ref)  # first: it forgets a follower of another version
            self._followers.setdefault(following, self._unforeseen_opens)
            if not self._fetch_first(stream, size_bytes, before_bytes):
                break
            size_bytes -= ref.size_bytes
            before_bytes += ref.size_bytes

    def _fetch_first(self, stream: Stream, size_bytes: int, before_bytes: int) -> bool:
        start, size_bytes = 0, min(size_bytes, stream.file.ref.size_bytes)
        while start < size_bytes:
            part = stream.file.at(start)
            if part is not None:
                start = part.end
                continue
            end = known_part_end(start, stream.file.ref.size_bytes, self._config.part_size_bytes, before_bytes)
            if not stream.fetch(start, end):
                return False
            start = end
        return True

    def _release_old_followers(self) -> None:
        followers = self._followers
        while followers:
            inode, since = next(iter(followers.items()))
            patience = _PATIENCE_OPENS if len(followers) <= _MAX_FOLLOWERS else _PATIENCE_OPENS // 2
            if self._unforeseen_opens - since < patience:
                return
            self.release(inode)
